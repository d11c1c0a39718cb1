"""A GGUF file, written and read."""

from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
import torch
from torch import Tensor

from linnet.interop.gguf.architecture import Metadata
from linnet.interop.gguf.tensors import WEIGHTS, Stored, gguf_module, loaded


@dataclass(frozen=True)
class GgufFile:
    """What a file holds: metadata by key, tensors by name, in float32."""

    metadata: Metadata
    tensors: dict[str, Tensor]

    @property
    def architecture(self) -> str:
        """Which graph reads it."""
        return str(self.metadata["general.architecture"])

    def of_model(self, key: str, default: Any = None) -> Any:
        """A value that stands under the architecture's name."""
        return self.metadata.get(f"{self.architecture}.{key}", default)


def write_gguf(
    path: Path, architecture: str, weights: str, metadata: Metadata, tensors: Iterable[tuple[str, Stored]]
) -> None:
    """Write a file, in the place of one that is there."""
    gguf = gguf_module()
    writer = gguf.GGUFWriter(path, architecture)
    try:
        writer.add_file_type(gguf.LlamaFileType[WEIGHTS[weights].file])
        writer.add_quantization_version(gguf.GGML_QUANT_VERSION)
        for key, value in metadata.items():
            writer.add_key_value(key, value, *_types(value))
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
    # The reader's arrays are views of the file; what is not computed from them is copied.
    tensors = {t.name: torch.from_numpy(loaded(t.data, t.tensor_type.name).copy()) for t in reader.tensors}
    return GgufFile(metadata, tensors)


def _reader(path: Path) -> Any:
    """The package's; it would make a part of each number of an array, seconds for the rules of a tokenizer."""
    gguf = gguf_module()

    class ArraysAtOnce(gguf.GGUFReader):  # type: ignore[misc, name-defined]
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

    return ArraysAtOnce(path)


def _types(value: Any) -> tuple[Any, ...]:
    """The format's types of a value: whole numbers are not negative, but in lists."""
    kinds = gguf_module().GGUFValueType
    if isinstance(value, bytes):
        return kinds.ARRAY, kinds.UINT8
    if isinstance(value, list):
        return kinds.ARRAY, kinds.get_type(value[0])
    plain: Mapping[type, Any] = {bool: kinds.BOOL, int: kinds.UINT32, float: kinds.FLOAT32, str: kinds.STRING}
    return (plain[type(value)],)
