"""Changed logits: nothing in causal models and with a frozen operator, what they should be in others."""

import json
import math

import numpy as np
import pytest
import torch
from small_models import CASES, small_decoder

from linnet.core.errors import UserError
from linnet.data.shards import TokenSequence
from linnet.evaluation.likelihood import Evaluation, Likelihood
from linnet.inspection.causality import (
    Causality,
    CutChange,
    LogitChanges,
    calibrated_pass,
    differing_windows,
    logit_changes,
    uncached_pass,
)
from linnet.layers.mixers.plga import DensitySpec, PlgaSpec
from linnet.present.style import png_of

PLGA = PlgaSpec(heads=2, metric_hidden=12, residual_units=2)


def _ignore(amount: float, note: str = "") -> None:
    pass


def _tokens(*shape: int, seed: int = 1) -> torch.Tensor:
    return torch.randint(23, shape, generator=torch.Generator().manual_seed(seed))


WINDOWS, CALIBRATION, CUTS = _tokens(3, 12), _tokens(1, 9, seed=7), (4, 9)


@pytest.mark.parametrize("mixer", CASES)
def test_logits_change_only_for_a_mixer_that_is_not_causal_and_not_calibrated(mixer):
    decoder = small_decoder(mixer)
    whole = logit_changes(uncached_pass(decoder), WINDOWS, CUTS, _ignore)
    frozen = logit_changes(calibrated_pass(decoder, CALIBRATION, 12), WINDOWS, CUTS, _ignore)
    settled = mixer.kind == "plga" and mixer.density.prefix == 3  # before every cut
    assert (whole.largest < 1e-9) is (decoder.causal or settled)
    assert frozen.largest < 1e-12 and frozen.rms < 1e-12
    assert frozen.logits_std > 0.01


def test_a_prefix_that_ends_after_the_cut_changes_earlier_logits():
    decoder = small_decoder(PLGA.model_copy(update={"density": DensitySpec(scope="prefix", tokens=6)}))
    before, behind = logit_changes(uncached_pass(decoder), WINDOWS, CUTS, _ignore).cuts
    assert before.largest > 1e-6 and behind.largest < 1e-9


@torch.no_grad()
def test_the_changes_by_their_definition():
    decoder = small_decoder(PLGA)
    found = logit_changes(uncached_pass(decoder), WINDOWS, CUTS, _ignore)
    logits = decoder(WINDOWS).numpy()
    std = math.sqrt(np.mean([window.var() for window in logits]))
    assert found.logits_std == pytest.approx(std)
    largest, squares = [], []
    for cut, move in zip(CUTS, found.cuts, strict=True):
        changed = WINDOWS.clone()
        for window in range(3):
            changed[window, cut:] = WINDOWS[(window + 1) % 3, cut:]
        moved = (decoder(changed).numpy() - logits)[:, :cut] / std
        assert (move.cut, move.largest) == (cut, pytest.approx(np.abs(moved).max(), rel=1e-5))
        assert move.rms_by_position == pytest.approx(np.sqrt((moved**2).mean(axis=(0, 2))), rel=1e-5, abs=1e-12)
        assert move.rms == pytest.approx(math.sqrt((moved**2).mean()), rel=1e-5)
        largest.append(np.abs(moved).max())
        squares += (moved**2).mean(axis=(0, 2)).tolist()
    assert found.largest == pytest.approx(max(largest), rel=1e-5) and found.largest > 0.01
    assert found.rms == pytest.approx(math.sqrt(np.mean(squares)), rel=1e-5)


def test_figures_are_json_even_of_a_model_that_has_broken_down():
    broken = LogitChanges(math.nan, [CutChange(2, math.nan, [0.0, math.nan]), CutChange(3, 0.0, [0.0] * 3)])
    assert math.isnan(broken.largest)
    lost = Likelihood(math.nan, 1, 1, 0)
    plain = json.loads(json.dumps(Causality(2, 8, broken, broken, Evaluation(lost, lost)).to_dict(), allow_nan=False))
    assert plain["whole_sequence"]["largest"] is plain["frozen"]["per_cut"][0]["rms"] is None
    assert plain["whole_sequence"]["per_cut"][1]["largest"] == 0
    assert plain["leak"] is plain["evaluation"]["bits_per_byte"] is None


def test_nan_is_not_ignored():
    logits = torch.eye(4)
    rows = iter([logits, logits, logits * math.nan, logits, logits, logits])
    found = logit_changes(lambda tokens: next(rows), _tokens(2, 4), (1, 2), _ignore)
    assert found.logits_std > 0 and found.cuts[0].largest == 0
    assert math.isnan(found.cuts[1].largest) and math.isnan(found.largest)


def _sequence(*documents: list[int]) -> TokenSequence:
    tokens = np.array([token for document in documents for token in (0, *document)] + [0])
    return TokenSequence.in_memory("text", 0, tokens)


def test_at_least_two_windows_differ():
    found = differing_windows(_sequence([1, 2, 3], [4, 5, 6], [7, 8, 9], [1, 1, 1]), 3, 4)
    assert found.tolist() == [[0, 1, 2, 3], [0, 4, 5, 6], [0, 1, 1, 1]]


@pytest.mark.parametrize(
    ("sequence", "context"), [(_sequence([1, 2]), 4), (_sequence([1, 2, 3, 4]), 5), (_sequence(*[[1, 1, 1]] * 5), 4)]
)
def test_too_little_text_is_refused(sequence, context):
    with pytest.raises(UserError, match="expected two different windows"):
        differing_windows(sequence, 8, context)


def _changes(*largest: float) -> LogitChanges:
    return LogitChanges(
        2.0, [CutChange(cut, most, [most / 2] * cut) for cut, most in zip((4, 8), largest, strict=True)]
    )


def test_tables_show_every_cut_and_the_leak():
    evaluation = Evaluation(Likelihood(100.0, 50, 100, 5), Likelihood(90.0, 50, 100, 5))
    changed, leak = Causality(8, 16, _changes(0.5, 0.25), _changes(0.0, 0.0), evaluation).tables()
    assert changed.rows[0] == ("changed from token 4 on", "0.5", "0.25", "0", "0")
    assert changed.rows[-1][:2] == ("all", "0.5")
    assert leak.rows[-1] == ("leak", f"{10 / math.log(2) / 100:+.4f}")
    _, leak = Causality(8, 16, _changes(0, 0), _changes(0, 0), Evaluation(evaluation.causal)).tables()
    assert leak.rows == [("causal", f"{1 / math.log(2):.4f}"), ("leak", "none")]


def test_changes_are_solid_in_the_whole_pass_and_dotted_after_calibration():
    whole = LogitChanges(1.0, [CutChange(2, 0.1, [0.0, 0.1]), CutChange(3, 0.1, [0.1] * 3)])
    frozen = LogitChanges(1.0, [CutChange(2, 0.0, [0.0] * 2), CutChange(3, 0.0, [0.0] * 3)])
    (picture,) = Causality(8, 16, whole, frozen, Evaluation(Likelihood(1.0, 1, 1, 0))).plots()
    (panel,) = picture.drawing.panels
    assert [(one.style, one.color, list(one.y)) for one in panel.series[:4]] == [
        ("-", 0, [0.0, 0.1]),
        (":", 0, [0.0, 0.0]),
        ("-", 1, [0.1] * 3),
        (":", 1, [0.0] * 3),
    ]
    assert [(rule.at, rule.upright) for rule in panel.rules] == [(2, True), (3, True)]
    assert png_of(picture.drawing.figure()).startswith(b"\x89PNG")
