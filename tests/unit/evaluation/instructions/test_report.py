"""Shares, intervals, chance, differences and calibration of answers to instructions, on answers made by hand."""

import numpy as np
import pytest

from linnet.core.errors import UserError
from linnet.data.prompts import prompt_of
from linnet.evaluation.instructions.measure import InstructionScores
from linnet.evaluation.instructions.report import InstructionReport, calibration, share_interval

CHECKER = {"kind": "exact", "answer": "b"}


def prompts():
    found = []
    for number in range(8):
        turns = [{"role": "user", "content": "a"}, {"role": "assistant", "content": "b"}] * (1 + (number == 7))
        name = ("arithmetic", "steps", "impossible", "order")[number % 4]
        row = {"messages": turns, "checker": CHECKER, "type": name, "signature": [str(number // 4)], "split": "x"}
        found.append(prompt_of(row | {"chance": 0.5 if name == "order" else 0}, "row"))
    return found


def scores(name, passed, probability=0.5, refused=(0,) * 8):
    arrays = np.array(passed, float), np.full(8, probability), np.array(refused, float)
    return InstructionScores(name, ["b"] * 8, *arrays, cut=0)


FIRST, OTHER = scores("first", [0] * 8), scores("other", [0, 1, 1, 1, 1, 1, 1, 1], 0.75, [1, 0, 1, 0, 0, 0, 1, 0])


def test_groups_are_types_turns_and_all():
    figures = InstructionReport(prompts(), [OTHER]).figures(OTHER)
    assert list(figures) == ["arithmetic", "steps", "impossible", "order", "several turns", "all"]
    assert {name: (row["prompts"], row["followed"]) for name, row in figures.items()} == {
        "arithmetic": (2, 0.5),
        "steps": (2, 1),
        "impossible": (2, 1),
        "order": (2, 1),
        "several turns": (1, 1),
        "all": (8, 7 / 8),
    }
    assert (figures["order"]["chance"], figures["steps"]["chance"]) == (0.5, None)
    assert not figures["order"]["above_chance"], "two of two are no proof against one half"
    assert figures["all"]["reference"] == 1 and figures["several turns"]["interval"] is None
    low, high = figures["all"]["interval"]
    assert low < 7 / 8 < high


def test_steps_are_paired_with_the_same_sums_and_refusals_counted():
    report = InstructionReport(prompts(), [OTHER])
    assert report.steps_against_direct(OTHER).value == 0.5
    assert report.refused(OTHER) == pytest.approx(1 / 6), "those of the impossible do not count"


def test_other_models_are_compared_with_the_first():
    report = InstructionReport(prompts(), [FIRST, OTHER])
    rows = report.differences(FIRST, OTHER)
    assert rows["all"]["difference"] == 7 / 8 and rows["all"]["verdict"] == "better"
    assert report.differences(OTHER, FIRST)["all"]["verdict"] == "worse"
    assert report.differences(FIRST, FIRST)["all"]["verdict"] == "no difference shown"
    found = report.to_dict()
    assert [one["model"] for one in found["models"]] == ["first", "other"] and found["prompts"] == 8
    assert found["differences"][0]["groups"]["all"]["difference"] == 7 / 8
    titles = [table.title for table in report.tables()]
    assert titles[-2:] == ["other against first", "Models"] and len(titles) == 6


def test_calibration_is_the_distance_of_probability_and_success():
    found = calibration(OTHER)
    assert found["expected_error"] == pytest.approx(1 / 8) and found["brier"] == pytest.approx(1 / 8 * 9 / 16 + 7 / 128)
    assert [(one["low"], one["answers"]) for one in found["bins"]] == [(0.7, 8)]
    mixed = InstructionScores("m", [], np.array([1.0, 0.0]), np.array([1.0, 0.0]), np.zeros(2), 0)
    assert calibration(mixed)["expected_error"] == 0
    assert [one["high"] for one in calibration(mixed)["bins"]] == [0.1, 1.0]


def test_a_chance_that_is_none_is_named():
    wrong = prompt_of({"prompt": "a", "answer": "b", "chance": 2}, "row")
    with pytest.raises(UserError, match="'chance': 2: expected a number from 0 to 1"):
        _ = InstructionReport([wrong], []).chance_N


def test_intervals_of_shares_stay_within_0_and_1():
    assert share_interval(0.0, 18) == pytest.approx([0, 0.17588], abs=1e-4)
    assert share_interval(1.0, 18) == pytest.approx([1 - 0.17588, 1], abs=1e-4)
    assert share_interval(0.5, 100) == pytest.approx([0.40383, 0.59617], abs=1e-4)
    assert share_interval(1.0, 1) is None
