"""Generation of token ids: what comes out is what the decoder says, for every mixer, row by row."""

import pytest
import torch
from small_models import CASES, EXAMPLES, VOCABULARY, in_turn, small_decoder

from linnet.core.errors import UserError
from linnet.inference.decode import decode
from linnet.inference.prefill import new_state
from linnet.inference.readers import Caches
from linnet.inference.sampling import Sampling, choose, uniform_numbers
from linnet.layers.contract import MixerSpec
from linnet.model.decoder import Decoder

GREEDY = Sampling(temperature=0)
PROMPTS = [[3, 1, 4], [1, 5, 9, 2, 6, 5], [8]]
every_mixer = pytest.mark.parametrize("mixer", CASES)


def rows(decoder: Decoder, prompts: list[list[int]], count: int = 8, sampling: Sampling = GREEDY, **options):
    """The tokens of each row."""
    steps = list(decode(decoder, prompts, count, sampling, **options))
    return [list(row) for row in zip(*steps, strict=True)]


@every_mixer
def test_greedy_tokens_are_those_of_the_decoder_token_by_token(mixer: MixerSpec):
    decoder, seen = small_decoder(mixer), set()
    for prompt in PROMPTS:
        state = decoder.initial_state(1, 20)
        with torch.no_grad():
            logits_BTV, expected = decoder(torch.tensor([prompt]), state), []
            for _ in range(8):
                expected.append(logits_BTV[0, -1].argmax().item())
                logits_BTV = decoder(torch.tensor([expected[-1:]]), state)
        assert rows(decoder, [prompt]) == [expected]
        seen |= set(expected)
    assert len(seen) > 2


@pytest.mark.parametrize(("mixer", "sampling"), in_turn(greedy=GREEDY, drawn=Sampling(1.0, seed=5)))
def test_a_row_of_a_left_padded_batch_is_what_it_is_alone(mixer: MixerSpec, sampling: Sampling):
    decoder = small_decoder(mixer)
    together = rows(decoder, PROMPTS, sampling=sampling)
    for number, prompt in enumerate(PROMPTS):
        seed = None if sampling.seed is None else sampling.seed + number
        assert [together[number]] == rows(decoder, [prompt], sampling=Sampling(sampling.temperature, seed=seed))


def test_penalties_do_not_count_the_padding_of_a_batch():
    """Token 0 pads the shorter prompts; `frequency_penalty` below 0 repeats the first generated token for ever."""
    decoder = small_decoder(EXAMPLES[0])
    sampling = Sampling(0.0, repetition_penalty=1.5, frequency_penalty=-0.5)
    together = rows(decoder, PROMPTS, sampling=sampling)
    assert together == [rows(decoder, [prompt], sampling=sampling)[0] for prompt in PROMPTS]
    assert together != rows(decoder, PROMPTS, sampling=Sampling(0.0))


@every_mixer
def test_a_fork_of_the_state_of_a_prompt_continues_equally(mixer: MixerSpec):
    decoder = small_decoder(mixer)
    state = decoder.initial_state(1, 30)
    first = rows(decoder, [PROMPTS[1]], 4, state=state)[0]
    fork = state.fork()
    after = rows(decoder, [first[-1:]], 6, state=state)
    assert after == rows(decoder, [first[-1:]], 6, state=fork)
    assert [first + after[0]] == rows(decoder, [PROMPTS[1]], 10)


def test_the_same_seed_gives_the_same_tokens_and_more_of_them_begin_alike():
    decoder = small_decoder()
    one, again, longer = (rows(decoder, PROMPTS, count, Sampling(1.0, seed=3)) for count in (8, 8, 12))
    assert one == again
    assert one == [row[:8] for row in longer]
    assert one != rows(decoder, PROMPTS, 8, Sampling(1.0, seed=4))


@pytest.mark.parametrize("caches", [Caches(), Caches(kv=False)], ids=["kept", "recomputed"])
def test_tokens_are_drawn_from_capped_logits(caches: Caches):
    decoder, cap, expected = small_decoder(), 0.5, list(PROMPTS[0])
    uniforms = uniform_numbers(7)
    for _ in range(8):
        with torch.no_grad():
            raw_BV = decoder(torch.tensor([expected]))[:, -1]
        capped_BV = cap * torch.tanh(raw_BV / cap)
        expected += choose(capped_BV, Sampling(1.0), torch.tensor([next(uniforms)])).tolist()
    uncapped = rows(decoder, PROMPTS[:1], sampling=Sampling(1.0, seed=7), caches=caches)
    decoder.spec = decoder.spec.replace(head={**decoder.spec.head.model_dump(), "soft_cap": cap})
    found = rows(decoder, PROMPTS[:1], sampling=Sampling(1.0, seed=7), caches=caches)
    assert found == [expected[len(PROMPTS[0]) :]] != uncapped


def test_without_a_seed_each_time_is_another():
    decoder = small_decoder()
    assert rows(decoder, [[1]], 20, Sampling(2.0)) != rows(decoder, [[1]], 20, Sampling(2.0))


def test_a_row_ends_before_its_stop_token_and_the_others_go_on():
    decoder = small_decoder()
    free = rows(decoder, PROMPTS, 10)
    stop = free[0][3]
    ended = rows(decoder, PROMPTS, 10, stop_ids={stop})
    for whole, cut in zip(free, ended, strict=True):
        end = whole.index(stop) if stop in whole else len(whole)
        assert cut == (whole[:end] + [None] * 10)[: len(cut)]
    assert len(ended[0]) == 10 or all(stop in row for row in free)


def test_nothing_more_is_computed_once_all_rows_have_ended():
    decoder = small_decoder()
    first = rows(decoder, [[1]], 1)[0][0]
    state = new_state(decoder, [[1]], 10)
    assert list(decode(decoder, [[1]], 10, GREEDY, {first}, state=state)) == [[None]]
    assert state.position == 1


def test_the_last_token_is_not_fed():
    decoder = small_decoder()
    state = new_state(decoder, [[1, 2]], 5)
    assert len(list(decode(decoder, [[1, 2]], 5, GREEDY, state=state))) == 5
    assert (state.position, state.capacity) == (6, 7)


def test_only_the_first_ids_are_chosen_from():
    drawn = rows(small_decoder(), PROMPTS, 30, Sampling(5.0, seed=0), vocab_size=4)
    assert {token for row in drawn for token in row} == {0, 1, 2, 3}


def test_the_model_runs_in_inference_mode_and_the_caller_does_not(monkeypatch: pytest.MonkeyPatch):
    inside, hidden = [], Decoder.hidden
    monkeypatch.setattr(
        Decoder,
        "hidden",
        lambda *given, **named: inside.append(torch.is_inference_mode_enabled()) or hidden(*given, **named),
    )
    outside = [torch.is_inference_mode_enabled() for _ in decode(small_decoder(), [[1]], 3, GREEDY)]
    assert (inside, outside) == ([True, True, True], [False, False, False])


def test_the_prompts_pass_computes_the_logits_of_its_last_token_only(monkeypatch: pytest.MonkeyPatch):
    decoder, lengths = small_decoder(), []
    logits = Decoder.logits
    monkeypatch.setattr(Decoder, "logits", lambda self, x: lengths.append(x.shape[1]) or logits(self, x))
    list(decode(decoder, PROMPTS, 3, GREEDY))
    assert lengths == [1, 1, 1]


def test_learned_positions_end_the_text_before_it_begins():
    decoder = small_decoder(EXAMPLES[0], positions="learned")
    assert len(rows(decoder, [[1] * 60], 4)[0]) == 4
    with pytest.raises(UserError, match=r"60 tokens of prompt and 5 new ones .* are 65: .* positions end at 64"):
        decode(decoder, [[1] * 60], 5, GREEDY)
    state = decoder.initial_state(1, 100)
    rows(decoder, [[1] * 60], 4, state=state)
    with pytest.raises(UserError, match="63 tokens so far, 1 tokens of prompt and 1 new ones"):
        decode(decoder, [[1]], 1, GREEDY, state=state)


def test_other_models_go_beyond_their_context():
    assert len(rows(small_decoder(), [[1] * 60], 10)[0]) == 10


@pytest.mark.parametrize(
    ("prompts", "count", "message"),
    [
        ([], 1, "prompt: empty"),
        ([[1], []], 1, "prompt: empty"),
        ([[1, VOCABULARY]], 1, f"token id {VOCABULARY}: expected 0 to {VOCABULARY - 1}"),
        ([[-1]], 1, "token id -1"),
        ([[1]], 0, "max_tokens: 0: expected at least 1"),
        ([[1]], 10**15, "max_tokens: 1000000000000000: no memory for the state"),
    ],
)
def test_what_cannot_be_is_named_at_once(prompts: list[list[int]], count: int, message: str):
    with pytest.raises(UserError, match=message):
        decode(small_decoder(), prompts, count, GREEDY)


def test_a_state_must_have_room():
    decoder = small_decoder()
    with pytest.raises(ValueError, match="room for 5 more tokens, 6 are needed"):
        decode(decoder, [[1, 2]], 4, GREEDY, state=decoder.initial_state(1, 5))


def test_streams_go_on_with_texts_of_different_lengths():
    decoder = small_decoder()
    together = decoder.initial_state(2, 20)
    alone = [decoder.initial_state(1, 20) for _ in range(2)]
    for prompts in ([[1, 2], [3]], [[4], [5, 6, 7]]):
        found = rows(decoder, prompts, 2, state=together)
        assert found == [rows(decoder, [prompt], 2, state=own)[0] for prompt, own in zip(prompts, alone, strict=True)]


def test_a_frozen_operator_is_kept_for_other_prompts():
    decoder = small_decoder(next(mixer for mixer in EXAMPLES if mixer.kind == "plga"))
    seen = decoder.initial_state(1, 30)
    with torch.no_grad():
        decoder(torch.tensor([PROMPTS[1]]), seen)
    state = seen.forget()
    text = rows(decoder, [[7, 11, 2]], 20, state=state)
    assert all(torch.equal(a.operator, b.operator) for a, b in zip(state.layers, seen.layers, strict=True))
    assert text != rows(decoder, [[7, 11, 2]], 20)


def test_an_emptied_state_does_not_keep_the_padding_of_other_prompts():
    decoder = small_decoder()
    state = decoder.initial_state(2, 20)
    rows(decoder, [[1, 2], [3]], 2, state=state)
    state.crop(0)
    prompts = [[1, 2], [3, 4]]
    assert rows(decoder, prompts, state=state) == rows(decoder, prompts)
