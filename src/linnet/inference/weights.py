"""The precision of a decoder's weights at inference, where reading them takes most of the time of a token.

`float32`: as most models are stored. `bfloat16`: weights, activations and state in half the bytes. `int8` and `int4`:
the matrices of all linear maps, the head's included, and the embedding's table, rounded to 8 bits with one scale for
each output, or to 4 bits with a scale for each group of inputs; attention keeps most keys and values in bfloat16
(`layers.key_value.cache_dtype`). Everything else is float32: norms, other parameters of sublayers, and the parts that a
sublayer excludes (`Sublayer.skip_quantization`). A tied head and the embedding are one table, stored once.
"""

import weakref
from collections.abc import Callable, Iterator, Sequence
from functools import partial
from typing import Any, Literal, get_args

import torch
from blake3 import blake3
from torch import Tensor, nn

from linnet.core.checksum import hex_digest
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
"""Makes a linear map from a matrix `[O, I]`, a bias `[O]` and the output widths of its parts."""


def convert_weights(decoder: Decoder, precision: str, group: int = GROUP) -> None:
    """Convert the weights of a decoder to a precision, in place and on its device; it can then only infer.

    The decoder can move to another device as a whole (`to`), and keeps its precision. A tied head gets its own matrix
    if its form differs from the embedding's (packed bfloat16). group: inputs that share a scale in `int4`, 32, 64, 128
    or 256. `UserError` for another precision or group, `ValueError` for a decoder that has been converted before.
    """
    if group not in GROUPS:
        raise UserError(field="group", value=group, accepted=", ".join(map(str, GROUPS)))
    if precision not in get_args(Precision):
        raise UserError(field="precision", value=repr(precision), accepted=", ".join(get_args(Precision)))
    if any(isinstance(module, PackedLinear) for module in decoder.modules()):
        raise ValueError("the decoder's weights have been converted before")
    decoder.requires_grad_(False).to(torch.bfloat16 if precision == "bfloat16" else torch.float32)
    if precision == "float32" or (precision == "bfloat16" and not can_pack_bfloat16(decoder.device)):
        return
    forms: dict[str, Form] = {"bfloat16": Bfloat16Linear, "int8": Int8Linear, "int4": partial(Int4Linear, group=group)}
    form = forms[precision]
    for parent, name, linear in list(quantizable_maps(decoder)):
        parts = linear.parts if isinstance(linear, FusedLinear) else (linear.out_features,)
        setattr(parent, name, form(linear.weight, linear.bias, parts))
    if precision == "bfloat16" and decoder.head is not None:
        return  # the table of the embedding is not packed
    matrix_VE = decoder.embedding.tokens.weight
    table_form = partial(Int8Linear, is_table=True) if precision == "int8" else form
    table = table_form(matrix_VE, None, (len(matrix_VE),))
    if isinstance(table, QuantizedLinear):
        decoder.embedding.tokens = QuantizedEmbedding(table)
    if decoder.head is None:
        decoder.head = table


def precision_of(decoder: Decoder) -> str:
    """What `convert_weights` made of a decoder (`int8`), or the dtype of its weights (`float64`)."""
    forms: dict[type, str] = {Bfloat16Linear: "bfloat16", Int8Linear: "int8", Int4Linear: "int4"}
    packed = (forms[type(module)] for module in decoder.modules() if type(module) in forms)
    return next(packed, str(decoder.dtype).removeprefix("torch."))


def conversion_of(decoder: Decoder) -> dict[str, Any]:
    """The arguments of `convert_weights` that gave a decoder its weights; no `group` if none are packed."""
    packed = next((module for module in decoder.modules() if isinstance(module, PackedLinear)), None)
    group = {} if packed is None else {"group": packed.group if isinstance(packed, Int4Linear) else GROUP}
    return {"precision": precision_of(decoder), **group}


_FINGERPRINTS = weakref.WeakKeyDictionary[Decoder, tuple[list[tuple[int, int]], str]]()
"""The hash of each decoder whose weights were hashed, with the places and versions of its tensors at that time."""


@torch.no_grad()
def fingerprint(decoder: Decoder) -> str:
    """A hash of all weights in their precision and of stored calibrations, equal on every machine and device.

    It is computed again only if a tensor was replaced or changed in place.
    """
    tensors = dict(_stored_tensors(decoder))
    versions = [(x.data_ptr(), 0 if x.is_inference() else x._version) for x in tensors.values()]
    known = _FINGERPRINTS.get(decoder)
    if known is not None and known[0] == versions:
        return known[1]
    hashed = blake3(max_threads=blake3.AUTO)
    packed = {name: module for name, module in decoder.named_modules() if isinstance(module, PackedLinear)}
    for name, tensor in sorted({**tensors, **{name: module.weight for name, module in packed.items()}}.items()):
        hashed.update(f"{name} {tensor.dtype} {list(tensor.shape)}\n".encode())
        hashed.update(tensor.detach().cpu().contiguous().reshape(-1).view(torch.uint8).numpy().data)
    _FINGERPRINTS[decoder] = versions, hex_digest(hashed)
    return hex_digest(hashed)


def _stored_tensors(decoder: Decoder) -> Iterator[tuple[str, Tensor]]:
    """Parameters and buffers by name, without computed buffers; a shared one comes once."""
    yield from decoder.named_parameters()
    for name, module in decoder.named_modules():
        for field, buffer in module.named_buffers(recurse=False):
            if field not in module._non_persistent_buffers_set:
                yield f"{name}.{field}", buffer


def weights_nbytes(decoder: Decoder) -> int:
    """Bytes of the weights as stored; a weight that is used several times counts once, a computed buffer not at all."""
    packed = [module for module in decoder.modules() if isinstance(module, PackedLinear)]
    tensors = {id(tensor): tensor for _, tensor in _stored_tensors(decoder)}
    return sum(module.nbytes for module in packed) + sum(tensor.nbytes for tensor in tensors.values())


def quantizable_maps(
    module: nn.Module, skipped: frozenset[int] = frozenset()
) -> Iterator[tuple[nn.Module, str, nn.Linear]]:
    """Each linear map below `module` with its parent and its name there, except those that are not quantized.

    skipped: the ids of modules that a sublayer around this one excludes.
    """
    if isinstance(module, Sublayer):
        skipped = skipped.union(map(id, module.skip_quantization()))
    for name, child in module.named_children():
        if id(child) in skipped:
            continue
        if isinstance(child, nn.Linear):
            yield module, name, child
        else:
            yield from quantizable_maps(child, skipped)
