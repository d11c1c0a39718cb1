import math
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from linnet.evaluation.likelihood import Evaluation, Likelihood
from linnet.experiments.results import CurvePoint, Failure, RunSummary, SeedResult, Spread, inputs_of
from linnet.model.spec import ModelSpec
from linnet.training.sections import LoraSpec
from linnet.training.spec import RunSpec, TrainingSpec


def outcome(seed: int, nats: float, whole: float | None = None) -> SeedResult:
    causal = Likelihood(nats, tokens=100, bytes=400, correct=10 * seed)
    evaluation = Evaluation(causal, None if whole is None else Likelihood(whole, 100, 400, 50))
    return SeedResult(seed, evaluation.to_dict(), [CurvePoint(5, nats / 100), CurvePoint(10, nats / 200)])


@given(st.lists(st.floats(-1e6, 1e6), min_size=1, max_size=9))
def test_the_spread_is_the_sample_standard_deviation(values: list[float]):
    spread = Spread.of(values)
    mean = sum(values) / len(values)
    assert spread.mean == pytest.approx(mean, abs=1e-6)
    assert (spread.lowest, spread.highest) == (min(values), max(values))
    if len(values) == 1:
        assert spread.deviation is None
    else:
        variance = sum((value - mean) ** 2 for value in values) / (len(values) - 1)
        assert spread.deviation == pytest.approx(math.sqrt(variance), abs=1e-4, rel=1e-6)


def test_figures_are_means_over_the_seeds():
    figures = RunSummary("one", 12, 34, [outcome(1, 400.0, 380.0), outcome(3, 200.0, 140.0)])
    bit = 1 / math.log(2)
    assert figures.spread("bits_per_byte").mean == pytest.approx(300 * bit / 400)
    assert figures.spread("accuracy").mean == pytest.approx(0.2)
    assert figures.spread("leak").mean == pytest.approx(40 * bit / 400)
    assert [(step, bits.mean, bits.highest) for step, bits in figures.curve] == [(5, 3, 4), (10, 1.5, 2)]
    plain = figures.to_dict()
    assert [each["seed"] for each in plain["seeds"]] == [1, 3]
    assert plain["leak"]["mean"] == figures.spread("leak").mean


def test_a_causal_model_has_no_leak():
    assert RunSummary("one", 1, 1, [outcome(1, 400.0)]).spread("leak") is None


def broken(run: str, seed: int, step: int | None = 7) -> Failure:
    curve = [] if step is None else [CurvePoint(5, 3e9)]
    return Failure(run, seed, step, "loss nan" if step else "no calibration", curve)


def test_a_seed_without_a_result_is_left_out_of_the_means():
    whole = RunSummary("a", 1, 1, [outcome(1, 400.0), outcome(2, 300.0)])
    figures = RunSummary("a", 1, 1, whole.results, [broken("a", 3), broken("a", 4, step=None)])
    for name in ("bits_per_byte", "accuracy"):
        assert figures.spread(name) == whole.spread(name)
    assert figures.curve == whole.curve
    assert (whole.seeds, figures.seeds, figures.outcome) == ("2", "2 of 4", "diverged or not trained")
    assert str(figures.failures[0]) == "a, seed 3: diverged at step 7: loss nan"
    assert str(figures.failures[1]) == "a, seed 4: not trained: no calibration"


def test_without_a_trained_seed_there_are_no_figures():
    plain = RunSummary("a", None, None, [], [broken("a", 1)]).to_dict()
    assert plain == {
        "name": "a",
        "parameters": None,
        "tokens": None,
        "training_flops": None,
        "bits_per_byte": None,
        "accuracy": None,
        "leak": None,
        "tokens_per_s": None,
        "seeds": [],
    }


def test_a_new_field_with_a_default_does_not_outdate_a_result():
    class LaterLora(LoraSpec):
        dropout: float = 0.5

    class LaterTraining(TrainingSpec):
        order: str = "shuffled"

    blocks = [{"mixer": {"kind": "attention", "heads": 1}}]
    run = RunSpec(model=ModelSpec(vocab_size=8, d_model=4, context_length=4, blocks=blocks), data=Path("data"))

    def inputs(kind: type[TrainingSpec], **fields: object) -> dict[str, str]:
        return inputs_of(run.model_copy(update={"training": kind(**fields)}), None)

    recorded = inputs(TrainingSpec, lora=LoraSpec(rank=4))
    assert inputs(LaterTraining, lora=LaterLora(rank=4)) == recorded
    others = [
        inputs(LaterTraining, lora=LaterLora(rank=4, dropout=0.1)), inputs(LaterTraining, lora=LoraSpec()),
        inputs(LaterTraining, order="as it is", lora=LoraSpec(rank=4)), inputs(TrainingSpec),
    ]  # fmt: skip
    assert len({each["training"] for each in (recorded, *others)}) == 5
    assert inputs(TrainingSpec, lora=LoraSpec(rank=4), seed=3) == recorded
