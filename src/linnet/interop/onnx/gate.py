"""The gate between a model and its graphs: logits token by token and of a whole prompt, and bits per byte of a text.

Both are given the same tokens; the text is one that the model says itself, unless another is given.

Legend: `T` tokens, `V` vocabulary.
"""

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
import torch
from torch import Tensor

from linnet.core.errors import UserError
from linnet.inference.cache_policy import cache_policy_state
from linnet.inference.engine import decode
from linnet.inference.language_model import LanguageModel
from linnet.inference.sampling import Sampling
from linnet.interop.onnx.engine import GraphReader, Graphs
from linnet.interop.parity import STEPS, bits_per_byte, largest_error
from linnet.layers.cache_policy import CachePolicy

PROMPT_TOKENS = 150
"""More than two pieces, and no whole number of them: pieces and single tokens both."""


@dataclass(frozen=True)
class Allowed:
    """How far graphs may be from their model.

    error: of logits, the root of the mean square, in units of their standard deviation.
    bits: of bits per byte, relative.
    """

    error: float
    bits: float


ALLOWED = {"float32": Allowed(1e-4, 1e-4), "int8": Allowed(0.1, 0.005), "int4": Allowed(0.6, 0.2)}
"""About twice what small models of attention and of TED lose that were trained on stories (`docs/onnx.md`)."""


@dataclass(frozen=True)
class GraphParity:
    """What the gate measured.

    error, largest_error: of logits, root of the mean square and largest, in units of their standard deviation.
    greedy: the share of tokens at which both find the same likeliest. Bits per byte: of the model and of its graphs.
    """

    error: float
    largest_error: float
    greedy: float
    tokens: int
    bits_per_byte: float
    graph_bits_per_byte: float


def gate(
    model: LanguageModel, graphs: Graphs, cache_policies: Sequence[CachePolicy], weights: str, text: str | None = None
) -> GraphParity:
    """`UserError` unless the graphs say what the model says, within what is `ALLOWED` to their weights."""
    tokens = _tokens(model, graphs, cache_policies, text)
    ours_TV = _of_model(model, cache_policies, tokens)
    try:
        theirs_TV = _of_graphs(graphs, tokens)
    except Exception as error:  # onnxruntime's, of many kinds, none of them public
        said = str(error).strip().splitlines()[0]
        raise UserError(f"export: {weights}: onnxruntime cannot run the graphs ({said})") from error
    parity = _compared(model, tokens, ours_TV, theirs_TV)
    allowed = ALLOWED[weights]
    if not parity.error <= allowed.error:  # also for NaN
        said = f"logits differ by {parity.error:.1e} of their spread"
        raise UserError(f"export: {weights}: {said}: expected at most {allowed.error:g}")
    worse = parity.graph_bits_per_byte / parity.bits_per_byte - 1 if parity.bits_per_byte else 0.0
    if not abs(worse) <= allowed.bits:
        raise UserError(
            f"export: {weights}: {parity.graph_bits_per_byte:.4f} bits per byte, the model has "
            f"{parity.bits_per_byte:.4f}: expected the same within {allowed.bits:.2%}"
        )
    return parity


def _tokens(model: LanguageModel, graphs: Graphs, cache_policies: Sequence[CachePolicy], text: str | None) -> list[int]:
    """The end token and what follows it, as many as are compared."""
    count = PROMPT_TOKENS + STEPS
    longest = graphs.description.longest
    count = count if longest is None else min(count, longest)
    if text is not None:
        tokens = model.prompt_tokens(text)[:count]
        if len(tokens) < count:
            raise UserError(field="text", value=f"{len(tokens)} tokens", accepted=f"at least {count}")
        return tokens
    begin = [model.tokenizer.end_id]
    state = cache_policy_state(model.decoder, 1, count, list(cache_policies))
    said = decode(
        model.decoder, [begin], count - 1, Sampling(1.0, seed=0), state=state, vocab_size=model.tokenizer.vocab_size
    )
    return [*begin, *(token for (token,) in said if token is not None)]


@torch.inference_mode()
def _of_model(model: LanguageModel, cache_policies: Sequence[CachePolicy], tokens: Sequence[int]) -> Tensor:
    """`[T, V]`, float32: the prompt in one pass, then token by token."""
    state = cache_policy_state(model.decoder, 1, len(tokens), list(cache_policies))
    prompt = min(PROMPT_TOKENS, max(1, len(tokens) // 2))
    chunks = [tokens[:prompt], *([token] for token in tokens[prompt:])]
    return torch.cat([model.decoder(torch.tensor([chunk]), state)[0] for chunk in chunks])


def _of_graphs(graphs: Graphs, tokens: Sequence[int]) -> Tensor:
    reader = GraphReader(graphs)
    prompt = min(PROMPT_TOKENS, max(1, len(tokens) // 2))
    chunks = [list(tokens[:prompt]), *([token] for token in tokens[prompt:])]
    return torch.from_numpy(np.concatenate([reader.read_all(chunk) for chunk in chunks]))


def _compared(model: LanguageModel, tokens: Sequence[int], ours_TV: Tensor, theirs_TV: Tensor) -> GraphParity:
    targets = torch.tensor(tokens[1:])
    bits = [bits_per_byte(x_TV[:-1], targets, model.tokenizer) for x_TV in (ours_TV, theirs_TV)]
    return GraphParity(
        error=float((ours_TV - theirs_TV).square().mean().sqrt() / ours_TV.std()),
        largest_error=largest_error(ours_TV, theirs_TV),
        greedy=float((ours_TV.argmax(1) == theirs_TV.argmax(1)).float().mean()),
        tokens=len(tokens),
        bits_per_byte=bits[0],
        graph_bits_per_byte=bits[1],
    )
