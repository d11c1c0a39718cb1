"""The tensor names of published models, mapped to ours.

Where several of their maps are one of ours they are concatenated, so gradients map the same way as weights.
"""

import torch
from torch import Tensor


def from_pldr(
    named: dict[str, Tensor], layers: int, residual_units: int, gated_units: int, learned: bool = True
) -> dict[str, Tensor]:
    """From the names of the published PLDR-LLM code (arXiv 2502.13502), one block of `layers` layers.

    learned: with the net behind the operator; models with fixed operators have none.
    """
    ours = {
        "embedding.tokens.weight": named["decoder.embedding.weight"],
        "embedding.norm.weight": named["decoder.layernorm1.weight"],
        "embedding.norm.bias": named["decoder.layernorm1.bias"],
        "head.weight": named["final_layer.weight"],
        "head.bias": named["final_layer.bias"],
    }
    for i in range(layers):
        theirs, layer = f"decoder.dec_layers.{i}.", f"blocks.0.layers.{i}."
        for end in ("weight", "bias"):
            ours[f"{layer}mixer_norm.{end}"] = named[f"{theirs}layernorm1.{end}"]
            ours[f"{layer}feed_forward_norm.{end}"] = named[f"{theirs}layernorm2.{end}"]
            ours |= _gated(named, f"{theirs}ffn.", f"{layer}feed_forward.", end)
            joint = [named[f"{theirs}mha1.w{part}.{end}"] for part in "qkv"]
            ours[f"{layer}mixer.query_key_value.{end}"] = torch.cat(joint)
            ours[f"{layer}mixer.out.{end}"] = named[f"{theirs}mha1.dense.{end}"]
        if learned:
            ours |= _operator(named, f"{theirs}mha1.", f"{layer}mixer.operator.", residual_units, gated_units)
    return ours


def _operator(
    named: dict[str, Tensor], theirs: str, mine: str, residual_units: int, gated_units: int
) -> dict[str, Tensor]:
    """The net behind a layer's operator."""
    pairs = {
        "metric_weight": "Wlst", "metric_bias": "blst", "power": "pwlst",
        "curvature_weight": "alst", "curvature_bias": "balst",
    }  # fmt: skip
    ours = {mine + name: named[f"{theirs}plgatt_layer.{published}"] for name, published in pairs.items()}
    for end in ("weight", "bias"):
        ours[f"{mine}norm.{end}"] = named[f"{theirs}layernorm1.{end}"]
        for r in range(residual_units):
            unit, net = f"{theirs}reslayerAs.{r}.", f"{mine}metric_net.{r}."
            ours[f"{net}norm.{end}"] = named[f"{unit}layernormA.{end}"]
            for u in range(gated_units):
                ours |= _gated(named, f"{unit}denseAs.{u}.", f"{net}gated.{u}.", end)
    return ours


def _gated(named: dict[str, Tensor], theirs: str, mine: str, end: str) -> dict[str, Tensor]:
    up = torch.cat([named[f"{theirs}gluw1.{end}"], named[f"{theirs}gluw2.{end}"]])
    return {f"{mine}up.{end}": up, f"{mine}down.{end}": named[f"{theirs}gluw3.{end}"]}


def from_ted(named: dict[str, Tensor], layers: int) -> dict[str, Tensor]:
    """From the names of the published TED code (github.com/biuq/ted)."""
    ours = {"embedding.tokens.weight": named["out_proj.weight"], "norm.weight": named["out_proj_norm.weight"]}
    for i in range(layers):
        theirs, layer = f"layers.{i}.", f"blocks.0.layers.{i}."
        decay = f"{theirs}decay."
        both = [named[f"{decay}quantity_matrix.weight"], named[f"{decay}gate_matrix.weight"]]
        ours[f"{layer}mixer.quantity_gate.weight"] = torch.cat(both)
        ours[f"{layer}mixer.rate_weight"] = named[f"{decay}lambda_matrix.weight"]
        ours[f"{layer}mixer.out.weight"] = named[f"{decay}output_matrix.weight"]
        ours[f"{layer}mixer_norm.weight"] = named[f"{theirs}decay_norm.weight"]
        ours[f"{layer}feed_forward_norm.weight"] = named[f"{theirs}ffn_norm.weight"]
        up = [named[f"{theirs}ffn.to_hidden_gate.weight"], named[f"{theirs}ffn.to_hidden.weight"]]
        ours[f"{layer}feed_forward.up.weight"] = torch.cat(up)
        ours[f"{layer}feed_forward.down.weight"] = named[f"{theirs}ffn.to_dim.weight"]
    return ours


def from_llama(named: dict[str, Tensor], layers: int) -> dict[str, Tensor]:
    """From Transformers' `LlamaForCausalLM` with an untied head."""
    ours = {
        "embedding.tokens.weight": named["model.embed_tokens.weight"],
        "norm.weight": named["model.norm.weight"],
        "head.weight": named["lm_head.weight"],
    }
    for i in range(layers):
        theirs, layer = f"model.layers.{i}.", f"blocks.0.layers.{i}."
        qkv = [named[f"{theirs}self_attn.{part}_proj.weight"] for part in "qkv"]
        up = [named[f"{theirs}mlp.{part}_proj.weight"] for part in ("gate", "up")]
        ours |= {
            f"{layer}mixer.query_key_value.weight": torch.cat(qkv),
            f"{layer}mixer.out.weight": named[f"{theirs}self_attn.o_proj.weight"],
            f"{layer}mixer_norm.weight": named[f"{theirs}input_layernorm.weight"],
            f"{layer}feed_forward_norm.weight": named[f"{theirs}post_attention_layernorm.weight"],
            f"{layer}feed_forward.up.weight": torch.cat(up),
            f"{layer}feed_forward.down.weight": named[f"{theirs}mlp.down_proj.weight"],
        }
    return ours


def from_gpt2(named: dict[str, Tensor], layers: int) -> dict[str, Tensor]:
    """From Transformers' `GPT2LMHeadModel`, whose maps are stored transposed."""
    named = {name.removeprefix("transformer."): tensor for name, tensor in named.items()}
    ours = {
        "embedding.tokens.weight": named["wte.weight"],
        "embedding.positions.weight": named["wpe.weight"],
        "norm.weight": named["ln_f.weight"],
        "norm.bias": named["ln_f.bias"],
    }
    names = {
        "mixer_norm": "ln_1", "feed_forward_norm": "ln_2", "mixer.query_key_value": "attn.c_attn",
        "mixer.out": "attn.c_proj", "feed_forward.up": "mlp.c_fc", "feed_forward.down": "mlp.c_proj",
    }  # fmt: skip
    for i in range(layers):
        for mine, published in names.items():
            for end in ("weight", "bias"):
                tensor = named[f"h.{i}.{published}.{end}"]
                ours[f"blocks.0.layers.{i}.{mine}.{end}"] = tensor.T if tensor.ndim == 2 else tensor
    return ours
