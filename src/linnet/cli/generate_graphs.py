"""`linnet generate --engine onnx`: the folder is one of graphs, not of a model."""

from collections.abc import Mapping
from typing import TYPE_CHECKING

from linnet.core.errors import UserError

if TYPE_CHECKING:
    from linnet.inference.continuation import Continuation
    from linnet.inference.sampling import Sampling


def continuation_by_graphs(
    folder: str,
    prompt: str,
    max_tokens: int,
    sampling: "Sampling",
    ignore_eos: bool,
    threads: int | None,
    of_models: Mapping[str, bool],
) -> tuple["Continuation", int]:
    """The continuation, and the tokens that the model was made for.

    of_models: options that graphs have no answer to, and whether each was typed; then `UserError`.
    """
    from linnet.interop.onnx.engine import OnnxLanguageModel

    for name in (name for name, typed in of_models.items() if typed):
        raise UserError(f"{name}: --engine onnx runs graphs as they were exported; leave it out")
    speaker = OnnxLanguageModel(folder, threads)
    context_length = speaker.graphs.description.model.context_length
    return speaker.stream(prompt, max_tokens, sampling, ignore_eos), context_length
