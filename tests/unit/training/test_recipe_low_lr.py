import pytest

from linnet.training.recipe import has_low_lr_parameters
from linnet.training.spec import read_run

NAMED = "training.optimizer.low_lr=1e-4"


def test_the_metric_network_has_low_lr_parameters(tiny_model):
    assert has_low_lr_parameters(tiny_model("plga"))
    assert not has_low_lr_parameters(tiny_model("attention")) and not has_low_lr_parameters(tiny_model("ted"))


@pytest.mark.parametrize(
    ("model", "given", "told"),
    [
        ("tiny-ted", {"assignments": [NAMED]}, True),
        ("tiny-attention", {"training": {"optimizer": {"low_lr": 1e-5}}}, True),
        ("tiny-attention", {"recipe": "auto", "assignments": ["training.steps=20"]}, False),
        ("tiny-attention", {"assignments": ["training.optimizer.low_lr=null"]}, False),
        ("tiny-pldr", {"assignments": [NAMED]}, False),
    ],
)
def test_low_lr_without_such_parameters_is_noted(model, given, told, caplog):
    run = read_run(model=model, data="x", **given)
    assert ("it changes nothing" in caplog.text) is told
    assert "recipe" not in given or run.training.optimizer.low_lr is not None
