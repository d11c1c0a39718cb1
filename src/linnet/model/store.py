"""Write and read models: whole folders, and weights that are checked against a description."""

import shutil
from collections.abc import Collection, Mapping, Sequence
from pathlib import Path
from types import MappingProxyType
from typing import Any, Protocol

import torch
from torch import Tensor

from linnet.core.arrays import read_tensors, write_tensors
from linnet.core.atomic import atomic_directory, clean_up, not_replaced
from linnet.core.checksum import check_files, write_file_checksums
from linnet.core.errors import UserError
from linnet.core.files import write_json, write_text
from linnet.model.adapter import AdapterInfo, add_parts, base_folder
from linnet.model.decoder import Decoder, decoder_with_weights, meta_decoder
from linnet.model.folder import ADAPTER, CONFIG, PUBLISHED, RUN, TOKENIZER, WEIGHTS, weights_file
from linnet.model.spec import ModelSpec


class TokenizerLike(Protocol):
    """A tokenizer that can be saved to a file."""

    def save(self, path: str | Path) -> None: ...


def write_model(
    folder: str | Path,
    decoder: Decoder,
    tokenizer: TokenizerLike,
    made: Mapping[str, Any],
    published: Mapping[str, Path] = MappingProxyType({}),
    beside: Mapping[str, str] = MappingProxyType({}),
) -> None:
    """Write a whole model folder or nothing, replacing an existing one; `made` becomes `run.json`.

    published: files by name to copy into `PUBLISHED`. beside: texts of other files by name, such as a chat template.
    """
    with atomic_directory(folder) as temporary:
        save_decoder(decoder, temporary)
        write_other_files(temporary, (CONFIG, WEIGHTS), tokenizer, made, published, beside)


def write_other_files(
    folder: Path,
    there: Sequence[str],
    tokenizer: TokenizerLike,
    made: Mapping[str, Any],
    published: Mapping[str, Path],
    beside: Mapping[str, str],
) -> None:
    """Complete a folder that has the files `there` to a model folder, with the checksums of all its files."""
    tokenizer.save(folder / TOKENIZER)
    write_json(folder / RUN, made)
    names = [f"{PUBLISHED}/{name}" for name in published]
    for name, path in zip(names, published.values(), strict=True):
        (folder / name).parent.mkdir(parents=True, exist_ok=True)
        shutil.copyfile(path, folder / name)
    for name, text in beside.items():
        write_text(folder / name, text)
    write_file_checksums(folder, (*there, TOKENIZER, RUN, *beside, *names))


def check_new_folder(out: str | Path, accepted: str = "a new folder") -> None:
    """`UserError` if the path of a folder (or of what else is `accepted`) that is to be created exists already."""
    path = Path(out)
    clean_up(path)
    if path.exists() and not (path.is_dir() and not any(path.iterdir())):
        raise UserError("exists already", field="out", value=out, accepted=accepted)


def save_decoder(decoder: Decoder, folder: str | Path) -> None:
    """Write the description and the weights; each file is written as a whole or not at all."""
    folder = Path(folder)
    write_json(folder / CONFIG, decoder.spec.model_dump())
    write_tensors(folder / WEIGHTS, decoder.state_dict())


def load_decoder(folder: str | Path, device: str | torch.device = "cpu") -> Decoder:
    """Read a model folder; `UserError` names a missing file, or a missing, extra or wrongly shaped tensor.

    Low-rank parts are added to the weights of the model that they belong to.
    """
    folder = Path(folder)
    for file in (folder / CONFIG, weights_file(folder)):
        if not file.is_file():
            raise UserError(f"{folder}: is not a model folder, it has no {file.name}")
    with not_replaced(folder):
        check_files(folder, (CONFIG,))
        spec = ModelSpec.load(folder / CONFIG)
        tensors = read_weights(folder, shapes_of(meta_decoder(spec)), f"the model in {CONFIG}")
    dtype = next(iter(tensors.values())).dtype
    # Copy the tensors so that they have PyTorch's alignment in memory, not that of the file.
    return decoder_with_weights(spec, {name: t.to(device, dtype, copy=True) for name, t in tensors.items()})


def read_weights(folder: Path, expected: Mapping[str, Sequence[int]], of: str) -> dict[str, Tensor]:
    """The weights of a model folder, checked against the `expected` shapes of the model that `of` names."""
    tensors = _stored_weights(folder)
    check_tensors(tensors, expected, weights_file(folder), of)
    return tensors


def _stored_weights(folder: Path) -> dict[str, Tensor]:
    """The weights of a model folder: those of its file, or those of another model with low-rank parts added."""
    if (folder / ADAPTER).is_file():
        info = AdapterInfo.read(folder)
        return add_parts(_stored_weights(base_folder(folder, info)), folder, info)
    check_files(folder, (WEIGHTS,))
    return read_tensors(folder / WEIGHTS)


def check_tensors(
    tensors: Mapping[str, Tensor],
    expected: Mapping[str, Sequence[int]],
    path: Path,
    of: str,
    integers: Collection[str] = (),
) -> None:
    """`UserError` naming the first tensor that is missing, extra, of a wrong shape, or of integers.

    expected: the shapes by name; `of` names their model in the message. integers: the names of those that are integers.
    """
    for name in sorted(expected.keys() - tensors.keys()):
        raise UserError(f"{path}: tensor {name} is missing; {of} has it, of shape {list(expected[name])}")
    for name, tensor in tensors.items():
        if name not in expected:
            raise UserError(f"{path}: tensor {name}, of shape {list(tensor.shape)}: {of} has none of that name")
        if list(tensor.shape) != list(expected[name]):
            raise UserError(f"{path}: tensor {name} has shape {list(tensor.shape)}, {of} has {list(expected[name])}")
        if not tensor.is_floating_point() and name not in integers:
            dtype = str(tensor.dtype).removeprefix("torch.")
            raise UserError(f"{path}: tensor {name} is of {dtype}, expected floating point")


def shapes_of(decoder: Decoder) -> dict[str, Sequence[int]]:
    """The shapes of a decoder's tensors by name."""
    return {name: tensor.shape for name, tensor in decoder.state_dict().items()}
