"""`linnet export --to web`: one model, and others beside it, as a page."""

from collections.abc import Sequence
from pathlib import Path

from linnet.inference.language_model import LanguageModel
from linnet.interop.exported import ExportResult
from linnet.interop.onnx.metadata import STEP
from linnet.interop.web.export import MODELS, export_web


def export(
    model: LanguageModel,
    out: Path,
    weights: str = "int8",
    runtime: str | Path | None = None,
    beside: Sequence[str | Path] = (),
) -> ExportResult:
    """Write the folder `out`; see `export_web`. beside: folders of further models on the same page."""
    made = export_web([model, *beside], out, weights=weights, runtime=runtime)
    name, first = next(iter(made.models.items()))
    files = [out / MODELS / name / file for file in first.files if file.startswith(STEP)]
    said = [
        f"{name}: {weights}, {kept.parity.graph_bits_per_byte:.4f} bits per byte of its own text "
        f"({kept.parity.bits_per_byte:.4f} in floats), {kept.parity.greedy:.1%} of its likeliest tokens"
        for name, kept in made.models.items()
    ]
    said.append(f"any web server shows it: python -m http.server --directory {out}")
    return ExportResult.of(out, model.decoder, *files, figures=made.figures, messages=tuple(said))
