"""What a trained model is worth and costs: speed of decoding, and a story."""

import time
from collections.abc import Sequence
from statistics import median

from linnet.core.errors import UserError
from linnet.data.tokenizer import Tokenizer
from linnet.experiments.demo.figures import Sample
from linnet.inference.engine import decode
from linnet.inference.language_model import LanguageModel
from linnet.inference.sampling import Sampling
from linnet.present.progress import progress

DECODE_TOKENS, DECODE_RUNS, WARM_UP_TOKENS = 200, 5, 20


def decode_speeds(models: Sequence[LanguageModel], prompt: str, sampling: Sampling) -> list[float]:
    """Tokens per second of each model that continues the prompt as one stream: the median of several runs.

    The models take turns, so that whatever else the machine does meanwhile meets all of them. The pass over the prompt
    is not counted; what is: the passes over one token each, with the choice of the next.
    """
    for model in models:
        _tokens_per_s(model, prompt, sampling, WARM_UP_TOKENS)
    with progress("decode speed", DECODE_RUNS * len(models), "runs") as advance:

        def run(model: LanguageModel) -> float:
            tokens_per_s = _tokens_per_s(model, prompt, sampling, DECODE_TOKENS)
            advance(1)
            return tokens_per_s

        rounds = [[run(model) for model in models] for _ in range(DECODE_RUNS)]
    return [median(runs) for runs in zip(*rounds, strict=True)]


def _tokens_per_s(model: LanguageModel, prompt: str, sampling: Sampling, tokens: int) -> float:
    steps = decode(model.decoder, [model.prompt_tokens(prompt)], tokens + 1, sampling)
    next(steps)
    start_s = time.perf_counter()
    made = sum(1 for _ in steps)
    assert made == tokens
    return tokens / (time.perf_counter() - start_s)


def check_prompt(prompt: str, tokenizer: Tokenizer, context_length: int) -> None:
    """`UserError` for a prompt that leaves less than half of the context for the story."""
    tokens, limit = len(tokenizer.encode(prompt)), context_length // 2
    if tokens > limit:
        shown = prompt if len(prompt) <= 40 else f"{prompt[:40]}…"
        raise UserError(f"{tokens} tokens", field="prompt", value=repr(shown), accepted=f"at most {limit}")


def write_story(model: LanguageModel, prompt: str, sampling: Sampling) -> Sample:
    """The story that the model makes of the prompt, as long as its context allows."""
    limit = model.spec.context_length - len(model.prompt_tokens(prompt))
    continuation = model.stream(prompt, limit, sampling)
    text = "".join(continuation)
    return Sample(prompt, text, complete=continuation.figures.tokens < limit)
