"""Models as a folder of files that any static host serves: the page, its runtime, and a graph in few bits for each."""

import hashlib
import json
import re
import shutil
from collections.abc import Sequence
from dataclasses import dataclass
from importlib.resources import as_file, files
from pathlib import Path
from typing import Any

from linnet.core.atomic import atomic_directory
from linnet.core.errors import UserError
from linnet.core.files import read_json, sha256_of, write_json
from linnet.inference.language_model import LanguageModel, load
from linnet.inference.session import fingerprint
from linnet.interop.onnx.export import OnnxExport, export_onnx
from linnet.interop.onnx.metadata import DATA, DESCRIPTION, PROMPT, STEP
from linnet.interop.web.runtime import NAME, VERSION, copy_runtime
from linnet.interop.web.tokenizer import check_tokenizer
from linnet.layers.cache_policy import FULL, CachePolicy
from linnet.layers.mixers.ted import EvictionCache
from linnet.model.store import TOKENIZER, check_new_folder

PAGE, SITE, RUNTIME, MODELS = "index.html", "site.json", "runtime", "models"
WORKER, LIST = "worker.js", "files.js"
KEEP_ALL = EvictionCache(top_k=0, threshold=-1.0, min_tokens_to_keep=0)
"""What graphs do with the tokens that they hold: which of them go is for the page to say, between two steps."""


Source = str | Path | LanguageModel
"""A model folder, that of a run, or a model that was loaded already."""


@dataclass(frozen=True)
class WebExport:
    """What was written: of each model what its graphs' gate measured, and the bytes of all files by name."""

    models: dict[str, OnnxExport]
    files: dict[str, int]

    @property
    def figures(self) -> dict[str, Any]:
        """For a record."""
        return {"models": {name: made.figures for name, made in self.models.items()}, "files": self.files}


def export_web(
    models: Source | Sequence[Source],
    out: str | Path,
    *,
    weights: str = "int8",
    runtime: str | Path | None = None,
    text: str | None = None,
    command: str | None = None,
) -> WebExport:
    """Write the folder `out`: a page on which the models speak side by side, without any other machine.

    models: model folders, those of runs, or loaded models, which become float32. weights, text: as of `export_onnx`.
    runtime: a folder of onnxruntime-web, or what `npm pack` makes of it; None: from npm. Raises `UserError` where a
    model has no graph, its tokenizer is none that the page reads, or there is no runtime; then nothing is left.
    """
    sources = [models] if isinstance(models, Source) else list(models)
    if not sources:
        raise UserError("none", field="models", accepted="at least one model folder")
    check_new_folder(out)
    with atomic_directory(out) as temporary:
        (temporary / RUNTIME).mkdir()
        _copy_page(temporary)
        runtime_files = copy_runtime(temporary / RUNTIME, runtime)
        made, entries = {}, []
        for name, source in zip(_names(sources), sources, strict=True):
            made[name], entry = _add_model(source, temporary / MODELS / name, weights, text, command)
            entries.append({"name": name, "folder": f"{MODELS}/{name}", **entry})
        described = {"runtime": NAME, "version": VERSION, "folder": RUNTIME, "files": runtime_files}
        write_json(temporary / SITE, {"version": 1, "runtime": described, "models": entries})
        _list_files(temporary)
        sizes = {path: (temporary / path).stat().st_size for path in _files(temporary)}
    return WebExport(made, sizes)


def _files(site: Path) -> list[str]:
    """Relative to the folder."""
    return [path.relative_to(site).as_posix() for path in sorted(site.rglob("*")) if path.is_file()]


def _list_files(site: Path) -> None:
    """What the browser is to keep, for its worker: each file's hash, and one of them all."""
    hashes = {path: sha256_of(site / path) for path in _files(site) if path != WORKER}
    version = hashlib.sha256(json.dumps(hashes).encode()).hexdigest()
    (site / LIST).write_text(f"self.site = {json.dumps({'version': version, 'files': hashes}, indent=1)};\n")


def _names(sources: Sequence[Source]) -> list[str]:
    """One for each model: its folder's, or its own, in what stands in an address as it is."""
    names: list[str] = []
    for source in sources:
        name = source.spec.name if isinstance(source, LanguageModel) else Path(source).resolve().name
        plain = re.sub(r"[^\w.-]+", "-", name, flags=re.ASCII).strip("-.") or "model"
        others = [f"{plain}-{number}" for number in range(2, len(names) + 3)]
        names.append(next(name for name in [plain, *others] if name not in names))
    return names


def _origin(source: Source) -> str:
    """For an error."""
    return source.spec.name if isinstance(source, LanguageModel) else str(source)


def _copy_page(out: Path) -> None:
    with as_file(files("linnet.interop.web") / "static") as static:
        for path in sorted(static.iterdir()):
            if path.is_file():
                shutil.copyfile(path, out / path.name)


def _add_model(
    source: Source, out: Path, weights: str, text: str | None, command: str | None
) -> tuple[OnnxExport, dict[str, Any]]:
    """Graphs, weights once for both, description and tokenizer; and what the page's list says of the model."""
    model = source if isinstance(source, LanguageModel) else load(source, device="cpu")
    known = fingerprint(model.decoder)
    out.mkdir(parents=True)
    model.tokenizer.save(out / TOKENIZER)
    check_tokenizer(model.tokenizer, read_json(out / TOKENIZER), _origin(source))
    graphs = out.with_name(f"{out.name}.graphs")
    made = export_onnx(
        model,
        graphs,
        weights=weights,
        cache_policy=_cache_policies(model),
        text=text,
        external_above_bytes=0,
        command=command,
    )
    names = [name for name in (STEP, PROMPT, DATA) if name in made.files]
    for name in (*names, DESCRIPTION):
        (graphs / name).rename(out / name)
    shutil.rmtree(graphs)
    return made, {
        "fingerprint": known,
        "parameters": sum(parameter.numel() for parameter in model.decoder.parameters()),
        "weights": DATA if DATA in names else None,
        "bytes": sum((out / name).stat().st_size for name in names),
    }


def _cache_policies(model: LanguageModel) -> list[CachePolicy]:
    """Layers that leave it to choose hold each token by itself; the others keep what they keep."""
    return [KEEP_ALL if EvictionCache in mixer.cache_policies else FULL for mixer in model.decoder.mixers]
