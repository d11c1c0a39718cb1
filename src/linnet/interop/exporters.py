"""The ways out of the house: the forms that a model can be exported to, and the one function that does it.

A way is a function `write(model, out, **options) -> ExportResult`, named in `EXPORTERS` and imported when it is asked
for. It writes `out` whole or not at all, and not before what it wrote has been run and found to be the same model.
"""

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from importlib import import_module
from pathlib import Path
from typing import Any, TypedDict, Unpack

from linnet.core.errors import UserError
from linnet.inference.language_model import LanguageModel, load
from linnet.interop.exported import ExportResult
from linnet.interop.freeze import frozen
from linnet.model.store import WEIGHTS, check_new_folder, write_model


class ExportOptions(TypedDict, total=False):
    """What ways may be asked for; each takes those that its line in `EXPORTERS` names."""

    dtype: str | None
    weights: str | None
    cache_policy: str | None
    runtime: str | Path | None
    beside: Sequence[str | Path] | None


@dataclass(frozen=True)
class Exporter:
    """place: `module:function`. options: the `ExportOptions` that it takes. makes: what `out` becomes.

    told: whether it is given `origin` and `command` as well, for a record of how it was made.
    """

    place: str
    options: tuple[str, ...] = ()
    makes: str = "folder"
    told: bool = False

    @property
    def write(self) -> Callable[..., ExportResult]:
        """The function."""
        module, _, name = self.place.partition(":")
        function: Callable[..., ExportResult] = getattr(import_module(module), name)
        return function


EXPORTERS: dict[str, Exporter] = {
    "transformers": Exporter("linnet.interop.transformers_out:export_transformers", ("dtype",)),
    "gguf": Exporter("linnet.interop.gguf.export:export_gguf", ("weights",), makes="file"),
    "onnx": Exporter("linnet.interop.onnx.way:export", ("weights", "cache_policy"), told=True),
    "web": Exporter("linnet.interop.web.way:export", ("weights", "runtime", "beside")),
}
"""By the name that `to` has."""


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
    """Write a model folder, or a run's, in another form to `out`, which is new.

    to: `transformers`, a folder that Transformers reads; `gguf`, a file that llama.cpp runs; `onnx`, a folder of
    graphs; `web`, a page for a browser; if not given, a model folder. Nothing stands at `out` unless what was written
    says what the model says: the gate of each way, whose figures are in the result. freeze: a PLDR-LLM keeps
    the operator that it infers from `prompt` in the place of the net that infers it (`freeze.frozen`). dtype: of the
    stored weights for Transformers: float32, bfloat16 or float16; if not given, as they are. weights: how a GGUF file
    stores matrices: f32, f16, bf16, q8_0 or q4_0; or graphs and a page: float32, int8 or int4. cache_policy: of the
    state of graphs, as text. runtime: onnxruntime-web for a page;
    from npm if not given. beside: folders of further models on the same page. command: kept in the `run.json` of a
    model folder, and of graphs. Raises `UserError` where no form is asked for, an option says nothing of it, the model
    has none such, or the gate fails.
    """
    given = {name: value for name, value in options.items() if value is not None}
    way = _way(to, given)
    if way is None and not freeze:
        raise UserError("export: no form was asked for", accepted="`to` or `freeze`")
    if prompt and not freeze:
        raise UserError(field="prompt", value=repr(prompt), accepted="`freeze` beside it")
    check_new_folder(out, f"a new {'folder' if way is None else way.makes}")
    source = load(model, device="cpu")
    if freeze:
        source = LanguageModel(frozen(source, prompt), source.tokenizer)
    if way is None:
        return _model_folder(
            source, Path(out), {"frozen_from": str(model), "calibration_prompt": prompt, "command": command}
        )
    if source.spec.prefix:
        raise UserError(f"{model}: model.prefix: true: {to} has no prefix that sees all of itself; expected false")
    told = {"origin": str(model), "command": command} if way.told else {}
    return way.write(source, Path(out), **given, **told)


def _way(to: str | None, options: Mapping[str, Any]) -> Exporter | None:
    if to is not None and to not in EXPORTERS:
        raise UserError(field="to", value=to, accepted=f"one of {', '.join(EXPORTERS)}")
    way = None if to is None else EXPORTERS[to]
    for name, value in options.items():
        if way is None or name not in way.options:
            takers = " or ".join(kind for kind, each in EXPORTERS.items() if name in each.options)
            said = ", ".join(map(str, value)) if isinstance(value, list | tuple) else value
            raise UserError(field=name, value=said, accepted=f"`to` {takers} beside it")
    return way


def _model_folder(model: LanguageModel, out: Path, made: Mapping[str, Any]) -> ExportResult:
    write_model(out, model.decoder, model.tokenizer, made)
    return ExportResult.of(out, model.decoder, out / WEIGHTS)
