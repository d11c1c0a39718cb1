"""Validation of scores on trained models: the published set, tables, folders of runs, and errors."""

import json
import math
from pathlib import Path

import numpy as np
import pytest
import yaml

from linnet.core.errors import UserError
from linnet.core.files import write_json
from linnet.design.report import ValidationReport
from linnet.design.scores import SCORES, Part, ScoreSettings, score
from linnet.design.validation import NAMES, TrainedModel, TrainedSet, read_trained, validate
from linnet.model.spec import ModelSpec
from linnet.present.style import png_of

TABLE = {
    "decoder_parameters": (0.986, 0.64),
    "entropy_beta_0": (0.976, 0.45),
    "entropy_beta_2": (0.988, 0.69),
    "penalized_parameters": (0.991, 0.74),
}
"""Earlier measurements on LiteTransformerSearch's models: over all, and within windows of equal parameters."""

HEAD = "id,n_layer,d_model,n_head,d_inner,params_attention,params_ffn,params_total,valid_ppl"
NUMBER = "expected a positive number, with k, M, G (or B), T or P behind it or none: 1e18, 50M, 2B"


@pytest.fixture(scope="module")
def published(real_data: Path) -> TrainedSet:
    return read_trained(real_data / "scaling" / "lts_gpt2_lm1b.csv")


def test_correlations_on_published_models_are_reproduced_to_two_digits(published: TrainedSet):
    worth = validate(published, ScoreSettings(), list(TABLE), resamples=20)
    for name, (overall, within) in TABLE.items():
        assert round(worth[name].spearman.value, 2) == round(overall, 2)
        assert round(worth[name].within_band.value, 2) == within


@pytest.mark.slow
def test_the_registered_correlations_are_the_measured_ones(published: TrainedSet):
    worth = validate(published, ScoreSettings(), resamples=20)
    measured = {name: (round(one.spearman.value, 2), round(one.within_band.value, 2)) for name, one in worth.items()}
    assert measured == {name: one.measured for name, one in SCORES.items()}


def write_table(path: Path, *rows: str) -> Path:
    path.write_text("\n".join([HEAD, *rows]) + "\n")
    return path


ROWS = [
    "a,2,8,2|2,16|24,512,640,2000,30",
    "b,1,16,2,32,1024,1024,3000,20",
    "c,3,8,2|2|2,8|8|8,768,384,2100,40.5",
]


def test_a_row_of_a_table_is_a_decoder(tmp_path: Path):
    found = read_trained(write_table(tmp_path / "t.csv", *ROWS))
    first = found.models[0]
    assert (first.name, first.decoder_parameters, first.loss) == ("a", 512 + 640, math.log(30))
    assert score(first.parts, "parameters") == 2000
    outside, inside = first.parts
    assert outside.outside
    assert (inside.depth, inside.width) == (2, 8)
    assert inside.mixer == ((8, 8),) * 8
    assert inside.feed_forward == ((8, 16), (16, 8), (8, 24), (24, 8))
    assert found.unit == "nats per token"
    assert found.noise is None


def test_a_table_may_come_from_a_spreadsheet(tmp_path: Path):
    plain = read_trained(write_table(tmp_path / "t.csv", *ROWS))
    text = (tmp_path / "t.csv").read_text().replace(",", " , ")
    (tmp_path / "u.csv").write_text("\ufeff" + text, encoding="utf-8")
    assert read_trained(tmp_path / "u.csv") == plain


@pytest.mark.parametrize(
    ("row", "message"),
    [
        ("d,2,8,2,16,512,640,2000,30", "line 5: d_inner: 16: expected 2 numbers, one for each layer of n_layer"),
        ("d,2,8,2,16|x,512,640,2000,30", f"line 5: d_inner: x: {NUMBER}"),
        ("d,2.7,8,2,16|16,512,640,2000,30", "line 5: n_layer: 2.7: expected a whole number from 1 to 1,000,000"),
        ("d,2,0.5,2,16|16,512,640,2000,30", "line 5: d_model: 0.5: expected a whole number from 1 to 1,000,000"),
        ("d,1,1e300,2,16,512,640,2000,30", "line 5: d_model: 1e300: expected a whole number from 1 to 1,000,000"),
        ("d,0,8,2,16,512,640,2000,30", f"line 5: n_layer: 0: {NUMBER}"),
        ("d,1,8,2,16,512,640,2000,nan", f"line 5: valid_ppl: nan: {NUMBER}"),
        ("d,1,8,2,16,512", f"line 5: params_ffn: : {NUMBER}"),
    ],
)
def test_a_mistake_in_a_table_names_its_line(tmp_path: Path, row: str, message: str):
    with pytest.raises(UserError) as error:
        read_trained(write_table(tmp_path / "t.csv", *ROWS, row))
    assert str(error.value) == f"{tmp_path / 't.csv'}, {message}"


def test_other_sources_are_errors(tmp_path: Path):
    with pytest.raises(UserError, match="no such file or folder"):
        read_trained(tmp_path / "nowhere")
    with pytest.raises(UserError, match="2 trained models; expected at least 3"):
        read_trained(write_table(tmp_path / "t.csv", *ROWS[:2]))
    (tmp_path / "u.csv").write_text("id,n_layer\n")
    with pytest.raises(UserError, match=r"u.csv: column d_model is missing; found id, n_layer"):
        read_trained(tmp_path / "u.csv")


def write_run(
    folder: Path, width: int, bits_per_byte: float, data: str = "d" * 64, tokens: int = 512, **training: object
) -> None:
    block = {"mixer": {"kind": "ted"}, "width": width}
    spec = ModelSpec.parse(
        {"name": folder.name, "vocab_size": 9, "d_model": 8, "context_length": 4, "blocks": [block]}, ""
    )
    write_json(folder / "model" / "config.json", spec.model_dump())
    plain = {"model": spec.model_dump(mode="json"), "data": "data", "training": {"steps": 9, **training}}
    (folder / "config.yaml").write_text(yaml.safe_dump(plain))
    summary = {
        "finished": True,
        "step": 9,
        "tokens": tokens,
        "validation": {"bits_per_byte": bits_per_byte},
        "data": {"manifest_sha256": data, "tokenizer_hash": "t"},
    }
    (folder / "metrics.jsonl").write_text("")
    write_json(folder / "model" / "run.json", summary)


def test_runs_of_equal_models_are_seeds_of_one(tmp_path: Path):
    for seed, (name, width, loss) in enumerate([("a0", 8, 2.0), ("a1", 8, 2.2), ("b", 16, 1.5), ("deep/c", 24, 1.2)]):
        write_run(tmp_path / name, width, loss, seed=seed)
    write_run(tmp_path / "broken", 32, 9.0)
    write_json(tmp_path / "broken" / "model" / "run.json", {"finished": False})
    found = read_trained(tmp_path)
    assert [(model.name, model.losses) for model in found.models] == [
        ("a0", (2.0, 2.2)), ("b", (1.5,)), ("c", (1.2,)),
    ]  # fmt: skip
    reason = "the run is not finished; the command that began it resumes it"
    assert found.left_out == [f"{tmp_path / 'broken'}: {reason}"]
    assert found.unit == "bits per byte"
    assert found.noise == pytest.approx(math.sqrt(0.02))


def test_equal_models_with_different_recipes_are_not_seeds(tmp_path: Path):
    write_run(tmp_path / "a", 8, 2.0)
    write_run(tmp_path / "b", 8, 1.0, optimizer={"lr": 0.1})
    write_run(tmp_path / "c", 16, 1.5)
    found = read_trained(tmp_path)
    assert [model.losses for model in found.models] == [(2.0,), (1.0,), (1.5,)]
    assert found.noise is None


@pytest.mark.parametrize(
    ("other", "message"),
    [
        ({"data": "e" * 64}, "d: another data folder than .*a: their losses are not comparable; expected runs on one"),
        ({"tokens": 513}, "d: trained on 513 tokens, .*a on 512; expected as many"),
    ],
)
def test_runs_on_different_text_are_not_comparable(tmp_path: Path, other: dict, message: str):
    for name, width in (("a", 8), ("b", 16), ("c", 24)):
        write_run(tmp_path / name, width, 2.0)
    write_run(tmp_path / "d", 32, 2.0, **other)
    with pytest.raises(UserError, match=message):
        read_trained(tmp_path)


@pytest.mark.parametrize("summary", [{"tokens": 5}, {"data": {}, "tokens": 5}, {"data": {"manifest_sha256": "a"}}])
def test_a_run_without_its_text_is_refused(tmp_path: Path, summary: dict):
    write_run(tmp_path / "a", 8, 2.0)
    told = {"finished": True, "validation": {"bits_per_byte": 1.0}, **summary}
    write_json(tmp_path / "a" / "model" / "run.json", told)
    with pytest.raises(UserError, match=r"run.json: does not name its data and its tokens; expected a run's"):
        read_trained(tmp_path)


def made_up(noise: float, count: int = 60) -> TrainedSet:
    """Return models whose loss falls with their parameters, up to noise."""
    draws = np.random.default_rng(0)
    sizes = np.sort(draws.integers(1000, 100_000, count))
    losses = 10 - np.log(sizes) + noise * draws.standard_normal(count)
    models = [
        TrainedModel(str(n), (Part(2, 64, ((64, 64),), ((64, 128),), int(size)),), (float(loss),))
        for n, (size, loss) in enumerate(zip(sizes, losses, strict=True))
    ]
    return TrainedSet(models, "nats per token", [])


def test_a_perfect_score_has_no_regret_and_noise_shows_in_the_intervals():
    worth = validate(made_up(0.0), ScoreSettings(), ["decoder_parameters"], resamples=50)["decoder_parameters"]
    assert (worth.spearman.value, worth.kendall.value, worth.within_band.value) == pytest.approx((1, 1, 1))
    assert (worth.regret.value, worth.regret_within_band.value) == (0, 0)
    noisy = validate(made_up(1.0), ScoreSettings(), ["decoder_parameters"], resamples=200)["decoder_parameters"]
    assert noisy.spearman.low < noisy.spearman.value < noisy.spearman.high < 1
    assert noisy.within_band.value < noisy.spearman.value
    assert noisy.regret.value > 0


def test_windows_are_those_of_the_resampled_models():
    """A window of all models equals all models in each resample."""
    worth = validate(made_up(0.3, count=12), ScoreSettings(), ["parameters"], band=12, resamples=100)["parameters"]
    assert worth.within_band.value == worth.spearman.value
    assert (worth.within_band.low, worth.within_band.high) == (worth.spearman.low, worth.spearman.high)


def test_a_seed_determines_the_resamples():
    same = [validate(made_up(1.0), ScoreSettings(), ["parameters"], resamples=20, seed=seed) for seed in (1, 1, 2)]
    assert same[0] == same[1] != same[2]


def test_the_report_shows_the_figures(tmp_path: Path):
    trained = made_up(0.5)
    worth = validate(trained, ScoreSettings(), ["parameters", "penalized_parameters"], band=15, resamples=20)
    figures = json.loads(json.dumps(ValidationReport(trained, worth, 15).to_dict()))
    assert figures["models"] == 60
    assert figures["band"] == 15
    assert figures["scores"].keys() == {"parameters", "penalized_parameters"}
    one = figures["scores"]["parameters"]
    assert one.keys() == {*NAMES, "intervals"}
    assert one["intervals"]["spearman"] == [worth["parameters"].spearman.low, worth["parameters"].spearman.high]
    (table,) = ValidationReport(trained, worth, 15).tables()
    assert [row[0] for row in table.rows] == ["parameters", "penalized_parameters"]
    assert table.rows[0][1].startswith(f"{worth['parameters'].spearman.value:.3f} [")
    (picture,) = ValidationReport(trained, worth, 15).plots()
    titles = [panel.title.split(":")[0] for panel in picture.drawing.panels]
    assert titles == ["parameters", "penalized_parameters"]
    assert png_of(picture.drawing.figure()).startswith(b"\x89PNG")
