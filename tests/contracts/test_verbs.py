"""Every verb of the command line with every kind of mixer and feed-forward; new kinds are found automatically."""

import json
import os
import shutil
import signal
from collections.abc import Callable
from pathlib import Path
from typing import get_args

import pytest
import torch
import yaml
from examples import randomized

import linnet
from linnet.cli.main import main
from linnet.inference.weights import Precision
from linnet.layers.contract import MixerSpec, Place
from linnet.layers.registry import FEED_FORWARDS, MIXERS
from linnet.model.cost import model_cost
from linnet.model.store import load_decoder, save_decoder
from linnet.stories.corpus import texts
from linnet.training.reporter import LogReporter

pytestmark = pytest.mark.cpu_only("runs are compared bit for bit")

LENGTH = 16
MEASURED = ("tokens_per_s", "share_of_peak", "waiting_share", "memory_bytes", "eta_s", "checksum")
Figures = Callable[..., dict]

PRECISIONS = get_args(Precision)
"""In which kinds take turns: each has its tests in all of them in `tests/unit/inference/test_weights.py`."""


def pytest_generate_tests(metafunc: pytest.Metafunc) -> None:
    if "kind" in metafunc.fixturenames:
        metafunc.parametrize("kind", MIXERS, scope="module")


REPLACED = "\ufffd"
"""The replacement of bytes that are not text; a character may be split."""

ROUNDING = 1e-5
"""The tolerance of logits, in standard deviations: a mixture of experts multiplies tokens together."""


OF_CONSTANT_STATE = [
    kind for kind, spec in MIXERS.items() if spec.examples()[0].build(Place(16, LENGTH)).traits.constant_state
]
PARTNERS = dict(zip(OF_CONSTANT_STATE, FEED_FORWARDS.values(), strict=False))
"""Each kind of feed-forward is combined with a mixer with a state of constant size."""
assert len(PARTNERS) == len(FEED_FORWARDS)


def described(mixer: MixerSpec) -> dict:
    """A model whose logits depend on its mixers, unlike with small initial values."""
    feed_forward = PARTNERS.get(mixer.kind, FEED_FORWARDS["glu"]).examples()[0]
    block = {"repeat": 2, "mixer": mixer.model_dump(), "feed_forward": feed_forward.model_dump()}
    return {
        "name": mixer.kind,
        "vocab_size": 257,
        "d_model": 16,
        "context_length": LENGTH,
        "blocks": [block],
        "head": {"tied": False, "norm": {"kind": "rms"}},
        "initialization": {"std": 0.4, "embedding_std": 0.4},
    }


@pytest.fixture(scope="module")
def data(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("data") / "stories"
    stories = tmp_path_factory.mktemp("texts") / "stories.jsonl"
    stories.write_text("".join(json.dumps({"text": text}) + "\n" for text in texts(60)))
    assert main(["prepare", str(stories), "--tokenizer", "bytes", "--out", str(folder)]) == 0
    return folder


@pytest.fixture(scope="module")
def train(kind: str, data: Path, tmp_path_factory: pytest.TempPathFactory) -> Callable[..., int]:
    """`train(out, *assignments)`: the exit code of a short run."""
    config = tmp_path_factory.mktemp(kind) / "run.yaml"
    training = {
        "batch_size": 2,
        "steps": 6,
        "threads": 1,
        "evaluate": {"every": 3, "tokens": 64},
        "checkpoint": {"every": 2},
        "log": {"every": 1},
    }
    model = described(MIXERS[kind].examples()[0])
    config.write_text(yaml.safe_dump({"model": model, "data": str(data), "training": training}))

    def run(out: Path, *assignments: str) -> int:
        changes = [part for assignment in assignments for part in ("--set", assignment)]
        return main(["train", "--config", str(config), "--out", str(out), *changes])

    return run


@pytest.fixture(scope="module")
def trained(train: Callable[..., int], tmp_path_factory: pytest.TempPathFactory) -> Path:
    out = tmp_path_factory.mktemp("runs") / "straight"
    assert train(out) == 0
    return out


@pytest.fixture(scope="module")
def narrow(train: Callable[..., int], tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A run in bfloat16."""
    out = tmp_path_factory.mktemp("runs") / "narrow"
    assert train(out, "training.precision=bfloat16") == 0
    return out


@pytest.fixture(scope="module")
def lively(trained: Path, tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A model like the trained one whose text depends on its mixers, unlike with small initial values."""
    folder = tmp_path_factory.mktemp("models") / "lively"
    torch.manual_seed(0)
    decoder = load_decoder(trained / "model")
    for mixer in decoder.mixers:
        randomized(randomized(mixer))
    save_decoder(decoder, folder)
    shutil.copy(trained / "model" / "tokenizer.json", folder)
    return folder


@pytest.fixture
def figures(capsys: pytest.CaptureFixture[str]) -> Figures:
    """`figures(verb, *arguments)`: the printed JSON."""

    def run(*arguments: object) -> dict:
        capsys.readouterr()
        assert main([*map(str, arguments), "--json"]) == 0
        found: dict = json.loads(capsys.readouterr().out)
        return found

    return run


def ends(out: Path) -> tuple[bytes, list[dict]]:
    lines = [json.loads(line) for line in (out / "metrics.jsonl").read_text().splitlines()]
    counted = [{key: value for key, value in line.items() if key not in MEASURED} for line in lines]
    return (out / "model" / "model.safetensors").read_bytes(), counted


def test_spec_show_counts_its_parameters(trained: Path, figures: Figures):
    found = figures("spec", "show", trained / "model")
    assert found["parameters"]["total"] == sum(p.numel() for p in load_decoder(trained / "model").parameters())


def test_a_resumed_run_ends_like_an_uninterrupted_one(
    train: Callable[..., int], trained: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
):
    with monkeypatch.context() as patched:
        line = LogReporter.line

        def interrupt(self: LogReporter, figures: object) -> None:
            line(self, figures)
            os.kill(os.getpid(), signal.SIGINT)

        patched.setattr(LogReporter, "line", interrupt)
        assert train(tmp_path / "run") == 128 + signal.SIGINT
    stopped = ends(tmp_path / "run")
    assert 1 <= len(stopped[1]) < len(ends(trained)[1])
    assert train(tmp_path / "run") == 0
    assert ends(tmp_path / "run") == ends(trained)


def test_training_in_bfloat16_is_close_to_float32(narrow: Path, trained: Path):
    losses = [[line["loss"] for line in ends(out)[1] if "loss" in line] for out in (narrow, trained)]
    assert losses[0] != losses[1]
    assert losses[0] == pytest.approx(losses[1], rel=0.05)


def test_evaluate_in_a_precision(kind: str, trained: Path, data: Path, figures: Figures):
    weights = PRECISIONS[list(MIXERS).index(kind) % len(PRECISIONS)]
    common = ("evaluate", trained, "--data", data, "--limit-tokens", 200)
    exact, found = figures(*common), figures(*common, "--precision", weights)
    assert found["tokens"] == exact["tokens"]
    assert found["bits_per_byte"] == pytest.approx(exact["bits_per_byte"], rel=0.05)
    assert (found["bits_per_byte"] == exact["bits_per_byte"]) == (weights == "float32")


def test_generate_prints_the_bytes_of_its_state(kind: str, trained: Path, figures: Figures):
    weights = PRECISIONS[(list(MIXERS).index(kind) + 1) % len(PRECISIONS)]
    options = ("--prompt", "Once upon", "--max-tokens", 20, "--seed", 3, "--ignore-eos")
    found = figures("generate", trained, *options, "--precision", weights)
    decoder = linnet.load(trained, precision=weights).decoder
    count = found["prompt_tokens"] + found["tokens"]
    state = decoder.initial_state(1, count)
    decoder(torch.zeros(1, count, dtype=torch.long), state)
    assert found["tokens"] == 20
    assert found["state_bytes"] == state.nbytes
    assert found["state_bytes"] == model_cost(decoder.spec).state_bytes_for_precision(weights, count)


def test_a_saved_stream_continues_as_if_uninterrupted(lively: Path, tmp_path: Path, figures: Figures):
    settings = ("--temperature", 0.7, "--ignore-eos")
    whole = figures("generate", lively, "--prompt", "Once", "--max-tokens", 12, "--seed", 3, *settings)
    kept = tmp_path / "stream.safetensors"
    first = ("--prompt", "Once", "--max-tokens", 7, "--seed", 3, "--save-state", kept)
    begun = figures("generate", lively, *first, *settings)
    rest = figures("generate", lively, "--load-state", kept, "--max-tokens", 5, *settings)
    parts, together = (text.replace(REPLACED, "") for text in (begun["text"] + rest["text"], whole["text"]))
    assert parts == together and begun["text"] and rest["text"]


def test_inspect_causality_agrees_with_the_traits(kind: str, trained: Path, data: Path, figures: Figures):
    found = figures("inspect", "causality", trained, "--data", data, "--windows", 2, "--limit-tokens", 100)
    causal = all(mixer.traits.causal for mixer in load_decoder(trained / "model").mixers)
    assert (found["whole_sequence"]["largest"] < ROUNDING) == causal
    assert found["frozen"]["largest"] < ROUNDING
    assert (found["leak"] is None) == causal


def test_design_finds_a_model_with_it(kind: str, tmp_path: Path, figures: Figures):
    example = described(MIXERS[kind].examples()[0])
    (block,) = example.pop("blocks")
    mixer = {field: value for field, value in block["mixer"].items() if field != "heads"}
    widths = [16] if MIXERS[kind].examples()[0].cross_layer_values(16) else [8, 16]  # what layers leave has one shape
    choices = {"width": widths, "ratio": [1, 2], "head_width": 4, "mixer": mixer, "feed_forward": {"kind": "mlp"}}
    space = tmp_path / "space.yaml"
    space.write_text(yaml.safe_dump({"name": "space", "model": example, "blocks": 2, "block": choices}))
    quick = ("search.population=8", "search.parents=4", "search.iterations=3")
    changes = [part for assignment in quick for part in ("--set", assignment)]
    found = figures("design", "--space", space, "--max-parameters", "50k", *changes)
    assert {block["mixer"]["kind"] for block in found["model"]["blocks"]} == {kind}


def test_compare_shows_its_runs_side_by_side(trained: Path, narrow: Path, figures: Figures):
    runs = figures("compare", trained, narrow)["runs"]
    assert [len(run["seeds"]) for run in runs] == [1, 1]
