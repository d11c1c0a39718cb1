"""Scores are those of a plain pass over each text, whoever shares its context."""

import random

import pytest
import torch
from small_models import UNLIKE, VOCABULARY, small_decoder

from linnet.evaluation.tasks import scorer as room
from linnet.evaluation.tasks.scorer import LoglikelihoodRequest, LoglikelihoodScorer, StateFactory
from linnet.layers.contract import MixerSpec
from linnet.model.decoder import Decoder

END = torch.tensor([[0]])
every_mixer = pytest.mark.parametrize("mixer", UNLIKE)


def requests(contexts: int = 5, seed: int = 0) -> list[LoglikelihoodRequest]:
    """Of several contexts with up to four continuations each, in no order, some of one token."""
    draw = random.Random(seed)

    def tokens(least: int, most: int) -> tuple[int, ...]:
        return tuple(draw.randrange(VOCABULARY) for _ in range(draw.randint(least, most)))

    found = []
    for number in range(contexts):
        context = (0, *tokens(0, 11))
        found += [LoglikelihoodRequest(context, tokens(1, 6)) for _ in range(number % 4 + 1)]
    draw.shuffle(found)
    return found


def streams(decoder: Decoder) -> StateFactory:
    return StateFactory(decoder.eval(), END)


@torch.no_grad()
def by_hand(decoder: Decoder, request: LoglikelihoodRequest) -> tuple[float, bool]:
    """One text alone, token by token, behind what the end token settled."""
    state, nats, greedy = streams(decoder).new_state(1, 64), 0.0, True
    logits_V = None
    for number, token in enumerate((*request.context, *request.continuation)):
        if number >= len(request.context):
            nats += float(logits_V.log_softmax(-1)[token])
            greedy = greedy and int(logits_V.argmax()) == token
        logits_V = decoder(torch.tensor([[token]]), state)[0, -1]
    return nats, greedy


@every_mixer
def test_with_and_without_forks_scores_are_those_of_each_text_alone(mixer: MixerSpec):
    decoder, asked = small_decoder(mixer), requests()
    forked, paired = (
        LoglikelihoodScorer(streams(decoder), fork, tokens_at_once=48).score(asked) for fork in (True, False)
    )
    for request, one, other in zip(asked, forked, paired, strict=True):
        nats, greedy = by_hand(decoder, request)
        assert one.log_likelihood == pytest.approx(nats, rel=1e-9, abs=1e-9)
        assert other.log_likelihood == pytest.approx(nats, rel=1e-9, abs=1e-9)
        assert one.greedy == other.greedy == greedy


@torch.no_grad()
def test_greedy_is_true_for_the_greedy_continuation():
    decoder = small_decoder()
    state = decoder.initial_state(1, 64)
    logits, written = decoder(torch.tensor([[0, 5, 6]]), state), []
    for _ in range(4):
        written.append(int(logits[0, -1].argmax()))
        logits = decoder(torch.tensor([[written[-1]]]), state)
    other = [*written[:3], (written[3] + 1) % VOCABULARY]
    asked = [LoglikelihoodRequest((0, 5, 6), tuple(tokens)) for tokens in (written, other, written[:1], other[3:])]
    for fork in (True, False):
        found = [one.greedy for one in LoglikelihoodScorer(streams(decoder), fork).score(asked)]
        assert found == [True, False, True, written[0] == other[3]]


def test_a_context_is_read_once_and_forked():
    decoder, read = small_decoder(), []
    hidden = decoder.hidden

    def counting(tokens_BT: torch.Tensor, *given: object, **named: object) -> torch.Tensor:
        read.append(tokens_BT.numel())
        return hidden(tokens_BT, *given, **named)

    decoder.hidden = counting  # type: ignore[method-assign]
    asked = [LoglikelihoodRequest(tuple(range(20)), (token, 1)) for token in range(4)]
    LoglikelihoodScorer(streams(decoder), fork=True).score(asked)
    assert sum(read) == 20 + 4
    read.clear()
    LoglikelihoodScorer(streams(decoder), fork=False).score(asked)
    assert sum(read) == 4 * 21


def test_a_context_that_is_too_long_loses_its_first_tokens():
    decoder = small_decoder()  # context length 64
    long = tuple(number % VOCABULARY for number in range(80))
    for fork in (True, False):
        whole, cut = (
            LoglikelihoodScorer(streams(decoder), fork).score(
                [LoglikelihoodRequest(context, (3, 4)), LoglikelihoodRequest(context, (5,))]
            )
            for context in (long, long[-63:])
        )
        assert whole[0].log_likelihood == pytest.approx(cut[0].log_likelihood, rel=1e-12)
    of_one = LoglikelihoodScorer(streams(decoder)).score(
        [LoglikelihoodRequest(long, (5,)), LoglikelihoodRequest(long[-64:], (5,))]
    )
    assert of_one[0] == of_one[1]
    (only,) = LoglikelihoodRequest(long, tuple(range(64))).windows(64)
    assert only.context == long[-1:]


@pytest.mark.parametrize("length", [64, 65, 100, 128, 150])
def test_a_continuation_that_is_too_long_is_read_in_the_windows_of_the_harness(length: int):
    utils = pytest.importorskip("lm_eval.utils", reason="the extra tasks is not installed")
    continuation = tuple(number % VOCABULARY for number in range(length))
    windows = LoglikelihoodRequest((7,), continuation).windows(64)
    theirs = utils.get_rolling_token_windows(list(continuation), 7, 64, context_len=1)
    expected = [utils.make_disjoint_window(window) for window in theirs]
    assert [(list(one.context), list(one.continuation)) for one in windows] == expected
    decoder = small_decoder()
    for fork in (True, False):
        scorer = LoglikelihoodScorer(streams(decoder), fork)
        whole, short = scorer.score(
            [LoglikelihoodRequest((7,), continuation), LoglikelihoodRequest((7,), continuation[:3])]
        )
        parts = [one.log_likelihood for one in scorer.score(windows)]
        assert whole.log_likelihood == pytest.approx(sum(parts), rel=1e-9)
        assert short.log_likelihood > whole.log_likelihood


def test_few_logits_at_once_change_nothing(monkeypatch: pytest.MonkeyPatch):
    decoder, asked = small_decoder(), requests(seed=3)
    expected = LoglikelihoodScorer(streams(decoder)).score(asked)
    monkeypatch.setattr(room, "LOGITS_AT_ONCE", 2 * VOCABULARY)
    for one, other in zip(LoglikelihoodScorer(streams(decoder)).score(asked), expected, strict=True):
        assert one.log_likelihood == pytest.approx(other.log_likelihood, rel=1e-12)
        assert one.greedy == other.greedy


def test_progress_counts_every_request():
    done: list[int] = []
    asked = [*requests(), LoglikelihoodRequest((0,), (1, 2) * 100)]  # of four windows
    LoglikelihoodScorer(streams(small_decoder()), tokens_at_once=48).score(asked, done.append)
    assert sum(done) == len(asked) and len(done) >= 2
