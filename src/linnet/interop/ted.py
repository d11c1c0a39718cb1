"""Published TED models (github.com/biuq/ted) as model folders.

A model is a folder with `model.json` (its sizes), `vocab.json` (its characters) and its weights under the names of the
published code: `weights.json` (base64 of float32) or `weights.pth` (pickled tensors).
"""

import base64
import math
from pathlib import Path

import numpy as np
import torch
from pydantic import NonNegativeInt, PositiveFloat, PositiveInt
from torch import Tensor

from linnet.core.errors import UserError
from linnet.core.files import parse_json, read_json, read_text, sha256_of
from linnet.core.spec import Spec
from linnet.data.tokenizer import Tokenizer
from linnet.interop.characters import tokenizer_from_characters
from linnet.interop.pth import check_one_precision, read_pth
from linnet.interop.tensor_names import TED, from_published, published_shapes
from linnet.model.decoder import Decoder
from linnet.model.skip_init import decoder_with_weights
from linnet.model.spec import ModelSpec
from linnet.model.store import check_new_folder, check_tensors, read_description, write_model

SIZES, VOCABULARY, JSON_WEIGHTS, PICKLED_WEIGHTS = "model.json", "vocab.json", "weights.json", "weights.pth"
MOST_WEIGHTS_BYTES = 8 << 30
"""Of `weights.json`: five bytes and a third for a number, of more than a billion."""
PRESET = "ted-tinystories"
"""The published model, from whose description others differ by their sizes alone."""
END = "\N{OCTAGONAL SIGN}"
CONTEXT_LENGTH = 2048


class PublishedSizes(Spec):
    """The published `model.json`."""

    num_layers: PositiveInt
    dim: PositiveInt
    hidden_dim: PositiveInt
    norm_eps: PositiveFloat
    vocab_size: PositiveInt


class PublishedTensor(Spec):
    """A tensor in the published `weights.json`: its numbers row by row, little-endian float32 in base64."""

    size: list[NonNegativeInt]
    data: str


def import_ted(
    source: str | Path,
    out: str | Path,
    end: str = END,
    context_length: int = CONTEXT_LENGTH,
    command: str | None = None,
) -> Decoder:
    """Make the model folder `out` from a folder in the published layout.

    end: the character that stood between documents in training; it becomes the end token. context_length: the tokens of
    a training sequence, which the layout does not tell. `UserError` names the file, and the field, character or tensor
    that is wrong. Where there are both files of weights, `weights.json` is read. The tensors keep their precision.
    """
    check_new_folder(out)
    source = Path(source)
    weights = _weights_file(source)
    model = _description(source / SIZES, context_length)
    tokenizer = _tokenizer(source, model, end)
    named = read_json_weights(weights) if weights.name == JSON_WEIGHTS else read_pth(weights)
    check_tensors(named, published_shapes(model, TED), weights, f"the model in {SIZES}")
    check_one_precision(named, weights)
    decoder = decoder_with_weights(model, from_published(named, model, TED))
    made = {"imported_from": str(weights), "sha256": sha256_of(weights), "end_character": end, "command": command}
    write_model(out, decoder, tokenizer, made)
    return decoder


def read_json_weights(path: Path) -> dict[str, Tensor]:
    """The float32 tensors by name of a published `weights.json`; `UserError` names the tensor that cannot be read."""
    content = parse_json(read_text(path, MOST_WEIGHTS_BYTES), str(path))
    if not isinstance(content, dict):
        raise UserError(f"{path}: expected a mapping of tensors, found {type(content).__name__}")
    return {name: _tensor(value, f"{path}: tensor {name}") for name, value in content.items()}


def _tensor(value: object, origin: str) -> Tensor:
    published = PublishedTensor.parse(value, origin)
    try:
        numbers = base64.b64decode(published.data, validate=True)
    except ValueError as error:
        raise UserError(f"{origin}: data: not base64 ({error}); expected that of float32 numbers") from None
    expected = 4 * math.prod(published.size)
    if len(numbers) != expected:
        raise UserError(
            f"{origin}: data: {len(numbers)} bytes: expected {expected}, float32 numbers of size {published.size}"
        )
    return torch.from_numpy(np.frombuffer(numbers, dtype="<f4").astype(np.float32).reshape(published.size))


def _weights_file(source: Path) -> Path:
    """The file of weights in a folder that has all that is needed."""
    wanted = f"expected {SIZES}, {VOCABULARY}, and {JSON_WEIGHTS} or {PICKLED_WEIGHTS}"
    if not source.is_dir():
        raise UserError(f"{source}: no such folder; {wanted}")
    for name in (SIZES, VOCABULARY):
        if not (source / name).is_file():
            raise UserError(f"{source}: has no {name}; {wanted}")
    for name in (JSON_WEIGHTS, PICKLED_WEIGHTS):
        if (source / name).is_file():
            return source / name
    raise UserError(f"{source}: has no {JSON_WEIGHTS} and no {PICKLED_WEIGHTS}; {wanted}")


def _description(path: Path, context_length: int) -> ModelSpec:
    """The preset's, with the sizes of a `model.json` and the name of its folder."""
    if context_length < 1:
        raise UserError(field="context_length", value=context_length, accepted="at least 1")
    sizes = PublishedSizes.parse(read_json(path), str(path))
    plain = read_description(PRESET)
    (block,) = plain["blocks"]
    plain |= {"name": path.resolve().parent.name, "context_length": context_length}
    plain |= {"vocab_size": sizes.vocab_size, "d_model": sizes.dim}
    block["repeat"], block["feed_forward"]["hidden"] = sizes.num_layers, sizes.hidden_dim
    block["norm"]["eps"] = plain["head"]["norm"]["eps"] = sizes.norm_eps
    return ModelSpec.parse(plain, str(path))


def _tokenizer(source: Path, model: ModelSpec, end: str) -> Tokenizer:
    tokenizer = tokenizer_from_characters(source / VOCABULARY, end)
    if tokenizer.vocab_size != model.vocab_size:
        raise UserError(
            f"{source / VOCABULARY}: {tokenizer.vocab_size} characters: expected {model.vocab_size}, "
            f"the vocab_size of {source / SIZES}"
        )
    return tokenizer
