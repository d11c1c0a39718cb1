"""The published models' tensor names, mapped to ours (fused maps are concatenated, so gradients map the same way)."""

import torch
from torch import Tensor


def pldr(named: dict[str, Tensor], layers: int, residual_units: int, gated_units: int) -> dict[str, Tensor]:
    """Our state dict from tensors under PLDR-LLM's published names."""
    ours = {
        "embedding.tokens.weight": named["decoder.embedding.weight"],
        "embedding.norm.weight": named["decoder.layernorm1.weight"],
        "embedding.norm.bias": named["decoder.layernorm1.bias"],
        "head.weight": named["final_layer.weight"],
        "head.bias": named["final_layer.bias"],
    }
    for i in range(layers):
        theirs, layer = f"decoder.dec_layers.{i}.", f"blocks.0.layers.{i}."
        operator = layer + "mixer.operator."
        for end in ("weight", "bias"):
            ours[f"{layer}mixer_norm.{end}"] = named[f"{theirs}layernorm1.{end}"]
            ours[f"{layer}feed_forward_norm.{end}"] = named[f"{theirs}layernorm2.{end}"]
            ours |= _gated(named, f"{theirs}ffn.", f"{layer}feed_forward.", end)
            joint = [named[f"{theirs}mha1.w{part}.{end}"] for part in "qkv"]
            ours[f"{layer}mixer.query_key_value.{end}"] = torch.cat(joint)
            ours[f"{layer}mixer.out.{end}"] = named[f"{theirs}mha1.dense.{end}"]
            ours[f"{operator}norm.{end}"] = named[f"{theirs}mha1.layernorm1.{end}"]
            for r in range(residual_units):
                unit, net = f"{theirs}mha1.reslayerAs.{r}.", f"{operator}metric_net.{r}."
                ours[f"{net}norm.{end}"] = named[f"{unit}layernormA.{end}"]
                for u in range(gated_units):
                    ours |= _gated(named, f"{unit}denseAs.{u}.", f"{net}gated.{u}.", end)
        pairs = {
            "metric_weight": "Wlst", "metric_bias": "blst", "power": "pwlst",
            "curvature_weight": "alst", "curvature_bias": "balst",
        }  # fmt: skip
        for mine, published in pairs.items():
            ours[operator + mine] = named[f"{theirs}mha1.plgatt_layer.{published}"]
    return ours


def _gated(named: dict[str, Tensor], theirs: str, mine: str, end: str) -> dict[str, Tensor]:
    up = torch.cat([named[f"{theirs}gluw1.{end}"], named[f"{theirs}gluw2.{end}"]])
    return {f"{mine}up.{end}": up, f"{mine}down.{end}": named[f"{theirs}gluw3.{end}"]}


def ted(named: dict[str, Tensor], layers: int) -> dict[str, Tensor]:
    """Our state dict from tensors under TED's published names."""
    ours = {"embedding.tokens.weight": named["out_proj.weight"], "norm.weight": named["out_proj_norm.weight"]}
    for i in range(layers):
        theirs, layer = f"layers.{i}.", f"blocks.0.layers.{i}."
        decay = f"{theirs}decay."
        both = [named[f"{decay}quantity_matrix.weight"], named[f"{decay}gate_matrix.weight"]]
        ours[f"{layer}mixer.quantity_gate.weight"] = torch.cat(both)
        ours[f"{layer}mixer.rate_weight"] = named[f"{decay}lambda_matrix.weight"][0]
        ours[f"{layer}mixer.out.weight"] = named[f"{decay}output_matrix.weight"]
        ours[f"{layer}mixer_norm.weight"] = named[f"{theirs}decay_norm.weight"]
        ours[f"{layer}feed_forward_norm.weight"] = named[f"{theirs}ffn_norm.weight"]
        up = [named[f"{theirs}ffn.to_hidden_gate.weight"], named[f"{theirs}ffn.to_hidden.weight"]]
        ours[f"{layer}feed_forward.up.weight"] = torch.cat(up)
        ours[f"{layer}feed_forward.down.weight"] = named[f"{theirs}ffn.to_dim.weight"]
    return ours
