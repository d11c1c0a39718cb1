"""Accuracy against examples: what is measured of each task, and what the table and the plot say of it."""

import math

import pytest
import torch

from linnet.data.tokenizer import Tokenizer
from linnet.evaluation.abilities.contract import Ability
from linnet.evaluation.abilities.in_context import (
    ShotsCurve,
    ShotsPoint,
    ShotsReport,
    measurement_count,
    shot_tasks,
    shots_curve,
)
from linnet.evaluation.abilities.measure import AnswerCounts, measure
from linnet.evaluation.abilities.suite import default_abilities
from linnet.evaluation.abilities.symbols import Copying, Rules
from linnet.evaluation.abilities.texts import Arithmetic, StoryFacts
from linnet.evaluation.models import ModelOptions
from linnet.inference.language_model import LanguageModel
from linnet.model.decoder import Decoder
from linnet.model.spec import ModelSpec


@pytest.fixture(scope="module")
def speaker() -> LanguageModel:
    tokenizer = Tokenizer.train("char", [Rules().alphabet])
    torch.manual_seed(3)
    mixer = {"kind": "attention", "heads": 2}
    plain = {"vocab_size": tokenizer.vocab_size, "d_model": 16, "context_length": 80, "blocks": [{"mixer": mixer}]}
    return LanguageModel(Decoder(ModelSpec.parse(plain, "test")).eval(), tokenizer)


def test_each_task_is_there_once_without_what_is_varied():
    found = shot_tasks([Copying(), Arithmetic(shots=4), Arithmetic(instruction=True), StoryFacts(steps=True), Rules()])
    assert found == [Arithmetic(), StoryFacts(steps=True), Rules()]
    tasks = shot_tasks(default_abilities())
    assert {(one.kind, getattr(one, "steps", False), getattr(one, "hops", 0)) for one in tasks} == {
        ("arithmetic", False, 0), ("arithmetic", True, 0), ("rules", False, 0),
        ("facts", False, 1), ("facts", False, 2), ("facts", False, 3), ("facts", True, 2),
        ("whereabouts", False, 1), ("whereabouts", False, 2), ("whereabouts", True, 2),
    }  # fmt: skip


def test_a_point_measures_the_ability_with_its_examples_and_instruction(speaker: LanguageModel):
    heard: list[int] = []
    curve = shots_curve(speaker, Arithmetic(max_value=9), (0, 2, 60), 40, 5, heard.append)
    assert sum(heard) == measurement_count(Arithmetic(), (0, 2, 60)) == 6
    for points, instruction in ((curve.plain, False), (curve.instructed, True)):
        for point in points:
            expected = measure(speaker, Arithmetic(max_value=9, shots=point.shots, instruction=instruction), 40, 5)
            assert (point.score, point.missing, point.chance) == (expected.score, expected.missing, 0.1)
    assert "tokens or more; the model reads 80" in curve.plain[2].missing and curve.instructed[0].score is not None
    assert curve.to_dict()["plain"][0]["right"] == curve.plain[0].score.accuracy


def test_rules_have_their_examples_within_an_item(speaker: LanguageModel):
    task = Rules(examples=4, modulus=5)
    curve = shots_curve(speaker, task, (0, 1, 3, 4), 80)
    whole = measure(speaker, task, 80).score
    assert whole is not None and measurement_count(task, (0, 1, 3, 4)) == 1
    shares = [point.score.accuracy if point.score else None for point in curve.plain]
    assert shares == [whole.accuracy_at[0], whole.accuracy_at[1], whole.accuracy_at[3], None]
    assert [point.chance for point in curve.plain[:3]] == [1 / 5, 1 / 4, 1 / 2]
    assert curve.plain[3].missing == "an item has 4 examples" and math.isnan(curve.plain[3].chance)
    assert curve.plain[0].score.items == 80 and not curve.instructed


def of(right: int, shots: int, chance: float = 0.25) -> ShotsPoint:
    return ShotsPoint(shots, chance, AnswerCounts(100, right))


def curve(*pairs: tuple[ShotsPoint, ShotsPoint], ability: Ability | None = None) -> ShotsCurve:
    return ShotsCurve(ability or StoryFacts(hops=1, steps=True), *map(list, zip(*pairs, strict=True)))


def report(*curves: ShotsCurve) -> ShotsReport:
    return ShotsReport("model", ModelOptions(), 100, (0, 1), curves)


def test_what_an_instruction_adds_has_the_error_of_a_difference():
    found = curve((of(50, 0), of(80, 0)), (ShotsPoint(1, 0.25, None, "too long"), of(80, 1)))
    first, second = found.gains()
    assert first == pytest.approx((0.3, math.sqrt(0.25 / 99 + 0.16 / 99))) and second is None


def test_the_table_has_a_row_for_each_number_of_examples():
    missing = ShotsPoint(9, 0.25, None, "takes 99 tokens or more; the model reads 64")
    rows = report(curve((of(20, 0), of(64, 0)), (of(25, 1), of(20, 1)), (missing, missing))).tables()[0].rows
    assert rows[0] == [
        "facts steps=true people=4 hops=1", "0", "20.0 ± 4.0", "64.0 ± 4.8", "+44.0 ± 6.3", "25.0",
        "one of the two not above chance",
    ]  # fmt: skip
    assert rows[1][0] == " " and rows[1][-1] == "not above chance"
    assert rows[2][1:3] == ["9", ""] and rows[2][-1].startswith("not measured: takes 99")
    alone = ShotsCurve(Rules(), [of(90, 1)])
    assert report(alone).tables()[0].rows[0][1:] == ["1", "90.0 ± 3.0", "", "", "25.0", ""]


def test_the_plot_has_a_panel_for_each_task_that_was_measured():
    rules = ShotsCurve(Rules(), [of(20, 0, 0.2), of(90, 1, 0.25), ShotsPoint(8, math.nan, None, "none")])
    unread = ShotsCurve(Rules(), [ShotsPoint(0, 0.1, None, "its symbols are not tokens of the model")])
    plot = report(curve((of(20, 0), of(64, 0)), (of(25, 1), of(20, 1))), rules, unread).plots()[0].drawing
    first, second = plot.panels
    assert [(line.name, list(line.x), list(line.y)) for line in first.series] == [
        ("without instruction", [0, 1], [0.2, 0.25]), ("with instruction", [0, 1], [0.64, 0.2])
    ]  # fmt: skip
    assert [rule.at for rule in first.rules] == [0.25] and not second.rules
    assert [(line.name, list(line.y)) for line in second.series] == [
        ("without instruction", [0.2, 0.9]), ("chance", [0.2, 0.25])
    ]  # fmt: skip
    lows = [share - math.sqrt(share * (1 - share) / 99) for share in (0.2, 0.25)]
    assert list(first.series[0].low or ()) == pytest.approx(lows)
