"""A model on disk: `config.json` (the description) and `model.safetensors` (the weights)."""

from collections.abc import Mapping, Sequence
from pathlib import Path

import torch
from safetensors.torch import save_file
from torch import Tensor

from linnet.core.errors import UserError
from linnet.core.files import atomic_path, write_json
from linnet.core.tensor_file import read_tensors
from linnet.model.decoder import Decoder
from linnet.model.spec import CONFIG, ModelSpec
from linnet.model.undrawn import decoder_of, shapes_only

WEIGHTS, TOKENIZER, RUN = "model.safetensors", "tokenizer.json", "run.json"


def save_decoder(decoder: Decoder, folder: str | Path) -> None:
    """Write description and weights; each file appears whole or not at all."""
    folder = Path(folder)
    write_json(folder / CONFIG, decoder.spec.model_dump())
    with atomic_path(folder / WEIGHTS) as temporary:
        save_file({name: t.contiguous() for name, t in decoder.state_dict().items()}, temporary)


def load_decoder(folder: str | Path, device: str | torch.device = "cpu") -> Decoder:
    """Read a model folder. A missing file, a missing, extra or misshapen tensor is a `UserError` that names it."""
    folder = Path(folder)
    for name in (CONFIG, WEIGHTS):
        if not (folder / name).is_file():
            raise UserError(f"{folder}: is not a model folder, it has no {name}")
    spec, path = ModelSpec.load(folder / CONFIG), folder / WEIGHTS
    tensors = read_tensors(path)
    check_tensors(tensors, shapes_of(shapes_only(spec)), path, f"the model in {CONFIG}")
    dtype = next(iter(tensors.values())).dtype
    # Copied, so that they lie in memory as PyTorch aligns them, not as the file does.
    return decoder_of(spec, {name: t.to(device, dtype, copy=True) for name, t in tensors.items()})


def check_tensors(tensors: Mapping[str, Tensor], expected: Mapping[str, Sequence[int]], path: Path, of: str) -> None:
    """`UserError` naming the first tensor that is missing, extra, misshapen or of whole numbers.

    expected: the shapes by name; `of` says in the message whose they are.
    """
    for name in sorted(expected.keys() - tensors.keys()):
        raise UserError(f"{path}: tensor {name} is missing; {of} has it, of shape {list(expected[name])}")
    for name, tensor in tensors.items():
        if name not in expected:
            raise UserError(f"{path}: tensor {name}, of shape {list(tensor.shape)}: {of} has none of that name")
        if list(tensor.shape) != list(expected[name]):
            raise UserError(f"{path}: tensor {name} has shape {list(tensor.shape)}, {of} has {list(expected[name])}")
        if not tensor.is_floating_point():
            dtype = str(tensor.dtype).removeprefix("torch.")
            raise UserError(f"{path}: tensor {name} is of {dtype}, expected floating point")


def shapes_of(decoder: Decoder) -> dict[str, Sequence[int]]:
    """The shapes of a decoder's tensors by name."""
    return {name: tensor.shape for name, tensor in decoder.state_dict().items()}
