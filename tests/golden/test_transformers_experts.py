"""The same weights in Transformers' mixtures of experts (Mixtral, Qwen2-MoE, Qwen3-MoE) and in ours give the same
outputs, gradients and load-balancing loss.
"""

import pytest
import torch
from torch import nn

from linnet.layers.batch_layout import AuxiliaryOutputs, BatchLayout
from linnet.layers.feed_forwards.experts import Experts, ExpertsSpec

transformers = pytest.importorskip("transformers")
from transformers.models.mixtral.modeling_mixtral import load_balancing_loss_func  # noqa: E402

from same_weights.experts import mixtral, qwen2, qwen3  # noqa: E402
from same_weights.twins import assert_same_passes  # noqa: E402

WIDTH, HIDDEN, SHARED, EXPERTS, TOP_K = 16, 12, 20, 6, 3


SPECS = {
    mixtral: ExpertsSpec(hidden=HIDDEN, experts=EXPERTS, top_k=TOP_K),
    qwen2: ExpertsSpec(hidden=HIDDEN, experts=EXPERTS, top_k=TOP_K, normalize=False, shared=SHARED),
    qwen3: ExpertsSpec(hidden=HIDDEN, experts=EXPERTS, top_k=TOP_K),
}


def pair(which) -> tuple[nn.Module, Experts]:
    both = which(SPECS[which], WIDTH)
    return both.theirs, both.ours


@pytest.mark.parametrize("length", [1, 2, 65])
@pytest.mark.parametrize("which", [mixtral, qwen2, qwen3])
def test_outputs_and_all_gradients(which, length: int):
    assert_same_passes(which(SPECS[which], WIDTH), WIDTH, length, atol=1e-5)


@pytest.mark.parametrize("which", [mixtral, qwen2, qwen3])
def test_the_load_balancing_loss_and_its_gradient(which):
    """Of one layer; of several theirs is the loss of all their tokens together, ours the mean of each one's."""
    theirs, ours = pair(which)
    x_BTD, record = torch.randn(2, 33, WIDTH), AuxiliaryOutputs(training=True)
    ours(x_BTD, layout=BatchLayout(record=record))
    (value,) = (loss.value for loss in record.losses if loss.name == "balance")
    logits_RE = x_BTD.flatten(0, 1) @ theirs.gate.weight.t()
    expected = load_balancing_loss_func((logits_RE,), EXPERTS, TOP_K)
    torch.testing.assert_close(value, expected)
    (of_theirs,) = torch.autograd.grad(expected, theirs.gate.weight)
    (of_ours,) = torch.autograd.grad(value, ours.router.map.weight)
    torch.testing.assert_close(of_ours, of_theirs)
