"""Export of a model as a GGUF file, checked before it gets its name: ids, logits and greedy tokens (`parity`).

The file is compared with the model rounded as the file stores it, so that a wrong name, order or angle cannot hide
behind rounding; the effect of rounding is measured separately. If llama-cpp-python is installed, llama.cpp is compared
too.

Legend: `T` tokens, `V` vocabulary.
"""

from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from importlib.util import find_spec
from pathlib import Path
from typing import Any

import torch

from linnet.core.atomic import atomic_path
from linnet.core.errors import UserError, first_line, note
from linnet.data.chat_template import named_templates
from linnet.data.tokenizer import TOKENIZER, Tokenizer
from linnet.inference.language_model import LanguageModel
from linnet.interop import optional_package
from linnet.interop.exporters import ExportResult
from linnet.interop.gguf.architecture import architecture_metadata, architecture_of, check_architecture
from linnet.interop.gguf.file import (
    GgufFile,
    check_precision,
    read_gguf,
    rounded,
    stored_tensors,
    write_gguf,
)
from linnet.interop.gguf.reference import GgufTokenizer, logits_of
from linnet.interop.gguf.vocabulary import vocabulary_of
from linnet.interop.parity import (
    MAX_ERROR,
    SAMPLES,
    STEPS,
    Agreement,
    Expected,
    bits_per_byte,
    check_same_ids,
    compare,
    expected_of,
    in_float32,
    largest_error,
    sample_stories,
)
from linnet.interop.transformers_folder import published_folder
from linnet.model.decoder import Decoder

STORIES = sample_stories(3)
TEXTS = (*SAMPLES, *STORIES)
"""Texts on which tokenizers are compared: samples that they split in different ways, and stories."""

NAME = "llama.cpp"
MAX_ERRORS = {"f32": 1e-3, "f16": 1e-2, "bf16": 0.1, "q8_0": 0.3, "q4_0": 0.3}
"""Largest errors of a logit in standard deviations: llama.cpp also rounds the inputs of a product, to the precision of
the matrix or to blocks of 8 bits.
"""


@dataclass(frozen=True)
class StorageLoss:
    """Effect of storing a model in fewer bits.

    error: largest error of a logit at the tokens that the unrounded model prefers. same: of `STEPS` greedy tokens,
    those that stay. bits_per_byte: of stories, before and after.
    """

    precision: str
    error: float
    same: int
    bits_per_byte: tuple[float, float]

    @property
    def figures(self) -> dict[str, float]:
        before, after = self.bits_per_byte
        lost = {"logits_error": self.error, "greedy_tokens_kept": self.same}
        return {**lost, "bits_per_byte": before, "bits_per_byte_stored": after}

    def __str__(self) -> str:
        before, after = self.bits_per_byte
        moves = f"moves logits by at most {self.error:.1e} of their spread" if self.error else "changes no logit"
        same = f"{self.same} of {STEPS} greedy tokens stay"
        return f"rounding to {self.precision} {moves}, {same}; {before:.3f} bits per byte of stories become {after:.3f}"


def export_gguf(model: LanguageModel, out: Path, precision: str = "f32") -> ExportResult:
    """Write a model as the file `out` for llama.cpp; nothing is left if a check fails.

    precision: f32, f16, bf16, q8_0 or q4_0, of the stored matrices. `UserError` names the field of the description or
    tokenizer that a file cannot express, or the difference that a check found.
    """
    optional_package("gguf", "to")
    spec, tokenizer = model.spec, model.tokenizer
    check_architecture(spec, spec.name)
    check_precision(precision, spec, spec.name)
    vocabulary = vocabulary_of(tokenizer, tokenizer.definition, spec.vocab_size, f"{spec.name}: {TOKENIZER}")
    metadata = {"general.name": spec.name, **architecture_metadata(spec), **vocabulary.metadata}
    # llama.cpp ends a text at any of these and at eos_token_id.
    metadata |= zip(("tokenizer.ggml.eot_token_id", "tokenizer.ggml.eom_token_id"), tokenizer.end_ids[1:], strict=False)
    folders = (model.folder, published_folder(model.folder))  # the first that has templates
    for name, template in next(filter(None, (named_templates(each) for each in folders if each)), {}).items():
        metadata["tokenizer.chat_template" + ("" if name == "default" else f".{name}")] = template
    for token in tokenizer.end_ids[3:]:
        note(f"{spec.name}: {tokenizer.describe_token(token)} ends a text; a GGUF file names three such tokens at most")
    with atomic_path(out) as path:
        tensors = stored_tensors(model.decoder.state_dict(), spec, precision)
        write_gguf(path, architecture_of(spec), precision, metadata, tensors)
        return _checked(path, out, model, precision)


def _checked(path: Path, out: Path, source: LanguageModel, precision: str) -> ExportResult:
    """Compare the file that is to become `out` with the model."""
    origin, file, tokenizer = str(out), read_gguf(path), source.tokenizer
    ids = check_same_ids(tokenizer, GgufTokenizer(file.metadata).encode, "the file's own vocabulary", origin, TEXTS)
    whole, stored = in_float32(source.decoder), in_float32(source.decoder)
    for decoder, kind in ((whole, "f32"), (stored, precision)):  # every number is rounded as it is stored
        decoder.load_state_dict(rounded(decoder.state_dict(), kind))
    expected = expected_of(stored)
    states = zip(whole.state_dict().values(), stored.state_dict().values(), strict=True)
    exact = all(torch.equal(*pair) for pair in states)
    lost = None if exact else storage_loss(precision, whole, expected_of(whole), stored, tokenizer)
    read_back = check_file(file, expected, origin)
    run = None
    if llama_cpp_is_installed():
        with loaded_in_llama_cpp(path, origin) as llama:
            check_same_ids(tokenizer, llama_cpp_encoder(llama), NAME, origin, TEXTS)
            tokens, prompt = expected.tokens.tolist(), len(expected.tokens) - expected.steps + 1
            llama.reset()
            for chunk in (tokens[:prompt], *([token] for token in tokens[prompt:])):  # then token by token
                llama.eval(chunk)
            logits_TV = torch.from_numpy(llama.scores[: len(tokens)].copy())
            run = compare(expected, logits_TV, MAX_ERRORS[precision], NAME, origin)
    figures = {
        "architecture": file.architecture,
        "weights": precision,
        "tokenizer": file.metadata["tokenizer.ggml.model"],
        "pre_tokenizer": file.metadata["tokenizer.ggml.pre"],
        "same_ids": ids,
        "read_back": read_back.figures,
        "llama_cpp": None if run is None else run.figures,
        "rounding": None if lost is None else lost.figures,
    }
    compared = "not compared with llama.cpp itself (llama-cpp-python is not installed)" if run is None else str(run)
    messages = [str(read_back), compared, f"the same {ids:,} ids of the texts compared"]
    messages += [] if lost is None else [str(lost)]
    return ExportResult.of(out, source.decoder, path, figures=figures, messages=tuple(messages))


def check_file(file: GgufFile, expected: Expected, origin: str) -> Agreement:
    """Raise `UserError` unless the file, computed from its own metadata, agrees with the model."""
    return compare(expected, logits_of(file, expected.tokens), MAX_ERROR, "the file's own metadata", origin)


@torch.no_grad()
def storage_loss(
    precision: str, whole: Decoder, expected: Expected, stored: Decoder, tokenizer: Tokenizer
) -> StorageLoss:
    """Measure the effect of rounding; `expected`: outputs of the unrounded model `whole`."""
    theirs = stored(expected.tokens[None])[0]
    error = largest_error(expected.logits, theirs)
    same = int((expected.logits.argmax(1) == theirs.argmax(1))[-STEPS:].sum())
    # Stories, each after an end token, as far as the context reaches.
    ids = [token for text in STORIES for token in (tokenizer.end_id, *tokenizer.encode(text))]
    tokens_T = torch.tensor(ids[: whole.spec.context_length + 1])
    before, after = (bits_per_byte(d(tokens_T[None, :-1])[0], tokens_T, tokenizer) for d in (whole, stored))
    return StorageLoss(precision, error, same, (before, after))


def llama_cpp_is_installed() -> bool:
    """Return True if llama-cpp-python is installed; it is optional."""
    return find_spec("llama_cpp") is not None


@contextmanager
def loaded_in_llama_cpp(path: Path, origin: str) -> Iterator[Any]:
    """Load a file in llama.cpp on the CPU, keys and values in float32; `UserError` if it refuses the file."""
    import llama_cpp

    cache = {"type_k": llama_cpp.GGML_TYPE_F32, "type_v": llama_cpp.GGML_TYPE_F32, "flash_attn": False}
    try:
        model = llama_cpp.Llama(str(path), n_ctx=512, logits_all=True, verbose=False, n_gpu_layers=0, **cache)
    except (ValueError, RuntimeError) as error:
        raise UserError(f"{origin}: llama.cpp cannot read it ({first_line(error)})") from error
    try:
        yield model
    finally:
        model.close()


def llama_cpp_encoder(model: Any) -> Callable[[str], list[int]]:
    """Return a function that encodes without added tokens; names of control tokens are ordinary text."""
    return lambda text: list(model.tokenize(text.encode(), add_bos=False, special=False))
