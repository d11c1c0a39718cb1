"""A model of ours as a GGUF file: written beside its name, held to the model, and named only then."""

from pathlib import Path

import torch

from linnet.core.atomic import atomic_path
from linnet.data.tokenizer import TOKENIZER, Tokenizer
from linnet.inference.language_model import LanguageModel
from linnet.interop.exported import ExportResult
from linnet.interop.gguf import in_llama_cpp
from linnet.interop.gguf.architecture import architecture_metadata, architecture_of, check_architecture
from linnet.interop.gguf.file import read_gguf, write_gguf
from linnet.interop.gguf.gate import TEXTS, check_file, ids_by_rule, rounding, with_stored_numbers
from linnet.interop.gguf.tensors import check_weights, gguf_module, stored_tensors
from linnet.interop.gguf.vocabulary import vocabulary_of
from linnet.interop.parity import Agreement, Expected, check_same_ids, expected_of
from linnet.model.decoder import Decoder


def export_gguf(model: LanguageModel, out: Path, weights: str = "f32") -> ExportResult:
    """Write a model as the file `out`, which llama.cpp runs; nothing is left where it fails.

    weights: f32, f16, bf16, q8_0 or q4_0, as matrices are stored. The written file is held to the model with its
    numbers so stored: by its own metadata, and by llama.cpp where it is installed: ids of texts, 200 greedy tokens,
    logits (`gate`). `UserError` names the field of the description or the tokenizer that a file cannot say, or what
    differs.
    """
    gguf_module()
    spec, tokenizer = model.spec, model.tokenizer
    check_architecture(spec, spec.name)
    check_weights(weights, spec, spec.name)
    vocabulary = vocabulary_of(tokenizer, tokenizer.definition, spec.vocab_size, f"{spec.name}: {TOKENIZER}")
    metadata = {"general.name": spec.name, **architecture_metadata(spec), **vocabulary.metadata}
    with atomic_path(out) as path:
        tensors = stored_tensors(model.decoder.state_dict(), spec, weights)
        write_gguf(path, architecture_of(spec), weights, metadata, tensors)
        return _measured(path, out, model, weights)


def _measured(path: Path, out: Path, source: LanguageModel, weights: str) -> ExportResult:
    """What the gate finds in the file that is to become `out`."""
    origin, file, tokenizer = str(out), read_gguf(path), source.tokenizer
    ids = check_same_ids(tokenizer, ids_by_rule(file), "the file's own vocabulary", origin, TEXTS)
    whole, stored = (with_stored_numbers(source.decoder, kind) for kind in ("f32", weights))
    expected = expected_of(stored)
    lost = None if _same(whole, stored) else rounding(weights, whole, expected_of(whole), stored, tokenizer)
    read_back = check_file(file, expected, origin)
    run = _run(path, expected, tokenizer, weights, origin) if in_llama_cpp.is_installed() else None
    figures = {
        "architecture": file.architecture,
        "weights": weights,
        "tokenizer": file.metadata["tokenizer.ggml.model"],
        "pre_tokenizer": file.metadata["tokenizer.ggml.pre"],
        "same_ids": ids,
        "read_back": read_back.figures,
        "llama_cpp": None if run is None else run.figures,
        "rounding": None if lost is None else lost.figures,
    }
    asked = "llama.cpp itself was not asked (llama-cpp-python is not installed)" if run is None else str(run)
    said = [str(read_back), asked, f"the same {ids:,} ids of the texts compared"]
    said += [] if lost is None else [str(lost)]
    return ExportResult.of(out, source.decoder, path, figures=figures, messages=tuple(said))


def _run(path: Path, expected: Expected, tokenizer: Tokenizer, weights: str, origin: str) -> Agreement:
    with in_llama_cpp.loaded_model(path, origin) as model:
        check_same_ids(tokenizer, in_llama_cpp.encoder(model), in_llama_cpp.NAME, origin, TEXTS)
        return in_llama_cpp.check_in_llama_cpp(model, expected, weights, origin)


def _same(one: Decoder, other: Decoder) -> bool:
    return all(torch.equal(*pair) for pair in zip(one.state_dict().values(), other.state_dict().values(), strict=True))
