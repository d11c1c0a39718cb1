"""Transformers' mixtures of experts, Mixtral's, Qwen2's and Qwen3's, and ours."""

from collections.abc import Mapping

import torch
import transformers
from torch import Tensor, nn
from transformers.models.mixtral.modeling_mixtral import MixtralSparseMoeBlock
from transformers.models.qwen2_moe.modeling_qwen2_moe import Qwen2MoeSparseMoeBlock
from transformers.models.qwen3_moe.modeling_qwen3_moe import Qwen3MoeSparseMoeBlock

from linnet.layers.contract import Place
from linnet.layers.feed_forwards.experts import Experts, ExpertsSpec
from same_weights.twins import Twins, drawn


def mixtral(spec: ExpertsSpec, width: int, std: float = 0.3) -> Twins[Experts]:
    """Shares of the chosen made to sum to 1."""
    config = transformers.MixtralConfig(
        hidden_size=width, intermediate_size=spec.hidden, num_local_experts=spec.experts, num_experts_per_tok=spec.top_k
    )
    return _twins(MixtralSparseMoeBlock, config, spec, width, std)


def qwen2(spec: ExpertsSpec, width: int, std: float = 0.3) -> Twins[Experts]:
    """With a shared expert behind a gate."""
    config = transformers.Qwen2MoeConfig(
        hidden_size=width, moe_intermediate_size=spec.hidden, shared_expert_intermediate_size=spec.shared,
        num_experts=spec.experts, num_experts_per_tok=spec.top_k, norm_topk_prob=spec.normalize,
    )  # fmt: skip
    return _twins(Qwen2MoeSparseMoeBlock, config, spec, width, std)


def qwen3(spec: ExpertsSpec, width: int, std: float = 0.3) -> Twins[Experts]:
    """As Mixtral's."""
    config = transformers.Qwen3MoeConfig(
        hidden_size=width, moe_intermediate_size=spec.hidden, num_experts=spec.experts, num_experts_per_tok=spec.top_k,
        norm_topk_prob=spec.normalize,
    )  # fmt: skip
    return _twins(Qwen3MoeSparseMoeBlock, config, spec, width, std)


def _twins(block: type[nn.Module], config: object, spec: ExpertsSpec, width: int, std: float) -> Twins[Experts]:
    torch.manual_seed(0)
    return Twins.of(drawn(block(config), std), spec.build(Place(width, 128)), names)


def names(theirs: Mapping[str, Tensor]) -> dict[str, Tensor]:
    """Ours, of their weights or gradients; theirs are stacked."""
    ours = {"router.map.weight": theirs["gate.weight"]}
    for expert, (up, down) in enumerate(zip(theirs["experts.gate_up_proj"], theirs["experts.down_proj"], strict=True)):
        ours[f"experts.{expert}.up.weight"] = up
        ours[f"experts.{expert}.down.weight"] = down
    if "shared_expert_gate.weight" in theirs:
        gate, up = (theirs[f"shared_expert.{name}_proj.weight"] for name in ("gate", "up"))
        ours["shared.up.weight"] = torch.cat([gate, up])
        ours["shared.down.weight"] = theirs["shared_expert.down_proj.weight"]
        ours["shared_gate.weight"] = theirs["shared_expert_gate.weight"]
    return ours
