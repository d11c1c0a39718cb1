"""Transformers' T5, encoder and decoder, and ours.

Its biases of distances are one table for all layers of a stack; here each layer has a copy, so that its gradient is the
sum of theirs.
"""

from collections.abc import Mapping
from dataclasses import dataclass

import torch
import transformers
from torch import Tensor

from linnet.model.decoder import Decoder
from linnet.model.spec import ModelSpec
from same_weights.twins import Twins

STACKS = {"encoder": "encoder.", "decoder": ""}
"""Theirs, and what our names begin with."""


@dataclass(frozen=True)
class Shape:
    """Of both stacks. projection: Transformers' name of a feed-forward. scaled: the head, which is tied then."""

    vocabulary: int
    width: int
    heads: int
    head_dim: int
    hidden: int
    layers: int
    buckets: int
    furthest: int
    context: int
    projection: str = "relu"
    scaled: bool = True

    @property
    def feed_forward(self) -> dict[str, object]:
        """Ours."""
        kind = {"kind": "mlp", "activation": "relu"} if self.projection == "relu" else {"kind": "glu"}
        return {"activation": "gelu_tanh", **kind, "hidden": self.hidden, "bias": False}


def twins(shape: Shape, dtype: torch.dtype = torch.float64, std: float = 0.2) -> Twins[Decoder]:
    """Weights `std` away from where theirs start; they run on tokens of the input and of the decoder."""
    torch.manual_seed(0)
    reference = transformers.T5ForConditionalGeneration(_config(shape)).to(dtype).eval()
    with torch.no_grad():
        for parameter in reference.parameters():
            parameter.add_(std * torch.randn_like(parameter))
    decoder = Decoder(described(shape)).to(dtype)

    def names(theirs: Mapping[str, Tensor]) -> dict[str, Tensor]:
        return _by_our_names(theirs, shape.layers)

    weights = {name: tensor.detach() for name, tensor in reference.named_parameters()}
    decoder.load_state_dict({name: tensor.clone() for name, tensor in names(weights).items()})
    return Twins(
        reference,
        decoder,
        names,
        lambda inputs_BS, tokens_BT: reference(input_ids=inputs_BS, decoder_input_ids=tokens_BT).logits,
        lambda inputs_BS, tokens_BT: decoder(tokens_BT, memory=decoder.encode(inputs_BS)),
        lambda gradients: _joined(gradients, shape.layers),
    )


def _config(shape: Shape) -> "transformers.T5Config":
    return transformers.T5Config(
        vocab_size=shape.vocabulary,
        d_model=shape.width,
        d_kv=shape.head_dim,
        d_ff=shape.hidden,
        num_layers=shape.layers,
        num_heads=shape.heads,
        relative_attention_num_buckets=shape.buckets,
        relative_attention_max_distance=shape.furthest,
        feed_forward_proj=shape.projection,
        tie_word_embeddings=shape.scaled,  # by which it says whether the tied head is scaled
        dropout_rate=0.0,
        decoder_start_token_id=0,
    )


def described(shape: Shape) -> ModelSpec:
    """Our description."""
    sizes = {"heads": shape.heads, "head_dim": shape.head_dim, "scale": 1.0}

    def block(**more: object) -> dict[str, object]:
        positions = {"kind": "t5", "buckets": shape.buckets, "furthest": shape.furthest, "both_ways": not more}
        mixer = {"kind": "attention", **sizes, "positions": positions}
        norm = {"kind": "rms", "eps": 1e-6, "placement": "pre"}
        return {"repeat": shape.layers, "mixer": mixer, "feed_forward": shape.feed_forward, "norm": norm, **more}

    norm = {"kind": "rms", "eps": 1e-6}
    return ModelSpec.parse(
        {
            "vocab_size": shape.vocabulary,
            "d_model": shape.width,
            "context_length": shape.context,
            "encoder": {"blocks": [block()], "norm": norm},
            "blocks": [block(cross_attention=sizes)],
            "head": {"tied": True, "scale": shape.scaled, "norm": norm},
        },
        "t5",
    )


def _layer_tensors(tensors: Mapping[str, Tensor], stack: str, layer: int) -> dict[str, Tensor]:
    """Those of one layer by our names."""
    block = f"{stack}.block.{layer}.layer"
    own = "SelfAttention"
    table = tensors[f"{stack}.block.0.layer.0.{own}.relative_attention_bias.weight"]
    named = {
        "mixer.query_key_value.weight": torch.cat([tensors[f"{block}.0.{own}.{part}.weight"] for part in "qkv"]),
        "mixer.out.weight": tensors[f"{block}.0.{own}.o.weight"],
        "mixer.positions.bias_UN": table,
        "mixer_norm.weight": tensors[f"{block}.0.layer_norm.weight"],
    }
    last = 1 if stack == "encoder" else 2
    if stack == "decoder":
        cross = f"{block}.1.EncDecAttention"
        named |= {
            "cross_attention.query.weight": tensors[f"{cross}.q.weight"],
            "cross_attention.key_value.weight": torch.cat([tensors[f"{cross}.{part}.weight"] for part in "kv"]),
            "cross_attention.out.weight": tensors[f"{cross}.o.weight"],
            "cross_attention_norm.weight": tensors[f"{block}.1.layer_norm.weight"],
        }
    dense = f"{block}.{last}.DenseReluDense"
    gated = f"{dense}.wi_0.weight" in tensors
    up = [tensors[f"{dense}.{name}.weight"] for name in (("wi_0", "wi_1") if gated else ("wi",))]
    named |= {
        "feed_forward.up.weight": torch.cat(up),
        "feed_forward.down.weight": tensors[f"{dense}.wo.weight"],
    }
    return named | {"feed_forward_norm.weight": tensors[f"{block}.{last}.layer_norm.weight"]}


def _by_our_names(tensors: Mapping[str, Tensor], layers: int) -> dict[str, Tensor]:
    """Theirs, or their gradients, as a decoder has them."""
    named = {"embedding.tokens.weight": tensors["shared.weight"]}
    for stack, prefix in STACKS.items():
        for layer in range(layers):
            for name, tensor in _layer_tensors(tensors, stack, layer).items():
                named[f"{prefix}blocks.0.layers.{layer}.{name}"] = tensor
        named[f"{prefix}norm.weight"] = tensors[f"{stack}.final_layer_norm.weight"]
    return named


def _joined(gradients: Mapping[str, Tensor], layers: int) -> dict[str, Tensor]:
    """Those of the tables of each stack summed, under the name of the first."""
    found = dict(gradients)
    for prefix in STACKS.values():
        tables = [f"{prefix}blocks.0.layers.{layer}.mixer.positions.bias_UN" for layer in range(layers)]
        found[tables[0]] = torch.stack([found.pop(name) for name in tables]).sum(0)
    return found
