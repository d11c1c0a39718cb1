"""What answers to instructions show: following by type and split, refusals, steps, calibration, and differences."""

import math
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from linnet.core.files import json_safe
from linnet.data.prompts import ChatPrompt
from linnet.evaluation.instructions.measure import (
    IMPOSSIBLE,
    InstructionScores,
    Values,
    default_prompts,
    load_prompts,
    measure_instructions,
)
from linnet.evaluation.models import ModelOptions
from linnet.evaluation.statistics import (
    Estimate,
    beats_chance,
    holm_correction,
    mean,
    p_value_against_chance,
    paired_difference,
)
from linnet.evaluation.text import evaluate_models
from linnet.present import numbers
from linnet.present.result import Result
from linnet.present.table import Table

BINS = 10
"""Intervals of equal width of the probability of an answer."""

ALL, MULTI_TURN = "all", "several turns"
DIRECT, STEPS = "arithmetic", "steps"
PER_KIND = 20
"""Prompts of each kind and split of the story world by default."""

Mask = NDArray[np.bool_]


@dataclass(frozen=True)
class CalibrationBin:
    """Answers whose probability is in one interval."""

    low: float
    high: float
    answers: int
    probability: float
    right: float


@dataclass(frozen=True)
class InstructionReport(Result):
    """The scores of several models on the same prompts; the others are compared with the first."""

    prompts: Sequence[ChatPrompt]
    scores: Sequence[InstructionScores]
    data: str | None = None

    def groups(self) -> dict[str, Mask]:
        """Which prompts belong to each row of the tables, bool `[N]`."""
        types = np.array([prompt.type for prompt in self.prompts], dtype=object)
        splits = np.array([str(prompt.row.get("split", "")) for prompt in self.prompts], dtype=object)
        turns = np.array([sum(turn.role == "user" for turn in prompt.messages) for prompt in self.prompts])
        found: dict[str, Mask] = {name or "(no type)": types == name for name in dict.fromkeys(types)}
        if (turns > 1).any():
            found[MULTI_TURN] = turns > 1
        names = list(dict.fromkeys(splits))
        if len(names) > 1:
            found |= {f"split {name or '(none)'}": splits == name for name in names}
        return found | {ALL: np.ones(len(types), bool)}

    @property
    def chance_N(self) -> Values:
        """The probability that a guess is right; 0 where a prompt offers no answers."""
        return np.array([prompt.chance for prompt in self.prompts], np.float64)

    @property
    def ceiling_N(self) -> Values:
        """1 where the reference answer passes, NaN where there is none."""
        passes = (one.reference_passes for one in self.prompts)
        return np.array([math.nan if passed is None else passed for passed in passes], np.float64)

    def tables(self) -> list[Table]:
        first, *others = self.scores
        found = [table for one in self.scores for table in (self._following(one), _calibration_table(one))]
        found += [self._difference(first, other) for other in others]
        return [*found, _about_table(self)]

    def _following(self, scores: InstructionScores) -> Table:
        rows = []
        for name, row in self.figures(scores).items():
            ends = "" if row["interval"] is None else " to ".join(f"{100 * end:.1f}" for end in row["interval"])
            note = "above chance" if row["above_chance"] else "not above chance" if row["chance"] else ""
            shares = [_percent(row[key]) for key in ("followed", "chance", "reference")]
            rows.append((name, shares[0], ends, *shares[1:], f"{row['prompts']:,}", note))
        columns = ("", "followed, %", "95 % interval", "chance, %", "reference, %", "prompts", "")
        meaning = "followed: greedy answers that pass their checker; reference: the same of the reference answers."
        if scores.cut:
            cut = numbers.counted(scores.cut, "prompt")
            meaning += f" {cut} longer than the model's context lost the beginning."
        with_tools = sum(prompt.tool_rounds > 0 for prompt in self.prompts)
        if with_tools and scores.called_N is not None:
            meaning += f" In {int(scores.called_N.sum()):,} of {with_tools:,} prompts with a tool the model called it."
        return Table(f"{scores.model}: instructions", columns, rows, meaning)

    def _difference(self, first: InstructionScores, other: InstructionScores) -> Table:
        rows = []
        for name, row in self.differences(first, other).items():
            ends = ("", "") if row["interval"] is None else (_signed(end) for end in row["interval"])
            rows.append((name, _signed(row["difference"]), *ends, row["verdict"]))
        meaning = "In per cent, of the same prompts; 95 % intervals; verdicts for all rows together (Holm)."
        return Table(f"{other.model} against {first.model}", ("", "difference", "from", "to", ""), rows, meaning)

    def figures(self, scores: InstructionScores) -> dict[str, dict[str, Any]]:
        """For each group: the share of answers that pass, its interval, chance, and the share of the references."""
        groups, chance_N, ceiling_N = self.groups(), self.chance_N, self.ceiling_N
        tested = [
            p_value_against_chance(scores.passed_N[mask], chance_N[mask]) if (chance_N[mask] > 0).all() else None
            for mask in groups.values()
        ]
        found = {}
        for (name, mask), p_value in zip(groups.items(), holm_correction(tested), strict=True):
            followed, known = mean(scores.passed_N[mask]), ceiling_N[mask][~np.isnan(ceiling_N[mask])]
            chance = float(chance_N[mask].mean()) if (chance_N[mask] > 0).all() else None
            found[name] = {
                "followed": followed.value,
                "standard_error": followed.standard_error,
                "interval": share_interval(followed.value, followed.count),
                "chance": chance,
                "p_value_holm": p_value,
                "above_chance": chance is not None and beats_chance(p_value, followed.value, chance),
                "reference": float(known.mean()) if len(known) else None,
                "prompts": int(mask.sum()),
            }
        return found

    def differences(self, first: InstructionScores, other: InstructionScores) -> dict[str, dict[str, Any]]:
        """`other - first` for each group, paired by prompt."""
        found = {
            name: paired_difference(first.passed_N[mask], other.passed_N[mask]) for name, mask in self.groups().items()
        }
        corrected = holm_correction([one.p_value() for one in found.values()])
        return {
            name: {
                "difference": one.value,
                "interval": _interval(one),
                "p_value_holm": p_value,
                "verdict": _verdict(one, p_value),
            }
            for (name, one), p_value in zip(found.items(), corrected, strict=True)
        }

    def steps_against_direct(self, scores: InstructionScores) -> Estimate | None:
        """The gain of working step by step, paired by the same sum; None without such prompts."""
        passed: dict[str, dict[tuple[Any, ...], float]] = {DIRECT: {}, STEPS: {}}
        for prompt, value in zip(self.prompts, scores.passed_N, strict=True):
            if prompt.type in passed and isinstance(prompt.row.get("signature"), list):
                passed[prompt.type][prompt.row.get("split"), *prompt.row["signature"]] = float(value)
        both = [key for key in passed[DIRECT] if key in passed[STEPS]]
        if not both:
            return None
        return paired_difference([passed[DIRECT][key] for key in both], [passed[STEPS][key] for key in both])

    def refused(self, scores: InstructionScores) -> float | None:
        """The share of prompts with an answer that the model refuses nevertheless."""
        answerable = np.array([prompt.type != IMPOSSIBLE for prompt in self.prompts])
        return float(scores.refused_N[answerable].mean()) if answerable.any() else None

    def to_dict(self) -> dict[str, Any]:
        first, *others = self.scores
        models = []
        for one in self.scores:
            steps = self.steps_against_direct(one)
            bits = one.bits_per_byte
            figures = {
                "model": one.model,
                "groups": self.figures(one),
                "refused_although_answerable": self.refused(one),
                "steps_against_direct": None if steps is None else _estimate(steps),
                "calibration": calibration(one),
                "cut": one.cut,
                "called_tools": None if one.called_N is None else int(one.called_N.sum()),
                "bits_per_byte": None if bits is None else _estimate(bits),
            }
            models.append(json_safe(figures))
        differences = [
            json_safe({"first": first.model, "second": other.model, "groups": self.differences(first, other)})
            for other in others
        ]
        return {"models": models, "differences": differences, "data": self.data, "prompts": len(self.prompts)}


def calibration(scores: InstructionScores) -> dict[str, Any]:
    """How the probability of an answer compares with how often such answers are right.

    expected_error: the mean over answers of the distance between both in the answer's bin (ECE; Guo et al. 2017,
    arXiv 1706.04599). brier: the mean square of the distance of single answers.
    """
    bins, total = calibration_bins(scores.probability_N, scores.passed_N), len(scores.passed_N)
    return {
        "expected_error": sum(one.answers * abs(one.probability - one.right) for one in bins) / total,
        "brier": float(((scores.probability_N - scores.passed_N) ** 2).mean()),
        "probability": float(scores.probability_N.mean()),
        "right": float(scores.passed_N.mean()),
        "bins": [vars(one) for one in bins],
    }


def calibration_bins(probability_N: Values, right_N: Values) -> list[CalibrationBin]:
    """The answers by their probability in `BINS` intervals, those without answers left out."""
    places_N = np.minimum((probability_N * BINS).astype(int), BINS - 1)
    found = []
    for place in range(BINS):
        mask = places_N == place
        if mask.any():
            means = float(probability_N[mask].mean()), float(right_N[mask].mean())
            found.append(CalibrationBin(place / BINS, (place + 1) / BINS, int(mask.sum()), *means))
    return found


def evaluate_instructions(
    models: Sequence[str | Path],
    files: Sequence[str | Path] = (),
    limit: int | None = None,
    data: str | Path | None = None,
    limit_tokens: int | None = None,
    options: ModelOptions | None = None,
) -> InstructionReport:
    """Measure model folders, or runs, on the prompts of files, or on held-out ones of the story world.

    limit: prompts of each type; of the story world of each type and split. data: a base text, whose bits per byte show
    what a model has forgotten. `UserError` for a prompt that is none.
    """
    options = options or ModelOptions()
    prompts = load_prompts(files, limit) if files else default_prompts(limit or PER_KIND, options.seed)
    bits = [None] * len(models) if data is None else _bits_per_byte(models, data, limit_tokens, options)
    scores = [measure_instructions(name, prompts, options, one) for name, one in zip(models, bits, strict=True)]
    return InstructionReport(prompts, scores, None if data is None else str(data))


def share_interval(share: float, items: int) -> list[float] | None:
    """The 95 % interval of a share of right answers, which stays within 0 to 1 (Wilson 1927); None for one item."""
    if items < 2:
        return None
    z_square = 1.959964**2
    middle, reach = share + z_square / (2 * items), share * (1 - share) / items + z_square / (4 * items**2)
    ends = (middle + sign * math.sqrt(z_square * reach) for sign in (-1, 1))
    return [min(1.0, max(0.0, end / (1 + z_square / items))) for end in ends]


def _bits_per_byte(
    models: Sequence[str | Path], data: str | Path, limit_tokens: int | None, options: ModelOptions
) -> list[Estimate]:
    """Of the same text, which each model reads with its own tokenizer: training on conversations may add tokens."""
    several = list(models) if len(models) > 1 else [*models, *models]  # one alone has to have the tokenizer of a folder
    found = evaluate_models(
        several,
        data,
        limit_tokens=limit_tokens,
        device=options.device,
        calibration=options.calibration,
        precision=options.precision,
        seed=options.seed,
    )
    return [one.bits_per_byte for one in found.evaluations[: len(models)]]


def _about_table(report: InstructionReport) -> Table:
    """What is one figure for each model: refusals, steps, calibration, the base text."""
    rows = []
    for one in report.scores:
        steps, found, bits = report.steps_against_direct(one), calibration(one), one.bits_per_byte
        gain = "" if steps is None else _signed(steps.value)
        ends = None if steps is None else _interval(steps)
        gain += "" if ends is None else f" ({_signed(ends[0])} to {_signed(ends[1])})"
        text = "" if bits is None else f"{bits.value:.4f}"
        error = _percent(found["expected_error"])
        rows.append((one.model, _percent(report.refused(one)), gain, error, text))
    columns = (
        "model",
        "refused although answerable, %",
        "steps against direct, %",
        "calibration error, %",
        "bits per byte",
    )
    meaning = (
        "refused: although there is an answer; steps against direct: right sums step by step less those answered "
        "directly, with the 95 % interval; calibration error: ECE of the probability of whole answers."
    )
    if report.data is not None:
        meaning += f" bits per byte: of {report.data}."
    return Table("Models", columns, rows, meaning)


def _calibration_table(scores: InstructionScores) -> Table:
    rows = [
        (f"{one.low:.1f} to {one.high:.1f}", f"{one.answers:,}", _percent(one.probability), _percent(one.right))
        for one in calibration_bins(scores.probability_N, scores.passed_N)
    ]
    columns = ("probability of the answer", "answers", "mean probability, %", "right, %")
    return Table(f"{scores.model}: calibration", columns, rows)


def _verdict(one: Estimate, p_value: float | None) -> str:
    if p_value is None or p_value >= 0.05:
        return "no difference shown"
    return "better" if one.value > 0 else "worse"


def _interval(one: Estimate) -> list[float] | None:
    ends = one.interval()
    return None if ends is None else list(ends)


def _estimate(one: Estimate) -> dict[str, Any]:
    return {"value": one.value, "standard_error": one.standard_error, "interval": _interval(one)}


def _percent(share: float | None) -> str:
    return "" if share is None else f"{100 * share:.1f}"


def _signed(share: float) -> str:
    return numbers.signed(100 * share, 1)
