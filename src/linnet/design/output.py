"""What a search found, as tables and as figures."""

from typing import Any

import torch

from linnet.design.checked import LatencyResult
from linnet.design.latency import Timing
from linnet.design.scores import SCORES
from linnet.design.search import SearchResult, SearchTask
from linnet.model.cost import model_cost
from linnet.model.spec import BlockSpec, ModelSpec
from linnet.present import numbers
from linnet.present.table import Table

EXACTLY_SAID = 10**12


def result_figures(task: SearchTask, found: SearchResult, tokens: int) -> dict[str, Any]:
    """Everything, ready for JSON. `tokens`: over which FLOPs are counted."""
    evolution, optimum = found.evolution, found.optimum
    return {
        "space": task.space.spec.name,
        "models": task.space.size,
        "score": {"name": task.score, "value": found.score, **task.settings.score.model_dump(mode="json")},
        "budgets": [
            {"metric": budget.metric.name, "limit": budget.limit, "value": value}
            for budget, value in zip(task.budgets, found.values, strict=True)
        ],
        "evolution": evolution
        and {
            "score": evolution.score,
            "gap": found.gap,
            "drawn": evolution.drawn,
            "kept": evolution.kept,
            **task.settings.search.model_dump(mode="json"),
        },
        "optimum": optimum and {"score": optimum.score, "beginnings": optimum.beginnings},
        "cost": cost_figures(found.model, tokens),
        "model": found.plain,
    }


def latency_figures(checked: LatencyResult, timing: Timing) -> dict[str, Any]:
    """Ready for JSON."""
    return {
        "of": timing.kind,
        "tokens": timing.tokens,
        "device": str(timing.device),
        "threads": torch.get_num_threads(),
        "limit_s": checked.task.budgets[-1].limit,
        "predicted_s": checked.predicted_s,
        "measured_s": checked.measured_s,
        "rounds_s": checked.rounds_s,
        "attempts": checked.attempts,
    }


def latency_table(checked: LatencyResult, timing: Timing) -> Table:
    """Predicted against measured."""
    limit = checked.task.budgets[-1]
    said = limit.metric.format
    what = (
        f"one more token after {timing.tokens:,}" if timing.kind == "token" else f"a pass over {timing.tokens:,} tokens"
    )
    ratio = numbers.ratio(checked.measured_s, checked.predicted_s)
    rounds = f"{said(checked.measured_s)} to {said(max(checked.rounds_s))}"
    rows = [[what, said(limit.limit), said(checked.predicted_s), said(checked.measured_s), rounds, ratio]]
    columns = ["one stream, float32", "limit", "predicted", "measured", "its rounds", "ratio"]
    meaning = (
        f"On {timing.device}, {torch.get_num_threads()} threads. Predicted: the sum of its blocks' times, each timed by"
        f" itself; measured: this model, run; of {len(checked.rounds_s)} rounds the fastest, as other programs can only"
        " make one slower."
        f" {_attempts_said(checked.attempts)}"
    )
    return Table("Latency", columns, rows, meaning)


def _attempts_said(attempts: int) -> str:
    if attempts == 1:
        return "It kept the limit at once."
    before = "The winner before took" if attempts == 2 else f"The {attempts - 1} winners before took"
    return (
        f"{before} longer than the limit; evolution, true optimum and gap are those of the last, where the limit was"
        " lowered or parts were timed again."
    )


def cost_figures(model: ModelSpec, tokens: int) -> dict[str, Any]:
    """Parameters, and forward FLOPs with and without the head: papers differ in what they count."""
    cost = model_cost(model)
    return {
        "vocab_size": model.vocab_size,
        "parameters": cost.parameters,
        "active_parameters": cost.active_parameters,
        "decoder_parameters": cost.blocks.parameters,
        "tokens": tokens,
        "flops_per_sequence": {
            "with_head": cost.flops(tokens, with_head=True),
            "without_head": cost.flops(tokens, with_head=False),
        },
    }


def result_tables(task: SearchTask, found: SearchResult, tokens: int) -> list[Table]:
    """The shape, what it costs, its budgets, and how good the search was."""
    tables = [_shape_table(found.model), _cost_table(found.model, tokens)]
    if task.budgets:
        rows = [
            [budget.metric.name, budget.format(budget.limit), budget.format(value), f"{value / budget.limit:.1%}"]
            for budget, value in zip(task.budgets, found.values, strict=True)
        ]
        tables.append(Table("Budgets", ["", "limit", "this model", "share"], rows, "What was asked for, and is kept."))
    return [*tables, _search_table(task, found)]


def _shape_table(model: ModelSpec) -> Table:
    rows = [_block_row(number, block, block.width or model.d_model) for number, block in enumerate(model.blocks, 1)]
    columns = ["block", "layers", "width", "hidden", "weights", "mixer"]
    meaning = "Blocks from the first to the last; hidden: width within the feed-forward."
    return Table("Shape", columns, rows, meaning, text=True)


def _block_row(number: int, block: BlockSpec, width: int) -> list[str]:
    hidden = block.feed_forward.hidden if block.feed_forward is not None else 0
    weights = "shared" if block.share_weights and block.repeat > 1 else "each its own"
    fields = block.mixer.model_dump(exclude_defaults=True, exclude={"kind"})
    settings = ", ".join(f"{name} {value}" for name, value in fields.items() if isinstance(value, int | float | str))
    mixer = f"{block.mixer.kind}, {settings}" if settings else block.mixer.kind
    return [str(number), str(block.repeat), str(width), str(hidden), weights, mixer]


def _cost_table(model: ModelSpec, tokens: int) -> Table:
    cost = cost_figures(model, tokens)
    flops = cost["flops_per_sequence"]
    counts = {
        "parameters": cost["parameters"],
        "  of them in blocks and projections": cost["decoder_parameters"],
        f"forward FLOPs of {tokens:,} tokens, without output head": flops["without_head"],
        f"forward FLOPs of {tokens:,} tokens, with output head": flops["with_head"],
    }
    if cost["active_parameters"] != cost["parameters"]:
        counts["  of them used by one token"] = cost["active_parameters"]
    rows = [[name, f"{count:,}", numbers.metric(count)] for name, count in counts.items()]
    meaning = (
        f"From the description alone, with a vocabulary of {model.vocab_size:,} tokens (a data folder brings its own);"
        " more by linnet spec show."
    )
    return Table("Cost", ["", "exactly", ""], rows, meaning)


def _search_table(task: SearchTask, found: SearchResult) -> Table:
    evolution, optimum, rows = found.evolution, found.optimum, []
    if evolution is not None:
        details = f"of {evolution.drawn:,} models drawn {evolution.kept:,} were within the budgets"
        rows.append(["evolution", f"{evolution.score:,.7g}", details])
    if optimum is not None:
        details = "" if found.gap is None else f"evolution fell short of it by {found.gap:.3%}"
        rows.append(["true optimum", f"{optimum.score:,.7g}", details])
    elif found.too_large:
        rows.append(["true optimum", "not known", "the proof was given up: too many models could be it"])
    size = f"{task.space.size:,}" if task.space.size < EXACTLY_SAID else numbers.scientific(float(task.space.size))
    meaning = f"{task.score}: {SCORES[task.score].summary}. The space has {size} models."
    return Table("Search", ["", task.score, ""], rows, f"{meaning} {describe_rank_correlation(task.score)}")


def describe_rank_correlation(name: str) -> str:
    """What is known of a score on trained models, beside counting parameters, in words."""
    measured, plain = SCORES[name].measured, SCORES["decoder_parameters"].measured
    if measured is None or plain is None:
        return "What it says about trained models was not measured: linnet design validate."
    return (
        f"On 200 trained decoders its rank correlation with quality is {measured[0]:.2f}, among those of equal size"
        f" {measured[1]:.2f}; that of counting the decoder's parameters is {plain[0]:.2f} and {plain[1]:.2f}."
    )


def score_table() -> Table:
    """The registry."""
    rows = [
        [name, *(map("{:.2f}".format, score.measured) if score.measured else ["not measured"] * 2), score.summary]
        for name, score in SCORES.items()
    ]
    columns = ["score", "Spearman", "within bands", "what it is"]
    meaning = (
        "What linnet design can maximize. Spearman: its rank correlation with quality on 200 trained decoders"
        " (LiteTransformerSearch); within bands: among those of equal size. Measured by linnet design validate."
    )
    return Table("Scores", columns, rows, meaning, text=True)
