"""`linnet inspect` on tiny models: tables, JSON, files, and what is refused."""

import json
import re
import shutil
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch

from linnet.cli.main import load_verb, main
from linnet.data.prepare import prepare_texts
from linnet.data.prepare_pairs import prepare_pairs
from linnet.layers.mixers.plga.files import read_operators
from linnet.model.calibration import with_stored_calibration
from linnet.model.decoder import Decoder
from linnet.model.spec import ModelSpec
from linnet.model.store import load_decoder, save_decoder

TRAIN = ["the bird sang to the tree and the tree was glad. " * 3] * 8
VALIDATION = [f"tree {n} was glad of the bird in its {n} branches. " for n in range(9)]
PLGA = {"kind": "plga", "heads": 2, "metric_hidden": 8, "residual_units": 1}
OUTPUTS = ("A", "A_LM", "A_P", "G")


@pytest.fixture(scope="module")
def data(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("inspect") / "data"
    prepare_texts(TRAIN, VALIDATION, folder, tokenizer="bytes")
    return folder


def _saved(decoder: Decoder, folder: Path, data: Path) -> Path:
    save_decoder(decoder, folder)
    shutil.copy(data / "tokenizer.json", folder)
    return folder


def _model(folder: Path, data: Path, *mixers: dict[str, Any], positions: str = "none") -> Path:
    plain = {
        "vocab_size": 257,
        "d_model": 8,
        "context_length": 16,
        "embedding": {"positions": positions},
        "blocks": [{"repeat": 2 // len(mixers), "mixer": mixer} for mixer in mixers],
    }
    torch.manual_seed(0)
    decoder = Decoder(ModelSpec.parse(plain, "test"))
    with torch.no_grad():
        decoder.embedding.tokens.weight.mul_(100)
    return _saved(decoder, folder, data)


@pytest.fixture(scope="module")
def plga(data: Path, tmp_path_factory: pytest.TempPathFactory) -> Path:
    return _model(tmp_path_factory.mktemp("plga") / "model", data, PLGA)


@pytest.fixture(scope="module")
def prefix(data: Path, tmp_path_factory: pytest.TempPathFactory) -> Path:
    return _model(tmp_path_factory.mktemp("prefix") / "model", data, {**PLGA, "density": {"scope": "prefix"}})


@pytest.fixture(scope="module")
def ted(data: Path, tmp_path_factory: pytest.TempPathFactory) -> Path:
    return _model(tmp_path_factory.mktemp("ted") / "model", data, {"kind": "ted"}, positions="learned")


@pytest.fixture(scope="module")
def forgetful(data: Path, tmp_path_factory: pytest.TempPathFactory) -> Path:
    """TED without positions."""
    return _model(tmp_path_factory.mktemp("forgetful") / "model", data, {"kind": "ted", "heads": 2})


@pytest.fixture(scope="module")
def mixed(data: Path, tmp_path_factory: pytest.TempPathFactory) -> Path:
    """PLGA below, TED above."""
    return _model(tmp_path_factory.mktemp("mixed") / "model", data, PLGA, {"kind": "ted"})


@pytest.fixture(scope="module")
def fixed(plga: Path, data: Path, tmp_path_factory: pytest.TempPathFactory) -> Path:
    decoder = with_stored_calibration(load_decoder(plga), [{"G": torch.eye(4).repeat(2, 1, 1)}] * 2)
    return _saved(decoder, tmp_path_factory.mktemp("fixed") / "model", data)


@pytest.fixture
def figures(capsys: pytest.CaptureFixture[str]):
    """What a command prints with --json; fails on what JSON does not know."""

    def refuse(constant: str) -> None:
        raise AssertionError(f"{constant} is not JSON")

    def run(*arguments: object) -> dict[str, Any]:
        assert main(["inspect", *map(str, arguments), "--json"]) == 0
        return json.loads(capsys.readouterr().out, parse_constant=refuse)

    return run


@pytest.fixture
def table(capsys: pytest.CaptureFixture[str]):
    """What a command prints without --json; what it is about, and what follows, each in one line."""

    def run(*arguments: object) -> str:
        assert main(["inspect", *map(str, arguments)]) == 0
        about, *tables, last = capsys.readouterr().out.split("\n\n")
        return "\n\n".join([" ".join(about.split()), *tables, " ".join(last.split()) if tables else last])

    return run


@pytest.fixture
def refusal(capsys: pytest.CaptureFixture[str]):
    """The one line that a command ends with."""

    def run(*arguments: object) -> str:
        assert main(["inspect", *map(str, arguments)]) == 2
        out, err = capsys.readouterr()
        assert out == "" and len(err.splitlines()) == 1
        return err

    return run


def test_operators_of_a_model(figures, table, plga):
    found = figures("operator", plga)
    assert found["source"] == str(plga) and found["prompt_tokens"] == 1
    for name in OUTPUTS:
        assert {"rmse", "max_abs_det", "per_layer"} <= found[name].keys()
        assert len(found[name]["per_layer"]) == 2
    assert np.shape([layer["singular_values"] for layer in found["A_LM"]["per_layer"]]) == (2, 2, 4)
    text = table("operator", plga)
    assert "2 layers, 2 heads of 4 x 4; deduced from the empty prompt" in text
    assert f"{found['G']['rmse']:.6g}" in text and f"{found['A']['per_layer'][1]['rmse_between_rows']:.6g}" in text
    longer = figures("operator", plga, "--prompt", "the bird")
    assert longer["prompt_tokens"] == 9 and longer["G"]["rmse"] != found["G"]["rmse"]
    assert "deduced from 'the bird'" in table("operator", plga, "--prompt", "the bird")


def test_operators_are_saved_and_read_again(figures, plga, tmp_path):
    saved = tmp_path / "new" / "G.safetensors"
    found = figures("operator", plga, "--save", saved, "--prompt", "tree")
    again = figures("operator", saved)
    assert (again["prompt"], again["prompt_tokens"]) == (None, None)
    assert {name: again[name] for name in OUTPUTS} == {name: found[name] for name in OUTPUTS}
    assert [layer.keys() for layer in read_operators(saved)] == [set(OUTPUTS)] * 2


def test_operators_of_an_npz_file(figures, table, tmp_path):
    arrays = {str(layer): np.random.default_rng(layer).normal(size=(1, 3, 5, 5)) for layer in range(2)}
    np.savez(tmp_path / "g.npz", **arrays)
    found = figures("operator", tmp_path / "g.npz")
    assert found.keys() == {"source", "prompt", "prompt_tokens", "rank_tolerance", "G"}
    x = np.concatenate(list(arrays.values()))
    assert found["G"]["max_abs_det"] == pytest.approx(np.abs(np.linalg.det(x)).max())
    assert figures("operator", tmp_path / "g.npz", "--rank-tolerance", 0.999)["G"]["rank"]["largest"] == 1
    assert "A: is it rank one?" not in table("operator", tmp_path / "g.npz")


def test_overflow_and_one_head_in_the_table(figures, table, tmp_path):
    np.savez(tmp_path / "g.npz", **{"layer0.G": np.eye(64)[None] * 1e9})
    found = figures("operator", tmp_path / "g.npz")["G"]
    assert (found["rmse"], found["max_abs_det"], found["log10_max_abs_det"]) == (None, None, pytest.approx(576))
    assert re.search(r"G +one head +overflow, 10\^576", table("operator", tmp_path / "g.npz"))


def test_a_model_with_fixed_operators_shows_them_alone(figures, table, fixed):
    found = figures("operator", fixed)
    assert found["G"]["rmse"] == 0 and found["G"]["max_abs_det"] == 1 and "A" not in found
    assert "fixed in the model" in table("operator", fixed)


def _page_pictures(folder: Path) -> int:
    page = (folder / "report.html").read_text()
    assert page.count("<img") == len(list(folder.glob("*.png")))
    assert page.rindex("<img") < page.index('<table class="figures">'), "pictures stand before tables"
    return page.count('src="data:image/svg+xml;base64,')


def test_reports(figures, capsys, plga, data, tmp_path):
    assert main(["inspect", "operator", str(plga), "--out", str(tmp_path / "operator")]) == 0
    assert capsys.readouterr().err == f"report: {tmp_path / 'operator' / 'report.html'}\n"
    assert _page_pictures(tmp_path / "operator") == 5
    assert {path.stem for path in (tmp_path / "operator").glob("*.png")} == {*OUTPUTS, "singular_values"}
    figures("causality", plga, "--data", data, "--out", tmp_path / "causality")
    assert _page_pictures(tmp_path / "causality") == 1
    figures("invariance", plga, "--data", data, "--tokens", 8, "--out", tmp_path / "invariance")
    assert _page_pictures(tmp_path / "invariance") == 1


def test_a_model_that_sees_the_future(figures, table, plga, data, capsys):
    found = figures("causality", plga, "--data", data)
    assert found["whole_sequence"]["largest"] > 1e-3
    assert found["frozen"]["largest"] == 0
    assert [cut["cut"] for cut in found["whole_sequence"]["per_cut"]] == [4, 8, 12]
    assert main(["evaluate", str(plga), "--data", str(data), "--json"]) == 0
    evaluated = json.loads(capsys.readouterr().out)
    assert found["leak"] == evaluated["leak"] != 0
    assert f"{found['leak']:+.4f}" in table("causality", plga, "--data", data)


@pytest.mark.parametrize("name", ["ted", "prefix", "fixed"])
def test_a_causal_model_changes_no_logits_and_has_no_leak(name, request, figures, table, data):
    model = request.getfixturevalue(name)
    found = figures("causality", model, "--data", data)
    for reading in ("whole_sequence", "frozen"):
        assert found[reading]["largest"] == found[reading]["rms"] == 0
    assert found["leak"] is None
    assert re.search(r"leak +none", table("causality", model, "--data", data))


def test_cuts_and_windows_of_causality(figures, plga, data):
    arguments = ("causality", plga, "--data", data, "--context-length", 9, "--limit-tokens", 50)
    found = figures(*arguments, "--cut", 7, "--cut", 2, "--windows", 3)
    assert [len(cut["rms_by_position"]) for cut in found["whole_sequence"]["per_cut"]] == [2, 7]
    assert (found["windows"], found["tokens"]) == (3, 9)
    assert found["evaluation"]["tokens"] < 60
    empty = figures(*arguments, "--calibrate-on", "empty")
    assert empty["evaluation"]["bits_per_byte"] != found["evaluation"]["bits_per_byte"]


def test_invariance(figures, table, plga, data):
    arguments = ("invariance", plga, "--data", data, "--tokens", 12)
    found = figures(*arguments)
    assert (found["prompts"], found["tokens"], found["seed"]) == (9, 12, 0)
    for name in OUTPUTS:
        assert 0 < found[name]["variation"] <= found[name]["largest"]
        assert [layer["layer"] for layer in found[name]["per_layer"]] == [0, 1]
    assert f"{found['G']['variation']:.6g}" in table(*arguments)
    assert figures(*arguments) == found
    few = figures(*arguments, "--prompts", 3)
    assert few["prompts"] == 3 and few["G"] != found["G"] != figures(*arguments, "--prompts", 3, "--seed", 1)["G"]
    assert few["G"] != figures(*arguments, "--prompts", 3, "--seed", 1)["G"]
    train = figures(*arguments, "--split", "train")
    assert train["prompts"] == 8 and train["G"]["variation"] == 0, "its documents are all the same"


def test_an_operator_of_the_end_token_alone_does_not_vary(figures, prefix, data):
    found = figures("invariance", prefix, "--data", data, "--tokens", 12)
    assert all(found[name]["variation"] == found[name]["largest"] == 0 for name in OUTPUTS)


def test_caches_of_more_tokens_than_can_be_recomputed(plga, capsys):
    assert main(["inspect", "caches", str(plga), "--tokens", "1000000"]) == 2
    assert "expected a whole number, at least 1, at most 16,384" in capsys.readouterr().err


def test_caches(figures, table, plga, tmp_path, capsys):
    found = figures("caches", plga, "--prompt", "tree 7", "--tokens", 9, "--out", tmp_path / "out")
    assert (found["model"], found["prompt_tokens"], found["max_tokens"]) == (str(plga), 7, 9)
    settings = [(setting["kv_cache"], setting["g_cache"]) for setting in found["settings"]]
    assert settings == [(True, True), (True, False), (False, True), (False, False)]
    assert (tmp_path / "out" / "report.html").is_file()
    command = ["generate", str(plga), "--prompt", "tree 7", "--max-tokens", "9", "--temperature", "0", "--json"]
    for setting in found["settings"]:
        off = ["--no-kv-cache"] * (not setting["kv_cache"]) + ["--cache-policy", "recalibrate"] * (
            not setting["g_cache"]
        )
        assert main([*command, *off]) == 0
        assert json.loads(capsys.readouterr().out)["text"] == setting["text"]
    text = table("caches", plga, "--prompt", "tree 7", "--tokens", 9)
    assert all(f"{setting['G']['rmse']:.15g}" in text for setting in found["settings"])
    assert "KV and G" in text and "…" not in text


def test_lifetimes_of_the_vocabulary(figures, table, forgetful):
    found = figures("lifetimes", forgetful)
    assert (found["model"], found["threshold"], found["text"]) == (str(forgetful), 1e-8, None)
    entries = found["vocabulary"]["entries"]
    assert sorted(entry["token"] for entry in entries) == list(range(257))
    lives = [entry["lifetime"] for entry in entries]
    assert lives == sorted(lives, reverse=True) and lives[0] > lives[-1] > 0
    longest, shortest = table("lifetimes", forgetful, "--entries", 5).split("Vocabulary in layer 0: ")[1:]
    assert [f"{entry['entry']} " in longest for entry in entries[:6]] == [True] * 5 + [False]
    assert f"{lives[0]:,}" in longest and entries[-1]["entry"] in shortest
    assert "Vocabulary in layer 0\n" in table("lifetimes", forgetful, "--entries", 129)
    shorter = figures("lifetimes", forgetful, "--threshold", 0.1)["vocabulary"]["entries"]
    before = {entry["token"]: entry["lifetime"] for entry in entries}
    assert all(entry["lifetime"] < before[entry["token"]] for entry in shorter)


def test_lifetimes_over_a_text(figures, table, forgetful, data, tmp_path):
    found = figures("lifetimes", forgetful, "--data", data, "--windows", 3, "--context-length", 9, "--threshold", 0.01)
    assert (found["data"], found["split"], found["text"]["windows"], found["text"]["tokens"]) == (
        *(str(data), "validation"), 3, 9
    )  # fmt: skip
    assert [layer["layer"] for layer in found["text"]["per_layer"]] == [0, 1]
    first = found["text"]["per_layer"][0]
    assert first["median"] in [entry["lifetime"] for entry in found["vocabulary"]["entries"]]
    assert 0 < first["average_context"] <= found["text"]["whole_context"] == 5
    text = table("lifetimes", forgetful, "--data", data, "--split", "train", "--out", tmp_path / "out")
    assert "train split of" in text and re.search(r"layer 1 +[\d,]+ ", text)
    assert {path.stem for path in (tmp_path / "out").glob("*.png")} == {"vocabulary", "relevance", "layers"}
    assert _page_pictures(tmp_path / "out") == 3


def test_chosen_tokens_over_time(figures, table, forgetful):
    curves = figures("lifetimes", forgetful)["relevance"]["curves"]
    assert len(curves) == 6
    found = figures("lifetimes", forgetful, "--token", "abb", "--token", "a$")["relevance"]
    assert {curve["entry"] for curve in found["curves"]} == {"'a'", "'b'", "'$'"}
    for curve in found["curves"]:
        assert len(curve["relevance"]) == len(found["ages"])
        assert curve["relevance"] == sorted(curve["relevance"], reverse=True)
    text = table("lifetimes", forgetful, "--token", "a").split("Relevance over time")[1]
    assert "'a'" in text and "'b'" not in text


def test_lifetimes_that_depend_on_the_text(figures, table, refusal, ted, plga, data, tmp_path):
    """With positions nothing is known of a vocabulary entry, but what a text's tokens leave behind is."""
    found = figures("lifetimes", ted, "--data", data, "--out", tmp_path / "out")
    assert (found["vocabulary"], found["relevance"]) == (None, None)
    assert found["unknown_without_text"] == "the model adds positions to its tokens"
    assert len(found["text"]["per_layer"]) == 2 and _page_pictures(tmp_path / "out") == 1
    assert "adds positions to its tokens, so nothing is known without text" in table("lifetimes", ted, "--data", data)
    expected = f"error: {ted}: the model adds positions to its tokens, so lifetimes depend on the text; expected --data"
    assert refusal("lifetimes", ted).startswith(expected)
    assert "--token 'a': " in refusal("lifetimes", ted, "--data", data, "--token", "a")
    assert "its token mixer is plga; expected a model with ted" in refusal("lifetimes", plga)


def test_mistakes_about_lifetimes_are_one_line(refusal, forgetful, data, tmp_path):
    assert "--threshold 0: expected a number above 0" in refusal("lifetimes", forgetful, "--threshold", 0)
    assert "--threshold nan: expected" in refusal("lifetimes", forgetful, "--threshold", "nan")
    assert "--token '': has no token" in refusal("lifetimes", forgetful, "--token", "")
    assert "--entries" in refusal("lifetimes", forgetful, "--entries", 0)
    assert "no such folder" in refusal("lifetimes", tmp_path / "missing")
    assert "expected more than a window of 900" in refusal(
        "lifetimes", forgetful, "--data", data, "--context-length", 900
    )
    decoder = load_decoder(forgetful)
    with torch.no_grad():
        decoder.embedding.tokens.weight.fill_(float("nan"))
    broken = _saved(decoder, tmp_path / "broken", data)
    assert f"{broken}: quantities or rates are not finite" in refusal("lifetimes", broken)


def _evaluated(model: Path, data: Path, capsys: pytest.CaptureFixture[str]) -> dict[str, Any]:
    assert main(["evaluate", str(model), "--data", str(data), "--json"]) == 0
    return json.loads(capsys.readouterr().out)


def _policies(field: str, *values: float) -> list[str]:
    return [word for value in values for word in ("--cache-policy", f"{field}={value}")]


@pytest.mark.parametrize("name", ["ted", "mixed"])
def test_contexts(name, request, figures, table, data, capsys):
    model = request.getfixturevalue(name)
    arguments = ("contexts", model, "--data", data, "--windows", 1000, *_policies("top_k", 1, 2, 4))
    found = figures(*arguments)
    full, bank, *policies = found["contexts"]
    assert (full["context"], bank["context"]) == ("full", "bank")
    assert [(one["top_k"], one["threshold"]) for one in policies] == [(1, -1), (2, -1), (4, -1)]
    evaluated = _evaluated(model, data, capsys)
    assert full["bits_per_byte"] == pytest.approx(evaluated["bits_per_byte"], rel=1e-6)
    assert (found["tokens"], found["bytes"]) == (evaluated["tokens"], evaluated["bytes"])
    assert [layer["layer"] for layer in full["per_layer"]] == ([0, 1] if name == "ted" else [1])
    assert [one["largest_context"] for one in policies] == [1, 2, 4] and full["largest_context"] == 16
    assert policies[0]["difference"] != 0 < policies[0]["standard_error"]
    text = table(*arguments)
    assert f"{policies[1]['bits_per_byte']:.4f}" in text and "top_k 2" in text
    assert text.splitlines()[-1].startswith(("The smallest state within 0.1 % ", "No smaller state stays within 0.1 %"))


def test_the_compared_policies(figures, ted, data, tmp_path):
    arguments = ("contexts", ted, "--data", data, "--windows", 3)
    assert len(figures(*arguments)["contexts"]) == 2 + 6 + 8
    fields = [f"top_k={k},threshold={x},min_tokens_to_keep=3" for k in (2, 4) for x in (-1, 0.5)]
    found = figures(*arguments, *(word for text in fields for word in ("--cache-policy", text)), "--out", tmp_path)
    assert [one["context"] for one in found["contexts"][2:]] == [
        "top_k 2", "top_k 2, threshold 0.5", "top_k 4", "top_k 4, threshold 0.5"
    ]  # fmt: skip
    assert found["contexts"][2]["min_tokens_to_keep"] == found["contexts"][2]["largest_context"] == 3
    assert _page_pictures(tmp_path) == 2
    assert found["windows"] == 3 and found["split"] == "validation"
    lenient = figures(*arguments, *_policies("top_k", 8, 2), "--within", 1000)
    assert (lenient["smallest"], lenient["within_percent"]) == ("top_k 2", 1000)


def test_models_without_a_choice_and_invalid_numbers_are_refused(refusal, plga, ted, data):
    assert refusal("contexts", plga, "--data", data) == (
        f"error: {plga}: has one cache policy: its token mixer is plga; expected a model with ted\n"
    )
    for text in ("top_k=x", "top_k=-2", f"top_k={'9' * 400}", "threshold=nan", "threshold=1e-4,"):
        assert f"error: --cache-policy {text[:9]}" in refusal("contexts", ted, "--data", data, "--cache-policy", text)
    assert "--windows" in refusal("contexts", ted, "--data", data, "--windows", 0)
    assert "learned positions end at 16" in refusal("contexts", ted, "--data", data, "--context-length", 17)


def test_models_without_an_operator_are_refused(refusal, ted, fixed, data):
    expected = f"error: {ted}: has no operator: its token mixer is ted; expected a model with plga\n"
    assert refusal("operator", ted) == refusal("invariance", ted, "--data", data) == expected
    assert refusal("caches", ted) == expected
    assert "its operators are fixed; expected" in refusal("caches", fixed)
    assert "its operators are fixed; expected" in refusal("invariance", fixed, "--data", data)
    assert "are fixed, not deduced" in refusal("operator", fixed, "--prompt", "a")


def test_files_that_hold_no_operators_are_refused(refusal, tmp_path, plga):
    np.savez(tmp_path / "flat.npz", **{"0": np.zeros((3, 5))})
    np.savez(tmp_path / "objects.npz", **{"0": np.array([{"a": 1}], dtype=object)})
    (tmp_path / "g.safetensors").write_text("nothing of the kind")
    assert "0: shape [3, 5]: expected [H, K, K]" in refusal("operator", tmp_path / "flat.npz")
    assert "objects.npz: not a .npz file of numbers" in refusal("operator", tmp_path / "objects.npz")
    assert "g.safetensors" in refusal("operator", tmp_path / "g.safetensors")
    assert "missing.npz: no such file" in refusal("operator", tmp_path / "missing.npz")
    assert "no such folder" in refusal("operator", tmp_path / "missing")
    np.savez(tmp_path / "g.npz", **{"0": np.zeros((1, 5, 5))})
    assert "is a file of operators; expected" in refusal("operator", tmp_path / "g.npz", "--save", "x.safetensors")
    assert "--prompt 'a': " in refusal("operator", tmp_path / "g.npz", "--prompt", "a")


def test_mistakes_are_one_line(refusal, plga, ted, data, tmp_path):
    assert "neither a model folder nor a run folder" in refusal("causality", tmp_path, "--data", data)
    assert "--save g.npz: expected a name" in refusal("operator", plga, "--save", "g.npz")
    assert "not a data folder" in refusal("invariance", plga, "--data", tmp_path)
    assert "--cut 16: expected 1 to 15" in refusal("causality", plga, "--data", data, "--cut", 16)
    assert "--cut 0: expected" in refusal("causality", plga, "--data", data, "--cut", 0)
    assert "--windows" in refusal("causality", plga, "--data", data, "--windows", 1)
    assert "--context-length 1: expected at least 2" in refusal(
        "causality", plga, "--data", data, "--context-length", 1
    )
    assert "two different windows of 900" in refusal("causality", plga, "--data", data, "--context-length", 900)
    assert "learned positions end at 16" in refusal("causality", ted, "--data", data, "--context-length", 17)
    assert "use empty" in refusal("causality", plga, "--data", data, "--split", "train")
    assert "--tokens 900: 0 documents" in refusal("invariance", plga, "--data", data, "--tokens", 900)
    prepare_texts(TRAIN, VALIDATION, tmp_path / "bpe", tokenizer="bpe", vocab_size=300)
    for command in ("causality", "invariance"):
        assert "another tokenizer" in refusal(command, plga, "--data", tmp_path / "bpe")


def test_a_run_folder_stands_for_its_model(figures, plga, tmp_path):
    shutil.copytree(plga, tmp_path / "run" / "model")
    assert figures("operator", tmp_path / "run")["G"] == figures("operator", plga)["G"]


def test_experts(figures, table, refusal, ted, data, tmp_path):
    block = {"mixer": {"kind": "ted"}, "feed_forward": {"kind": "experts", "experts": 3, "hidden": 4}}
    settings = {"vocab_size": 257, "d_model": 8, "context_length": 16, "blocks": [block] * 2}
    mixture = _saved(Decoder(ModelSpec.parse(settings, "test")), tmp_path / "model", data)
    arguments = ("experts", mixture, "--data", data, "--windows", 3)
    found = figures(*arguments, "--out", tmp_path / "out")
    assert _page_pictures(tmp_path / "out") == 1
    assert (found["windows"], found["tokens"], [layer["layer"] for layer in found["per_layer"]]) == (3, 16, [0, 1])
    assert all(sum(layer["shares"]) == pytest.approx(1) for layer in found["per_layer"])
    assert "Usage of experts" in table(*arguments)
    assert "has no experts" in refusal("experts", ted, "--data", data)


@pytest.mark.parametrize(("kind", "ways"), [("attention", 5), ("alibi", 1)])
def test_positions(kind, ways, figures, table, data, tmp_path):
    mixer = {"kind": "attention", "heads": 1, "positions": None if kind == "attention" else {"kind": kind}}
    model = _model(tmp_path / "model", data, mixer)
    found = figures("positions", model, "--data", data, "--windows", 3, "--out", tmp_path / "out")
    assert (found["trained_length"], found["window_tokens"], found["windows"]) == (16, 128, 3)
    assert len(found["variants"]) == ways and (tmp_path / "out" / "loss_by_position.png").exists()
    plain = found["variants"][0]
    assert [part["end"] for part in plain["parts"]] == [2, 4, 8, 12, 16, 24, 32, 48, 64, 96, 128]
    assert all(part["standard_error"] > 0 for part in plain["parts"])
    if ways > 1:
        by_name = {one["positions"]: [part["bits_per_byte"] for part in one["parts"]] for one in found["variants"]}
        assert by_name["NTK, dynamic"][:5] == pytest.approx(by_name["as trained"][:5])
        assert by_name["NTK, dynamic"][-1] == pytest.approx(by_name["NTK"][-1])
        assert len({losses[-2] for losses in by_name.values()}) == 5
    text = table("positions", model, "--data", data, "--windows", 3)
    assert "96 to 128" in text and f"{plain['parts'][-1]['bits_per_byte']:.4f} ± " in text


def test_positions_that_end(figures, refusal, data, tmp_path):
    model = _model(tmp_path / "model", data, {"kind": "attention", "heads": 2, "rotary": None}, positions="learned")
    assert figures("positions", model, "--data", data)["window_tokens"] == 16
    assert "--times 2: the model's learned positions end at 16" in refusal(
        "positions", model, "--data", data, "--times", 2
    )
    assert "expected more than 16,001; prepare more text or read fewer" in refusal(
        "positions", _model(tmp_path / "ted", data, {"kind": "ted"}), "--data", data, "--times", 1000
    )


def _given(verb: str, model: Path, data: Path) -> list[object]:
    return [verb, model, *([] if verb in ("operator", "caches") else ["--data", data])]


@pytest.mark.parametrize("reads", ["encoder", "prefix"])
def test_models_of_pairs_are_refused_by_every_verb(refusal, reads, data, tmp_path):
    """On their own pairs as on a text."""
    block = {"mixer": {"kind": "attention", "heads": 2}}
    reading = {"encoder": {"blocks": [block]}} if reads == "encoder" else {"prefix": True}
    blocks = [{**block, **({"cross_attention": {"heads": 2}} if reads == "encoder" else {})}]
    plain = {"vocab_size": 257, "d_model": 8, "context_length": 16, "blocks": blocks, **reading}
    model = _saved(Decoder(ModelSpec.parse(plain, "test")), tmp_path / "model", data)
    rows = [{"input": "a" * (n % 4 + 1), "target": "b"} for n in range(40)]
    (tmp_path / "pairs.jsonl").write_text("\n".join(map(json.dumps, rows)))
    prepare_pairs(tmp_path / "pairs.jsonl", tmp_path / "pairs", "bytes", validation=0.4)
    expected = f"error: {model}: a model of pairs (an encoder or a prefix); expected a decoder that reads a text\n"
    verbs = load_verb("inspect").commands
    assert {"causality", "positions", "caches"} <= verbs.keys()
    for verb in verbs:
        for text in (tmp_path / "pairs", data):
            assert refusal(*_given(verb, model, text)) == expected
