"""The decode state of a decoder on disk, as safetensors, so that a stream can continue later and elsewhere."""

import json
from collections.abc import Mapping
from pathlib import Path
from types import MappingProxyType

import torch
from safetensors import SafetensorError, safe_open
from torch import Tensor

from linnet.core.arrays import read_tensors, write_tensors
from linnet.core.errors import UserError
from linnet.core.files import open_file
from linnet.inference.cache_policy import cache_policy_state
from linnet.layers.cache_policy import FULL, CachePolicy, FullCache
from linnet.layers.registry import CACHE_POLICIES
from linnet.model.decoder import Decoder
from linnet.model.state import DecoderState

_COUNTS = ("positions", "capacity")
_LAYER = "layer."

ROOM_FACTOR = 1.5
"""Smallest factor by which a state grows."""

CONTEXTS = "contexts"
"""Key of the file's metadata: the cache policy of each layer, as JSON."""


def save_state(state: DecoderState, path: str | Path, notes: Mapping[str, str] = MappingProxyType({})) -> None:
    """Write a state, with `notes` in the metadata; the file is written atomically."""
    policies = json.dumps([layer.cache_policy.to_dict() for layer in state.layers])
    write_tensors(path, state.tensors(), {**notes, CONTEXTS: policies}, checksum=True)


def load_state(decoder: Decoder, path: str | Path) -> DecoderState:
    """Read a state of `decoder` onto its device.

    Raises `UserError` with file and tensor if the file is missing or damaged, or does not fit the decoder.
    """
    path = Path(path)
    # Copies, because a mapped file is not aligned, which changes the last bits of results.
    tensors = {name: tensor.clone() for name, tensor in read_tensors(path, decoder.device).items()}
    layers = [tensor for name, tensor in tensors.items() if name.startswith(_LAYER)]
    if not layers or any(tensor.dim() == 0 for tensor in layers):
        raise UserError(f"{path}: not a decode state, it has no tensors of layers")
    batch, capacity = len(layers[0]), tensors.get("capacity")
    if capacity is None or capacity.dim() != 0 or capacity.dtype != torch.int64:
        raise UserError(f"{path}: not a decode state, it has no count 'capacity'")
    if "position" in tensors:  # older files have one position for all rows
        tensors["positions"] = tensors.pop("position").expand(batch)
    positions = tensors.get("positions")
    if positions is None or positions.shape != (batch,) or positions.dtype != torch.int64:
        raise UserError(f"{path}: not a decode state, it has no 'positions' of its {batch} rows")
    for position in positions.tolist():
        if not 0 <= position <= capacity or capacity == 0:
            raise UserError(f"{path}: position {position}: expected 0 to the capacity, which is {int(capacity)}")
    policies = _read_cache_policies(path)
    try:
        template = cache_policy_state(decoder, batch, int(capacity), policies, device=torch.device("meta"))
    except UserError as error:
        raise UserError(f"{path}: {error}") from None
    _check_tensors(decoder, template, tensors, path)
    return template.with_tensors(tensors)


def read_metadata(path: str | Path) -> dict[str, str]:
    """The metadata of a state; empty for any other file, which `load_state` reports."""
    try:
        open_file(path).close()  # the library would wait forever for a pipe
        with safe_open(path, "pt") as file:
            return dict(file.metadata() or {})
    except (UserError, OSError, SafetensorError):
        return {}


def with_room(state: DecoderState, tokens: int) -> DecoderState:
    """The state itself if it has room for `tokens` tokens in all, else a larger copy.

    It grows at least by `ROOM_FACTOR`, so that it grows rarely, but not above the limit of a cache policy. `UserError`
    if a cache policy does not allow so many tokens.
    """
    if tokens <= state.capacity:
        return state
    policies = [layer.cache_policy for layer in state.layers]
    limits = [policy.max_length for policy in policies if policy.max_length is not None]
    capacity = max(tokens, min([round(ROOM_FACTOR * state.capacity), *limits]))
    for policy in policies:
        policy.check_length(capacity)
    return state.grown(capacity)


def _read_cache_policies(path: Path) -> list[CachePolicy] | FullCache:
    """The cache policy of each layer of a saved state; older files have none, because everything was kept."""
    text = read_metadata(path).get(CONTEXTS)
    if text is None:
        return FULL
    try:
        entries = [dict(entry) for entry in json.loads(text)]
        return [CACHE_POLICIES[entry.pop("kind")](**entry) for entry in entries]
    except (TypeError, KeyError, RecursionError):
        raise UserError(f"{path}: metadata {CONTEXTS}: not the cache policies of a state: {text}") from None
    except ValueError as error:
        raise UserError(f"{path}: metadata {CONTEXTS}: {error}") from None


@torch.inference_mode()
def _check_tensors(decoder: Decoder, template: DecoderState, tensors: Mapping[str, Tensor], path: Path) -> None:
    """`UserError` for a tensor that is missing, unexpected, or of another shape or dtype than the decoder's.

    template: an empty state with the sizes and policies of the file, on the device meta.
    """
    # A first chunk fills the fields that are None in an empty state.
    filled = cache_policy_state(decoder, 1, 1, [layer.cache_policy for layer in template.layers])
    token_11 = torch.zeros(1, 1, dtype=torch.int64, device=decoder.device)
    decoder.hidden(token_11, filled, memory=None if decoder.encoder is None else decoder.encode(token_11))
    at_start, accepted = (
        {
            name: ((len(template.positions), *tensor.shape[1:]), tensor.dtype)
            for name, tensor in state.tensors().items()
            if name not in _COUNTS
        }
        for state in (template, filled)
    )
    accepted |= at_start
    # The second dimension of some tensors is free, but the same for all of a layer.
    for prefix, state in template.named():
        free = {prefix + field: state.tensors()[field] for field in sorted(state.any_length)}
        lengths = [tensors[name].shape[1] for name in free if name in tensors and tensors[name].dim() > 1]
        for name, tensor in free.items():
            accepted[name] = ((tensor.shape[0], *lengths[:1], *tensor.shape[2:]), tensor.dtype)
    required = accepted if tensors["positions"].any() else at_start
    for name in required.keys() - tensors.keys():
        raise UserError(f"{path}: tensor {name} is missing")
    for name in (name for name in tensors if name not in _COUNTS):
        if name not in accepted:
            raise UserError(f"{path}: tensor {name} does not belong to a state of this model")
        form, expected = (tuple(tensors[name].shape), tensors[name].dtype), accepted[name]
        if form != expected:
            ours, theirs = (
                f"shape {list(shape)} {str(dtype).removeprefix('torch.')}" for shape, dtype in (expected, form)
            )
            raise UserError(f"{path}: tensor {name}: {theirs}: this model's has {ours}")
