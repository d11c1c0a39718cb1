"""The inspections of power-law graph attention: operators, how they vary, and the caches."""

import json
import math

import numpy as np
import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st
from small_models import inspected, small_decoder, small_spec, speaker

from linnet.core.errors import UserError
from linnet.inference.readers import Caches
from linnet.inference.sampling import Sampling
from linnet.inspection.text_model import Target
from linnet.layers.mixers.attention import AttentionSpec
from linnet.layers.mixers.plga import DensitySpec, PlgaSpec
from linnet.layers.mixers.plga.files import save_operators
from linnet.layers.mixers.plga.inspect import (
    CacheComparison,
    CacheRun,
    Invariance,
    OutputVariation,
    Variation,
    compare_caches,
    determinant,
    distances,
    first_difference,
    invariance,
    load_operators,
    operator_pictures,
    operator_tables,
    operators,
    singular_value_curves,
    variation_points,
)
from linnet.layers.mixers.plga.matrices import operator_figures
from linnet.model.calibration import with_stored_calibration
from linnet.model.decoder import Decoder
from linnet.model.store import save_decoder
from linnet.present.style import png_of

PLGA = PlgaSpec(heads=2, metric_hidden=12, residual_units=2)
PROMPT, TOKENS = "a bird", 12


@pytest.fixture(scope="module")
def found() -> CacheComparison:
    return compare_caches(inspected(speaker(PLGA)), PROMPT, TOKENS)


def test_each_setting_generates_the_same_text_as_generate(found):
    model = speaker(PLGA)
    settings = [(run.kv_cache, run.g_cache) for run in found.runs]
    assert settings == [(True, True), (True, False), (False, True), (False, False)]
    for run in found.runs:
        caches = Caches(run.kv_cache, run.g_cache)
        (own,) = model.completions([PROMPT], TOKENS, Sampling(temperature=0.0), caches=caches)
        assert run.text == own.text
    assert found.prompt_tokens == 7


def test_the_operators_are_those_of_the_prompt_or_of_the_whole_text(found):
    model = speaker(PLGA)
    prompt = model.prompt_tokens(PROMPT)
    of_prompt = operators(inspected(model), torch.tensor([prompt]))
    *kept, none = found.runs
    for run in kept:
        assert run.ids == found.runs[0].ids and run.first_difference is None
        assert run.distances == dict.fromkeys(("A", "A_LM", "A_P", "G"), 0.0)
        assert [one.rmse for one in run.outputs] == [one.rmse for one in operator_figures(of_prompt).outputs]
    assert len(none.ids) == TOKENS, "no end token came, so the last one has not been read"
    of_text = operators(inspected(model), torch.tensor([[*prompt, *none.ids[:-1]]]))
    expected = operator_figures(of_text).outputs
    assert [one.rmse for one in none.outputs] == [pytest.approx(one.rmse, rel=1e-9) for one in expected]
    assert none.distances["G"] == pytest.approx(distances(of_text, of_prompt)["G"], rel=1e-9)
    assert none.distances["G"] > 0


def test_a_different_text_is_detected(found):
    first, none = found.runs[0], found.runs[-1]
    place = none.first_difference
    assert place is not None, "this model depends on its operator"
    assert first.ids[:place] == none.ids[:place] and first.ids[place] != none.ids[place]
    assert found.to_dict()["same_text"] is False


def test_an_operator_of_the_first_token_alone_makes_all_settings_the_same():
    found = compare_caches(
        inspected(speaker(PLGA.model_copy(update={"density": DensitySpec(scope="prefix")}))), PROMPT, TOKENS
    )
    assert found.to_dict()["same_text"] is True
    assert all(distance < 1e-12 for run in found.runs for distance in run.distances.values())


class EndsAtOnce:
    """A tokenizer whose end token is 0."""

    end_id, end_ids = 0, (0,)

    def __init__(self, tokenizer) -> None:
        self.vocab_size, self.encode, self.decode = tokenizer.vocab_size, tokenizer.encode, tokenizer.decode

    def encode_document(self, text: str) -> list[int]:
        return [self.end_id, *self.encode(text)]


def test_a_text_of_one_token_and_one_that_ends_at_once():
    assert [run.distances["G"] for run in compare_caches(inspected(speaker(PLGA)), PROMPT, 1).runs] == [0.0] * 4
    model = speaker(PLGA)
    with torch.no_grad():
        model.decoder.head.weight.zero_()  # all tokens equally likely: the first, which is a byte, is taken
    assert [run.text for run in compare_caches(inspected(model), PROMPT, 3).runs] == ["\0\0\0"] * 4
    model.tokenizer = EndsAtOnce(model.tokenizer)
    ended = compare_caches(inspected(model), PROMPT, 3)
    assert [run.ids for run in ended.runs] == [[]] * 4 and ended.to_dict()["same_text"] is True


def test_figures_are_json_by_setting(found):
    plain = json.loads(json.dumps(found.to_dict(), allow_nan=False))
    assert plain["prompt"] == PROMPT and len(plain["settings"]) == 4
    last = plain["settings"][-1]
    assert (last["kv_cache"], last["g_cache"], last["tokens"], last["same_text"]) == (False, False, TOKENS, False)
    assert last["G"].keys() == {"rmse", "max_abs_det", "log10_max_abs_det", "distance"}


@given(st.lists(st.integers(0, 2)), st.lists(st.integers(0, 2)))
def test_the_first_difference(first, other):
    place = first_difference(first, other)
    if first == other:
        assert place is None
    else:
        assert place is not None and first[:place] == other[:place]
        assert first[place : place + 1] != other[place : place + 1]


def test_distances_match_their_definition():
    x, y = [{"G": torch.tensor([[[3.0]]])}, {"G": torch.tensor([[[1.0]]])}], [{"G": torch.tensor([[[1.0]]])}] * 2
    assert distances(x, y) == {"G": pytest.approx(2 / math.sqrt(2))}
    assert math.isnan(distances(x, [{"G": torch.zeros(1, 1, 1)}] * 2)["G"])
    assert math.isnan(distances([{"G": torch.full((1, 1, 1), math.inf)}] * 2, y)["G"])


def _prompts(count: int, tokens: int) -> torch.Tensor:
    prompts = torch.randint(1, 23, (count, tokens), generator=torch.Generator().manual_seed(3))
    prompts[:, 0] = 0
    return prompts


def test_variation_matches_its_definition():
    decoder, prompts = small_decoder(PLGA), _prompts(6, 9)
    found = invariance(inspected(decoder), prompts)
    assert (found.prompts, found.tokens, [one.name for one in found.outputs]) == (6, 9, ["A", "A_LM", "A_P", "G"])
    read = [operators(inspected(decoder), prompt[None]) for prompt in prompts]
    for one in found.outputs:
        together = []
        for layer in range(2):
            x = np.stack([of_prompt[layer][one.name].numpy().flatten() for of_prompt in read])
            mean = sum(x) / 6
            ratios = [np.linalg.norm(row - mean) / np.linalg.norm(mean) for row in x]
            assert one.layers[layer].rms == pytest.approx(math.sqrt(np.mean(np.square(ratios))), rel=1e-9)
            assert one.layers[layer].largest == pytest.approx(max(ratios), rel=1e-9)
            together.append(x)
        x = np.concatenate(together, axis=1)
        ratios = [np.linalg.norm(row - x.mean(axis=0)) / np.linalg.norm(x.mean(axis=0)) for row in x]
        assert one.overall.rms == pytest.approx(math.sqrt(np.mean(np.square(ratios))), rel=1e-9)
        assert one.overall.largest == pytest.approx(max(ratios), rel=1e-9)
        assert one.overall.rms > 1e-3


@pytest.mark.parametrize("dtype", [torch.float32, torch.float64])
def test_an_operator_of_the_first_token_alone_does_not_vary(dtype):
    decoder = small_decoder(PLGA.model_copy(update={"density": DensitySpec(scope="prefix")})).to(dtype)
    for one in invariance(inspected(decoder), _prompts(7, 9)).outputs:
        assert (one.overall.rms, one.overall.largest) == (0.0, 0.0)
        assert one.layers == {0: Variation(0.0, 0.0), 1: Variation(0.0, 0.0)}


def test_figures_are_json_even_of_a_model_that_has_broken_down():
    decoder = small_decoder(PLGA)
    with torch.no_grad():
        decoder.mixers[1].operator.power.fill_(-1e9)
    found = json.loads(json.dumps(invariance(inspected(decoder), _prompts(3, 5)).to_dict(), allow_nan=False))
    assert found["A_P"]["variation"] is found["G"]["per_layer"][1]["largest"] is None
    assert found["G"]["per_layer"][0]["variation"] > 0


def target(source) -> Target:
    return Target(str(source))


def _saved(model, folder):
    save_decoder(model.decoder, folder)
    model.tokenizer.save(folder / "tokenizer.json")
    return folder


@pytest.fixture
def folder(tmp_path):
    return _saved(speaker(PLGA), tmp_path / "model")


@torch.no_grad()
@pytest.mark.parametrize("prompt", [None, "", "a bird"])
def test_a_model_deduces_its_operators_from_the_end_token_and_the_prompt(folder, prompt):
    model = speaker(PLGA)
    tokens = [model.tokenizer.end_id, *model.tokenizer.encode(prompt or "")]
    found = load_operators(target(folder), prompt)
    assert (found.prompt, found.prompt_tokens, found.in_file) == (prompt or "", len(tokens), False)
    assert found.shape == "2 layers, 2 heads of 8 x 8"
    for layer, outputs in zip(found.layers, operators(inspected(model), torch.tensor([tokens])), strict=True):
        for name, expected in outputs.items():
            torch.testing.assert_close(layer[name], expected)


def test_a_file_gives_back_what_a_model_saved(folder, tmp_path):
    found = load_operators(target(folder))
    save_operators(found.layers, tmp_path / "operators.safetensors")
    again = load_operators(target(tmp_path / "operators.safetensors"))
    assert again.in_file and again.prompt is None
    for layer, read in zip(found.layers, again.layers, strict=True):
        assert all(torch.equal(layer[name], read[name]) for name in ("A", "A_LM", "A_P", "G"))


def test_a_model_with_fixed_operators_has_them_alone(tmp_path):
    model = speaker(PLGA)
    fixed = [torch.randn(2, 8, 8, dtype=torch.float64) for _ in range(2)]
    model.decoder = with_stored_calibration(model.decoder, [{"G": g} for g in fixed])
    found = load_operators(target(_saved(model, tmp_path / "fixed")))
    assert [layer.keys() for layer in found.layers] == [{"G"}, {"G"}]
    assert all(torch.equal(layer["G"], g) for layer, g in zip(found.layers, fixed, strict=True))
    assert found.origin == "fixed in the model"
    with pytest.raises(UserError, match=r"prompt: 'a': the operators of .* are fixed"):
        load_operators(target(tmp_path / "fixed"), "a")


def test_models_and_files_without_operators_are_refused(tmp_path):
    attention = _saved(speaker(AttentionSpec(heads=2)), tmp_path / "attention")
    with pytest.raises(UserError, match="its token mixer is attention; expected a model with plga"):
        load_operators(target(attention))
    with pytest.raises(UserError, match="no such folder"):
        load_operators(target(tmp_path / "nowhere"))
    with pytest.raises(UserError, match=r"missing\.npz: no such file"):
        load_operators(target(tmp_path / "missing.npz"))


def test_a_prompt_goes_with_a_model(tmp_path):
    np.savez(tmp_path / "g.npz", **{"0": np.zeros((1, 2, 3, 3))})
    assert load_operators(target(tmp_path / "g.npz")).shape == "1 layer, 2 heads of 3 x 3"
    with pytest.raises(UserError, match=r"prompt: 'a': .*g\.npz is a file"):
        load_operators(target(tmp_path / "g.npz"), "a")


def test_a_prompt_longer_than_learned_positions_is_refused(tmp_path):
    model = speaker(PLGA)
    torch.manual_seed(0)
    model.decoder = Decoder(small_spec(PLGA, vocab_size=257, positions="learned"))
    folder = _saved(model, tmp_path / "learned")
    assert load_operators(target(folder), "a" * 63).prompt_tokens == 64
    with pytest.raises(UserError, match="prompt: 65: the model's learned positions end at 64"):
        load_operators(target(folder), "a" * 64)


@pytest.mark.parametrize(
    ("log10", "text"),
    [
        (0.0, "1"),
        (math.log10(2.5e-30), "2.5e-30"),
        (412.25, "overflow, 10^412.25"),
        (-412.25, "underflow, 10^-412.25"),
        (-math.inf, "0"),
        (math.nan, "not finite"),
    ],
)
def test_determinants(log10: float, text: str):
    assert determinant(log10) == text


def _rows(table) -> dict[str, tuple[str, ...]]:
    """The rows by label; the label of a layer follows that of its output."""
    rows, whole = {}, ""
    for name, *cells in table.rows:
        whole = whole if name.startswith(" ") else name
        rows[name if whole == name else f"{whole}/{name.strip()}"] = tuple(cells)
        assert len(cells) + 1 == len(table.columns)
    return rows


def test_operators():
    a = torch.stack([torch.ones(3, 3), torch.full((3, 3), 2.0)]).double()
    a_lm = torch.diag_embed(torch.tensor([[4.0, 2.0, 1.0], [8.0, 1.0, 0.0]]))
    layers = [{"A": a, "A_LM": a_lm, "G": a}] * 2
    outputs, rank_one, singular = operator_tables(operator_figures(layers))
    rows = _rows(outputs)
    assert list(rows) == [f"{name}{part}" for name in ("A", "A_LM", "G") for part in ("", "/layer 0", "/layer 1")]
    assert rows["A"] == rows["A/layer 1"] == ("1", "0", "1")
    assert rows["A_LM/layer 0"][1:] == ("8", "2 to 3")
    assert _rows(rank_one)["layer 1, head 1"] == ("6", "6", "6", "0")
    assert _rows(singular)["layer 0"] == ("8", "0", "infinite")


def test_a_file_with_one_head_of_g():
    (outputs,) = operator_tables(operator_figures([{"G": torch.eye(64)[None] * 1e9}]))
    assert _rows(outputs)["G"] == ("one head", "overflow, 10^576", "64")


def test_caches():
    layers = [{"G": torch.eye(3).repeat(2, 1, 1) * torch.tensor([1.0, 2.0])[:, None, None]}]
    outputs = operator_figures(layers).outputs
    settings = [(True, True), (False, True), (True, False), (False, False)]
    *runs, _ = [CacheRun(*caches, [1, 2], "ab", None, outputs, {"G": 0.0}) for caches in settings]
    other = CacheRun(*settings[-1], [1], "a", 1, outputs, {"G": 0.25})
    texts, rmse, determinants, distance = CacheComparison("x", 2, 9, [*runs, other]).tables()
    assert list(_rows(texts)) == ["KV and G", "G", "KV", "none"]
    assert _rows(texts)["KV"] == ("2", "the same") and _rows(texts)["none"] == ("1", "different from token 2 on")
    assert _rows(rmse)["none"] == (f"{math.sqrt(1 / 3):.15g}",)
    assert _rows(determinants)["KV and G"] == ("8",)
    assert _rows(distance)["G"] == ("0",) and _rows(distance)["none"] == ("0.25",)


def test_invariance():
    one = OutputVariation("G", Variation(0.25, 0.5), {0: Variation(0.0, 0.0), 3: Variation(math.nan, math.nan)})
    (table,) = Invariance(7, 16, [one]).tables()
    assert _rows(table) == {"G": ("0.25", "0.5"), "G/layer 0": ("0", "0"), "G/layer 3": ("not finite", "not finite")}
    assert "7 prompts of 16 tokens" in table.meaning


def test_every_output_has_a_picture_with_its_layers():
    random = np.random.default_rng(0)
    layers = [{name: torch.from_numpy(random.normal(size=(2, 4, 4))) for name in ("A_LM", "G")} for _ in range(3)]
    found = operator_pictures(operator_figures(layers), layers)
    assert [picture.name for picture in found] == ["A_LM", "G", "singular_values"]
    assert found[0].title == "A_LM of every head, 4 x 4" and list(found[0].drawing.layers) == [0, 1, 2]
    assert np.array_equal(found[1].drawing.layers[2], layers[2]["G"].numpy())


def test_singular_values_have_a_panel_for_a_layer_and_a_line_for_a_head():
    plot = singular_value_curves({0: [[3.0, 1.0, 0.0]], 2: [[1.0, math.nan, 1e-9], [2.0, 1.0, 0.5]]})
    assert [panel.title for panel in plot.panels] == ["layer 0", "layer 2"]
    first, second = (panel.series for panel in plot.panels)
    assert list(first[0].x) == [1, 2, 3] and list(first[0].y)[:2] == [3.0, 1.0] and math.isnan(first[0].y[2])
    assert len(second) == 2 and second[0].color != second[1].color
    png_of(singular_value_curves({layer: [[2.0, 1.0]] * 3 for layer in range(4)}).figure())


@pytest.mark.parametrize("least", [1e-9, 0.0, math.nan])
def test_outputs_without_variation_have_no_points(least: float):
    (panel,) = variation_points({"A": {0: 0.1, 1: least}, "G": {0: least, 1: 2e-5}}).panels
    assert [one.name for one in panel.series] == ["A", "G"] and panel.x.places == {0: "0", 1: "1"}
    assert panel.series[0].y[0] == 0.1
    assert panel.series[0].y[1] == least or math.isnan(panel.series[0].y[1])
    png_of(variation_points({"A": {0: least}, "G": {0: 0.0}}).figure())
