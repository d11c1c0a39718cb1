"""Transformers' xLSTM and our mLSTM."""

from collections.abc import Mapping

import torch
import transformers
from torch import Tensor
from transformers.models.xlstm import modeling_xlstm

from linnet.layers.contract import Place
from linnet.layers.mixers.mlstm import Mlstm, MlstmSpec
from same_weights.twins import Twins, drawn


def names(theirs: Mapping[str, Tensor]) -> dict[str, Tensor]:
    """Ours, of their weights or gradients."""
    gates = ("igate_preact", "fgate_preact")
    return {
        "query_key_value_gate.weight": torch.cat(
            [theirs[f"{name}.weight"] for name in ("q", "k", "v", "ogate_preact")]
        ),
        "input_forget.weight": torch.cat([theirs[f"{name}.weight"] for name in gates]),
        "input_forget.bias": torch.cat([theirs[f"{name}.bias"] for name in gates]),
        "norm.weight": theirs["multihead_norm.weight"],
        "out.weight": theirs["out_proj.weight"],
    }


def twins(spec: MlstmSpec, width: int, std: float = 0.3, of_gates: float = 1.0, chunk: int = 64) -> Twins[Mlstm]:
    """of_gates: the deviation of their maps; at 1 they reach the cap. chunk: tokens of one of theirs."""
    torch.manual_seed(0)
    config = transformers.xLSTMConfig(
        hidden_size=width, num_hidden_layers=1, num_heads=spec.heads, gate_soft_cap=spec.gate_cap, norm_eps=spec.eps,
        chunk_size=chunk,
    )  # fmt: skip
    theirs = drawn(modeling_xlstm.xLSTMBlock(config).mlstm_layer, std, gate=of_gates)
    return Twins.of(theirs, spec.build(Place(width, 128)), names, lambda x_BTD: theirs(x_BTD)[0])
