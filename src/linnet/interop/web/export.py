"""Export of models as a static web page: the page, its runtime, and a quantized graph for each model."""

import hashlib
import json
import re
import shutil
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from importlib.resources import as_file, files
from pathlib import Path
from typing import Any

from linnet.core.atomic import atomic_directory
from linnet.core.errors import UserError
from linnet.core.files import read_json, sha256_of, write_json
from linnet.data.pieces import BYTE_LEVEL
from linnet.data.sentencepiece import SentencePieceDefinition
from linnet.inference.language_model import LanguageModel, load
from linnet.inference.weights import fingerprint
from linnet.interop.exporters import ExportResult
from linnet.interop.gguf.vocabulary import PRE_TOKENIZERS, cuts_of
from linnet.interop.onnx.export import OnnxExport, check_precision, write_checked
from linnet.interop.onnx.folder import DATA, DESCRIPTION, STEP
from linnet.interop.web.runtime import NAME, VERSION, copy_runtime
from linnet.layers.cache_policy import FULL
from linnet.layers.mixers.ted import EvictionCache
from linnet.model.folder import TOKENIZER
from linnet.model.store import check_new_folder

SITE, RUNTIME, MODELS = "site.json", "runtime", "models"
WORKER, LIST = "worker.js", "files.js"
KEEP_ALL = EvictionCache(top_k=0, threshold=-1.0, min_tokens_to_keep=0)
"""Policy of the graphs: they keep all tokens, and the page evicts between two steps."""
ACCEPTED = "single characters or bytes, a byte-level BPE or unigram tokenizer, or one made from a SentencePiece model"

Source = str | Path | LanguageModel
"""A model folder, the folder of a run, or a loaded model."""


@dataclass(frozen=True)
class WebExport:
    """The checks of each model's graphs, and the bytes of all files by name."""

    models: dict[str, OnnxExport]
    files: dict[str, int]


def export_page(
    model: LanguageModel,
    out: Path,
    precision: str = "int8",
    runtime: str | Path | None = None,
    beside: Sequence[str | Path] = (),
) -> ExportResult:
    """Write the folder `out` for `linnet export`; see `export_web`. beside: folders of further models on the page."""
    made = export_web([model, *beside], out, precision=precision, runtime=runtime)
    name, first = next(iter(made.models.items()))
    weights = [out / MODELS / name / file for file in first.files if file.startswith(STEP)]
    messages = [
        f"{name}: {precision}, {export.parity.graph_bits_per_byte:.4f} bits per byte of its own text "
        f"({export.parity.bits_per_byte:.4f} in floats), {export.parity.greedy:.1%} of its likeliest tokens"
        for name, export in made.models.items()
    ]
    figures = {"models": {name: one.figures for name, one in made.models.items()}, "files": made.files}
    messages.append(f"any web server shows it: python -m http.server --directory {out}")
    return ExportResult.of(out, model.decoder, *weights, figures=figures, messages=tuple(messages))


def export_web(
    models: Source | Sequence[Source],
    out: str | Path,
    *,
    precision: str = "int8",
    runtime: str | Path | None = None,
    text: str | None = None,
) -> WebExport:
    """Write the folder `out`: a page on which the models write side by side in the browser.

    models: model folders, those of runs, or loaded models. precision, text: as in `export_onnx`.
    runtime: a folder of onnxruntime-web, or the result of its `npm pack`; None: from npm. Raises `UserError` if a model
    has no graph, the page does not support its tokenizer, or there is no runtime; then nothing is left.
    """
    sources = [models] if isinstance(models, Source) else list(models)
    if not sources:
        raise UserError("none", field="models", accepted="at least one model folder")
    check_precision(precision)
    check_new_folder(out)
    with atomic_directory(out) as temporary:
        with as_file(files("linnet.interop.web") / "static") as static:
            for path in sorted(static.iterdir()):
                if path.is_file():
                    shutil.copyfile(path, temporary / path.name)
        (temporary / RUNTIME).mkdir()
        runtime_files = copy_runtime(temporary / RUNTIME, runtime)
        made, entries = {}, []
        for name, source in zip(_names(sources), sources, strict=True):
            made[name], entry = _add_model(source, temporary / MODELS / name, precision, text)
            entries.append({"name": name, "folder": f"{MODELS}/{name}", **entry})
        description = {"runtime": NAME, "version": VERSION, "folder": RUNTIME, "files": runtime_files}
        write_json(temporary / SITE, {"version": 1, "runtime": description, "models": entries})
        _list_files(temporary)
        sizes = {path: (temporary / path).stat().st_size for path in _files(temporary)}
    return WebExport(made, sizes)


def _files(site: Path) -> list[str]:
    return [path.relative_to(site).as_posix() for path in sorted(site.rglob("*")) if path.is_file()]


def _list_files(site: Path) -> None:
    """Write the list of files for the page's worker, which caches them: the hash of each file and of them all."""
    hashes = {path: sha256_of(site / path) for path in _files(site) if path != WORKER}
    version = hashlib.sha256(json.dumps(hashes).encode()).hexdigest()
    (site / LIST).write_text(f"self.site = {json.dumps({'version': version, 'files': hashes}, indent=1)};\n")


def _names(sources: Sequence[Source]) -> list[str]:
    """Return a unique name for each model, from its folder or description, in characters that are safe in a URL."""
    names: list[str] = []
    for source in sources:
        name = source.spec.name if isinstance(source, LanguageModel) else Path(source).resolve().name
        plain = re.sub(r"[^\w.-]+", "-", name, flags=re.ASCII).strip("-.") or "model"
        others = [f"{plain}-{number}" for number in range(2, len(names) + 3)]
        names.append(next(name for name in [plain, *others] if name not in names))
    return names


def _add_model(source: Source, out: Path, precision: str, text: str | None) -> tuple[OnnxExport, dict[str, Any]]:
    """Write graphs, weights, description and tokenizer; return also the model's entry in `site.json`."""
    model = source if isinstance(source, LanguageModel) else load(source, device="cpu")
    identity = fingerprint(model.decoder)
    out.mkdir(parents=True)
    model.tokenizer.save(out / TOKENIZER)
    origin = source.spec.name if isinstance(source, LanguageModel) else str(source)
    check_tokenizer(read_json(out / TOKENIZER), origin)
    policies = [KEEP_ALL if EvictionCache in mixer.cache_policies else FULL for mixer in model.decoder.mixers]
    made = write_checked(model, out, precision, policies, text, 0, origin)
    names = [name for name in made.files if name != DESCRIPTION]
    return made, {
        "fingerprint": identity,
        "parameters": sum(parameter.numel() for parameter in model.decoder.parameters()),
        "weights": DATA if DATA in names else None,
        "bytes": sum((out / name).stat().st_size for name in names),
    }


def check_tokenizer(definition: dict[str, Any], origin: str) -> None:
    """Raise `UserError` for a tokenizer whose ids the page's JavaScript cannot reproduce.

    definition: the data of its tokenizer.json.
    """
    if SentencePieceDefinition.read(definition) is not None:
        return
    for fault in _tokenizer_faults(definition):
        raise UserError(f"{origin}: tokenizer: {fault}: the page cannot read it; expected {ACCEPTED}")


def _tokenizer_faults(definition: dict[str, Any]) -> Iterator[str]:
    model, decoder = definition["model"], definition.get("decoder") or {}
    for name in ("continuing_subword_prefix", "end_of_word_suffix"):
        if model.get(name):
            yield f"{name} {model[name]!r}"
    if (normalizer := (definition.get("normalizer") or {}).get("type", "NFC")) != "NFC":
        yield f"normalizer {normalizer}"
    for token in definition.get("added_tokens") or []:
        for flag in ("lstrip", "rstrip", "single_word"):
            if token[flag] and not token["special"]:
                yield f"added token {token['content']!r}: {flag} true"
    if definition.get("pre_tokenizer") is not None:
        yield from _byte_level_faults(definition, decoder)
        return
    # Without a pre-tokenizer pieces are single characters; others are spelled as bytes, or one character replaces them.
    if model["type"] != "BPE" or model["merges"] or model.get("ignore_merges"):
        yield f"model {model['type']} whose pieces are not single characters"
    elif (model.get("unk_token") is None) != bool(model.get("byte_fallback")) or model.get("fuse_unk"):
        yield f"unk_token {model.get('unk_token')!r}, fuse_unk {model.get('fuse_unk')!r}"
    kinds = [step["type"] for step in decoder.get("decoders") or [decoder] if step]
    if kinds != ["ByteFallback"] * bool(model.get("byte_fallback")) + ["Fuse"]:
        yield f"decoder {', '.join(kinds)}"


def _byte_level_faults(definition: dict[str, Any], decoder: dict[str, Any]) -> Iterator[str]:
    model, before = definition["model"], definition["pre_tokenizer"]
    kinds = [step["type"] for step in (before["pretokenizers"] if before["type"] == "Sequence" else [before])]
    try:
        is_known = cuts_of(before, "") in {(), *(cuts for cuts, _ in PRE_TOKENIZERS.values())}
    except UserError:
        is_known = False
    if not is_known or kinds.count("ByteLevel") != 1 or kinds[-1] != "ByteLevel":
        yield f"pre_tokenizer {', '.join(kinds)}"
    if decoder.get("type") != "ByteLevel":
        yield f"decoder {decoder.get('type')}"
    names = dict(model["vocab"]) if model["type"] in ("BPE", "Unigram") else {}
    if missing := sorted(BYTE_LEVEL.keys() - names):
        yield f"model {model['type']} without {missing[0]!r}, a byte as GPT-2 writes it"
