"""Tasks as the LM Evaluation Harness asks them: ours against its HFLM on Transformers' Llama of the same weights.

HellaSwag's items, and answers that end at a stop; then forks against every text alone. Needs `pip install
'linnet[tasks]' accelerate` and rows as `docs/tasks.md` has them: `python benchmarks/harness_tasks.py hellaswag.jsonl`
"""

import argparse
from pathlib import Path
from typing import Any

import torch
from lm_eval.api.instance import Instance

from harness import contest, gate, report
from harness_models import both, hflm
from linnet.data.tokenizer import Tokenizer
from linnet.evaluation.tasks.encoding import encode_pairs
from linnet.evaluation.tasks.harness import HarnessModel
from linnet.evaluation.tasks.items import TaskItem
from linnet.evaluation.tasks.row_files import item_of, rows_of_file

WIDTH, LAYERS, HEADS, VOCABULARY, CONTEXT, BATCH = 256, 4, 4, 4096, 512, 32
UNTIL, MOST_TOKENS = "k", 64
"""A letter that fresh weights say now and then, so that rows end at different times."""


def instances(kind: str, arguments: list[tuple[Any, ...]]) -> list[Instance]:
    """The harness's requests."""
    return [Instance(request_type=kind, doc={}, arguments=each, idx=n) for n, each in enumerate(arguments)]


def largest_difference(ours: list[tuple[float, bool]], theirs: list[tuple[float, bool]]) -> float:
    """Of two lists of log-likelihoods, in nats; infinite where they differ in what is greedy."""
    apart = [
        abs(a - b) if greedy == other else float("inf") for (a, greedy), (b, other) in zip(ours, theirs, strict=True)
    ]
    return max(apart)


def main() -> None:
    """Check, then time."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("rows", type=Path, help="HellaSwag's rows, JSON lines")
    for name, default in (("items", 500), ("prompts", 64), ("threads", 2), ("runs", 5)):
        parser.add_argument(f"--{name}", type=int, default=default, help=f"default {default}")
    given = parser.parse_args()
    torch.set_num_threads(given.threads)
    rows = list(rows_of_file(given.rows))  # the first are shorter than most, so some from everywhere
    chosen = [rows[n * len(rows) // given.items] for n in range(given.items)]
    items = [item_of("hellaswag", "{context}", row, place) for place, row in chosen]
    torch.manual_seed(0)
    tokenizer = Tokenizer.train("bpe", [text for item in items for text in item.own], VOCABULARY)
    model, theirs = both(tokenizer, WIDTH, LAYERS, HEADS, CONTEXT, torch.float32, spread=20)
    forked, alone, other = HarnessModel(model), HarnessModel(model, fork=False), hflm(theirs, tokenizer, BATCH)
    results = {
        "share_of_tokens_read": share_read(items, tokenizer),
        **choices(items, forked, alone, other, given.runs),
        **answers(items[: given.prompts], forked, other, given.runs),
    }
    shape = (
        f"llama of width {WIDTH}, {LAYERS} layers, {tokenizer.vocab_size} tokens, float32, HFLM in batches of {BATCH}"
    )
    report("harness_tasks", {"shape": shape, "items": len(items), "prompts": given.prompts, **results})


def share_read(items: list[TaskItem], tokenizer: Tokenizer) -> float:
    """Tokens that are read with forks, as a share of those of all texts; each one's last is predicted alone."""
    asked = encode_pairs(tokenizer, [pair for item in items for pair in item.pairs])
    contexts, rests = {each.context for each in asked}, sum(len(each.continuation) - 1 for each in asked)
    whole = sum(len(each.context) for each in asked) + rests
    return round((sum(map(len, contexts)) + rests) / whole, 3)


def choices(items: list[TaskItem], forked: HarnessModel, alone: HarnessModel, other: Any, runs: int) -> dict[str, Any]:
    """Every choice of every item."""
    asked = instances("loglikelihood", [pair for item in items for pair in item.pairs])
    found = [each.loglikelihood(asked, disable_tqdm=True) for each in (forked, alone, other)]
    apart = max(largest_difference(found[0], each) for each in found[1:])
    gate("multiple choice", apart < 1e-2, f"log-likelihoods differ by {apart:.1e} nats at most")
    against = contest(lambda: forked.loglikelihood(asked), lambda: other.loglikelihood(asked, disable_tqdm=True), runs)
    forks = contest(lambda: forked.loglikelihood(asked), lambda: alone.loglikelihood(asked), runs)
    return {"choices_against_hflm": against.summary(), "forks_against_each_text_alone": forks.summary()}


def answers(items: list[TaskItem], ours: HarnessModel, other: Any, runs: int) -> dict[str, Any]:
    """What follows each context, up to the stop."""
    settings = {"until": [UNTIL], "max_gen_toks": MOST_TOKENS, "do_sample": False}
    asked = instances("generate_until", [(item.pairs[0][0], settings) for item in items])
    mine, his = ours.generate_until(asked), other.generate_until(asked, disable_tqdm=True)
    same = sum(a == b for a, b in zip(mine, his, strict=True))
    gate("answers", same >= 0.95 * len(mine), f"{same} of {len(mine)} answers are the same to the last letter")
    against = contest(lambda: ours.generate_until(asked), lambda: other.generate_until(asked, disable_tqdm=True), runs)
    return {"answers_against_hflm": {"same": same, **against.summary()}}


if __name__ == "__main__":
    main()
