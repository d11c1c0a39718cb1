"""Speed of decoding and a story of a trained model; and the machine, without which a speed means nothing."""

import os
import platform
import time
from collections.abc import Sequence
from pathlib import Path
from statistics import median

import torch

from linnet import __version__
from linnet.core.errors import UserError
from linnet.data.tokenizer import Tokenizer
from linnet.experiments.demo.figures import Sample
from linnet.inference.engine import decode
from linnet.inference.language_model import LanguageModel
from linnet.inference.sampling import Sampling
from linnet.present import numbers
from linnet.present.progress import progress

DECODE_TOKENS, DECODE_RUNS, WARM_UP_TOKENS = 200, 5, 20


def decode_speeds(
    models: Sequence[LanguageModel], prompt: str, sampling: Sampling, tokens: int = DECODE_TOKENS
) -> list[float]:
    """Tokens per second of each model that continues the prompt as one stream: the median of several runs.

    The models take turns, so that whatever else the machine does meanwhile meets all of them. The pass over the prompt
    is not counted; what is: the passes over one token each, with the choice of the next.
    """
    for model in models:
        _tokens_per_s(model, prompt, sampling, min(WARM_UP_TOKENS, tokens))
    speeds: list[list[float]] = [[] for _ in models]
    with progress("decode speed", DECODE_RUNS * len(models), "runs") as advance:
        for _ in range(DECODE_RUNS):
            for model, own in zip(models, speeds, strict=True):
                own.append(_tokens_per_s(model, prompt, sampling, tokens))
                advance(1)
    return [median(own) for own in speeds]


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


def write_story(model: LanguageModel, prompt: str, sampling: Sampling, most: int | None = None) -> Sample:
    """The story that the model makes of the prompt, as long as its context allows; `most` tokens where that is less."""
    room = max(1, model.spec.context_length - len(model.prompt_tokens(prompt)))
    limit = room if most is None else min(room, most)
    continuation = model.stream(prompt, limit, sampling)
    text = "".join(continuation)
    return Sample(prompt, text, complete=continuation.figures.tokens < limit)


def describe_machine(device: torch.device, precision: str) -> dict[str, str]:
    """Facts for people. `precision`: of the products in training."""
    facts = {
        "processor": _processor(),
        "cores": f"{os.cpu_count()}, of which PyTorch uses {torch.get_num_threads()}",
        "memory": numbers.binary(os.sysconf("SC_PAGE_SIZE") * os.sysconf("SC_PHYS_PAGES")),
    }
    if device.type == "cuda":
        facts["GPU"] = torch.cuda.get_device_name(device)
    return facts | {
        "system": f"{platform.system()} {platform.release()}, {platform.machine()}",
        "precision": precision if precision == "float32" else f"{precision} products in training, else float32",
        "linnet": __version__,
        "PyTorch": torch.__version__,
        "Python": platform.python_version(),
    }


def _processor() -> str:
    try:
        lines = Path("/proc/cpuinfo").read_text(encoding="utf-8", errors="replace").splitlines()
    except OSError:
        lines = []
    named = [line.partition(":")[2].strip() for line in lines if line.startswith("model name")]
    return next(iter(named), platform.processor() or platform.machine())
