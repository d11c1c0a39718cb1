"""Linear maps for inference alone: their weights are no parameters, but lie as the product reads them fastest.

Legend: `I` inputs, `O` outputs.
"""

import ctypes
from abc import ABC, abstractmethod
from collections.abc import Callable, Sequence
from typing import Any, ClassVar, NamedTuple, Self

import torch
from torch import Tensor, nn

from linnet.ops import int4_linear, int8_linear
from linnet.ops.int4_linear import BlockedInt4Weight, Int4Weight, PackedInt4Weight
from linnet.ops.int8_linear import Int8Weight, PackedInt8Weight
from linnet.ops.linear import (
    SLICES_ARE_FASTER,
    can_pack_bfloat16,
    linear,
    linear_product,
    pack_bfloat16,
    packed_bfloat16_linear,
)
from linnet.ops.native import library
from linnet.ops.native.gemv import (
    MAX_ROWS,
    Gemv,
    Lookup,
    bfloat16_gemv,
    bfloat16_lookup,
    float32_gemv,
    float32_lookup,
    in_huge_pages,
    int4_gemv,
    int4_lookup,
    int4_matrix,
    int8_gemv,
    int8_lookup,
)
from linnet.ops.support import is_traced_or_differentiated

BFLOAT16_ROWS = 4
"""From more rows on oneDNN's product is faster, where the processor multiplies bfloat16."""
SLICE = 1 << 20
"""Weights of 4 bits that become a float32 matrix at a time."""


class PackedLinear(nn.Module, ABC):
    """Takes the place of a `Linear` or a `FusedLinear` (then `parts` are its parts).

    It follows `to(device)`, laid out as is best there; it keeps its precision, and `to(dtype)` is a `ValueError`.
    """

    dtype: ClassVar[torch.dtype]
    """Of input, output and bias."""

    bias: Tensor | None

    few: Gemv | None = None
    """The product of rows up to `max_rows`, with the bias, in float32 (`ops.native`); None where there is none."""

    def __init__(self, bias_O: Tensor | None, parts: Sequence[int]) -> None:
        super().__init__()
        self.parts = tuple(parts)
        self.register_buffer("bias", None if bias_O is None else bias_O.detach())

    @property
    def out_features(self) -> int:
        """As of the map in whose place it stands."""
        return sum(self.parts)

    @property
    @abstractmethod
    def weight(self) -> Tensor:
        """The matrix `[O, I]` that the products are with, made anew at each call."""

    @property
    @abstractmethod
    def nbytes(self) -> int:
        """Bytes of weights that a product reads."""

    @property
    @abstractmethod
    def device(self) -> torch.device:
        """Where the weights are."""

    @abstractmethod
    def _move(self, device: torch.device) -> None:
        """Bring the weights to another device."""

    @abstractmethod
    def _product(self, x: Tensor) -> Tensor:
        """`[..., I] -> [..., O]` without `few`."""

    def forward(self, x: Tensor) -> Tensor:
        """`[..., I] -> [..., O]`."""
        if self.few is None or not self._are_few(x, self.few.max_rows):
            return self._product(x)
        out_RO = self.few(x.reshape(-1, x.shape[-1]))
        return out_RO.view(*x.shape[:-1], self.out_features).to(x.dtype)

    def _are_few(self, x: Tensor, most: int) -> bool:
        """Rows that are there, on the CPU, and of which nobody wants gradients or a graph."""
        return 0 < x.numel() <= most * x.shape[-1] and x.is_cpu and not is_traced_or_differentiated(x)

    def __getstate__(self) -> dict[str, Any]:
        """Without the compiled functions: a copy makes its own."""
        return {**self.__dict__, **dict.fromkeys(self.__dict__.keys() & {"few", "look_up"})}

    def __setstate__(self, state: dict[str, Any]) -> None:
        super().__setstate__(state)  # type: ignore[no-untyped-call]
        if library(self.device) is not None:
            self._move(self.device)

    def split(self, joint: Tensor) -> tuple[Tensor, ...]:
        """`[..., sum(parts)]` -> one layout `[..., part]` for each part."""
        return torch.split(joint, list(self.parts), dim=-1)

    def target(self, fn: Callable[[Tensor], Tensor]) -> torch.device:
        """The device to which `fn` brings a tensor of these weights; `ValueError` where it changes their precision."""
        moved = fn(torch.empty(0, dtype=self.dtype, device=self.device))
        if moved.dtype != self.dtype:
            found, kept = (str(dtype).removeprefix("torch.") for dtype in (moved.dtype, self.dtype))
            raise ValueError(f"{found}: converted weights compute in {kept} and stay so; load the model anew instead")
        return moved.device

    def _apply(self, fn: Callable[[Tensor], Tensor], recurse: bool = True) -> Self:
        """What `to`, `cuda` and `float` come down to: parameters and buffers follow, and so do these weights."""
        device = self.target(fn)
        super()._apply(fn, recurse)  # type: ignore[no-untyped-call]
        if device != self.device:
            self._move(device)
        return self

    def get_extra_state(self) -> Any:
        """Part of `state_dict`, which there is none of: a `ValueError` instead of a file without weights."""
        raise ValueError("converted weights are for inference alone: save, or change, the decoder as it was before")


class QuantizedLinear(PackedLinear):
    """Weights of a few bits, of which a row can be looked up; input and output are float32."""

    dtype = torch.float32

    look_up: Lookup | None = None
    """A row of the matrix, compiled (`ops.native`); None where there is no such form."""

    @abstractmethod
    def rows(self, places: Tensor) -> Tensor:
        """Rows of the matrix, int64 `[...]` -> `[..., I]`."""

    @abstractmethod
    def row(self, x_1I: Tensor) -> Tensor:
        """`[1, I] -> [1, O]` without the bias, in the precision that its product is in."""


class Int8Linear(QuantizedLinear):
    """Weights of 8 bits (`ops.int8_linear`); a large matrix is packed unless rows are looked up in it (`is_table`).

    Where there is no fast form each product makes a float32 matrix first: right, and slower than float32.
    """

    def __init__(self, weight_OI: Tensor, bias_O: Tensor | None, parts: Sequence[int], is_table: bool = False) -> None:
        super().__init__(bias_O, parts)
        self._is_table = is_table
        self._keep(int8_linear.quantize(weight_OI.detach()))

    @property
    def weight(self) -> Tensor:
        return int8_linear.dequantize(self._plain())

    @property
    def device(self) -> torch.device:
        return self._weight.scale_O.device

    @property
    def nbytes(self) -> int:
        return int8_linear.int8_nbytes(self.out_features, self._weight.inputs)

    def _product(self, x: Tensor) -> Tensor:
        if self._fast:
            return int8_linear.int8_linear(x, self._weight, self.bias)
        return int8_linear.int8_linear_reference(x, self._plain(), self.bias)

    def rows(self, places: Tensor) -> Tensor:
        return int8_linear.gather_rows(self._plain(), places)

    def row(self, x_1I: Tensor) -> Tensor:
        if self._fast:
            return int8_linear.int8_row(x_1I, self._weight)
        return int8_linear.int8_linear_reference(x_1I, self._plain())

    def _plain(self) -> Int8Weight:
        return self._weight if isinstance(self._weight, Int8Weight) else int8_linear.unpack(self._weight)

    def _keep(self, plain: Int8Weight) -> None:
        self._fast, compiled = int8_linear.has_fast_form(plain.scale_O.device), library(plain.scale_O.device)
        if compiled is not None:
            plain = plain._replace(numbers_OJ=in_huge_pages(plain.numbers_OJ.contiguous()))
        self.few = None if compiled is None else int8_gemv(compiled, *plain, self.bias)
        self.look_up = None if compiled is None else int8_lookup(compiled, *plain)
        packs = (
            self._fast
            and self.few is None
            and not self._is_table
            and plain.numbers_OJ.numel() >= int8_linear.MIN_PACKED_WEIGHTS
        )
        self._weight: Int8Weight | PackedInt8Weight = int8_linear.pack(plain) if packs else plain

    def _move(self, device: torch.device) -> None:
        numbers_OJ, scale_O, inputs = self._plain()
        self._keep(Int8Weight(numbers_OJ.to(device), scale_O.to(device), inputs))


class Int4Linear(QuantizedLinear):
    """Weights of 4 bits in groups of `group` inputs (`ops.int4_linear`).

    Where there is no fast form, and for fewer outputs than it takes, each product makes a float32 matrix first.
    """

    def __init__(
        self, weight_OI: Tensor, bias_O: Tensor | None, parts: Sequence[int], group: int = int4_linear.GROUP
    ) -> None:
        super().__init__(bias_O, parts)
        if group not in int4_linear.GROUPS:
            raise ValueError(f"group: {group}: expected one of {', '.join(map(str, int4_linear.GROUPS))}")
        self._group = group
        self._keep(int4_linear.quantize(weight_OI.detach(), group))

    @property
    def weight(self) -> Tensor:
        return int4_linear.dequantize(self._plain())

    @property
    def device(self) -> torch.device:
        return self._weight[0].device

    @property
    def nbytes(self) -> int:
        return int4_linear.int4_nbytes(self.out_features, self._weight.inputs, self._group)

    def _product(self, x: Tensor) -> Tensor:
        if isinstance(self._weight, PackedInt4Weight):
            return int4_linear.int4_linear(x, self._weight, self.bias)
        if isinstance(self._weight, BlockedInt4Weight):
            return self._by_slices(x)
        return int4_linear.int4_linear_reference(x, self._weight, self.bias)

    def rows(self, places: Tensor) -> Tensor:
        if self.look_up is not None and places.numel() == 1:
            return self.look_up(int(places)).view(*places.shape, -1)
        if isinstance(self._weight, BlockedInt4Weight) and places.numel():
            lowest, highest = int(places.min()), int(places.max())
            if lowest < 0 or highest >= self.out_features:  # behind the last there may be some that fill a block up
                raise IndexError(f"rows {lowest} to {highest} of {self.out_features}")
        return int4_linear.gather_rows(self._weight, places)

    def _by_slices(self, x: Tensor) -> Tensor:
        """Many rows, with so much of the matrix at a time that it stays in a cache."""
        at_once = max(SLICE // x.shape[-1], 1)
        parts = [
            linear_product(x, self._outputs(first, min(at_once, self.out_features - first)))
            for first in range(0, self.out_features, at_once)
        ]
        out: Tensor = torch.cat(parts, dim=-1) if len(parts) > 1 else parts[0]
        return out if self.bias is None else out.add_(self.bias)

    def _outputs(self, first: int, count: int) -> Tensor:
        """Some of the matrix, of blocks, `[count, I]`."""
        weight, compiled = self._weight, library(self.device)
        assert compiled is not None and isinstance(weight, BlockedInt4Weight)
        blocks_NGb, inputs, _, group = weight
        return int4_matrix(compiled, blocks_NGb, inputs, group, first, count)

    def row(self, x_1I: Tensor) -> Tensor:
        if isinstance(self._weight, PackedInt4Weight):
            return int4_linear.int4_packed_rows(x_1I, self._weight)
        return int4_linear.int4_linear_reference(x_1I, self._plain())

    def _plain(self) -> Int4Weight:
        return self._weight if isinstance(self._weight, Int4Weight) else int4_linear.unpack(self._weight)

    def _keep(self, plain: Int4Weight) -> None:
        self._weight: Int4Weight | BlockedInt4Weight | PackedInt4Weight = plain
        self.few = self.look_up = None
        compiled = library(plain.pairs_OH.device)
        if compiled is not None:
            blocks = int4_linear.to_blocks(plain)
            self._weight = blocks = blocks._replace(blocks_NGb=in_huge_pages(blocks.blocks_NGb))
            self.few, self.look_up = int4_gemv(compiled, *blocks, self.bias), int4_lookup(compiled, *blocks)
        elif int4_linear.can_pack(plain.pairs_OH.device) and len(plain.pairs_OH) >= int4_linear.MIN_PACKED_OUTPUTS:
            self._weight = int4_linear.pack(plain)

    def _move(self, device: torch.device) -> None:
        pairs_OH, scale_GO, inputs = self._plain()
        self._keep(Int4Weight(pairs_OH.to(device), scale_GO.to(device), inputs))


class QuantizedEmbedding(nn.Module):
    """Takes the place of an `Embedding`; the table may be the head's matrix too, and then is held once."""

    def __init__(self, table: QuantizedLinear) -> None:
        super().__init__()
        self.table = table

    @property
    def weight(self) -> Tensor:
        """The table `[V, E]`, made anew at each call."""
        return self.table.weight

    def forward(self, places: Tensor) -> Tensor:
        """`[...] -> [..., E]`."""
        return self.table.rows(places)


class Bfloat16Linear(PackedLinear):
    """Weights of bfloat16, as input and output are: packed (`ops.linear`) where that can be, else a matrix."""

    dtype = torch.bfloat16

    def __init__(self, weight_OI: Tensor, bias_O: Tensor | None, parts: Sequence[int]) -> None:
        super().__init__(None if bias_O is None else bias_O.to(torch.bfloat16), parts)
        self._keep(weight_OI.detach().to(torch.bfloat16))

    @property
    def weight(self) -> Tensor:
        return self._weight.to_dense()

    @property
    def device(self) -> torch.device:
        return self._weight.device

    @property
    def nbytes(self) -> int:
        return self._weight.numel() * self._weight.element_size()

    def _product(self, x: Tensor) -> Tensor:
        if self._weight.is_mkldnn:
            return packed_bfloat16_linear(x, self._weight, self.bias)
        return linear(x, self._weight, self.bias)

    def _keep(self, weight_OI: Tensor) -> None:
        compiled = library(weight_OI.device)
        if compiled is not None:
            weight_OI = in_huge_pages(weight_OI.contiguous())
        by_onednn = can_pack_bfloat16(weight_OI.device)
        most = BFLOAT16_ROWS if by_onednn else MAX_ROWS
        self.few = None if compiled is None else bfloat16_gemv(compiled, weight_OI, self.bias, most)
        packs = compiled is None and by_onednn
        self._weight = pack_bfloat16(weight_OI) if packs else weight_OI

    def _move(self, device: torch.device) -> None:
        self._keep(self.weight.to(device))


class RowMap(NamedTuple):
    """`x W^T + b` of a row, which is float32, and so is the result. Weights are those of when it was made.

    of: `[1, I] -> [1, O]`. added: a row `[1, O]` plus what it makes of `[1, I]`.
    """

    of: Callable[[Tensor], Tensor]
    added: Callable[[Tensor, Tensor], Tensor]


def gemv(weight_OI: Tensor, bias_O: Tensor | None) -> RowMap:
    """The map with these weights, float32: compiled (`ops.native`); else slices of the product (`ops.linear`), or one
    whose transposed layout is made once.
    """
    if (compiled := _compiled_for(weight_OI)) is not None:
        few = float32_gemv(compiled, weight_OI, bias_O)
        return RowMap(few, _added_by(few))
    if SLICES_ARE_FASTER:
        return _called(lambda x_1I: linear(x_1I, weight_OI, bias_O))
    weight_IO = weight_OI.t()
    if bias_O is None:
        return RowMap(lambda x_1I: torch.mm(x_1I, weight_IO), lambda sum_1O, x_1I: torch.addmm(sum_1O, x_1I, weight_IO))
    return RowMap(
        lambda x_1I: torch.addmm(bias_O, x_1I, weight_IO),
        lambda sum_1O, x_1I: torch.addmm(sum_1O + bias_O, x_1I, weight_IO),
    )


def _called(call: Callable[[Tensor], Tensor]) -> RowMap:
    return RowMap(call, lambda sum_1O, x_1I: call(x_1I).add_(sum_1O))


def gemv_of(module: nn.Module) -> RowMap | None:
    """The map of a linear layer; None for anything else."""
    if isinstance(module, PackedLinear) and module.few is not None:
        return RowMap(module.few, _added_by(module.few))
    if isinstance(module, Bfloat16Linear) or (isinstance(module, nn.Linear) and module.weight.dtype == torch.bfloat16):
        return _in_bfloat16(module)
    if isinstance(module, nn.Linear):
        return gemv(module.weight, module.bias)
    if isinstance(module, QuantizedLinear):
        return _rounded(module)
    return _called(module) if isinstance(module, PackedLinear) else None


def native_library_of(module: nn.Module) -> ctypes.CDLL | None:
    """The functions of `ops.native` where this map's products are among them: what lies beside them may be, too."""
    if isinstance(module, nn.Linear):
        return _compiled_for(module.weight)
    return library(module.device) if isinstance(module, PackedLinear) and module.few is not None else None


def token_lookup_of(table: nn.Embedding | QuantizedEmbedding) -> Lookup | None:
    """A token's vector `[1, E]`, float32, by functions of `ops.native`; None where they do not serve."""
    if isinstance(table, QuantizedEmbedding):
        return table.table.look_up
    compiled = library(table.weight.device)
    if compiled is None or table.weight.dtype not in (torch.float32, torch.bfloat16):
        return None
    look_up = float32_lookup if table.weight.dtype == torch.float32 else bfloat16_lookup
    return look_up(compiled, table.weight)


def _compiled_for(weight_OI: Tensor) -> ctypes.CDLL | None:
    return library(weight_OI.device) if weight_OI.dtype == torch.float32 else None


def _added_by(few: Gemv) -> Callable[[Tensor, Tensor], Tensor]:
    return lambda sum_1O, x_1I: few(x_1I, sum_1O)


def _rounded(module: QuantizedLinear) -> RowMap:
    """A product in bfloat16 is added to the row as it is."""
    bias_O, product = module.bias, module.row
    if bias_O is None:
        return RowMap(lambda x_1I: product(x_1I).float(), lambda sum_1O, x_1I: sum_1O + product(x_1I))
    return RowMap(lambda x_1I: bias_O + product(x_1I), lambda sum_1O, x_1I: (sum_1O + bias_O).add_(product(x_1I)))


def _in_bfloat16(product: nn.Module) -> RowMap:
    """Rounded for the product alone; what it is added to stays float32."""
    return RowMap(lambda x_1I: product(x_1I.bfloat16()).float(), lambda sum_1O, x_1I: sum_1O + product(x_1I.bfloat16()))
