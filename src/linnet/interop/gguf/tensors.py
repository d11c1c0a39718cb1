"""The tensors of a GGUF file: their names, the order of rows in queries and keys, and how numbers are stored.

Legend: `N` heads, `K` head width, `R` rows of a map to queries or keys, `N K`.
"""

from collections.abc import Iterator, Mapping
from typing import Any, NamedTuple

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from linnet.core.errors import UserError
from linnet.interop.gguf.architecture import PAIRING, architecture_of
from linnet.interop.tensor_names import GGUF, published
from linnet.layers.mixers.attention import AttentionSpec
from linnet.model.spec import ModelSpec


class Storage(NamedTuple):
    """How matrices are stored, by the names that the `gguf` package has for a tensor's type and a file's."""

    tensor: str
    file: str


WEIGHTS: dict[str, Storage] = {
    "f32": Storage("F32", "ALL_F32"),
    "f16": Storage("F16", "MOSTLY_F16"),
    "bf16": Storage("BF16", "MOSTLY_BF16"),
    "q8_0": Storage("Q8_0", "MOSTLY_Q8_0"),
    "q4_0": Storage("Q4_0", "MOSTLY_Q4_0"),
}
"""What is not a matrix is stored in float32, as llama.cpp reads it."""


class Stored(NamedTuple):
    """A tensor as the file has it, and its type by the `gguf` package's name."""

    array: NDArray[Any]
    type: str


def gguf_module() -> Any:
    """The package; `UserError` that names the extra where it is not installed."""
    try:
        import gguf
    except ImportError:
        raise UserError("needs gguf: pip install 'linnet[gguf]'", field="to") from None
    return gguf


def check_weights(weights: str, spec: ModelSpec, origin: str) -> None:
    """`UserError` for a kind of storage that there is not, or whose blocks do not fit the rows of a matrix."""
    if weights not in WEIGHTS:
        raise UserError(field="weights", value=weights, accepted=f"one of {', '.join(WEIGHTS)}")
    gguf = gguf_module()
    block, _ = gguf.GGML_QUANT_SIZES[gguf.GGMLQuantizationType[WEIGHTS[weights].tensor]]
    block_spec = spec.blocks[0]
    mixer, feed_forward = block_spec.mixer, block_spec.feed_forward
    assert isinstance(mixer, AttentionSpec) and feed_forward is not None
    heads, _, width = mixer.widths(spec.d_model)
    rows = {
        "d_model": spec.d_model,
        "blocks[0].mixer: heads times their width": heads * width,
        "blocks[0].feed_forward.hidden": feed_forward.hidden,
    }
    for field, length in rows.items():
        if length % block:
            said = f"{origin}: {field}: {length}: {weights} stores rows in blocks of {block} numbers"
            raise UserError(f"{said}; expected a multiple, or weights f32, f16 or bf16")


def named_tensors(tensors: Mapping[str, Tensor], spec: ModelSpec) -> dict[str, Tensor]:
    """Our tensors under a file's names, rows of queries and keys in the order of its architecture."""
    mixer = spec.blocks[0].mixer
    assert isinstance(mixer, AttentionSpec) and mixer.rotary is not None
    heads, kv_heads, width = mixer.widths(spec.d_model)
    named, pairing = published(tensors, spec, GGUF), PAIRING[architecture_of(spec)]
    if mixer.rotary.pairing == pairing:
        return named
    counts = {"attn_q": heads, "attn_k": kv_heads, "attn_q_norm": 1, "attn_k_norm": 1}
    for name, tensor in named.items():
        count = counts.get(name.split(".")[-2])
        if count is not None:
            grid = (count, 2, width // 2, -1) if pairing == "adjacent" else (count, width // 2, 2, -1)
            named[name] = tensor.reshape(grid).transpose(1, 2).reshape(tensor.shape)
    return named


def stored_tensors(tensors: Mapping[str, Tensor], spec: ModelSpec, weights: str) -> Iterator[tuple[str, Stored]]:
    """Each tensor of the file, by name."""
    for name, tensor in named_tensors(tensors, spec).items():
        yield name, _stored(tensor, weights)


def rounded(tensors: Mapping[str, Tensor], weights: str) -> dict[str, Tensor]:
    """Our tensors in float32, each number as far off as storing it puts it."""
    return {name: torch.from_numpy(loaded(*_stored(tensor, weights))) for name, tensor in tensors.items()}


def loaded(array: NDArray[Any], kind: str) -> NDArray[np.float32]:
    """The numbers of a stored tensor."""
    gguf = gguf_module()
    numbers: NDArray[np.float32] = gguf.quants.dequantize(array, gguf.GGMLQuantizationType[kind])
    return numbers


def _stored(tensor: Tensor, weights: str) -> Stored:
    gguf = gguf_module()
    kind = WEIGHTS[weights].tensor if tensor.ndim == 2 else "F32"
    numbers = np.ascontiguousarray(tensor.detach().float().cpu().numpy())
    with np.errstate(over="ignore"):  # what is too large for 16 bits becomes infinite, and the gate sees it
        return Stored(gguf.quants.quantize(numbers, gguf.GGMLQuantizationType[kind]), kind)
