from pathlib import Path

import pytest
import torch

from linnet.data.prepare import prepare_texts
from linnet.model.decoder import Decoder
from linnet.model.spec import ModelSpec
from linnet.training import machine, metrics
from linnet.training.spec import RunSpec

MIXERS = {
    "attention": {"kind": "attention", "heads": 2},
    "ted": {"kind": "ted"},
    "plga": {"kind": "plga", "heads": 2, "metric_hidden": 8, "residual_units": 1},
}


def _model(mixer: str) -> dict:
    block = {"repeat": 2, "mixer": MIXERS[mixer], "feed_forward": {"kind": "glu", "hidden": 24}}
    return {
        "name": f"tiny-{mixer}",
        "vocab_size": 257,
        "d_model": 16,
        "context_length": 16,
        "blocks": [block],
        "head": {"norm": {"kind": "rms"}},
    }


@pytest.fixture(scope="session")
def tiny_model():
    """`tiny_model(mixer, **changes)`: a model that trains in a moment."""
    return lambda mixer="attention", **changes: ModelSpec.parse({**_model(mixer), **changes}, "test")


@pytest.fixture(scope="session")
def tiny_data(tmp_path_factory) -> Path:
    folder = tmp_path_factory.mktemp("data") / "tiny"
    train = [f"the bird {n} sang to the tree {n % 7} and the tree was glad. " * 3 for n in range(40)]
    validation = [f"the tree {n} sang to the bird and was glad. " for n in range(12)]
    prepare_texts(train, validation, folder, tokenizer="bytes")
    return folder


@pytest.fixture
def quick(monkeypatch):
    """Without what takes time and changes no run: the measured peak, and the picture."""
    monkeypatch.setattr(machine, "PEAK_BUDGET_S", 1e-9)
    monkeypatch.setattr(metrics, "draw_curves", lambda lines, path, title, causal: path.touch())


@pytest.fixture
def tiny_run(tiny_data):
    """`tiny_run(mixer, **training)`: a run of a few steps that takes a moment."""

    def make(mixer: str = "attention", **training) -> RunSpec:
        settings = {
            "batch_size": 2,
            "steps": 12,
            "threads": 1,
            "evaluate": {"every": 4, "tokens": 128},
            "checkpoint": {"every": 3},
            "log": {"every": 2},
            **training,
        }
        return RunSpec.parse({"model": _model(mixer), "data": tiny_data, "training": settings}, "test")

    return make


@pytest.fixture
def decoder_with_weights(tiny_model):
    """`decoder_with_weights(mixer, **model)`: the same weights each time."""

    def make(mixer="attention", **changes):
        torch.manual_seed(0)
        return Decoder(tiny_model(mixer, **changes))

    return make
