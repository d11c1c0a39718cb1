"""The same weights in Transformers' mixtures of experts (Mixtral, Qwen2-MoE, Qwen3-MoE) and in ours give the same
outputs, gradients and load-balancing loss.
"""

from collections.abc import Mapping

import pytest
import torch
from torch import Tensor, nn

from linnet.layers.contract import Place
from linnet.layers.feed_forwards.experts import Experts, ExpertsSpec
from linnet.layers.view import Record, View

transformers = pytest.importorskip("transformers")
from transformers.models.mixtral.modeling_mixtral import MixtralSparseMoeBlock, load_balancing_loss_func  # noqa: E402
from transformers.models.qwen2_moe.modeling_qwen2_moe import Qwen2MoeSparseMoeBlock  # noqa: E402
from transformers.models.qwen3_moe.modeling_qwen3_moe import Qwen3MoeSparseMoeBlock  # noqa: E402

WIDTH, HIDDEN, SHARED, EXPERTS, TOP_K = 16, 12, 20, 6, 3


def mixtral() -> tuple[nn.Module, ExpertsSpec]:
    config = transformers.MixtralConfig(
        hidden_size=WIDTH, intermediate_size=HIDDEN, num_local_experts=EXPERTS, num_experts_per_tok=TOP_K
    )
    return MixtralSparseMoeBlock(config), ExpertsSpec(hidden=HIDDEN, experts=EXPERTS, top_k=TOP_K)


def qwen2() -> tuple[nn.Module, ExpertsSpec]:
    config = transformers.Qwen2MoeConfig(
        hidden_size=WIDTH, moe_intermediate_size=HIDDEN, shared_expert_intermediate_size=SHARED, num_experts=EXPERTS,
        num_experts_per_tok=TOP_K, norm_topk_prob=False,
    )  # fmt: skip
    spec = ExpertsSpec(hidden=HIDDEN, experts=EXPERTS, top_k=TOP_K, normalise=False, shared=SHARED)
    return Qwen2MoeSparseMoeBlock(config), spec


def qwen3() -> tuple[nn.Module, ExpertsSpec]:
    config = transformers.Qwen3MoeConfig(
        hidden_size=WIDTH, moe_intermediate_size=HIDDEN, num_experts=EXPERTS, num_experts_per_tok=TOP_K,
        norm_topk_prob=True,
    )  # fmt: skip
    return Qwen3MoeSparseMoeBlock(config), ExpertsSpec(hidden=HIDDEN, experts=EXPERTS, top_k=TOP_K)


def names(theirs: Mapping[str, Tensor]) -> dict[str, Tensor]:
    """Theirs are stacked."""
    ours = {"router.map.weight": theirs["gate.weight"]}
    for expert in range(EXPERTS):
        ours[f"experts.{expert}.up.weight"] = theirs["experts.gate_up_proj"][expert]
        ours[f"experts.{expert}.down.weight"] = theirs["experts.down_proj"][expert]
    if "shared_expert_gate.weight" in theirs:
        gate, up = (theirs[f"shared_expert.{name}_proj.weight"] for name in ("gate", "up"))
        ours["shared.up.weight"] = torch.cat([gate, up])
        ours["shared.down.weight"] = theirs["shared_expert.down_proj.weight"]
        ours["shared_gate.weight"] = theirs["shared_expert_gate.weight"]
    return ours


def pair(which) -> tuple[nn.Module, Experts]:
    torch.manual_seed(0)
    theirs, spec = which()
    for parameter in theirs.parameters():
        nn.init.normal_(parameter, std=0.3)
    ours = spec.build(Place(WIDTH, 128))
    ours.load_state_dict(names(theirs.state_dict()))
    return theirs, ours


@pytest.mark.parametrize("length", [1, 2, 65])
@pytest.mark.parametrize("which", [mixtral, qwen2, qwen3])
def test_outputs_and_all_gradients(which, length: int):
    theirs, ours = pair(which)
    x_BTD, upstream = torch.randn(2, length, WIDTH), torch.randn(2, length, WIDTH)
    found = []
    for block in (theirs, ours):
        x = x_BTD.clone().requires_grad_()
        out = block(x)
        out.backward(upstream)
        found.append((out, x.grad, {name: weight.grad for name, weight in block.named_parameters()}))
    (expected, of_x, of_theirs), (out, of_own_x, of_ours) = found
    torch.testing.assert_close(out, expected, rtol=1e-4, atol=1e-5)
    torch.testing.assert_close(of_own_x, of_x, rtol=1e-4, atol=1e-5)
    torch.testing.assert_close(of_ours, names(of_theirs), rtol=1e-4, atol=1e-5)


@pytest.mark.parametrize("which", [mixtral, qwen2, qwen3])
def test_the_load_balancing_loss_and_its_gradient(which):
    """Of one layer; of several theirs is the loss of all their tokens together, ours the mean of each one's."""
    theirs, ours = pair(which)
    x_BTD, record = torch.randn(2, 33, WIDTH), Record(training=True)
    ours(x_BTD, view=View(record=record))
    (value,) = (loss.value for loss in record.losses if loss.name == "balance")
    logits_RE = x_BTD.flatten(0, 1) @ theirs.gate.weight.t()
    expected = load_balancing_loss_func((logits_RE,), EXPERTS, TOP_K)
    torch.testing.assert_close(value, expected)
    (of_theirs,) = torch.autograd.grad(expected, theirs.gate.weight)
    (of_ours,) = torch.autograd.grad(value, ours.router.map.weight)
    torch.testing.assert_close(of_ours, of_theirs)
