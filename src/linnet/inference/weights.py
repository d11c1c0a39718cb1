"""The precision of a decoder's weights at inference: what a token of one stream costs is reading them.

`float32`: as most models are stored. `bfloat16`: weights, activations and state of half the bytes. `int8`: the matrices
of all linear maps, the head's included, rounded to 8 bits with one scale for each output; all else is float32: the
embedding's look-up, norms, what a sublayer holds beside linear maps, and the parts that it keeps precise (the net
behind PLGA's operator, whose powers multiply rounding). It is faster for matrices from about a million weights on
(`docs/inference.md`).
"""

from collections.abc import Callable, Iterator, Sequence
from typing import Literal, get_args

import torch
from torch import Tensor, nn

from linnet.core.errors import UserError
from linnet.layers.contract import Sublayer
from linnet.model.decoder import Decoder
from linnet.nn.linear import FusedLinear
from linnet.nn.packed_linear import Bfloat16Linear, Int8Linear, PackedLinear
from linnet.ops import bfloat16_linear

Weights = Literal["float32", "bfloat16", "int8"]

Form = Callable[[Tensor, Tensor | None, Sequence[int]], PackedLinear]
"""Makes a map of a matrix `[O, I]`, a bias `[O]` and the widths of its parts."""


def convert_weights(decoder: Decoder, weights: str) -> None:
    """Bring a decoder, where it is, to the precision `weights`, in place; it is for inference alone from then on.

    It moves to another device as a whole (`to`), and keeps its precision. A tied head gets a matrix of its own where
    its form differs from the embedding's. `UserError` for a name that is not one of `Weights`, `ValueError` where the
    matrices have been converted before.
    """
    if weights not in get_args(Weights):
        raise UserError(field="weights", value=repr(weights), accepted=", ".join(get_args(Weights)))
    if any(isinstance(module, PackedLinear) for module in decoder.modules()):
        raise ValueError("the decoder's weights have been converted before")
    decoder.requires_grad_(False).to(torch.bfloat16 if weights == "bfloat16" else torch.float32)
    if weights == "int8":
        _replace_linear_maps(decoder, Int8Linear)
    elif weights == "bfloat16" and bfloat16_linear.can_pack(decoder.device):
        _replace_linear_maps(decoder, Bfloat16Linear)


def _replace_linear_maps(decoder: Decoder, form: Form) -> None:
    for parent, name, linear in list(_linear_maps(decoder)):
        parts = linear.parts if isinstance(linear, FusedLinear) else (linear.out_features,)
        setattr(parent, name, form(linear.weight, linear.bias, parts))
    if decoder.head is None:
        matrix_VD = decoder.embedding.tokens.weight
        decoder.head = form(matrix_VD, None, (len(matrix_VD),))


def _linear_maps(module: nn.Module) -> Iterator[tuple[nn.Module, str, nn.Linear]]:
    """Each linear map below `module` with its parent and its name there, but those that must stay precise."""
    precise = {id(part) for part in module.precise()} if isinstance(module, Sublayer) else set()
    for name, child in module.named_children():
        if isinstance(child, nn.Linear):
            yield module, name, child
        elif id(child) not in precise:
            yield from _linear_maps(child)
