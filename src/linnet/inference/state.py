"""The decode state of a decoder on disk, as safetensors, so that a stream can continue later and elsewhere."""

import json
from collections.abc import Iterable, Iterator, Mapping
from io import TextIOBase
from pathlib import Path
from types import MappingProxyType
from typing import BinaryIO

import torch
from safetensors import SafetensorError, safe_open
from torch import Tensor

from linnet.core.arrays import pack_tensors, read_tensors, unpack_tensors, write_tensors
from linnet.core.errors import UserError, exceeds_memory, one_line
from linnet.core.files import open_file
from linnet.inference.cache_policy import cache_policy_state
from linnet.layers.cache_policy import FULL, CachePolicy, FullCache
from linnet.layers.registry import CACHE_POLICIES
from linnet.model.decoder import Decoder
from linnet.model.state import DecoderState

COUNTS = ("positions", "capacity")
"""Tensors of a file that belong to no layer."""

_LAYER = "layer."

SNAPSHOT = "snapshot."
"""How the names of the tensors of an earlier state begin, before its number of tokens."""

ROOM_FACTOR = 1.5
"""Smallest factor by which a state grows."""

POLICIES = "contexts"
"""Key of the file's metadata: the cache policy of each layer, as JSON."""


def save_state(
    state: DecoderState,
    target: str | Path | BinaryIO,
    notes: Mapping[str, str] = MappingProxyType({}),
    more: Mapping[str, Tensor] = MappingProxyType({}),
) -> None:
    """Write a state, with `notes` in the metadata and `more` tensors; a file is written atomically."""
    _check_file("target", target, "write")
    policies = json.dumps([layer.cache_policy.to_dict() for layer in state.layers])
    tensors, notes = {**state.tensors(), **more}, {**notes, POLICIES: policies}
    if isinstance(target, str | Path):
        write_tensors(target, tensors, notes, checksum=True)
    else:
        target.write(pack_tensors(tensors, notes, checksum=True))


def _check_file(field: str, file: object, method: str) -> None:
    """`UserError` for what is neither a path nor a binary file with this method."""
    is_file = callable(getattr(file, method, None)) and not isinstance(file, TextIOBase)
    if not isinstance(file, str | Path) and not is_file:
        accepted = f"a path, or a binary file that is open to {method}"
        raise UserError(field=field, value=one_line(repr(file), 80), accepted=accepted)


def load_state(decoder: Decoder, path: str | Path) -> DecoderState:
    """Read a state of `decoder` onto its device.

    Raises `UserError` with file and tensor if the file is missing or damaged, or does not fit the decoder.
    """
    return restored_state(decoder, *read_state(path, decoder.device))


def read_state(source: str | Path | BinaryIO, device: torch.device) -> tuple[dict[str, Tensor], dict[str, str], str]:
    """The tensors of the file of a state, its metadata, and its name for messages; `UserError` if it is damaged."""
    _check_file("source", source, "read")
    if isinstance(source, str | Path):
        notes, origin, tensors = read_metadata(source), str(source), read_tensors(source, device)
    else:
        origin = str(getattr(source, "name", "state"))
        tensors, notes = unpack_tensors(source.read(), origin, device)
    # Copies, because a mapped file is not aligned, which changes the last bits of results.
    return {name: tensor.clone() for name, tensor in tensors.items()}, notes, origin


def restored_state(decoder: Decoder, tensors: dict[str, Tensor], notes: Mapping[str, str], path: str) -> DecoderState:
    """The state of these tensors; `UserError`, which begins with `path`, if they do not fit the decoder."""
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
    policies = _cache_policies(notes, path)
    try:
        template = cache_policy_state(decoder, batch, int(capacity), policies, device=torch.device("meta"))
    except UserError as error:
        raise UserError(f"{path}: {error}") from None
    _check_tensors(decoder, template, tensors, path)
    return template.with_tensors(tensors)


def snapshot_tensors(state: DecoderState, snapshots: Iterable[tuple[int, DecoderState]]) -> dict[str, Tensor]:
    """Earlier states of the stream of `state`, by number of tokens, as further tensors of its file.

    What has one place per token is not repeated.
    """
    common = _tensors_of_tokens(state)
    return {
        f"{SNAPSHOT}{length}.{name}": tensor
        for length, snapshot in snapshots
        for name, tensor in snapshot.tensors().items()
        if name not in COUNTS and name not in common
    }


def restored_snapshots(
    decoder: Decoder, state: DecoderState, tensors: Mapping[str, Tensor], notes: Mapping[str, str], path: str
) -> Iterator[tuple[int, DecoderState]]:
    """The snapshots of a file, whose `tensors` these are, by number of tokens; `UserError` if they do not fit."""
    by_length: dict[int, dict[str, Tensor]] = {}
    for name, tensor in tensors.items():
        length, _, field = name.removeprefix(SNAPSHOT).partition(".")
        if not (length.isascii() and length.isdigit() and 0 < int(length) < state.position):
            raise UserError(f"{path}: tensor {name}: expected snapshots of 1 to {state.position - 1} tokens")
        by_length.setdefault(int(length), {})[field] = tensor
    for tokens, own in sorted(by_length.items()):
        counts = {"positions": torch.tensor([tokens]), "capacity": torch.tensor(state.capacity)}
        named = {**_tensors_of_tokens(state), **own, **counts}
        yield tokens, restored_state(decoder, named, notes, f"{path}: {SNAPSHOT}{tokens}")


def _tensors_of_tokens(state: DecoderState) -> dict[str, Tensor]:
    """The tensors with one place per token, by name."""
    tensors = state.tensors()
    names = (prefix + name for prefix, own in state.named() for name in own.room)
    return {name: tensors[name] for name in names if name in tensors}


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
    if a cache policy does not allow so many tokens, or there is no memory for them.
    """
    if tokens <= state.capacity:
        return state
    policies = [layer.cache_policy for layer in state.layers]
    limits = [policy.max_length for policy in policies if policy.max_length is not None]
    capacity = max(tokens, min([round(ROOM_FACTOR * state.capacity), *limits]))
    for policy in policies:
        policy.check_length(capacity)
    try:
        return state.grown(capacity)
    except (RuntimeError, MemoryError, TypeError, OverflowError) as error:
        if not exceeds_memory(error):
            raise
        raise UserError(f"no memory for the state of {tokens} tokens", field="max_tokens") from None


def _cache_policies(notes: Mapping[str, str], path: str) -> list[CachePolicy] | FullCache:
    """The cache policy of each layer of a saved state; older files have none, because everything was kept."""
    text = notes.get(POLICIES)
    if text is None:
        return FULL
    try:
        entries = [dict(entry) for entry in json.loads(text)]
        return [CACHE_POLICIES[entry.pop("kind")](**entry) for entry in entries]
    except (TypeError, KeyError, RecursionError):
        raise UserError(f"{path}: metadata {POLICIES}: not the cache policies of a state: {text}") from None
    except ValueError as error:
        raise UserError(f"{path}: metadata {POLICIES}: {error}") from None


@torch.inference_mode()
def _check_tensors(decoder: Decoder, template: DecoderState, tensors: Mapping[str, Tensor], path: str) -> None:
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
            if name not in COUNTS
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
    for name in (name for name in tensors if name not in COUNTS):
        if name not in accepted:
            raise UserError(f"{path}: tensor {name} does not belong to a state of this model")
        form, expected = (tuple(tensors[name].shape), tensors[name].dtype), accepted[name]
        if form != expected:
            ours, theirs = (
                f"shape {list(shape)} {str(dtype).removeprefix('torch.')}" for shape, dtype in (expected, form)
            )
            raise UserError(f"{path}: tensor {name}: {theirs}: this model's has {ours}")
