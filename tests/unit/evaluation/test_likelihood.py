import math

import numpy as np
import pytest
import torch
from examples import randomized
from hypothesis import given, settings
from hypothesis import strategies as st

from linnet.core.errors import UserError
from linnet.data.loader import Batch
from linnet.data.pieces import ByteCounts
from linnet.data.prepare import prepare_texts
from linnet.data.token_data import TokenData
from linnet.evaluation.likelihood import Evaluation, Likelihood, text_bytes
from linnet.evaluation.measure import evaluate_windows
from linnet.evaluation.models import calibration_tokens, frozen_state
from linnet.model.decoder import Decoder
from linnet.model.spec import ModelSpec
from linnet.ops import cross_entropy as room
from linnet.ops.cross_entropy import IGNORE_INDEX

VOCABULARY = 11
BYTES = [0, 1, 1, 2, 3, 1, 1, 4, 1, 1, 2]
ONE_MORE = [count + 1 for count in BYTES]
MIXERS = {
    "attention": {"kind": "attention", "heads": 2},
    "ted": {"kind": "ted"},
    "plga": {"kind": "plga", "heads": 2, "metric_hidden": 8, "residual_units": 1},
}
EVERY_MIXER = pytest.mark.parametrize("mixer", MIXERS)


def _decoder(*mixers):
    torch.manual_seed(0)
    blocks = [{"mixer": MIXERS[mixer], "feed_forward": {"kind": "glu", "hidden": 12}} for mixer in mixers]
    plain = {"vocab_size": VOCABULARY, "d_model": 8, "context_length": 32, "blocks": blocks}
    return randomized(Decoder(ModelSpec.parse(plain, "test"))).double()


def _tokens(*shape, seed=1):
    return torch.randint(VOCABULARY, shape, generator=torch.Generator().manual_seed(seed))


def _windows(*shapes):
    return [(_tokens(*shape, seed=2 * i), _tokens(*shape, seed=2 * i + 1)) for i, shape in enumerate(shapes)]


CALIBRATION = _tokens(1, 20, seed=99)


def evaluate(decoder, windows, token_bytes, calibration_1T=None):
    batches, counts = (Batch.from_labels(*window) for window in windows), ByteCounts.create(token_bytes)
    return evaluate_windows(decoder, batches, counts, decoder.spec.context_length, calibration_1T)


def _by_hand(logits_BTV, targets_BT):
    """Nats, correct guesses and bytes, token by token."""
    nats, correct = 0.0, 0
    for logits, target in zip(logits_BTV.flatten(0, 1).tolist(), targets_BT.flatten().tolist(), strict=True):
        nats += math.log(sum(math.exp(value) for value in logits)) - logits[target]
        correct += logits.index(max(logits)) == target
    return nats, correct, sum(BYTES[target] for target in targets_BT.flatten())


def _token_by_token(decoder, inputs_BT):
    """Logits as a generator sees them: the calibration text fixes the operator, then one token at a time."""
    state = frozen_state(decoder, CALIBRATION, len(inputs_BT), inputs_BT.shape[1])
    return torch.cat([decoder(part, state) for part in inputs_BT.split(1, dim=1)], dim=1)


@EVERY_MIXER
@torch.no_grad()
def test_losses_equal_those_of_decoding_token_by_token(mixer):
    decoder = _decoder(mixer)
    windows = _windows((1, 9), (3, 16), (2, 25), (1, 5))  # 25 is more than the calibration text has
    found = evaluate(decoder, windows, BYTES, CALIBRATION).causal
    by_hand = [_by_hand(_token_by_token(decoder, inputs), targets) for inputs, targets in windows]
    nats, correct, text_bytes = (sum(column) for column in zip(*by_hand, strict=True))
    assert found.nats == pytest.approx(nats, rel=1e-9)
    assert (found.correct, found.bytes, found.tokens) == (correct, text_bytes, 9 + 3 * 16 + 2 * 25 + 5)


def test_a_space_before_a_text_counts_no_byte():
    """Of tokens behind an end token, also within a window."""
    decoder = _decoder("attention")
    inputs, targets = torch.tensor([[0, 3, 5, 0, 4]]), torch.tensor([[3, 5, 0, 4, 4]])
    counts = ByteCounts.create(BYTES, [max(0, count - 1) for count in BYTES], ends=[0])
    assert text_bytes(inputs, targets, counts.to("cpu")) == 1 + 1 + 0 + 2 + 3
    targets[0, 4] = IGNORE_INDEX
    windows = [Batch.from_labels(inputs, targets)]
    assert evaluate_windows(decoder, windows, counts, 32).causal.bytes == 1 + 1 + 0 + 2


def test_the_figures_by_their_definitions():
    found = Likelihood(nats=20.0, tokens=10, bytes=25, correct=3)
    assert found.bits_per_byte == pytest.approx(20 / math.log(2) / 25)
    assert (found.nats_per_token, found.accuracy) == (2.0, 0.3)
    assert found.perplexity == pytest.approx(math.e**2)
    diverged = Evaluation(Likelihood(nats=1e6, tokens=10, bytes=25, correct=3))
    assert diverged.causal.perplexity == math.inf and diverged.to_dict()["perplexity"] is None


@pytest.mark.parametrize("mixers", [("attention",), ("ted",), ("plga",), ("ted", "plga")])
@settings(max_examples=10, deadline=None)
@given(cut=st.integers(1, 15), seed=st.integers(0, 1000))
def test_no_prediction_depends_on_what_comes_after_it(mixers, cut, seed):
    """The first `cut` targets are as likely in their own window as by the logits of a longer one."""
    decoder = _decoder(*mixers)
    inputs, targets = _tokens(2, 16, seed=seed), _tokens(2, 16, seed=seed + 1)
    with torch.no_grad():
        longer = decoder(inputs, frozen_state(decoder, CALIBRATION, 2, 16))
    found = evaluate(decoder, [(inputs[:, :cut], targets[:, :cut])], ONE_MORE, CALIBRATION).causal
    assert found.nats == pytest.approx(_by_hand(longer[:, :cut], targets[:, :cut])[0], rel=1e-9)


@pytest.mark.parametrize("mixer", ["attention", "plga"])
def test_ignored_targets_do_not_count(mixer):
    decoder = _decoder(mixer)
    inputs, targets = _tokens(2, 16, seed=1), _tokens(2, 16, seed=2)
    targets[:, 9:] = IGNORE_INDEX
    padded = evaluate(decoder, [(inputs, targets)], ONE_MORE, CALIBRATION).causal
    short = evaluate(decoder, [(inputs[:, :9], targets[:, :9])], ONE_MORE, CALIBRATION).causal
    assert (padded.tokens, padded.bytes, padded.correct) == (18, short.bytes, short.correct)
    assert padded.nats == pytest.approx(short.nats, rel=1e-9)


@torch.no_grad()
def test_the_whole_pass_reads_a_row_up_to_its_last_target():
    """Of two rows with few targets: what stands before them is read, what stands behind is not."""
    decoder = _decoder("plga")
    inputs, targets = _tokens(2, 16, seed=1), torch.full((2, 16), IGNORE_INDEX)
    targets[0, [5, 9]], targets[1, 14] = torch.tensor([1, 2]), 3
    found = evaluate(decoder, [(inputs, targets)], ONE_MORE, CALIBRATION).whole_sequence
    first, second = decoder(inputs[:1, :10])[:, [5, 9]], decoder(inputs[1:, :15])[:, [14]]
    by_hand = [_by_hand(first, targets[:1, [5, 9]])[0], _by_hand(second, targets[1:, [14]])[0]]
    assert found.nats == pytest.approx(sum(by_hand), rel=1e-9)


@torch.no_grad()
def test_a_model_that_sees_the_future_shows_its_leak():
    decoder = _decoder("plga")
    windows = _windows((2, 16), (1, 16))
    found = evaluate(decoder, windows, BYTES, CALIBRATION)
    nats = sum(_by_hand(decoder(inputs), targets)[0] for inputs, targets in windows)
    assert found.whole_sequence.nats == pytest.approx(nats, rel=1e-9)
    assert found.leak == found.causal.bits_per_byte - found.whole_sequence.bits_per_byte != 0
    figures = found.to_dict()
    assert figures["bits_per_byte"] == found.causal.bits_per_byte
    assert figures["bits_per_byte"] - figures["whole_sequence_bits_per_byte"] == figures["leak"]
    assert Evaluation.from_sums(found.sums()) == found


@pytest.mark.parametrize("mixer", ["attention", "ted"])
def test_a_causal_model_has_no_leak_and_needs_no_calibration(mixer):
    decoder = _decoder(mixer)
    found = evaluate(decoder, _windows((2, 16)), BYTES)
    assert found.leak is None and "leak" not in found.to_dict()
    assert found == evaluate(decoder, _windows((2, 16)), BYTES, CALIBRATION)
    assert Evaluation.from_sums(found.sums()) == found


@EVERY_MIXER
def test_rows_and_windows_add_up(mixer):
    decoder = _decoder(mixer)
    inputs, targets = _tokens(4, 16, seed=5), _tokens(4, 16, seed=6)
    together = evaluate(decoder, [(inputs, targets)], BYTES, CALIBRATION).causal
    rows = [evaluate(decoder, [(inputs[i : i + 1], targets[i : i + 1])], BYTES, CALIBRATION).causal for i in range(4)]
    assert together.nats == pytest.approx(sum(row.nats for row in rows), rel=1e-12)
    assert together.correct == sum(row.correct for row in rows)


@pytest.mark.parametrize("rows", [1, 5, 31])
def test_slices_of_logits_change_nothing(rows, monkeypatch):
    decoder = _decoder("plga")
    whole = evaluate(decoder, _windows((2, 16)), BYTES, CALIBRATION)
    monkeypatch.setattr(room, "tokens_per_slice", lambda weight_VD: rows)
    sliced = evaluate(decoder, _windows((2, 16)), BYTES, CALIBRATION)
    assert sliced.causal.nats == pytest.approx(whole.causal.nats, rel=1e-12)
    assert sliced.causal.correct == whole.causal.correct


@torch.no_grad()
def test_logits_of_a_model_in_bfloat16_are_summed_in_float32():
    decoder = _decoder("ted").bfloat16()
    windows = _windows((4, 16))
    found = evaluate(decoder, windows, BYTES).causal
    assert found.nats == pytest.approx(_by_hand(decoder(windows[0][0]), windows[0][1])[0], rel=1e-5)


def test_the_calibration_text_matters_only_where_the_operator_is_frozen():
    other = _tokens(1, 7, seed=100)
    for mixer, matters in (("plga", True), ("ted", False)):
        decoder = _decoder(mixer)
        found = [evaluate(decoder, _windows((2, 16)), BYTES, text).causal.nats for text in (CALIBRATION, other)]
        assert (found[0] != found[1]) is matters


def test_the_operator_of_every_stream_is_that_of_the_calibration_text():
    decoder = _decoder("plga")
    state = frozen_state(decoder, CALIBRATION, 3, 4)
    seen = decoder.initial_state(1, 20)
    with torch.no_grad():
        decoder.hidden(CALIBRATION, seen)
    assert (state.position, state.capacity) == (0, 20)
    for row in state.layers[0].operator:
        assert torch.equal(row, seen.layers[0].operator[0])


def test_tokens_without_text_are_refused():
    with pytest.raises(UserError, match="the 4 tokens to evaluate contain no text"):
        evaluate(_decoder("ted"), [(torch.zeros(1, 4, dtype=torch.int64),) * 2], BYTES)
    with pytest.raises(UserError, match="the 0 tokens"):
        evaluate(_decoder("ted"), [], BYTES)


def test_where_the_calibration_text_comes_from(tmp_path):
    prepare_texts(["a long text for training"], ["another"], tmp_path / "data", tokenizer="bytes")
    data = TokenData.open(tmp_path / "data")
    end = data.tokenizer.end_id
    assert calibration_tokens(data, "empty", 8).tolist() == [[end]]
    assert calibration_tokens(data, "train", 8).tolist() == [[end, *b"a long "]]
    assert calibration_tokens(data, "train", 999).shape == (1, 26)
    assert np.issubdtype(calibration_tokens(data, "train", 8).numpy().dtype, np.int64)


@pytest.mark.parametrize("mixer", ["attention", "plga"])
def test_the_figures_do_not_depend_on_the_batch(mixer):
    """A short window is padded to its neighbors' length; nothing of that may be seen."""
    decoder = _decoder(mixer)
    inputs, targets = _tokens(4, 16, seed=1), _tokens(4, 16, seed=2)
    for row, length in enumerate((16, 9, 3, 9)):
        targets[row, length:] = IGNORE_INDEX
    together = evaluate(decoder, [(inputs, targets)], ONE_MORE, CALIBRATION)
    single = evaluate(decoder, zip(inputs.split(1), targets.split(1), strict=True), ONE_MORE, CALIBRATION)
    assert together.to_dict() == pytest.approx(single.to_dict(), rel=1e-9)
