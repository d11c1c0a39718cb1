"""The gate between a model of ours and the same in Transformers: ids, logits, and what both say when the likeliest
token is always taken.

Both compute in float32 on the processor. Where two tokens are as likely as each other within the error, either counts.

Legend: `B` batch, `T` tokens, `V` vocabulary.
"""

import copy
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import torch
from torch import Tensor

from linnet.core.errors import UserError
from linnet.data.tokenizer import Tokenizer
from linnet.inference.engine import new_state
from linnet.model.decoder import Decoder
from linnet.present.progress import progress

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

    error: the largest difference of logits, in units of their standard deviation; steps: greedy tokens compared, fewer
    than `STEPS` where learned positions end.
    """

    error: float
    steps: int

    @property
    def figures(self) -> dict[str, float]:
        """For a record."""
        return {"logits_error": self.error, "most_logits_error": MOST_ERROR, "greedy_tokens": self.steps}

    def __str__(self) -> str:
        ended = "" if self.steps == STEPS else " (learned positions end there)"
        within = f"logits within {self.error:.1e} of their spread (accepted: {MOST_ERROR:g})"
        return f"the same {self.steps} greedy tokens as in Transformers{ended}, {within}"


def transformers_module(field: str) -> Any:
    """The package; `UserError` that names the extra where it is not installed."""
    try:
        import transformers
    except ImportError:
        raise UserError("needs transformers: pip install 'linnet[transformers]'", field=field) from None
    return transformers


def original(folder: Path, field: str = "check", origin: str | Path = "") -> tuple[Any, Any]:
    """Transformers' model of a folder, in float32, and its tokenizer; nothing is fetched, and no code of it is run.

    origin: what `UserError` calls the folder; if not given, by its name.
    """
    transformers = transformers_module(field)
    import linnet.interop.transformers  # noqa: F401 (registers our own models; it imports this module)

    here = {"local_files_only": True, "trust_remote_code": False}
    try:
        with _without_bars(transformers):
            model = transformers.AutoModelForCausalLM.from_pretrained(folder, dtype=torch.float32, **here)
            return model.eval(), transformers.AutoTokenizer.from_pretrained(folder, **here)
    except (OSError, ValueError, RuntimeError, KeyError) as error:
        said = str(error).strip().splitlines()[0]
        raise UserError(f"{origin or folder}: Transformers cannot read it ({said})") from error


@contextmanager
def _without_bars(transformers: Any) -> Iterator[None]:
    """Transformers draws bars of its own, also where nobody watches."""
    logging = transformers.utils.logging
    were_drawn = logging.is_progress_bar_enabled()
    logging.disable_progress_bar()
    try:
        yield
    finally:
        if were_drawn:
            logging.enable_progress_bar()


def check_same_ids(tokenizer: Tokenizer, theirs: Any, origin: str, texts: Sequence[str] = SAMPLES) -> None:
    """`UserError` unless both make the same ids of each text."""
    for text in texts:
        ours, others = tokenizer.encode(text), _ids(theirs, text)
        if ours != others:
            raise UserError(f"{origin}: {text!r}: {ours} here, {others} in Transformers: expected the same ids")


def _ids(theirs: Any, text: str) -> list[int]:
    """Without what stands before or behind a text; nothing is said of one that is longer than the context."""
    return list(theirs(text, add_special_tokens=False, verbose=False)["input_ids"])


@torch.no_grad()
def check_parity(decoder: Decoder, theirs: Any, origin: str) -> Parity:
    """`UserError` unless both say the same: logits of random tokens in one pass, then greedy tokens one by one.

    As many tokens as the model has learned positions for, where it has such.
    """
    ours = copy.deepcopy(decoder).float().cpu().eval()
    most, tokens_BT = most_tokens(ours), random_tokens(ours)
    error = _error(ours(tokens_BT), theirs(tokens_BT).logits, origin)
    start_BT = tokens_BT[:1, : max(1, min(8, most - 1))]
    steps = min(STEPS, most - start_BT.shape[1])
    return Parity(max(error, _greedy_error(ours, theirs, start_BT, steps, origin)), steps)


def most_tokens(decoder: Decoder) -> int:
    """How many tokens of a text are compared at most."""
    return decoder.spec.context_length if decoder.spec.embedding.positions == "learned" else STEPS + 64


def random_tokens(decoder: Decoder) -> Tensor:
    """Two texts of tokens `[B, T]` that are the same whenever they are drawn."""
    generator = torch.Generator().manual_seed(0)
    return torch.randint(decoder.spec.vocab_size, (2, min(64, most_tokens(decoder))), generator=generator)


def _greedy_error(ours: Decoder, theirs: Any, start_BT: Tensor, steps: int, origin: str) -> float:
    state, cache, worst = new_state(ours, start_BT.tolist(), steps), None, 0.0
    tokens_BT = start_BT
    with progress("as Transformers says", steps, "tokens") as advance:
        for step in range(steps):
            logits_V = ours(tokens_BT, state)[0, -1]
            out = theirs(tokens_BT, past_key_values=cache, use_cache=True)
            others_V, cache = out.logits[0, -1], out.past_key_values
            worst = max(worst, _error(logits_V, others_V, f"{origin}: step {step}"))
            tokens_BT = _same_token(logits_V, others_V, f"{origin}: step {step}").view(1, 1)
            advance(1)
    return worst


def _same_token(ours_V: Tensor, theirs_V: Tensor, origin: str) -> Tensor:
    """The likeliest token; `UserError` unless it is theirs too."""
    token = ours_V.argmax()
    if float((theirs_V.max() - theirs_V[token]) / ours_V.std()) > 2 * MOST_ERROR:
        raise UserError(f"{origin}: token {int(token)} here, {int(theirs_V.argmax())} in Transformers")
    return token


def _error(ours: Tensor, theirs: Tensor, origin: str) -> float:
    error = float((ours - theirs).abs().max() / ours.std())
    if not error <= MOST_ERROR:  # also for NaN
        said = f"logits differ by {error:.1e} of their spread from those of Transformers"
        raise UserError(f"{origin}: {said}: expected at most {MOST_ERROR:g}")
    return error
