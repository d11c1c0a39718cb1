"""The gate between a model of ours and the same in Transformers: ids, logits, and what both say when the likeliest
token is always taken.

Both compute in float32 on the processor. Where two tokens are as likely as each other within the error, either counts.

Legend: `B` batch, `T` tokens, `V` vocabulary.
"""

import copy
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import torch
from torch import Tensor

from linnet.core.errors import UserError
from linnet.data.tokenizer import Tokenizer
from linnet.inference.engine import new_state
from linnet.model.decoder import Decoder

MOST_ERROR = 1e-4
"""Of a logit, in units of the standard deviation of all of them: float32 in another order of operations."""
STEPS = 200
SAMPLES = (
    'Once upon a time, there was a little bird.\n\nShe said: "I can\'t fly!"',
    "  two  spaces, a\ttab, 1234567 and 3.14",
    "Schönes Wetter, Здравствуй, 你好, नमस्ते, 🐦",
    "def f(x):\n    return x ** 2  # <b>code</b>\n",
)
"""Texts that tokenizers cut in different ways."""


@dataclass(frozen=True)
class Parity:
    """What the gate measured.

    error: the largest difference of logits, in units of their standard deviation; steps: greedy tokens compared.
    """

    error: float
    steps: int

    @property
    def figures(self) -> dict[str, float]:
        """For a record."""
        return {"logits_error": self.error, "greedy_tokens": self.steps}

    def __str__(self) -> str:
        return f"the same {self.steps} greedy tokens as in Transformers, logits within {self.error:.1e} of their spread"


def transformers_module(field: str) -> Any:
    """The package; `UserError` that names the extra where it is not installed."""
    try:
        import transformers
    except ImportError:
        raise UserError("needs transformers: pip install 'linnet[transformers]'", field=field) from None
    return transformers


def original(folder: Path, field: str = "check") -> tuple[Any, Any]:
    """Transformers' model of a folder, in float32, and its tokenizer; nothing is fetched, and no code of it is run."""
    transformers = transformers_module(field)
    import linnet.interop.transformers  # noqa: F401 (registers our own models; it imports this module)

    here = {"local_files_only": True, "trust_remote_code": False}
    try:
        model = transformers.AutoModelForCausalLM.from_pretrained(folder, dtype=torch.float32, **here)
        return model.eval(), transformers.AutoTokenizer.from_pretrained(folder, **here)
    except (OSError, ValueError, RuntimeError, KeyError) as error:
        raise UserError(f"{folder}: Transformers cannot read it ({str(error).strip().splitlines()[0]})") from error


def check_same_ids(tokenizer: Tokenizer, theirs: Any, origin: str) -> None:
    """`UserError` unless both make the same ids of `SAMPLES`."""
    for text in SAMPLES:
        ours, others = tokenizer.encode(text), list(theirs(text, add_special_tokens=False)["input_ids"])
        if ours != others:
            raise UserError(f"{origin}: {text!r}: {ours} here, {others} in Transformers: expected the same ids")


@torch.no_grad()
def check_parity(decoder: Decoder, theirs: Any, origin: str) -> Parity:
    """`UserError` unless both say the same: logits of random tokens in one pass, then greedy tokens one by one.

    As many tokens as the model has learned positions for, where it has such.
    """
    ours = copy.deepcopy(decoder).float().cpu().eval()
    most = ours.spec.context_length if ours.spec.embedding.positions == "learned" else STEPS + 64
    generator = torch.Generator().manual_seed(0)
    tokens_BT = torch.randint(ours.spec.vocab_size, (2, min(64, most)), generator=generator)
    error = _error(ours(tokens_BT), theirs(tokens_BT).logits, origin)
    start_BT = tokens_BT[:1, : max(1, min(8, most - 1))]
    steps = min(STEPS, most - start_BT.shape[1])
    return Parity(max(error, _greedy_error(ours, theirs, start_BT, steps, origin)), steps)


def _greedy_error(ours: Decoder, theirs: Any, start_BT: Tensor, steps: int, origin: str) -> float:
    state, cache, worst = new_state(ours, start_BT.tolist(), steps), None, 0.0
    tokens_BT = start_BT
    for step in range(steps):
        logits_V = ours(tokens_BT, state)[0, -1]
        out = theirs(tokens_BT, past_key_values=cache, use_cache=True)
        others_V, cache = out.logits[0, -1], out.past_key_values
        worst = max(worst, _error(logits_V, others_V, f"{origin}: step {step}"))
        token = logits_V.argmax()
        behind = float((others_V.max() - others_V[token]) / logits_V.std())
        if behind > 2 * MOST_ERROR:
            raise UserError(f"{origin}: step {step}: token {int(token)} here, {int(others_V.argmax())} in Transformers")
        tokens_BT = token.view(1, 1)
    return worst


def _error(ours: Tensor, theirs: Tensor, origin: str) -> float:
    error = float((ours - theirs).abs().max() / ours.std())
    if not error <= MOST_ERROR:  # also for NaN
        said = f"logits differ by {error:.1e} of their spread from those of Transformers"
        raise UserError(f"{origin}: {said}: expected at most {MOST_ERROR:g}")
    return error
