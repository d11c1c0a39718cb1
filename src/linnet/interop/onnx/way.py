"""`linnet export --to onnx`: a model as a folder of graphs."""

from pathlib import Path

from linnet.evaluation.cache_policies import check_chooses
from linnet.inference.language_model import LanguageModel
from linnet.interop.exported import ExportResult
from linnet.interop.onnx.export import OnnxExport, export_onnx
from linnet.interop.onnx.metadata import STEP
from linnet.layers.cache_policy import FULL
from linnet.layers.registry import cache_policy_of


def export(
    model: LanguageModel,
    out: Path,
    weights: str = "float32",
    cache_policy: str | None = None,
    origin: str | None = None,
    command: str | None = None,
) -> ExportResult:
    """Write the folder `out`; see `export_onnx`. cache_policy: as text (`registry.cache_policy_of`)."""
    kept = FULL if cache_policy is None else cache_policy_of(cache_policy).for_length(model.spec.context_length)
    if kept != FULL:
        check_chooses(model.decoder, "cache_policy")
    made = export_onnx(model, out, weights=weights, cache_policy=kept, origin=origin, command=command)
    files = [out / name for name in made.files if name.startswith(STEP)]
    return ExportResult.of(out, model.decoder, *files, figures=made.figures, messages=tuple(_said(made)))


def _said(made: OnnxExport) -> list[str]:
    found = made.parity
    logits = f"logits within {found.error:.1e} of their spread (root mean square; largest {found.largest_error:.1e})"
    bits = f"{found.graph_bits_per_byte:.4f} bits per byte of its own text ({found.bits_per_byte:.4f} in PyTorch)"
    products = ", ".join(f"{count} {name}" for name, count in made.nodes.items() if name.startswith(("MatMul", "Gemm")))
    prompt = "prompts of any length at once"
    if made.prompt is None:
        prompt = f"prompts token by token ({made.token_by_token})"
    elif made.prompt.length is not None:
        prompt = f"prompts in pieces of {made.prompt.length} tokens"
    return [
        f"{found.tokens} tokens: {logits}, {found.greedy:.1%} of the likeliest tokens the same",
        bits,
        products,
        prompt,
    ]
