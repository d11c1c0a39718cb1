import logging

import pytest
from small_models import EXAMPLES, small_spec

from linnet.core import errors
from linnet.inference import weights_gain as module
from linnet.inference.weights_gain import MAX_STEPS, MIN_STEPS, convert_and_report, seconds_per_token
from linnet.model.decoder import Decoder
from linnet.nn.packed_linear import Int4Linear, PackedLinear


def told(decoder: Decoder, weights: str, seconds: list[float], monkeypatch, caplog) -> list[str]:
    """What is noted when a token takes these seconds, one after another."""
    errors.note.cache_clear()
    monkeypatch.setattr(module, "seconds_per_token", lambda _: seconds.pop(0))
    with caplog.at_level(logging.WARNING):
        convert_and_report(decoder, weights)
    return [record.getMessage() for record in caplog.records]


def test_a_conversion_that_is_not_faster_is_noted_with_both_times(
    monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
):
    decoder = Decoder(small_spec(EXAMPLES[0]))
    (line,) = told(decoder, "int4", [0.002, 0.003], monkeypatch, caplog)
    assert line.startswith("note: precision int4: not faster than as stored")
    assert line.endswith(": 3.00 ms a token, in float32 2.00") and "\n" not in line
    assert isinstance(decoder.embedding.tokens.table, Int4Linear)


def test_what_is_faster_is_not(monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture):
    assert told(Decoder(small_spec(EXAMPLES[0])), "int8", [0.003, 0.002], monkeypatch, caplog) == []


@pytest.mark.parametrize("weights", ["float32", "bfloat16"])
def test_float32_and_bfloat16_are_not_timed(weights: str, monkeypatch, caplog):
    decoder = Decoder(small_spec(EXAMPLES[0]))
    assert told(decoder, weights, [], monkeypatch, caplog) == []


def test_learned_positions_that_end_too_soon_leave_nothing_to_measure(monkeypatch, caplog):
    spec = small_spec(EXAMPLES[0]).replace(context_length=MIN_STEPS + 3, embedding={"positions": "learned"})
    decoder = Decoder(spec)
    assert told(decoder, "int8", [], monkeypatch, caplog) == []
    assert any(isinstance(module, PackedLinear) for module in decoder.modules())


@pytest.mark.parametrize("context_length", [MIN_STEPS + 4, 4 * MAX_STEPS])
def test_a_token_takes_time(context_length: int):
    spec = small_spec(EXAMPLES[0]).replace(context_length=context_length, embedding={"positions": "learned"})
    assert 0 < seconds_per_token(Decoder(spec)) < 1


@pytest.mark.parametrize(("before_s", "is_noted"), [(0.0012, False), (0.00101, True)])
def test_a_speedup_within_the_scatter_is_noted(before_s: float, is_noted: bool, monkeypatch, caplog):
    assert bool(told(Decoder(small_spec(EXAMPLES[0])), "int8", [before_s, 0.001], monkeypatch, caplog)) == is_noted
