"""Linear maps for inference only: their weights are not parameters, but are stored for the fastest product.

Shapes: `I` inputs, `O` outputs, `R` rows, `V` vocabulary entries, `E` width of the token vectors.
"""

from abc import ABC, abstractmethod
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from typing import Any, ClassVar, Self

import torch
from torch import Tensor, nn

from linnet.ops import int4_linear, int8_linear
from linnet.ops.int4_linear import BlockedInt4Weight, Int4Weight, PackedInt4Weight
from linnet.ops.int8_linear import Int8Weight, PackedInt8Weight
from linnet.ops.linear import (
    can_pack_bfloat16,
    linear,
    linear_product,
    pack_bfloat16,
    packed_bfloat16_linear,
)
from linnet.ops.native import captures_custom_ops, captures_row_ops, library
from linnet.ops.native.gemv import (
    MAX_ROWS,
    Gemv,
    Lookup,
    bfloat16_gemv,
    in_huge_pages,
    int4_gemv,
    int4_lookup,
    int4_matrix,
    int8_gemv,
    int8_lookup,
)
from linnet.ops.support import is_traced_or_differentiated

BFLOAT16_ROWS = 4
"""The largest number of rows for which the native product beats oneDNN's on processors with bfloat16 products."""
SLICE = 1 << 20
"""The number of 4-bit weights that are converted to a float32 matrix at a time."""


class PackedLinear(nn.Module, ABC):
    """Replaces a `Linear` or a `FusedLinear` (then `parts` are its parts).

    `to(device)` moves the weights and packs them for that device; the precision is fixed, so `to(dtype)` is a
    `ValueError`.

    device: the device of the weights. nbytes: the bytes of weights that a product reads. gemv: the native product of a
    few rows in float32, with the bias (`ops.native`); None if there is none.
    """

    dtype: ClassVar[torch.dtype]
    """The precision of input, output and bias."""

    bias: Tensor | None
    device: torch.device
    nbytes: int
    gemv: Gemv | None = None
    _weight: Any
    """A tensor, or a named tuple of tensors and sizes."""

    def __init__(self, bias_O: Tensor | None, parts: Sequence[int]) -> None:
        super().__init__()
        self.parts, self.out_features = tuple(parts), sum(parts)
        self.register_buffer("bias", None if bias_O is None else bias_O.detach())

    @property
    @abstractmethod
    def weight(self) -> Tensor:
        """The matrix `[O, I]` of the product, computed at each call."""

    @abstractmethod
    def _move(self, device: torch.device) -> None:
        """Move the weights to another device."""

    @abstractmethod
    def _product(self, x: Tensor) -> Tensor:
        """`[..., I] -> [..., O]` without `gemv`."""

    @abstractmethod
    def _operator(self, x_RI: Tensor) -> Tensor:
        """`gemv` as an operator of a graph (`ops.native.custom_ops`), with the bias."""

    @property
    def tensors(self) -> list[Tensor]:
        """The tensors of the weights, which are inputs of a captured graph."""
        parts = self._weight if isinstance(self._weight, tuple) else (self._weight,)
        return [part for part in parts if isinstance(part, Tensor)]

    @contextmanager
    def replaced(self, tensors: Sequence[Tensor]) -> Iterator[None]:
        """Multiply by other tensors of the same shapes (`tensors`) within the block."""
        before, new = self._weight, iter(tensors)
        if isinstance(before, tuple):
            self._weight = type(before)(*(next(new) if isinstance(part, Tensor) else part for part in before))
        else:
            self._weight = next(new)
        try:
            yield
        finally:
            self._weight = before

    def forward(self, x: Tensor) -> Tensor:
        """`[..., I] -> [..., O]`."""
        if self.gemv is not None and captures_custom_ops():
            out_RO = self._operator(x.reshape(-1, x.shape[-1]).float().contiguous())
            return out_RO.view(*x.shape[:-1], self.out_features).to(x.dtype)
        few = self.gemv is not None and 0 < x.numel() <= self.gemv.max_rows * x.shape[-1]
        if self.gemv is None or not few or not x.is_cpu or is_traced_or_differentiated(x):
            return self._product(x)
        out_RO = self.gemv(x.reshape(-1, x.shape[-1]))
        return out_RO.view(*x.shape[:-1], self.out_features).to(x.dtype)

    def __getstate__(self) -> dict[str, Any]:
        """All fields except the native functions, which a copy creates again."""
        return {**self.__dict__, **dict.fromkeys(self.__dict__.keys() & {"gemv", "look_up"})}

    def __setstate__(self, state: dict[str, Any]) -> None:
        super().__setstate__(state)  # type: ignore[no-untyped-call]
        if library(self.device) is not None:
            self._move(self.device)

    def split(self, joint: Tensor) -> tuple[Tensor, ...]:
        """Views of the parts, `[..., sum(parts)]` -> `[..., part]` for each part."""
        return torch.split(joint, list(self.parts), dim=-1)

    def target(self, fn: Callable[[Tensor], Tensor]) -> torch.device:
        """The device to which `fn` moves a tensor; `ValueError` if it changes the precision."""
        moved = fn(torch.empty(0, dtype=self.dtype, device=self.device))
        if moved.dtype != self.dtype:
            requested, own = (str(dtype).removeprefix("torch.") for dtype in (moved.dtype, self.dtype))
            raise ValueError(f"{requested}: converted weights stay in {own}; load the model again instead")
        return moved.device

    def _apply(self, fn: Callable[[Tensor], Tensor], recurse: bool = True) -> Self:
        """Called by `to`, `cuda` and `float`; moves the weights too, which are no parameters or buffers."""
        device = self.target(fn)
        super()._apply(fn, recurse)  # type: ignore[no-untyped-call]
        if device != self.device:
            self._move(device)
        return self

    def get_extra_state(self) -> Any:
        """Called by `state_dict`: a `ValueError` instead of a file without weights."""
        raise ValueError("converted weights are for inference only: save or change the decoder before the conversion")


class QuantizedLinear(PackedLinear):
    """Weights with few bits, with rows that can be looked up; input and output are float32."""

    dtype = torch.float32

    look_up: Lookup | None = None
    """A native function that looks up a row of the matrix (`ops.native`); None if there is none."""

    @abstractmethod
    def rows(self, places: Tensor) -> Tensor:
        """Rows of the matrix, int64 `[...]` -> `[..., I]`."""


class Int8Linear(QuantizedLinear):
    """Weights of 8 bits (`ops.int8_linear`); a large matrix is packed unless its rows are looked up (`is_table`).

    Without a fast form each product creates a float32 matrix first, which is slower than float32 weights.
    """

    def __init__(self, weight_OI: Tensor, bias_O: Tensor | None, parts: Sequence[int], is_table: bool = False) -> None:
        super().__init__(bias_O, parts)
        self._is_table = is_table
        self._keep(int8_linear.quantize(weight_OI.detach()))

    @property
    def weight(self) -> Tensor:
        return int8_linear.dequantize(self._plain())

    def _product(self, x: Tensor) -> Tensor:
        if self._fast:
            return int8_linear.int8_linear(x, self._weight, self.bias)
        return int8_linear.int8_linear_reference(x, self._plain(), self.bias)

    def _operator(self, x_RI: Tensor) -> Tensor:
        from linnet.ops.native import custom_ops

        numbers_OJ, scale_O, _ = self._weight
        out_RO: Tensor = custom_ops.int8_linear(x_RI, numbers_OJ, scale_O, self.bias)
        return out_RO

    def rows(self, places: Tensor) -> Tensor:
        if captures_row_ops():
            from linnet.ops.native import custom_ops

            out: Tensor = custom_ops.int8_look_up(*self._weight, places)
            return out
        return int8_linear.gather_rows(self._plain(), places)

    def _plain(self) -> Int8Weight:
        return self._weight if isinstance(self._weight, Int8Weight) else int8_linear.unpack(self._weight)

    def _keep(self, plain: Int8Weight) -> None:
        self.device = plain.scale_O.device
        self.nbytes = int8_linear.int8_nbytes(self.out_features, plain.inputs)
        self._fast, compiled = int8_linear.has_fast_form(self.device), library(self.device)
        if compiled is not None:
            plain = plain._replace(numbers_OJ=in_huge_pages(plain.numbers_OJ.contiguous()))
        self.gemv = None if compiled is None else int8_gemv(compiled, *plain, self.bias)
        self.look_up = None if compiled is None else int8_lookup(compiled, *plain)
        packs = (
            self._fast
            and self.gemv is None
            and not self._is_table
            and plain.numbers_OJ.numel() >= int8_linear.MIN_PACKED_WEIGHTS
        )
        self._weight: Int8Weight | PackedInt8Weight = int8_linear.pack(plain) if packs else plain

    def _move(self, device: torch.device) -> None:
        numbers_OJ, scale_O, inputs = self._plain()
        self._keep(Int8Weight(numbers_OJ.to(device), scale_O.to(device), inputs))


class Int4Linear(QuantizedLinear):
    """Weights of 4 bits in groups of `group` inputs (`ops.int4_linear`).

    Without a fast form, or with too few outputs for one, each product creates a float32 matrix first.
    """

    def __init__(
        self, weight_OI: Tensor, bias_O: Tensor | None, parts: Sequence[int], group: int = int4_linear.GROUP
    ) -> None:
        super().__init__(bias_O, parts)
        if group not in int4_linear.GROUPS:
            raise ValueError(f"group: {group}: expected one of {', '.join(map(str, int4_linear.GROUPS))}")
        self.group = group
        self._keep(int4_linear.quantize(weight_OI.detach(), group))

    @property
    def weight(self) -> Tensor:
        return int4_linear.dequantize(self._plain())

    def _product(self, x: Tensor) -> Tensor:
        if isinstance(self._weight, PackedInt4Weight):
            return int4_linear.int4_linear(x, self._weight, self.bias)
        if not isinstance(self._weight, BlockedInt4Weight):
            return int4_linear.int4_linear_reference(x, self._weight, self.bias)
        # Many rows: convert only as much of the matrix at a time as stays in a cache.
        compiled = library(self.device)
        assert compiled is not None
        blocks_NGb, inputs, _, group = self._weight
        outputs = max(SLICE // x.shape[-1], 1)
        parts = []
        for first in range(0, self.out_features, outputs):
            count = min(outputs, self.out_features - first)
            parts.append(linear_product(x, int4_matrix(compiled, blocks_NGb, inputs, group, first, count)))
        out: Tensor = torch.cat(parts, dim=-1) if len(parts) > 1 else parts[0]
        return out if self.bias is None else out.add_(self.bias)

    def _operator(self, x_RI: Tensor) -> Tensor:
        from linnet.ops.native import custom_ops

        assert isinstance(self._weight, BlockedInt4Weight)
        blocks_NGb, _, outputs, group = self._weight
        out_RO: Tensor = custom_ops.int4_linear(x_RI, blocks_NGb, group, outputs, self.bias)
        return out_RO

    def rows(self, places: Tensor) -> Tensor:
        if captures_row_ops():
            from linnet.ops.native import custom_ops

            out: Tensor = custom_ops.int4_look_up(*self._weight, places)
            return out
        if captures_custom_ops():
            return int4_linear.gather_rows(self._weight, places)
        if self.look_up is not None and places.numel() == 1:
            return self.look_up(int(places)).view(*places.shape, -1)
        if isinstance(self._weight, BlockedInt4Weight) and places.numel():
            lowest, highest = int(places.min()), int(places.max())
            if lowest < 0 or highest >= self.out_features:  # the last block may have unused rows after the last one
                raise IndexError(f"rows {lowest} to {highest} of {self.out_features}")
        return int4_linear.gather_rows(self._weight, places)

    def _plain(self) -> Int4Weight:
        return self._weight if isinstance(self._weight, Int4Weight) else int4_linear.unpack(self._weight)

    def _keep(self, plain: Int4Weight) -> None:
        self.device = plain.pairs_OH.device
        self.nbytes = int4_linear.int4_nbytes(self.out_features, plain.inputs, self.group)
        self._weight: Int4Weight | BlockedInt4Weight | PackedInt4Weight = plain
        self.gemv = self.look_up = None
        compiled = library(self.device)
        if compiled is not None:
            blocks = int4_linear.to_blocks(plain)
            self._weight = blocks = blocks._replace(blocks_NGb=in_huge_pages(blocks.blocks_NGb))
            self.gemv, self.look_up = int4_gemv(compiled, *blocks, self.bias), int4_lookup(compiled, *blocks)
        elif int4_linear.can_pack(self.device) and len(plain.pairs_OH) >= int4_linear.MIN_PACKED_OUTPUTS:
            self._weight = int4_linear.pack(plain)

    def _move(self, device: torch.device) -> None:
        pairs_OH, scale_GO, inputs = self._plain()
        self._keep(Int4Weight(pairs_OH.to(device), scale_GO.to(device), inputs))


class QuantizedEmbedding(nn.Module):
    """Replaces an `Embedding`; a tied head uses the same table."""

    def __init__(self, table: QuantizedLinear) -> None:
        super().__init__()
        self.table = table

    @property
    def weight(self) -> Tensor:
        """The table `[V, E]`, computed at each call."""
        return self.table.weight

    def forward(self, places: Tensor) -> Tensor:
        """`[...] -> [..., E]`."""
        return self.table.rows(places)


class Bfloat16Linear(PackedLinear):
    """Weights, input and output in bfloat16; packed (`ops.linear`) if the device supports it."""

    dtype = torch.bfloat16

    def __init__(self, weight_OI: Tensor, bias_O: Tensor | None, parts: Sequence[int]) -> None:
        super().__init__(None if bias_O is None else bias_O.to(torch.bfloat16), parts)
        self._keep(weight_OI.detach().to(torch.bfloat16))

    @property
    def weight(self) -> Tensor:
        dense_OI: Tensor = self._weight.to_dense()
        return dense_OI

    def _product(self, x: Tensor) -> Tensor:
        if self._weight.is_mkldnn:
            return packed_bfloat16_linear(x, self._weight, self.bias)
        return linear(x, self._weight, self.bias)

    def _operator(self, x_RI: Tensor) -> Tensor:
        from linnet.ops.native import custom_ops

        bias_O = None if self.bias is None else self.bias.float()
        out_RO: Tensor = custom_ops.bfloat16_linear(x_RI, self._weight, bias_O)
        return out_RO

    def _keep(self, weight_OI: Tensor) -> None:
        self.device, self.nbytes = weight_OI.device, weight_OI.nbytes
        compiled = library(self.device)
        if compiled is not None:
            weight_OI = in_huge_pages(weight_OI.contiguous())
        by_onednn = can_pack_bfloat16(self.device)
        max_rows = BFLOAT16_ROWS if by_onednn else MAX_ROWS
        self.gemv = None if compiled is None else bfloat16_gemv(compiled, weight_OI, self.bias, max_rows)
        packs = compiled is None and by_onednn
        self._weight = pack_bfloat16(weight_OI) if packs else weight_OI

    def _move(self, device: torch.device) -> None:
        self._keep(self.weight.to(device))
