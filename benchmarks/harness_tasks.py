"""Tasks of the LM Evaluation Harness: ours compared with its HFLM on Transformers' Llama with the same weights.

Choices, and answers that end at a stop; then forks against every text alone, and the adapter against its decoder's bare
passes. Needs `pip install 'linnet[tasks]' accelerate`. Items are endings of built-in stories, or HellaSwag's, of a file
with rows as `docs/tasks.md` has them: `python benchmarks/harness_tasks.py FILE --items 500 --vocabulary 32000`
"""

import argparse
from collections.abc import Callable
from pathlib import Path
from typing import Any

import torch
from lm_eval.api.instance import Instance
from torch import Tensor

from harness import contest, gate, report
from harness_models import both, hflm
from linnet.data.tokenizer import Tokenizer
from linnet.evaluation.tasks.harness import HarnessModel
from linnet.evaluation.tasks.items import TaskItem, parse_item, read_rows
from linnet.evaluation.tasks.scorer import encode_requests
from linnet.model.decoder import Decoder
from linnet.stories.corpus import texts

WIDTH, LAYERS, HEADS, CONTEXT, BATCH = 256, 4, 4, 512, 32
UNTIL, MOST_TOKENS = "k", 64
"""A letter that random weights generate now and then, so that rows end at different times."""


def instances(kind: str, arguments: list[tuple[Any, ...]]) -> list[Instance]:
    """The harness's requests."""
    return [Instance(request_type=kind, doc={}, arguments=each, idx=n) for n, each in enumerate(arguments)]


def largest_difference(ours: list[tuple[float, bool]], theirs: list[tuple[float, bool]]) -> float:
    """Largest difference of log-likelihoods in nats; infinite if greedy flags differ."""
    apart = [
        abs(a - b) if greedy == other else float("inf") for (a, greedy), (b, other) in zip(ours, theirs, strict=True)
    ]
    return max(apart)


def main() -> None:
    """Check, then time."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("rows", type=Path, nargs="?", help="HellaSwag's rows, JSON lines; default: stories")
    numbers = {"items": 50, "prompts": 32, "shots": 3, "vocabulary": 4096, "threads": 2, "runs": 3}
    for name, default in numbers.items():
        parser.add_argument(f"--{name}", type=int, default=default, help=f"default {default}")
    options = parser.parse_args()
    torch.set_num_threads(options.threads)
    known = endings(options.items) if options.rows is None else of_file(options.rows)
    # From everywhere: the first of a file are shorter than most.
    items = [known[n * len(known) // options.items] for n in range(options.items)]
    torch.manual_seed(0)
    tokenizer = Tokenizer.train("bpe", [text for item in known for text in item.own_texts], options.vocabulary)
    model, theirs = both(tokenizer, WIDTH, LAYERS, HEADS, CONTEXT, torch.float32, spread=20)
    forked, alone, other = HarnessModel(model), HarnessModel(model, fork=False), hflm(theirs, tokenizer, BATCH)
    results = {
        "share_of_tokens_read": share_read(items, tokenizer),
        **choices(items, forked, alone, other, options.runs),
        **shots(items[: options.items // 5], options.shots, forked, alone, options.runs),
        **adapter(items, model.decoder, alone, options.runs),
        **answers(items[: options.prompts], forked, other, options.runs),
    }
    shape = (
        f"llama of width {WIDTH}, {LAYERS} layers, {tokenizer.vocab_size} tokens, float32, HFLM in batches of {BATCH}"
    )
    source = "stories" if options.rows is None else options.rows.name
    report("harness_tasks", {"shape": shape, "of": source, "items": len(items), "prompts": options.prompts, **results})


def of_file(path: Path) -> list[TaskItem]:
    """All items of a file of HellaSwag."""
    return [parse_item("hellaswag", "{context}", row, place) for place, row in read_rows(path)]


def endings(count: int) -> list[TaskItem]:
    """Stories without their last sentence; the choices are this sentence and those of the next three stories."""
    endings_of_texts = [text.strip().rpartition(". ") for text in texts(count)]
    return [
        TaskItem.of_choices(f"{begun}.", [endings_of_texts[(n + i) % count][2] for i in range(4)], [1, 0, 0, 0])
        for n, (begun, _, _) in enumerate(endings_of_texts)
    ]


def share_read(items: list[TaskItem], tokenizer: Tokenizer) -> float:
    """Tokens read with forks as a share of those of all texts; the last token of each is only predicted."""
    requests = encode_requests(tokenizer, [pair for item in items for pair in item.pairs])
    contexts, rests = {each.context for each in requests}, sum(len(each.continuation) - 1 for each in requests)
    whole = sum(len(each.context) for each in requests) + rests
    return round((sum(map(len, contexts)) + rests) / whole, 3)


def choices(items: list[TaskItem], forked: HarnessModel, alone: HarnessModel, other: Any, runs: int) -> dict[str, Any]:
    """Every choice of every item."""
    calls = instances("loglikelihood", [pair for item in items for pair in item.pairs])
    found = [each.loglikelihood(calls, disable_tqdm=True) for each in (forked, alone, other)]
    apart = max(largest_difference(found[0], each) for each in found[1:])
    gate("multiple choice", apart < 1e-2, f"log-likelihoods differ by {apart:.1e} nats at most")
    against = contest(lambda: forked.loglikelihood(calls), lambda: other.loglikelihood(calls, disable_tqdm=True), runs)
    forks = contest(lambda: forked.loglikelihood(calls), lambda: alone.loglikelihood(calls), runs)
    return {"choices_against_hflm": against.summary(), "forks_against_each_text_alone": forks.summary()}


def shots(
    items: list[TaskItem], count: int, forked: HarnessModel, alone: HarnessModel, runs: int
) -> dict[str, dict[str, Any]]:
    """Choices behind other items with their answers, as the harness formats them: longer shared contexts."""
    solved = ["".join(item.pairs[item.labels.index(1)]) for item in items]
    before = ["\n\n".join([*(solved * 2)[n + 1 : n + 1 + count], ""]) for n in range(len(items))]
    pairs = [
        (shown + context, choice) for shown, item in zip(before, items, strict=True) for context, choice in item.pairs
    ]
    calls = instances("loglikelihood", pairs)
    apart = largest_difference(forked.loglikelihood(calls), alone.loglikelihood(calls))
    gate(f"{count} shots", apart < 1e-2, f"log-likelihoods differ by {apart:.1e} nats at most")
    against = contest(lambda: forked.loglikelihood(calls), lambda: alone.loglikelihood(calls), runs)
    return {"forks_with_shots": {"shots": count, **against.summary()}}


def adapter(items: list[TaskItem], decoder: Decoder, alone: HarnessModel, runs: int) -> dict[str, Any]:
    """The time of the adapter beside its decoder's passes, as a share of these; the target is 0.1."""
    calls = instances("loglikelihood", [pair for item in items for pair in item.pairs])
    passes, found = recorded(decoder, lambda: alone.loglikelihood(calls, disable_tqdm=True))

    @torch.inference_mode()
    def bare() -> list[Tensor]:
        return [getattr(decoder, name)(*arguments) for name, arguments in passes]

    same = all(torch.equal(one, other) for one, other in zip(bare(), found, strict=True))
    gate("bare passes", same, f"{len(passes)} passes give what the adapter had of them")
    against = contest(lambda: alone.loglikelihood(calls), bare, runs)
    return {"adapter_over_bare_passes": {"share": round(1 / against.ratio - 1, 3), **against.summary()}}


def recorded(decoder: Decoder, run: Callable[[], object]) -> tuple[list[tuple[str, Any]], list[Tensor]]:
    """Records the calls of the decoder and their results."""
    calls: list[tuple[str, Any]] = []
    outputs: list[Tensor] = []

    def watched(name: str) -> Callable[..., Tensor]:
        plain = getattr(decoder, name)

        def call(*arguments: Any) -> Tensor:
            calls.append((name, arguments))
            outputs.append(plain(*arguments))
            return outputs[-1]

        return call

    for name in ("hidden", "logits"):
        setattr(decoder, name, watched(name))
    run()
    for name in ("hidden", "logits"):
        delattr(decoder, name)
    return calls, [each.clone() for each in outputs]


def answers(items: list[TaskItem], ours: HarnessModel, other: Any, runs: int) -> dict[str, Any]:
    """The continuation of each context up to the stop."""
    settings = {"until": [UNTIL], "max_gen_toks": MOST_TOKENS, "do_sample": False}
    calls = instances("generate_until", [(item.pairs[0][0], settings) for item in items])
    ours_text, their_text = ours.generate_until(calls), other.generate_until(calls, disable_tqdm=True)
    same = sum(a == b for a, b in zip(ours_text, their_text, strict=True))
    gate(
        "answers", same >= 0.95 * len(ours_text), f"{same} of {len(ours_text)} answers are the same to the last letter"
    )
    against = contest(lambda: ours.generate_until(calls), lambda: other.generate_until(calls, disable_tqdm=True), runs)
    return {"answers_against_hflm": {"same": same, **against.summary()}}


if __name__ == "__main__":
    main()
