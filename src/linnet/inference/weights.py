"""The precision of a decoder's weights at inference: what a token of one stream costs is reading them.

`float32`: as most models are stored. `bfloat16`: weights, activations and state of half the bytes. `int8` and `int4`:
the matrices of all linear maps, the head's included, and the embedding's table, rounded to 8 bits with one scale for
each output, or to 4 bits with a scale for each group of inputs; attention keeps most keys and values in bfloat16
(`layers.key_value.kept_dtype`). All else is float32: norms, what a sublayer holds beside linear maps, and the parts
that it keeps precise (parts whose powers multiply rounding). A tied head and the embedding
are one table, held once.
"""

from collections.abc import Callable, Iterator, Sequence
from functools import partial
from typing import Literal, get_args

import torch
from torch import Tensor, nn

from linnet.core.errors import UserError
from linnet.layers.contract import Sublayer
from linnet.model.decoder import Decoder
from linnet.nn.linear import FusedLinear
from linnet.nn.packed_linear import (
    Bfloat16Linear,
    Int4Linear,
    Int8Linear,
    PackedLinear,
    QuantizedEmbedding,
    QuantizedLinear,
)
from linnet.ops.int4_linear import GROUP, GROUPS
from linnet.ops.linear import can_pack_bfloat16

Precision = Literal["float32", "bfloat16", "int8", "int4"]

Form = Callable[[Tensor, Tensor | None, Sequence[int]], PackedLinear]
"""Makes a map of a matrix `[O, I]`, a bias `[O]` and the widths of its parts."""


def convert_weights(decoder: Decoder, precision: str, group: int = GROUP) -> None:
    """Bring a decoder, where it is, to the precision `precision`, in place; it is for inference alone from then on.

    It moves to another device as a whole (`to`), and keeps its precision. A tied head gets a matrix of its own where
    its form differs from the embedding's (packed bfloat16). `group`: inputs that share a scale in `int4`, 32, 64, 128
    or 256. `UserError` for another `precision` or `group`, `ValueError` where the matrices
    have been converted before.
    """
    if group not in GROUPS:
        raise UserError(field="group", value=group, accepted=", ".join(map(str, GROUPS)))
    if precision not in get_args(Precision):
        raise UserError(field="precision", value=repr(precision), accepted=", ".join(get_args(Precision)))
    if any(isinstance(module, PackedLinear) for module in decoder.modules()):
        raise ValueError("the decoder's weights have been converted before")
    decoder.requires_grad_(False).to(torch.bfloat16 if precision == "bfloat16" else torch.float32)
    if precision in ("int8", "int4"):
        form: Form = Int8Linear if precision == "int8" else partial(Int4Linear, group=group)
        _replace_linear_maps(decoder, form)
        _replace_table(decoder, partial(Int8Linear, is_table=True) if precision == "int8" else form)
    elif precision == "bfloat16" and can_pack_bfloat16(decoder.device):
        _replace_linear_maps(decoder, Bfloat16Linear)
        if decoder.head is None:
            decoder.head = _table(decoder, Bfloat16Linear)


def weights_nbytes(decoder: Decoder) -> int:
    """Bytes of the weights as they are held, those that are used several times once."""
    packed = [module for module in decoder.modules() if isinstance(module, PackedLinear)]
    tensors = {id(tensor): tensor for tensor in [*decoder.parameters(), *decoder.buffers()]}
    return sum(module.nbytes for module in packed) + sum(tensor.nbytes for tensor in tensors.values())


def _replace_linear_maps(decoder: Decoder, form: Form) -> None:
    for parent, name, linear in list(_linear_maps(decoder)):
        parts = linear.parts if isinstance(linear, FusedLinear) else (linear.out_features,)
        setattr(parent, name, form(linear.weight, linear.bias, parts))


def _replace_table(decoder: Decoder, form: Form) -> None:
    table = _table(decoder, form)
    assert isinstance(table, QuantizedLinear)
    decoder.embedding.tokens = QuantizedEmbedding(table)
    if decoder.head is None:
        decoder.head = table


def _table(decoder: Decoder, form: Form) -> PackedLinear:
    matrix_VE = decoder.embedding.tokens.weight
    return form(matrix_VE, None, (len(matrix_VE),))


def _linear_maps(module: nn.Module) -> Iterator[tuple[nn.Module, str, nn.Linear]]:
    """Each linear map below `module` with its parent and its name there, but those that must stay precise."""
    precise = {id(part) for part in module.skip_quantization()} if isinstance(module, Sublayer) else set()
    for name, child in module.named_children():
        if isinstance(child, nn.Linear):
            yield module, name, child
        elif id(child) not in precise:
            yield from _linear_maps(child)
