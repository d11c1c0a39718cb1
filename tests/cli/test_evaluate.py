import io
import json
import re
import shutil
from pathlib import Path
from typing import get_args

import pytest
import torch
from safetensors.torch import load_file, save_file

from linnet.cli.main import main
from linnet.data.prepare import prepare_texts
from linnet.data.token_data import TokenData
from linnet.inference.weights import Precision
from linnet.model.decoder import Decoder
from linnet.model.spec import ModelSpec
from linnet.model.store import save_decoder

TRAIN = ["the bird sang to the tree and the tree was glad. " * 3] * 8
VALIDATION = [f"tree {n} was glad of the bird. " for n in range(9)]


@pytest.fixture(scope="module")
def data(tmp_path_factory):
    folder = tmp_path_factory.mktemp("evaluate") / "data"
    prepare_texts(TRAIN, VALIDATION, folder, tokenizer="bytes")
    return folder


def _model(folder, data, mixer, positions="none"):
    plain = {
        "vocab_size": 257,
        "d_model": 8,
        "context_length": 16,
        "embedding": {"positions": positions},
        "blocks": [{"mixer": mixer}],
    }
    torch.manual_seed(0)
    decoder = Decoder(ModelSpec.parse(plain, "test"))
    with torch.no_grad():
        decoder.embedding.tokens.weight.mul_(100)
    save_decoder(decoder, folder)
    shutil.copy(data / "tokenizer.json", folder)
    return folder


@pytest.fixture(scope="module")
def plga(data, tmp_path_factory):
    mixer = {"kind": "plga", "heads": 2, "metric_hidden": 8, "residual_units": 1}
    return _model(tmp_path_factory.mktemp("plga") / "model", data, mixer)


@pytest.fixture(scope="module")
def ted(data, tmp_path_factory):
    return _model(tmp_path_factory.mktemp("ted") / "model", data, {"kind": "ted"}, positions="learned")


def _figures(capsys, *arguments):
    assert main(["evaluate", *map(str, arguments), "--json"]) == 0
    return json.loads(capsys.readouterr().out)


def _fails(capsys, *arguments):
    assert main(["evaluate", *map(str, arguments)]) == 2
    lines = capsys.readouterr().err.splitlines()
    assert len(lines) == 1
    return lines[0]


def test_every_token_and_byte_of_the_split_is_counted_once(capsys, ted, data):
    found = _figures(capsys, ted, "--data", data)
    split = TokenData.open(data).manifest.splits["validation"]
    assert (found["tokens"], found["bytes"]) == (split.tokens - 1, split.bytes)
    assert "leak" not in found


def test_a_limit_and_a_context(capsys, ted, data):
    assert _figures(capsys, ted, "--data", data, "--limit-tokens", 50)["tokens"] == 48
    shorter = _figures(capsys, ted, "--data", data, "--limit-tokens", 50, "--context-length", 7)["tokens"]
    assert abs(shorter - 50) < 7


def test_a_model_that_sees_the_future_is_printed_with_its_leak(capsys, plga, data):
    found = _figures(capsys, plga, "--data", data)
    assert found["leak"] == found["bits_per_byte"] - found["whole_sequence_bits_per_byte"] != 0
    empty = _figures(capsys, plga, "--data", data, "--calibrate-on", "empty")
    assert empty["whole_sequence_bits_per_byte"] == found["whole_sequence_bits_per_byte"]
    assert empty["bits_per_byte"] != found["bits_per_byte"]
    assert main(["evaluate", str(plga), "--data", str(data)]) == 0
    table = capsys.readouterr().out
    assert f"{found['bits_per_byte']:.4f}" in table and f"{found['leak']:+.4f}" in table


def test_weights_of_every_precision(capsys, ted, plga, data):
    for model in (ted, plga):
        found = [
            _figures(capsys, model, "--data", data, "--limit-tokens", 100, *more)
            for more in ([], *(["--precision", weights] for weights in get_args(Precision)))
        ]
        stored, *others = (figures["bits_per_byte"] for figures in found)
        assert [figures.get("bits_per_byte_as_stored") for figures in found] == [None, *[pytest.approx(stored)] * 4]
        assert others[0] == stored
        assert len(set(others)) == 4 and all(abs(other / stored - 1) < 0.02 for other in others[:-1])
        assert abs(others[-1] / stored - 1) < 0.1
    assert main(["evaluate", str(ted), "--data", str(data), "--precision", "int8"]) == 0
    assert re.search(r"int8 costs +[+-]0\.\d{4} bits/byte +against the weights as stored, \d", capsys.readouterr().out)
    assert "'int2' is not one of 'float32', 'bfloat16', 'int8', 'int4'" in _fails(
        capsys, ted, "--data", data, "--precision", "int2"
    )


def test_weights_on_a_text_that_can_be_read_once(capsys, monkeypatch, ted):
    monkeypatch.setattr("sys.stdin", io.TextIOWrapper(io.BytesIO(b"abcabcabcabc")))
    figures = _figures(capsys, ted, "--data", "-", "--precision", "int8")
    assert figures["bits_per_byte"] > 0 and "bits_per_byte_as_stored" not in figures


def test_a_run_folder_stands_for_its_model(capsys, ted, data, tmp_path):
    shutil.copytree(ted, tmp_path / "run" / "model")
    run, model = (_figures(capsys, path, "--data", data) for path in (tmp_path / "run", ted))
    assert run["bits_per_byte"] == model["bits_per_byte"]


def test_another_tokenizer_is_refused(capsys, ted, tmp_path):
    prepare_texts(TRAIN, VALIDATION, tmp_path / "bpe", tokenizer="bpe", vocab_size=300)
    message = _fails(capsys, ted, "--data", tmp_path / "bpe")
    assert "another tokenizer" in message and "--tokenizer" in message


def test_the_operator_never_comes_from_the_evaluated_text(capsys, plga, ted, data):
    assert "use empty" in _fails(capsys, plga, "--data", data, "--split", "train")
    assert _figures(capsys, plga, "--data", data, "--split", "train", "--calibrate-on", "empty")["tokens"] > 1000
    assert _figures(capsys, ted, "--data", data, "--split", "train")["split"] == "train"


def test_mistakes_are_one_line(capsys, ted, data, tmp_path):
    assert "neither a model folder nor a run folder" in _fails(capsys, tmp_path, "--data", data)
    assert "not a data folder" in _fails(capsys, ted, "--data", tmp_path)
    assert "tiny-ted: a preset, a description without weights; `linnet train --model tiny-ted --data DIR" in _fails(
        capsys, "tiny-ted", "--data", data
    )
    assert "learned positions end at 16" in _fails(capsys, ted, "--data", data, "--context-length", 17)
    assert "--limit-tokens" in _fails(capsys, ted, "--data", data, "--limit-tokens", 0)
    if not torch.cuda.is_available():
        assert "--device 'cuda'" in _fails(capsys, ted, "--data", data, "--device", "cuda")


def test_nested_errors_are_named(capsys, ted, data, tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)  # short names: a long line is cut
    tmp_path = Path()
    for part in ("part-1", "whole"):
        (tmp_path / "data" / part).mkdir(parents=True)
        (tmp_path / "data" / part / "manifest.json").touch()
    message = _fails(capsys, ted, "--data", tmp_path / "data")
    assert f"expected one of {tmp_path / 'data/part-1'}, {tmp_path / 'data/whole'}" in message
    (tmp_path / "runs" / "one-seed-0").mkdir(parents=True)
    (tmp_path / "runs" / "one-seed-0" / "model").symlink_to(ted)
    message = _fails(capsys, tmp_path, "--data", data)
    assert f"the folder of a comparison; expected one of its runs, as {tmp_path / 'runs/one-seed-0'}" in message


def test_other_operators_replace_those_of_the_model(capsys, plga, ted, data, tmp_path):
    own = _figures(capsys, plga, "--data", data, "--calibrate-on", "empty")
    found = {o: _figures(capsys, plga, "--data", data, "--calibration", o) for o in ("identity", "random")}
    assert len({own["bits_per_byte"], *(each["bits_per_byte"] for each in found.values())}) == 3
    assert all("leak" not in each for each in found.values()), "a fixed operator is causal"
    assert found["random"] == _figures(capsys, plga, "--data", data, "--calibration", "random")
    path = tmp_path / "own.safetensors"
    assert main(["inspect", "operator", str(plga), "--save", str(path)]) == 0
    capsys.readouterr()
    frozen = _figures(capsys, plga, "--data", data, "--calibration", path)
    assert frozen["bits_per_byte"] == pytest.approx(own["bits_per_byte"], rel=1e-6)
    assert "the model has no plga layer" in _fails(capsys, ted, "--data", data, "--calibration", "identity")


def test_random_operators_follow_the_seed(capsys, plga, data):
    drawn = [_figures(capsys, plga, "--data", data, "--calibration", "random", *seed) for seed in ([], ["--seed", 0])]
    assert drawn[0] == drawn[1] and drawn[0]["seed"] == 0
    other = _figures(capsys, plga, "--data", data, "--calibration", "random", "--seed", 1)
    assert other["seed"] == 1 and other["bits_per_byte"] != drawn[0]["bits_per_byte"]
    assert main(["evaluate", str(plga), "--data", str(data), "--calibration", "random", "--seed", "1"]) == 0
    table = capsys.readouterr().out
    assert f"{other['bits_per_byte']:.4f}" in table and "random" in table and "seed 1" in table


def test_the_seed_is_for_random_operators_only(capsys, plga, data):
    assert _figures(capsys, plga, "--data", data, "--calibration", "identity")["seed"] is None
    for operator in ([], ["--calibration", "identity"]):
        message = _fails(capsys, plga, "--data", data, *operator, "--seed", 1)
        assert "--seed 1: goes with --calibration random" in message
    for seed in (-1, 2**63):
        message = _fails(capsys, plga, "--data", data, "--calibration", "random", "--seed", seed)
        assert f"--seed {seed}: expected a whole number from 0 to 2**63 - 1" in message


def test_a_model_that_broke_down_gives_valid_json(capsys, ted, data, tmp_path):
    broken = tmp_path / "broken"
    shutil.copytree(ted, broken)
    tensors = load_file(broken / "model.safetensors")
    nothing = {name: torch.full_like(tensor, torch.nan) for name, tensor in tensors.items()}
    save_file(nothing, broken / "model.safetensors")
    assert main(["evaluate", str(broken), "--data", str(data), "--json"]) == 0
    found = json.loads(capsys.readouterr().out, parse_constant=lambda name: pytest.fail(f"{name} is not JSON"))
    assert found["bits_per_byte"] is None
    assert found["tokens"] > 0


@pytest.fixture(scope="module")
def text(tmp_path_factory):
    path = tmp_path_factory.mktemp("text") / "text.txt"
    path.write_text("<|endoftext|>".join(VALIDATION))
    return path


def test_a_file_of_text_with_a_stride_and_a_plot(capsys, ted, text, tmp_path):
    found = _figures(capsys, ted, "--data", text, "--stride", 4, "--plot", tmp_path / "positions.png")
    assert (found["bytes"], found["documents"], found["split"]) == (sum(map(len, VALIDATION)), len(VALIDATION), None)
    assert (found["stride"], found["context_length"]) == (4, 16)
    assert (tmp_path / "positions.png").read_bytes().startswith(b"\x89PNG")
    assert main(["evaluate", str(ted), "--data", str(text), "--stride", "4"]) == 0
    table = capsys.readouterr().out
    assert f"{found['bits_per_byte']:.4f} ± {found['standard_error']:.4f}" in table
    assert "stride 4: at least 12" in table and "8 to 15" in table
    assert f"{found['positions'][-1]['nats_per_token']:.4f}" in table
    for file in (text, "data"):
        assert ".png" in _fails(capsys, ted, "--data", file, "--plot", tmp_path / "positions.svg")


def test_several_models_are_compared(capsys, ted, plga, data):
    found = _figures(capsys, ted, plga, "--data", data, "--bootstrap", 100)
    (pair,) = found["pairs"]
    bits = {model["model"]: model["bits_per_byte"] for model in found["models"]}
    assert pair["difference"] == pytest.approx(bits[pair["second"]] - bits[pair["first"]])
    assert (pair["first"], found["split"]) == (max(bits, key=bits.get), "validation")
    assert main(["evaluate", str(ted), str(plga), "--data", str(data)]) == 0
    table = capsys.readouterr().out
    assert f"{pair['difference']:+.4f} ± {pair['standard_error']:.4f}" in table
    assert f"{len(VALIDATION)} separate documents" in table


def test_several_models_with_other_operators(capsys, plga, data):
    options = ("--data", data, "--stride", 8, "--calibration", "random", "--seed", 1)
    found = _figures(capsys, plga, plga, *options)
    alone = _figures(capsys, plga, *options)
    own = _figures(capsys, plga, "--data", data, "--stride", 8)
    assert (found["calibration"], found["seed"]) == ("random", 1)
    assert {model["bits_per_byte"] for model in found["models"]} == {alone["bits_per_byte"]} != {own["bits_per_byte"]}


def test_cache_policies_of_a_ted_model(capsys, ted, plga, data):
    found = _figures(capsys, ted, "--data", data, "--cache-policy", "top_k=1", "--limit-tokens", 60)["cache_policies"]
    assert [one["cache_policy"] for one in found] == ["full", "bank", "top_k 1"]
    assert main(["evaluate", str(ted), "--data", str(data), "--cache-policy", "top_k=1", "--limit-tokens", "60"]) == 0
    assert f"{found[2]['difference']:+.4f}" in capsys.readouterr().out
    assert "--cache-policy top=1: expected full, recalibrate, bank, or top_k" in _fails(
        capsys, ted, "--data", data, "--cache-policy", "top=1"
    )
    assert "(plga) have one cache policy" in _fails(capsys, plga, "--data", data, "--cache-policy", "bank")


def test_options_of_one_model_and_of_several(capsys, ted, plga, data, text):
    for option, value, message in (
        ("--calibration", "identity", f"{ted}: --calibration: identity: the model has no plga layer"),
        ("--seed", "1", "--seed 1: goes with --calibration random"),
        ("--cache-policy", "bank", "--cache-policy bank: goes with one model"),
    ):
        assert message in _fails(capsys, ted, plga, "--data", data, option, value)
    assert "--bootstrap 50: goes with several models" in _fails(capsys, ted, "--data", data, "--bootstrap", 50)
    assert "--stride 17: expected at most the context of 16" in _fails(capsys, ted, "--data", text, "--stride", 17)
    assert "--split train" in _fails(capsys, ted, "--data", text, "--split", "train")
