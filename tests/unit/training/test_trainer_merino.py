"""A MeRino trains and writes like any other model: blocks of shared weights, widths that change."""

import pytest
import torch

import linnet
from linnet.model.decoder import Decoder
from linnet.model.spec import ModelSpec
from linnet.training.run import train_run
from linnet.training.spec import RunSpec

pytestmark = pytest.mark.usefixtures("quick")

NARROWER = 32


def small(name: str) -> ModelSpec:
    """The preset with every width divided."""
    plain = ModelSpec.load(name).model_dump() | {"vocab_size": 257, "d_model": 24, "context_length": 16}
    for block in plain["blocks"]:
        block["width"] //= NARROWER
        block["mixer"]["heads"] = 2
        block["feed_forward"]["hidden"] //= NARROWER
    return ModelSpec.parse(plain, name)


def test_it_trains_and_writes(tiny_data, tmp_path):
    spec = small("merino-52m")
    settings = {"steps": 40, "threads": 1, "optimizer": {"lr": 3e-3}, "evaluate": {"every": 20, "tokens": 128}}
    run = RunSpec.parse({"model": spec.model_dump(), "data": tiny_data, "training": settings}, "test")
    result = train_run(run, tmp_path / "run")
    assert result.summary["validation"]["bits_per_byte"] < 5.5  # 8 for one that knows nothing
    model = linnet.load(result.model)
    assert model.generate("the", max_tokens=5, seed=1) == model.generate("the", max_tokens=5, seed=1)


@pytest.mark.parametrize("name", ["merino-52m", "merino-61m", "merino-64m"])
def test_every_set_of_weights_gets_a_gradient_from_all_layers_that_share_it(name):
    spec = small(name)
    decoder = Decoder(spec)
    assert [len(block.layers) for block in decoder.blocks] == [1, 1, 1, 1]
    assert spec.layers == len(decoder.layers) == {"merino-52m": 8, "merino-61m": 8, "merino-64m": 11}[name]
    decoder(torch.randint(257, (2, 9))).square().sum().backward()
    assert all(parameter.grad is not None and (parameter.grad != 0).any() for parameter in decoder.parameters())
