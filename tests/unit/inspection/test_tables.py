"""Figures as people read them."""

import math

import pytest
import torch

from linnet.evaluation.likelihood import Evaluation, Likelihood
from linnet.inference.caches import Caches
from linnet.inspection.caches import CacheComparison, CacheRun
from linnet.inspection.causality import Causality, CutChange, LogitChanges
from linnet.inspection.invariance import Invariance, OutputVariation, Variation
from linnet.inspection.operator_figures import operator_figures
from linnet.inspection.tables import (
    caches_tables,
    causality_tables,
    determinant,
    invariance_tables,
    number,
    operator_tables,
)


@pytest.mark.parametrize(
    ("log10", "text"),
    [
        (0.0, "1"),
        (math.log10(2.5e-30), "2.5e-30"),
        (412.25, "overflow, 10^412.25"),
        (-412.25, "underflow, 10^-412.25"),
        (-math.inf, "0"),
        (math.nan, "not finite"),
    ],
)
def test_determinants(log10: float, text: str):
    assert determinant(log10) == text


def test_numbers():
    assert [number(value) for value in (0.0, 1 / 3, None, math.nan, math.inf)] == [
        "0", "0.333333", "none", "not finite", "infinite"
    ]  # fmt: skip


def _rows(table) -> dict[str, tuple[str, ...]]:
    """By name, a part's below that of its whole."""
    rows, whole = {}, ""
    for name, *cells in table.rows:
        whole = whole if name.startswith(" ") else name
        rows[name if whole == name else f"{whole}/{name.strip()}"] = tuple(cells)
        assert len(cells) + 1 == len(table.columns)
    return rows


def test_operators():
    a = torch.stack([torch.ones(3, 3), torch.full((3, 3), 2.0)]).double()
    a_lm = torch.diag_embed(torch.tensor([[4.0, 2.0, 1.0], [8.0, 1.0, 0.0]]))
    layers = [{"A": a, "A_LM": a_lm, "G": a}] * 2
    outputs, rank_one, singular = operator_tables(operator_figures(layers))
    rows = _rows(outputs)
    assert list(rows) == [f"{name}{part}" for name in ("A", "A_LM", "G") for part in ("", "/layer 0", "/layer 1")]
    assert rows["A"] == rows["A/layer 1"] == ("1", "0", "1")
    assert rows["A_LM/layer 0"][1:] == ("8", "2 to 3")
    assert _rows(rank_one)["layer 1, head 1"] == ("6", "6", "6", "0")
    assert _rows(singular)["layer 0"] == ("8", "0", "infinite")


def test_a_file_with_one_head_of_g():
    (outputs,) = operator_tables(operator_figures([{"G": torch.eye(64)[None] * 1e9}]))
    assert _rows(outputs)["G"] == ("one head", "overflow, 10^576", "64")


def _moves(*largest: float) -> LogitChanges:
    return LogitChanges(
        2.0, [CutChange(cut, most, [most / 2] * cut) for cut, most in zip((4, 8), largest, strict=True)]
    )


def test_causality():
    evaluation = Evaluation(Likelihood(100.0, 50, 100, 5), Likelihood(90.0, 50, 100, 5))
    moved, leak = causality_tables(Causality(8, 16, _moves(0.5, 0.25), _moves(0.0, 0.0), evaluation))
    assert _rows(moved)["changed from token 4 on"] == ("0.5", "0.25", "0", "0")
    assert _rows(moved)["all"][0] == "0.5"
    assert _rows(leak)["leak"] == (f"{10 / math.log(2) / 100:+.4f}",)
    _, leak = causality_tables(Causality(8, 16, _moves(0, 0), _moves(0, 0), Evaluation(evaluation.causal)))
    assert _rows(leak) == {"causal": (f"{1 / math.log(2):.4f}",), "leak": ("none",)}


def test_caches():
    layers = [{"G": torch.eye(3).repeat(2, 1, 1) * torch.tensor([1.0, 2.0])[:, None, None]}]
    outputs = operator_figures(layers).outputs
    settings = [Caches(), Caches(kv=False), Caches(calibration=False), Caches(kv=False, calibration=False)]
    *runs, _ = [CacheRun(caches, [1, 2], "ab", None, outputs, {"G": 0.0}) for caches in settings]
    other = CacheRun(settings[-1], [1], "a", 1, outputs, {"G": 0.25})
    texts, rmse, determinants, distance = caches_tables(CacheComparison("x", 2, 9, [*runs, other]))
    assert list(_rows(texts)) == ["KV and G", "G", "KV", "none"]
    assert _rows(texts)["KV"] == ("2", "the same") and _rows(texts)["none"] == ("1", "another from token 2 on")
    assert _rows(rmse)["none"] == (f"{math.sqrt(1 / 3):.15g}",)
    assert _rows(determinants)["KV and G"] == ("8",)
    assert _rows(distance)["G"] == ("0",) and _rows(distance)["none"] == ("0.25",)


def test_invariance():
    one = OutputVariation("G", Variation(0.25, 0.5), {0: Variation(0.0, 0.0), 3: Variation(math.nan, math.nan)})
    (table,) = invariance_tables(Invariance(7, 16, [one]))
    assert _rows(table) == {"G": ("0.25", "0.5"), "G/layer 0": ("0", "0"), "G/layer 3": ("not finite", "not finite")}
    assert "7 prompts of 16 tokens" in table.meaning
