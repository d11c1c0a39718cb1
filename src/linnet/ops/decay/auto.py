"""Which form of the decaying sum runs."""

from typing import Literal

from torch import Tensor

from linnet.ops.decay import chunked, keyed
from linnet.ops.decay.chunked import TOLERANCE, chunked_flops, decay_chunked
from linnet.ops.decay.keyed import keyed_chunked, keyed_flops
from linnet.ops.decay.reference import Keys, decay_reference

Form = Literal["auto", "reference", "chunked"]

CHUNKED_ABOVE = 256
"""Tokens from which on the chunked form is faster, forward and backward together (experiments/LOG.md)."""


def decay(
    rates_BSN: Tensor,
    v_BSNH: Tensor,
    queries: int,
    form: Form = "auto",
    tolerance: float = TOLERANCE,
    chunk: int | None = None,
    keys: Keys | None = None,
) -> Tensor:
    """The sums of the last `queries` tokens, `[B, T, N, H]`; from a state, where they are not all, always exact.

    chunk: tokens of a chunk in the chunked form; None: as many as are fastest.
    """
    length = rates_BSN.shape[1]
    if queries < length or not uses_chunks(form, length):
        return decay_reference(rates_BSN, v_BSNH, queries, keys)
    chunk = chunk or default_chunk(keys is not None)
    if keys is None:
        return decay_chunked(rates_BSN, v_BSNH, queries, tolerance, chunk)
    return keyed_chunked(rates_BSN, v_BSNH, keys, tolerance, chunk)


def uses_chunks(form: Form, length: int) -> bool:
    """Whether a whole sequence of `length` tokens takes the chunked form; `auto`: where that is faster."""
    return form == "chunked" or (form == "auto" and length > CHUNKED_ABOVE)


def default_chunk(keyed_sums: bool) -> int:
    """Tokens of a chunk with which sums with keys, or without, are fastest."""
    return keyed.CHUNK if keyed_sums else chunked.CHUNK


def decay_flops(
    length: int,
    width: int,
    heads: int,
    form: Form = "auto",
    tolerance: float = TOLERANCE,
    chunk: int | None = None,
    key: int = 0,
) -> int:
    """FLOPs of the forward pass over one sequence, in the form that it takes; `key`: width of a key, 0 for none."""
    if not uses_chunks(form, length):
        return 2 * (width + heads * key) * length**2
    chunk = chunk or default_chunk(key > 0)
    if key:
        return keyed_flops(length, width, heads, key, tolerance, chunk)
    return chunked_flops(length, width, heads, tolerance, chunk)
