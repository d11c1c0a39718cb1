"""Typed results of the design verbs, with their tables, plots and JSON data."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import torch

from linnet.design.latency import LatencyResult, Timing
from linnet.design.metrics import Metric
from linnet.design.pareto import Point
from linnet.design.scores import DEFAULTS, SCORES, ScoreSettings, score
from linnet.design.search import SearchResult, SearchTask
from linnet.design.validation import ScoreQuality, TrainedSet
from linnet.model.cost import model_cost
from linnet.model.spec import ModelSpec
from linnet.present import numbers
from linnet.present.plot import Axis, Panel, Plot, Series
from linnet.present.result import Picture, Result
from linnet.present.table import Table

EXACT_BELOW = 10**12
"""Numbers of models from this on are printed with a power of ten."""
PLOT_COLUMNS = 3


@dataclass(frozen=True)
class DesignReport(Result):
    """Result of a search. tokens: over which FLOPs are counted. checked, timing: of a search with a latency limit."""

    task: SearchTask
    found: SearchResult
    tokens: int
    checked: LatencyResult | None = None
    timing: Timing | None = None

    def title(self) -> str:
        return f"Design by {self.task.score}"

    def facts(self) -> dict[str, str]:
        return {"space": f"space {self.task.space.spec.name}"}

    def to_dict(self) -> dict[str, Any]:
        task, found = self.task, self.found
        evolution, optimum = found.evolution, found.optimum
        figures = {
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
                "accepted": evolution.accepted,
                **task.settings.search.model_dump(mode="json"),
            },
            "optimum": optimum and {"score": optimum.score, "examined": optimum.examined},
            "cost": cost_figures(found.model, self.tokens),
            "model": found.plain,
        }
        if self.checked is not None and self.timing is not None:
            figures["latency"] = {
                "of": self.timing.kind,
                "tokens": self.timing.tokens,
                "device": str(self.timing.device),
                "threads": torch.get_num_threads(),
                "limit_s": self.checked.task.budgets[-1].limit,
                "predicted_s": self.checked.predicted_s,
                "measured_s": self.checked.measured_s,
                "rounds_s": self.checked.rounds_s,
                "attempts": self.checked.attempts,
            }
        return figures

    def tables(self) -> list[Table]:
        task, found = self.task, self.found
        tables = [_shape_table(found.model), _cost_table(found.model, self.tokens)]
        if task.budgets:
            rows = [
                [budget.metric.name, budget.format(budget.limit), budget.format(value), f"{value / budget.limit:.1%}"]
                for budget, value in zip(task.budgets, found.values, strict=True)
            ]
            tables.append(Table("Budgets", ["", "limit", "this model", "share"], rows, "The limits that were set."))
        tables.append(_search_table(task, found))
        if self.checked is not None and self.timing is not None:
            tables.append(latency_table(self.checked, self.timing))
        return tables


def cost_figures(model: ModelSpec, tokens: int) -> dict[str, Any]:
    """Return parameters, and forward FLOPs with and without the head: papers differ in what they count."""
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


def _shape_table(model: ModelSpec) -> Table:
    rows = []
    for number, block in enumerate(model.blocks, 1):
        hidden = block.feed_forward.hidden if block.feed_forward is not None else 0
        weights = "shared" if block.share_weights and block.repeat > 1 else "separate"
        fields = block.mixer.model_dump(exclude_defaults=True, exclude={"kind"})
        settings = [f"{name} {value}" for name, value in fields.items() if isinstance(value, int | float | str)]
        mixer = ", ".join([block.mixer.kind, *settings])
        width = block.width or model.d_model
        rows.append([str(number), str(block.repeat), str(width), str(hidden), weights, mixer])
    columns = ["block", "layers", "width", "hidden", "weights", "mixer"]
    meaning = "Blocks from the first to the last; hidden: width within the feed-forward."
    return Table("Shape", columns, rows, meaning, text=True)


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
        f"From the description alone, with a vocabulary of {model.vocab_size:,} tokens (a data folder has its own);"
        " linnet spec show prints more."
    )
    return Table("Cost", ["", "exactly", ""], rows, meaning)


def _search_table(task: SearchTask, found: SearchResult) -> Table:
    evolution, optimum, rows = found.evolution, found.optimum, []
    if evolution is not None:
        details = f"of {evolution.drawn:,} models drawn {evolution.accepted:,} were within the budgets"
        rows.append(["evolution", f"{evolution.score:,.7g}", details])
    if optimum is not None:
        details = ""
        if found.gap is not None:
            short = f"{found.gap:.3%}"
            details = "evolution reached it" if short == "0.000%" else f"evolution fell short of it by {short}"
        rows.append(["true optimum", f"{optimum.score:,.7g}", details])
    elif found.too_large:
        rows.append(["true optimum", "not known", "the proof was abandoned: too many models could be the optimum"])
    size = f"{task.space.size:,}" if task.space.size < EXACT_BELOW else numbers.scientific(float(task.space.size))
    measured, plain = SCORES[task.score].measured, SCORES["decoder_parameters"].measured
    if measured is None or plain is None:
        correlation = "It was not compared with trained models: linnet design validate does that."
    else:
        correlation = (
            f"On 200 trained decoders its rank correlation with quality is {measured[0]:.2f}, among those of equal size"
            f" {measured[1]:.2f}; that of counting the decoder's parameters is {plain[0]:.2f} and {plain[1]:.2f}."
        )
    meaning = f"{task.score}: {SCORES[task.score].summary}. The space has {size} models. {correlation}"
    return Table("Search", ["", task.score, ""], rows, meaning)


def latency_table(checked: LatencyResult, timing: Timing) -> Table:
    """Return predicted and measured latency as a table."""
    limit, attempts = checked.task.budgets[-1], checked.attempts
    ms = limit.metric.format
    what = (
        f"one more token after {timing.tokens:,}" if timing.kind == "token" else f"a pass over {timing.tokens:,} tokens"
    )
    ratio = numbers.ratio(checked.measured_s, checked.predicted_s)
    rounds = f"{ms(checked.measured_s)} to {ms(max(checked.rounds_s))}"
    rows = [[what, ms(limit.limit), ms(checked.predicted_s), ms(checked.measured_s), rounds, ratio]]
    columns = ["one stream, float32", "limit", "predicted", "measured", "its rounds", "ratio"]
    if attempts == 1:
        history = "The first winner met the limit."
    else:
        before = "The previous winner took" if attempts == 2 else f"The {attempts - 1} previous winners took"
        history = (
            f"{before} longer than the limit; evolution, true optimum and gap are those of the last search, with a"
            " lower limit or new timings of parts."
        )
    meaning = (
        f"On {timing.device}, {torch.get_num_threads()} threads. Predicted: the sum of the blocks' times, each timed"
        f" alone; measured: this model, run; the fastest of {len(checked.rounds_s)} rounds, as other programs can only"
        f" make a round slower. {history}"
    )
    return Table("Latency", columns, rows, meaning)


@dataclass(frozen=True)
class FrontReport(Result):
    """Result of a search with several goals."""

    task: SearchTask
    goals: Sequence[Metric]
    points: Sequence[Point]

    def title(self) -> str:
        return f"Front of {','.join([*(goal.name for goal in self.goals), 'score'])}"

    def facts(self) -> dict[str, str]:
        return {"space": f"space {self.task.space.spec.name}"}

    def to_dict(self) -> dict[str, Any]:
        return {
            "goals": [*(goal.name for goal in self.goals), "score"],
            "score": self.task.score,
            "front": [
                {
                    **dict(zip((goal.name for goal in self.goals), point.values, strict=True)),
                    "score": point.score,
                    "proven": point.proven,
                    "model": point.plain,
                }
                for point in self.points
            ],
        }

    def tables(self) -> list[Table]:
        columns = ["model", *(goal.name for goal in self.goals), self.task.score, "layers x width", "mixers"]
        rows = [
            [
                str(point.plain["name"]),
                *(goal.format(value) for goal, value in zip(self.goals, point.values, strict=True)),
                f"{point.score:,.6g}",
                point.shape,
                ", ".join(dict.fromkeys(block.mixer.kind for block in point.model.blocks)),
            ]
            for point in self.points
        ]
        proven = f"{sum(point.proven for point in self.points)} of {len(self.points)}"
        meaning = (
            f"Each model has the highest {self.task.score} for its cost; this is proven for {proven}. None of them"
            " is better than another in every goal."
        )
        return [Table("Front", columns, rows, meaning)]

    def plots(self) -> list[Picture]:
        """Plot the score over the first goal, with a second goal as color."""
        values = list(zip(*(point.values for point in self.points), strict=True))
        second = values[1] if len(self.goals) > 1 else None
        drawn = Series(values[0], [point.score for point in self.points], style="o" if second else "o-", values=second)
        x = Axis(self.goals[0].name, "log", self.goals[0].format)  # the limits are in equal ratios
        caption = "Each dot is a model with the highest score for its cost."
        legend = ", ".join(filter(None, (self.goals[1].name, self.goals[1].unit))) if second else ""
        plot = Plot([Panel(x, Axis(self.task.score), [drawn])], values=legend)
        return [Picture("front", f"{self.task.score} over {self.goals[0].name}", plot, caption)]


class ScoreList(Result):
    """The registered scores."""

    def title(self) -> str:
        return "Scores of shapes"

    def to_dict(self) -> dict[str, Any]:
        return {
            name: {"beta": score.beta, "measured": score.measured, "summary": score.summary}
            for name, score in SCORES.items()
        }

    def tables(self) -> list[Table]:
        rows = [
            [name, *(map("{:.2f}".format, score.measured) if score.measured else ["not measured"] * 2), score.summary]
            for name, score in SCORES.items()
        ]
        columns = ["score", "Spearman", "within bands", "definition"]
        meaning = (
            "Scores that linnet design can maximize. Spearman: rank correlation with quality on 200 trained decoders"
            " (LiteTransformerSearch); within bands: among those of equal size. Measured by linnet design validate."
        )
        return [Table("Scores", columns, rows, meaning, text=True)]


@dataclass(frozen=True)
class ValidationReport(Result):
    """Validation of scores on trained models. band: models in a window. source: where the models are from."""

    trained: TrainedSet
    quality: Mapping[str, ScoreQuality]
    band: int
    settings: ScoreSettings = DEFAULTS
    source: str = ""

    def title(self) -> str:
        return "Scores of shapes"

    def facts(self) -> dict[str, str]:
        return {"trained models": f"{len(self.trained.models)} of {self.source}"}

    def to_dict(self) -> dict[str, Any]:
        scores = {}
        for name, one in self.quality.items():
            figures = one._asdict()
            intervals = {key: [figure.low, figure.high] for key, figure in figures.items()}
            scores[name] = {**{key: figure.value for key, figure in figures.items()}, "intervals": intervals}
        return {
            "models": len(self.trained.models),
            "loss_unit": self.trained.unit,
            "noise_between_seeds": self.trained.noise,
            "band": self.band,
            "scores": scores,
        }

    def tables(self) -> list[Table]:
        trained = self.trained
        band = min(self.band, len(trained.models))
        columns = ["score", "Spearman", "Kendall", f"within {band}", "regret", f"regret within {band}"]
        rows = [
            [name, *(f"{figure.value:.3f} [{figure.low:.3f}, {figure.high:.3f}]" for figure in one)]
            for name, one in self.quality.items()
        ]
        noise = (
            "" if trained.noise is None else f" Between seeds losses differ by {numbers.significant(trained.noise, 2)}."
        )
        meaning = (
            f"Rank correlation with quality over all {len(trained.models)} models, and the mean over windows of {band}"
            f" models with similar decoder parameters. Regret: how much worse, in {trained.unit}, the model with the"
            f" highest score is than the best.{noise} In brackets: the middle 95 % over resampled models."
        )
        return [Table("Scores against trained models", columns, rows, meaning)]

    def plots(self) -> list[Picture]:
        """Plot the loss over each score."""
        trained = self.trained
        loss = [model.loss for model in trained.models]
        parameters = [model.decoder_parameters for model in trained.models]
        panels = []
        for name, one in self.quality.items():
            values = [score(model.parts, name, self.settings) for model in trained.models]
            x = Axis("", "log", numbers.metric) if min(values) > 0 else Axis()
            title = f"{name}: {one.spearman.value:.3f}, within bands {one.within_band.value:.3f}"
            dots = Series(values, loss, style="o", values=parameters)
            panels.append(Panel(x, Axis(f"measured loss, {trained.unit}"), [dots], title))
        caption = "Each dot is a trained model, colored by decoder parameters. A good score gives one falling line."
        plot = Plot(panels, (4.4, 3.2), min(PLOT_COLUMNS, len(panels)), values="decoder parameters", shared="y")
        return [Picture("scores", "Measured loss over each score", plot, caption)]
