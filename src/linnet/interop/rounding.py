"""Weights stored in fewer bits, and what that loses.

Legend: `B` batch, `T` tokens, `V` vocabulary.
"""

from dataclasses import dataclass
from typing import Literal, get_args

import torch

from linnet.core.errors import UserError
from linnet.interop.parity import in_float32, largest_error, random_tokens
from linnet.model.decoder import Decoder
from linnet.model.skip_init import decoder_with_weights

StoredType = Literal["float32", "bfloat16", "float16"]


@dataclass(frozen=True)
class Rounding:
    """What rounded weights change, over random tokens.

    error: the largest difference of logits, in units of their standard deviation; same: the share of places where the
    likeliest token stays.
    """

    dtype: str
    error: float
    same: float

    @property
    def figures(self) -> dict[str, float]:
        """For a record."""
        return {"rounding_logits_error": self.error, "rounding_same_tokens": self.same}

    def __str__(self) -> str:
        return (
            f"weights of {self.dtype}: logits within {self.error:.1e} of their spread of those before,"
            f" the likeliest token the same at {self.same:.1%} of places"
        )


def dtype_name(decoder: Decoder) -> str:
    """Of the weights, as PyTorch and Transformers call it."""
    return str(decoder.dtype).removeprefix("torch.")


def rounded(decoder: Decoder, dtype: str) -> tuple[Decoder, Rounding]:
    """The decoder with its weights in `dtype`, and what that loses.

    `UserError` for another `StoredType`, and where a weight is too large for it.
    """
    if dtype not in get_args(StoredType):
        raise UserError(field="dtype", value=dtype, accepted=f"one of {', '.join(get_args(StoredType))}")
    to = getattr(torch, dtype)
    before = decoder.state_dict()
    tensors = {name: tensor.to(to) for name, tensor in before.items()}
    for name, tensor in tensors.items():
        if not tensor.isfinite().all() and before[name].isfinite().all():
            said = f"tensor {name} has a weight of {float(before[name].abs().max()):.3g}, too large for it"
            raise UserError(said, field="dtype", value=dtype)
    after = decoder_with_weights(decoder.spec, tensors)
    return after, _loss(decoder, after, dtype)


@torch.no_grad()
def _loss(before: Decoder, after: Decoder, dtype: str) -> Rounding:
    tokens_BT = random_tokens(before)
    before_BTV, after_BTV = (in_float32(decoder)(tokens_BT) for decoder in (before, after))
    same = float((before_BTV.argmax(dim=-1) == after_BTV.argmax(dim=-1)).double().mean())
    return Rounding(dtype, largest_error(before_BTV, after_BTV), same)
