"""The decode state of a decoder on disk, as safetensors, so that a stream can continue later and elsewhere."""

from collections.abc import Mapping
from pathlib import Path
from types import MappingProxyType

import torch
from safetensors import SafetensorError, safe_open
from torch import Tensor

from linnet.core.arrays import read_tensors, write_tensors
from linnet.core.errors import UserError
from linnet.core.files import open_file
from linnet.inference.cache_policy import CachePolicies, cache_policies_of, cache_policy_state, from_json, to_json
from linnet.layers.cache_policy import FULL, CachePolicy, FullCache
from linnet.model.decoder import Decoder
from linnet.model.state import DecoderState

Form = tuple[tuple[int, ...], torch.dtype]

_COUNTS = ("positions", "capacity")
_LAYER = "layer."

CONTEXTS = "contexts"
"""Key of the file's metadata: the cache policy of each layer, as JSON."""


def save_state(state: DecoderState, path: str | Path, notes: Mapping[str, str] = MappingProxyType({})) -> None:
    """Write a state, with `notes` in the metadata; the file is written atomically."""
    write_tensors(path, state.tensors(), {**notes, CONTEXTS: to_json(cache_policies_of(state))}, checksum=True)


def load_state(decoder: Decoder, path: str | Path) -> DecoderState:
    """Read a state of `decoder` onto its device.

    Raises `UserError` with file and tensor if the file is missing or damaged, or does not fit the decoder.
    """
    path = Path(path)
    # Copies, because a mapped file is not aligned, which changes the last bits of results.
    tensors = {name: tensor.clone() for name, tensor in read_tensors(path, decoder.device).items()}
    layers = {name: tensor for name, tensor in tensors.items() if name.startswith(_LAYER)}
    if not layers or any(tensor.dim() == 0 for tensor in layers.values()):
        raise UserError(f"{path}: not a decode state, it has no tensors of layers")
    batch, capacity = len(next(iter(layers.values()))), _capacity(tensors, path)
    positions = tensors["positions"] = _positions(tensors, batch, path)
    for position in positions.tolist():
        if not 0 <= position <= capacity or capacity == 0:
            raise UserError(f"{path}: position {position}: expected 0 to the capacity, which is {capacity}")
    template = _template(decoder, batch, capacity, _cache_policies(path), path)
    at_start, filled = _forms(template, batch), _forms(_after_a_token(decoder, template), batch)
    later = {**filled, **at_start, **_lengths_as_they_are(template, layers)}
    layers |= {name: tensor for name, tensor in tensors.items() if name not in (*_COUNTS, *layers)}
    _check(layers, required=later if positions.any() else at_start, allowed=later, path=path)
    return template.with_tensors(tensors)


def _capacity(tensors: dict[str, Tensor], path: Path) -> int:
    value = tensors.get("capacity")
    if value is None or value.dim() != 0 or value.dtype != torch.int64:
        raise UserError(f"{path}: not a decode state, it has no count 'capacity'")
    return int(value)


def _positions(tensors: dict[str, Tensor], batch: int, path: Path) -> Tensor:
    """The position of each row, int64 `[B]`; old files have one `position` for all rows."""
    old = tensors.pop("position", None)
    value = tensors.get("positions") if old is None else old.expand(batch)
    if value is None or value.shape != (batch,) or value.dtype != torch.int64:
        raise UserError(f"{path}: not a decode state, it has no 'positions' of its {batch} rows")
    return value


def read_metadata(path: str | Path) -> dict[str, str]:
    """The metadata of a state; empty for any other file, which `load_state` reports."""
    try:
        open_file(path).close()  # the library would wait forever for a pipe
        with safe_open(path, "pt") as file:
            return dict(file.metadata() or {})
    except (UserError, OSError, SafetensorError):
        return {}


def grow_state(state: DecoderState, capacity: int) -> DecoderState:
    """A copy with room for `capacity` tokens, at least the present capacity."""
    for cache_policy in cache_policies_of(state):
        cache_policy.check_length(capacity)
    return state.grown(capacity)


def _cache_policies(path: Path) -> list[CachePolicy] | FullCache:
    """How the layers of the saved state keep the past; files of old do not say it, there all is kept."""
    text = read_metadata(path).get(CONTEXTS)
    try:
        return FULL if text is None else from_json(text)
    except ValueError as error:
        raise UserError(f"{path}: metadata {CONTEXTS}: {error}") from None


def _template(decoder: Decoder, batch: int, capacity: int, cache_policies: CachePolicies, path: Path) -> DecoderState:
    """An empty state without memory (on the meta device)."""
    try:
        return cache_policy_state(decoder, batch, capacity, cache_policies, device=torch.device("meta"))
    except UserError as error:
        raise UserError(f"{path}: {error}") from None


@torch.inference_mode()
def _after_a_token(decoder: Decoder, template: DecoderState) -> DecoderState:
    """A state of the same kind with one row, all of whose fields a first chunk has filled."""
    probe = cache_policy_state(decoder, 1, 1, cache_policies_of(template))
    token_11 = torch.zeros(1, 1, dtype=torch.int64, device=decoder.device)
    decoder.hidden(token_11, probe, memory=None if decoder.encoder is None else decoder.encode(token_11))
    return probe


def _forms(state: DecoderState, batch: int) -> dict[str, Form]:
    """Shape and dtype of every layer's tensors for a number of rows."""
    layers = {name: tensor for name, tensor in state.tensors().items() if name not in _COUNTS}
    return {name: ((batch, *tensor.shape[1:]), tensor.dtype) for name, tensor in layers.items()}


def _lengths_as_they_are(template: DecoderState, found: dict[str, Tensor]) -> dict[str, Form]:
    """The forms of tensors whose second dimension is free: all of a layer have that of the first one found."""
    forms: dict[str, Form] = {}
    for prefix, state in template.named():
        named = {prefix + field: state.tensors()[field] for field in sorted(state.any_length)}
        lengths = [found[name].shape[1] for name in named if name in found and found[name].dim() > 1]
        for name, tensor in named.items():
            forms[name] = ((tensor.shape[0], *lengths[:1], *tensor.shape[2:]), tensor.dtype)
    return forms


def _check(tensors: dict[str, Tensor], required: dict[str, Form], allowed: dict[str, Form], path: Path) -> None:
    for name in required.keys() - tensors.keys():
        raise UserError(f"{path}: tensor {name} is missing")
    for name, tensor in tensors.items():
        if name not in allowed:
            raise UserError(f"{path}: tensor {name} does not belong to a state of this model")
        form = (tuple(tensor.shape), tensor.dtype)
        if form != allowed[name]:
            raise UserError(f"{path}: tensor {name}: {_words(form)}: this model's has {_words(allowed[name])}")


def _words(form: Form) -> str:
    shape, dtype = form
    return f"shape {list(shape)} {str(dtype).removeprefix('torch.')}"
