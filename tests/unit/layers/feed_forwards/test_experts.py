import pytest
import torch

from linnet.core.errors import UserError
from linnet.layers.batch_layout import AuxiliaryOutputs, BatchLayout
from linnet.layers.contract import Place
from linnet.layers.feed_forwards.experts import Experts, ExpertsSpec
from linnet.layers.passes import run
from linnet.model.cost import model_cost
from linnet.model.spec import ModelSpec

WIDTH = 16
PLACE = Place(WIDTH, 64)


def trained(layer: Experts, x_BTD: torch.Tensor, padding: tuple[int, ...] | None = None) -> tuple[torch.Tensor, dict]:
    """The outputs in training, and the auxiliary losses and figures by name."""
    record = AuxiliaryOutputs(training=True)
    out = run(layer, x_BTD, None, BatchLayout(0, padding, record=record))
    return out, {loss.name: loss.value for loss in record.losses}


def test_losses_and_figures_are_added_in_training_only():
    layer, x_BTD, record = ExpertsSpec(hidden=6, experts=4).build(PLACE), torch.randn(2, 9, WIDTH), AuxiliaryOutputs()
    layer(x_BTD, layout=BatchLayout(record=record))
    assert not record.losses
    _, left = trained(layer, x_BTD)
    assert left.keys() == {"balance", "router_z", *(f"layer0.expert{number}" for number in range(4))}
    assert sum(left[f"layer0.expert{number}"] for number in range(4)) == pytest.approx(1)
    silent = ExpertsSpec(hidden=6, experts=4, balance=0, router_z=0).build(PLACE)
    assert all("expert" in name for name in trained(silent, x_BTD)[1])


def test_padding_is_not_counted():
    layer, x_BTD = ExpertsSpec(hidden=6, experts=4, capacity=1.0).build(PLACE), torch.randn(1, 9, WIDTH)
    _, left = trained(layer, x_BTD, (4,))
    expected = trained(layer, x_BTD[:, 4:])[1]
    names = [name for name in left if name != "dropped"]
    torch.testing.assert_close([left[name] for name in names], [expected[name] for name in names])


def test_fractions_are_those_of_all_processes():
    """The mean of the losses of two halves, with the fractions of both, is the loss of the whole."""
    layer, x_BTD = ExpertsSpec(hidden=6, experts=4).build(PLACE).double(), torch.randn(2, 9, WIDTH).double()
    whole = trained(layer, x_BTD)[1]["balance"]
    counted = []
    layer.total = lambda counts: counted.append(counts) or counts
    alone = [trained(layer, row[None])[1]["balance"] for row in x_BTD]
    layer.total = lambda counts: sum(counted[:2])
    halves = [trained(layer, row[None])[1]["balance"] for row in x_BTD]
    torch.testing.assert_close(sum(halves) / 2, whole)
    assert not torch.isclose(sum(alone) / 2, whole)


def test_capacity_drops_in_training_only_and_reports_the_fraction():
    layer = ExpertsSpec(hidden=6, experts=4, top_k=1, normalize=False, capacity=1.0).build(PLACE)
    with torch.no_grad():
        layer.router.map.weight.zero_()
        layer.router.map.weight[2] = 1.0
    x_BTD = torch.rand(3, 8, WIDTH)  # all tokens go to one expert, which has room for two of a row
    out, left = trained(layer, x_BTD)
    assert left["dropped"] == 0.75
    assert not out[:, 2:].any()
    torch.testing.assert_close(out[:, :2], layer(x_BTD)[:, :2])
    assert layer(x_BTD)[:, 2:].any()


def test_a_single_expert_equals_a_gated_feed_forward():
    layer, x_BTD = ExpertsSpec(hidden=6, experts=1, top_k=1).build(PLACE), torch.randn(2, 5, WIDTH)
    torch.testing.assert_close(layer(x_BTD), layer.experts[0](x_BTD))


def test_parameters_of_the_preset():
    cost = model_cost(ModelSpec.load("tiny-experts"))
    assert cost.active_parameters == pytest.approx(1e6, rel=0.02)
    assert cost.parameters == cost.active_parameters + 2 * 6 * 3 * 128 * 480


@pytest.mark.parametrize(
    ("fields", "message"),
    [
        ({"experts": 2, "top_k": 3}, "top_k: 3: must be at most experts, 2"),
        ({"experts": 2, "shared_gate": False}, "shared_gate: False: requires a shared expert"),
    ],
)
def test_invalid_fields_are_refused(fields, message):
    block = {"mixer": {"kind": "ted"}, "feed_forward": {"kind": "experts", "hidden": 4, **fields}}
    with pytest.raises(UserError, match=message):
        ModelSpec.parse({"vocab_size": 9, "d_model": WIDTH, "context_length": 8, "blocks": [block]}, "test")
