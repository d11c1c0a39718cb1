"""The formats that a model can be exported to, and the function `export`.

An exporter is a function `write(model, out, **options) -> ExportResult`, named in `EXPORTERS` and imported on use. It
writes `out` completely or not at all, and only after the written files have been run and found to compute the same.
"""

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from importlib import import_module
from pathlib import Path
from typing import Any, TypedDict, Unpack

import torch

from linnet.core.errors import UserError
from linnet.data.chat_template import chat_files
from linnet.inference.language_model import LanguageModel, load
from linnet.layers.registry import kinds_with_calibration
from linnet.model.calibration import calibrate, with_stored_calibration
from linnet.model.decoder import Decoder
from linnet.model.folder import WEIGHTS, published_files
from linnet.model.spec import ModelSpec
from linnet.model.store import check_new_folder, write_model


@dataclass(frozen=True)
class ExportResult:
    """An exported model at `path`.

    weights_bytes: size of the files with the weights. figures: measurements by name, as JSON data; messages: the same
    in words.
    """

    path: Path
    name: str
    parameters: int
    weights_bytes: int
    figures: Mapping[str, Any] = field(default_factory=dict)
    messages: tuple[str, ...] = ()

    @classmethod
    def of(cls, path: Path, decoder: Decoder, *weights: Path, **measured: Any) -> "ExportResult":
        """Describe the export of a decoder whose weights are in these files."""
        parameters = sum(parameter.numel() for parameter in decoder.parameters())
        return cls(path, decoder.spec.name, parameters, sum(file.stat().st_size for file in weights), **measured)


class ExportOptions(TypedDict, total=False):
    """Options of exporters; each accepts those in its line of `EXPORTERS`."""

    precision: str | None
    cache_policy: str | None
    runtime: str | Path | None
    beside: Sequence[str | Path] | None


@dataclass(frozen=True)
class Exporter:
    """place: `module:function`. options: the `ExportOptions` that it accepts. makes: what `out` becomes.

    records_command: True if the function also takes `origin` and `command`, which the export records. form_place: the
    function that names what a model of a description becomes, or raises `UserError`; by default `makes`.
    """

    place: str
    options: tuple[str, ...] = ()
    makes: str = "folder"
    records_command: bool = False
    form_place: str = ""

    @property
    def write(self) -> Callable[..., ExportResult]:
        function: Callable[..., ExportResult] = _loaded(self.place)
        return function


def _loaded(place: str) -> Any:
    module, _, name = place.partition(":")
    return getattr(import_module(module), name)


def graphs_form(spec: ModelSpec) -> str:
    """Name the graphs of a decoder."""
    return "graphs, with --freeze" if any(block.mixer.calibration == "text" for block in spec.blocks) else "graphs"


def leaves_as(spec: ModelSpec) -> tuple[dict[str, str], dict[str, str]]:
    """Return by exporter what a model of this description becomes, and for the others the reasons why not."""
    forms, refusals = dict[str, str](), dict[str, str]()
    for name, exporter in EXPORTERS.items():
        try:
            if spec.prefix_field is not None:
                raise UserError(
                    f"{spec.name}: {spec.prefix_field}: has no counterpart there; expected a causal decoder"
                )
            if spec.head.value:
                raise UserError(f"{spec.name}: model.head.value: true: a reward model has no counterpart there")
            forms[name] = _loaded(exporter.form_place)(spec) if exporter.form_place else exporter.makes
        except UserError as refusal:
            refusals[name] = str(refusal)
    return forms, refusals


EXPORTERS: dict[str, Exporter] = {
    "transformers": Exporter(
        "linnet.interop.transformers_convert:export_transformers",
        ("precision",),
        form_place="linnet.interop.families.matching:form_in_transformers",
    ),
    "gguf": Exporter(
        "linnet.interop.gguf.export:export_gguf",
        ("precision",),
        makes="file",
        form_place="linnet.interop.gguf.architecture:form_in_gguf",
    ),
    "onnx": Exporter(
        "linnet.interop.onnx.export:export_folder",
        ("precision", "cache_policy"),
        records_command=True,
        form_place="linnet.interop.exporters:graphs_form",
    ),
    "web": Exporter(
        "linnet.interop.web.export:export_page",
        ("precision", "runtime", "beside"),
        form_place="linnet.interop.exporters:graphs_form",
    ),
}
"""By the value of `to`."""


def export(
    model: str | Path,
    out: str | Path,
    *,
    to: str | None = None,
    freeze: bool = False,
    prompt: str = "",
    command: str | None = None,
    **options: Unpack[ExportOptions],
) -> ExportResult:
    """Export the model of a model folder or a run to `out`, which must not exist.

    to: `transformers`, a folder that Transformers reads; `gguf`, a file that llama.cpp runs; `onnx`, a folder of
    graphs; `web`, a page for a browser; None: a model folder. `out` exists afterwards only if the written files compute
    what the model computes; the measurements are in the result. freeze: store what the layers calibrate on `prompt`
    (`frozen`). precision: of the stored weights for Transformers: float32,
    bfloat16 or float16 (default: as they are); of the matrices in a GGUF file: f32, f16, bf16, q8_0 or q4_0; of graphs
    and a page: float32, int8 or int4. cache_policy: of the state of ONNX graphs, as text. runtime: onnxruntime-web for
    a page; from npm by default. beside: folders of further models on the same page. command: recorded in the `run.json`
    of a model folder and of graphs. Raises `UserError` if no form is given, an option does not apply to it, the form
    does not support the model, or the written files differ from the model.
    """
    chosen = {name: value for name, value in options.items() if value is not None}
    exporter = _exporter(to, chosen)
    if exporter is None and not freeze:
        raise UserError("export: no form is given", accepted="`to` or `freeze`")
    if prompt and not freeze:
        raise UserError(field="prompt", value=repr(prompt), accepted="`freeze` beside it")
    check_new_folder(out, f"a new {'folder' if exporter is None else exporter.makes}")
    source, path = load(model, device="cpu"), Path(out)
    if freeze:
        source = LanguageModel(frozen(source, prompt), source.tokenizer, source.folder)
    if exporter is None:
        made = {"frozen_from": str(model), "calibration_prompt": prompt, "command": command}
        published, beside = published_files(source.folder), chat_files(source.folder)
        write_model(path, source.decoder, source.tokenizer, made, published, beside)
        return ExportResult.of(path, source.decoder, path / WEIGHTS)
    if source.spec.head.value:
        raise UserError(f"{model}: model.head.value: true: {to} has no reward models; expected one that writes text")
    if source.spec.prefix:
        raise UserError(f"{model}: model.prefix: true: {to} has no prefix with bidirectional attention; expected false")
    record = {"origin": str(model), "command": command} if exporter.records_command else {}
    return exporter.write(source, path, **chosen, **record)


def _exporter(to: str | None, chosen: Mapping[str, Any]) -> Exporter | None:
    """Return the exporter of a form, None for a model folder; `UserError` for an option that does not apply to it."""
    if to is not None and to not in EXPORTERS:
        raise UserError(field="to", value=to, accepted=f"one of {', '.join(EXPORTERS)}")
    exporter = None if to is None else EXPORTERS[to]
    for name, value in chosen.items():
        if exporter is None or name not in exporter.options:
            takers = " or ".join(kind for kind, each in EXPORTERS.items() if name in each.options)
            text = ", ".join(map(str, value)) if isinstance(value, list | tuple) else value
            raise UserError(field=name, value=text, accepted=f"`to` {takers} beside it")
    return exporter


def frozen(model: LanguageModel, prompt: str = "") -> Decoder:
    """The model with its calibration on a prompt stored; the empty prompt (the paper) is the end token alone.

    `UserError` if no layer calibrates, or the prompt is longer than the learned positions.
    """
    if not any(mixer.traits.calibrates for mixer in model.decoder.mixers):
        raise UserError(f"the model has no {kinds_with_calibration()} layer that calibrates on a text", field="freeze")
    tokens, known = model.prompt_tokens(prompt), model.spec.context_length
    if len(tokens) > known and model.spec.embedding.positions == "learned":
        raise UserError(f"{len(tokens)} tokens: the model's learned positions end at {known}", field="prompt")
    return with_stored_calibration(model.decoder, calibrate(model.decoder, torch.tensor([tokens])))
