"""The decode state of a decoder on disk, as safetensors: go on later, elsewhere, where a stream was left."""

from collections.abc import Mapping
from pathlib import Path
from types import MappingProxyType

import torch
from safetensors import safe_open
from safetensors.torch import save_file
from torch import Tensor

from linnet.core.errors import UserError
from linnet.core.files import atomic_path
from linnet.core.tensor_file import read_tensors
from linnet.inference.context import Contexts, context_state, contexts_of, from_json, to_json
from linnet.layers.mixers.ted.state import FULL, BankContext, Context, FullContext
from linnet.model.decoder import Decoder
from linnet.model.state import DecoderState

Form = tuple[tuple[int, ...], torch.dtype]

_COUNTS = ("position", "capacity")
_PADDING = "padding"

CONTEXTS = "contexts"
"""Key of the file's metadata: how each layer keeps the past, as JSON."""


def save_state(state: DecoderState, path: str | Path, notes: Mapping[str, str] = MappingProxyType({})) -> None:
    """Write a state, and with it `notes` by name; the file appears whole or not at all."""
    tensors = {name: tensor.detach().contiguous() for name, tensor in state.tensors().items()}
    with atomic_path(path) as temporary:
        save_file(tensors, temporary, {**notes, CONTEXTS: to_json(contexts_of(state))})


def load_state(decoder: Decoder, path: str | Path) -> DecoderState:
    """Read a state of `decoder`, onto its device.

    Raises `UserError` that names file and tensor where the file is missing or damaged, or does not fit the decoder.
    """
    path = Path(path)
    # In memory of their own: a mapped file is not aligned, which shows in the last bits.
    tensors = {name: tensor.clone() for name, tensor in read_tensors(path, decoder.device).items()}
    position, capacity = (_count(tensors, name, path) for name in _COUNTS)
    if not 0 <= position <= capacity or capacity == 0:
        raise UserError(f"{path}: position {position}: expected 0 to the capacity, which is {capacity}")
    layers = {name: tensor for name, tensor in tensors.items() if name not in (*_COUNTS, _PADDING)}
    if not layers or any(tensor.dim() == 0 for tensor in layers.values()):
        raise UserError(f"{path}: not a decode state, it has no tensors of layers")
    batch = len(next(iter(layers.values())))
    template = _template(decoder, batch, capacity, _contexts(path), path)
    at_start, later = _forms(decoder, template, batch)
    later |= _lengths_as_they_are(template, layers)
    if _PADDING in tensors:
        layers[_PADDING] = tensors[_PADDING]
        later[_PADDING] = ((batch,), torch.int64)
    _check(layers, required=at_start if position == 0 else later, allowed=later, path=path)
    return template.with_tensors(tensors)


def _count(tensors: dict[str, Tensor], name: str, path: Path) -> int:
    value = tensors.get(name)
    if value is None or value.dim() != 0 or value.dtype != torch.int64:
        raise UserError(f"{path}: not a decode state, it has no count {name!r}")
    return int(value)


def read_notes(path: str | Path) -> dict[str, str]:
    """What was written with a state that has been read."""
    with safe_open(path, "pt") as file:
        return dict(file.metadata() or {})


def grown(decoder: Decoder, state: DecoderState, capacity: int) -> DecoderState:
    """A copy with room for `capacity` tokens, at least as many as there was room for."""
    for choice in contexts_of(state):
        if isinstance(choice, BankContext) and choice.length is not None and capacity > choice.length:
            raise UserError(
                f"context: a bank for {choice.length} tokens: the stream has to hold {capacity}; begin it with a bank"
                " for as many, BankContext(length)"
            )
    known = state.tensors()
    batch = len(next(iter(_layer_tensors(state).values())))
    larger = context_state(decoder, batch, capacity, contexts_of(state))
    tensors = larger.tensors()
    for name, tensor in known.items():
        room = tensors.get(name)
        fits = room is not None and all(have <= there for have, there in zip(tensor.shape, room.shape, strict=True))
        if room is None or not fits or room.shape == tensor.shape:
            tensors[name] = tensor.clone()
        else:
            room[tuple(slice(length) for length in tensor.shape)] = tensor
    return larger.with_tensors({**tensors, "capacity": torch.tensor(capacity)})


def _contexts(path: Path) -> list[Context] | FullContext:
    """How the layers of the saved state keep the past; files of old do not say it, there all is kept."""
    text = read_notes(path).get(CONTEXTS)
    try:
        return FULL if text is None else from_json(text)
    except ValueError as error:
        raise UserError(f"{path}: metadata {CONTEXTS}: {error}") from None


def _template(decoder: Decoder, batch: int, capacity: int, contexts: Contexts, path: Path) -> DecoderState:
    """An empty state that takes no memory."""
    try:
        return context_state(decoder, batch, capacity, contexts, device=torch.device("meta"))
    except UserError as error:
        raise UserError(f"{path}: {error}") from None


@torch.inference_mode()
def _forms(decoder: Decoder, template: DecoderState, batch: int) -> tuple[dict[str, Form], dict[str, Form]]:
    """Shape and precision of every layer's tensor: before the first chunk, and after it has filled all fields."""
    at_start = _layer_tensors(template)
    probe = context_state(decoder, 1, 1, contexts_of(template))
    decoder.hidden(torch.zeros(1, 1, dtype=torch.int64, device=decoder.device), probe)
    filled = {
        name: ((batch, *tensor.shape[1:]), tensor.dtype)
        for name, tensor in _layer_tensors(probe).items()
        if name not in at_start
    }
    forms = {name: (tuple(tensor.shape), tensor.dtype) for name, tensor in at_start.items()}
    return forms, {**forms, **filled}


def _lengths_as_they_are(template: DecoderState, found: dict[str, Tensor]) -> dict[str, Form]:
    """The forms of tensors whose second dimension may be anything: all of a layer's have that of the first found."""
    forms: dict[str, Form] = {}
    for index, layer in enumerate(template.layers):
        named = {f"layer.{index}.{field}": layer.tensors()[field] for field in sorted(layer.any_length)}
        lengths = [found[name].shape[1] for name in named if name in found and found[name].dim() > 1]
        for name, tensor in named.items():
            forms[name] = ((tensor.shape[0], *lengths[:1], *tensor.shape[2:]), tensor.dtype)
    return forms


def _layer_tensors(state: DecoderState) -> dict[str, Tensor]:
    return {name: tensor for name, tensor in state.tensors().items() if name not in _COUNTS}


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
