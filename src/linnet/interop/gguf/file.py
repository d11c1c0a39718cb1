"""GGUF files: names, row order and storage of tensors; writing and reading.

Legend: `N` heads, `K` head width, `R` rows of a map to queries or keys, `N K`.
"""

from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from linnet.core.errors import UserError
from linnet.interop import optional_package
from linnet.interop.gguf.architecture import PAIRING, Metadata, architecture_of
from linnet.interop.tensor_names import GGUF
from linnet.layers.mixers.attention import AttentionSpec
from linnet.layers.rotary import Llama3Scaling
from linnet.model.spec import ModelSpec
from linnet.ops.rotary import frequencies


class Storage(NamedTuple):
    """Names in the `gguf` package of a stored matrix's type and of the file's type."""

    tensor: str
    file: str


PRECISIONS: dict[str, Storage] = {
    "f32": Storage("F32", "ALL_F32"),
    "f16": Storage("F16", "MOSTLY_F16"),
    "bf16": Storage("BF16", "MOSTLY_BF16"),
    "q8_0": Storage("Q8_0", "MOSTLY_Q8_0"),
    "q4_0": Storage("Q4_0", "MOSTLY_Q4_0"),
}
"""Storage of matrices; all other tensors are stored in float32, as llama.cpp requires."""


class Stored(NamedTuple):
    """A tensor as stored in the file, and its type's name in the `gguf` package."""

    array: NDArray[Any]
    type: str


def check_precision(precision: str, spec: ModelSpec, origin: str) -> None:
    """Raise `UserError` for an unknown precision, or one whose blocks do not divide the rows of a matrix."""
    if precision not in PRECISIONS:
        raise UserError(field="precision", value=precision, accepted=f"one of {', '.join(PRECISIONS)}")
    gguf = optional_package("gguf", "to")
    block, _ = gguf.GGML_QUANT_SIZES[gguf.GGMLQuantizationType[PRECISIONS[precision].tensor]]
    mixer, feed_forward = spec.blocks[0].mixer, spec.blocks[0].feed_forward
    assert isinstance(mixer, AttentionSpec) and feed_forward is not None
    heads, _, width = mixer.widths(spec.d_model)
    rows = {
        "d_model": spec.d_model,
        "blocks[0].mixer: heads times their width": heads * width,
        "blocks[0].feed_forward.hidden": feed_forward.hidden,
    }
    for field, length in rows.items():
        if length % block:
            problem = f"{origin}: {field}: {length}: {precision} stores rows in blocks of {block} numbers"
            raise UserError(f"{problem}; expected a multiple, or precision f32, f16 or bf16")


def named_tensors(tensors: Mapping[str, Tensor], spec: ModelSpec) -> dict[str, Tensor]:
    """Return the tensors under the file's names, rows of queries and keys in the order of its architecture.

    Scaling `llama3` has no metadata: `rope_freqs.weight`, `[K/2]`, holds the numbers that divide the angle per position
    of each pair, as llama.cpp's conversion writes it.
    """
    mixer = spec.blocks[0].mixer
    assert isinstance(mixer, AttentionSpec) and mixer.rotary is not None
    heads, kv_heads, width = mixer.widths(spec.d_model)
    named, pairing, rotary = GGUF.to_published(tensors, spec), PAIRING[architecture_of(spec)], mixer.rotary
    if isinstance(rotary.scaling, Llama3Scaling):
        of_pairs = partial(frequencies, width, rotary.base, torch.device("cpu"))
        named["rope_freqs.weight"] = of_pairs() / of_pairs(rotary.scaling.law)
    if rotary.pairing == pairing:
        return named
    counts = {"attn_q": heads, "attn_k": kv_heads, "attn_q_norm": 1, "attn_k_norm": 1}
    for name, tensor in named.items():
        count = counts.get(name.split(".")[-2])
        if count is not None:
            grid = (count, 2, width // 2, -1) if pairing == "adjacent" else (count, width // 2, 2, -1)
            named[name] = tensor.reshape(grid).transpose(1, 2).reshape(tensor.shape)
    return named


def stored_tensors(tensors: Mapping[str, Tensor], spec: ModelSpec, precision: str) -> Iterator[tuple[str, Stored]]:
    """Yield each tensor of the file with its name."""
    for name, tensor in named_tensors(tensors, spec).items():
        yield name, _stored(tensor, precision)


def rounded(tensors: Mapping[str, Tensor], precision: str) -> dict[str, Tensor]:
    """Return the tensors in float32, rounded as their storage rounds them."""
    return {name: torch.from_numpy(dequantize(*_stored(tensor, precision))) for name, tensor in tensors.items()}


def dequantize(array: NDArray[Any], kind: str) -> NDArray[np.float32]:
    """Return the numbers of a stored tensor in float32."""
    gguf = optional_package("gguf", "to")
    numbers: NDArray[np.float32] = gguf.quants.dequantize(array, gguf.GGMLQuantizationType[kind])
    return numbers


def _stored(tensor: Tensor, precision: str) -> Stored:
    gguf = optional_package("gguf", "to")
    kind = PRECISIONS[precision].tensor if tensor.ndim == 2 else "F32"
    numbers = np.ascontiguousarray(tensor.detach().float().cpu().numpy())
    with np.errstate(over="ignore"):  # values too large for 16 bits become infinite, and the parity check finds them
        return Stored(gguf.quants.quantize(numbers, gguf.GGMLQuantizationType[kind]), kind)


@dataclass(frozen=True)
class GgufFile:
    """Content of a file: metadata by key, tensors by name, in float32."""

    metadata: Metadata
    tensors: dict[str, Tensor]

    @property
    def architecture(self) -> str:
        return str(self.metadata["general.architecture"])

    def of_model(self, key: str, default: Any = None) -> Any:
        """Return a value whose key has the architecture as prefix."""
        return self.metadata.get(f"{self.architecture}.{key}", default)


def write_gguf(
    path: Path, architecture: str, precision: str, metadata: Metadata, tensors: Iterable[tuple[str, Stored]]
) -> None:
    """Write a file, replacing an existing one."""
    gguf = optional_package("gguf", "to")
    types = gguf.GGUFValueType
    scalars = {bool: types.BOOL, int: types.UINT32, float: types.FLOAT32, str: types.STRING}
    writer = gguf.GGUFWriter(path, architecture)
    try:
        writer.add_file_type(gguf.LlamaFileType[PRECISIONS[precision].file])
        writer.add_quantization_version(gguf.GGML_QUANT_VERSION)
        for key, value in metadata.items():
            if isinstance(value, bytes):
                writer.add_key_value(key, value, types.ARRAY, types.UINT8)
            elif isinstance(value, list):
                writer.add_key_value(key, value, types.ARRAY, types.get_type(value[0]))
            else:
                writer.add_key_value(key, value, scalars[type(value)])
        for name, stored in tensors:
            writer.add_tensor(name, stored.array, raw_dtype=gguf.GGMLQuantizationType[stored.type])
        writer.write_header_to_file()
        writer.write_kv_data_to_file()
        writer.write_tensors_to_file()
    finally:
        writer.close()


def read_gguf(path: Path) -> GgufFile:
    """Read a whole file."""
    reader = _reader(path)
    metadata = {name: field.contents() for name, field in reader.fields.items()}
    # The reader's arrays are views of the file; tensors that need no conversion are copied.
    tensors = {t.name: torch.from_numpy(dequantize(t.data, t.tensor_type.name).copy()) for t in reader.tensors}
    return GgufFile(metadata, tensors)


def _reader(path: Path) -> Any:
    gguf = optional_package("gguf", "to")

    class ArrayReader(gguf.GGUFReader):  # type: ignore[misc, name-defined]
        # The package's reader splits arrays into one part per number, which takes seconds for a tokenizer's rules.
        def _get_field_parts(self, orig_offs: int, raw_type: int) -> Any:
            of = self._get(orig_offs, np.uint32)
            is_array = raw_type == gguf.GGUFValueType.ARRAY
            number = self.gguf_scalar_to_np.get(gguf.GGUFValueType(of[0])) if is_array else None
            if number is None:
                return super()._get_field_parts(orig_offs, raw_type)
            count = self._get(orig_offs + of.nbytes, np.uint64)
            start = of.nbytes + count.nbytes
            numbers = self._get(orig_offs + start, number, count[0])
            types = [gguf.GGUFValueType.ARRAY, gguf.GGUFValueType(of[0])]
            return start + numbers.nbytes, [of, count, numbers], [2], types

    return ArrayReader(path)
