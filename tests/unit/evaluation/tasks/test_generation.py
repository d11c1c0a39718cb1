"""Greedy answers are those that each prompt would get alone, cut where a stop begins."""

import pytest
import torch
from small_models import UNLIKE, speaker

from linnet.core.errors import UserError
from linnet.evaluation.tasks.generation import GenerationRequest, Generator
from linnet.evaluation.tasks.scorer import StateFactory
from linnet.inference.language_model import LanguageModel
from linnet.layers.contract import MixerSpec

every_mixer = pytest.mark.parametrize("mixer", UNLIKE)
PROMPTS = {"": 12, "a bird": 3, "the tree was glad of it": 9, "Q: 1": 1}
"""And how many tokens may follow."""


def generator(model: LanguageModel, tokens_at_once: int = 8192) -> Generator:
    end = torch.tensor([[model.tokenizer.end_id]])
    return Generator(StateFactory(model.decoder.eval(), end), model.tokenizer, tokens_at_once)


def asked(model: LanguageModel, prompt: str, *until: str, most: int = 12) -> GenerationRequest:
    return GenerationRequest(tuple(model.prompt_tokens(prompt)), until, most)


@torch.no_grad()
def alone(model: LanguageModel, prompt: str, most: int) -> list[int]:
    """The likeliest tokens, one after the other, behind what the end token settled; no stop."""
    tokens, generated = model.prompt_tokens(prompt), []
    state = StateFactory(model.decoder, torch.tensor([[model.tokenizer.end_id]])).new_state(1, 64)
    for _ in range(most):
        logits_V = model.decoder(torch.tensor([tokens]), state)[0, -1]
        tokens = [int(logits_V.argmax())]
        if tokens[0] == model.tokenizer.end_id:
            break
        generated += tokens
    return generated


@every_mixer
def test_a_batch_generates_what_each_prompt_alone_does(mixer: MixerSpec):
    model = speaker(mixer)
    expected = [model.tokenizer.decode(alone(model, prompt, most)) for prompt, most in PROMPTS.items()]
    requests = [asked(model, prompt, most=most) for prompt, most in PROMPTS.items()]
    assert generator(model).generate(requests) == expected
    assert generator(model, tokens_at_once=40).generate(requests) == expected


def test_an_answer_ends_before_the_first_stop():
    model = speaker()
    whole = model.tokenizer.decode(alone(model, "a bird", 20))
    first, second = whole[2:4], whole[5:7]
    for until in ((first,), (second, first), (first, whole)):
        assert generator(model).generate([asked(model, "a bird", *until, most=20)]) == [whole[: whole.find(first)]]
    new = next(at for at in range(2, len(whole)) if whole[at] not in whole[:at])
    both = whole[new], whole[new - 1 : new + 1]  # both end with one token, the longer one begins before the other
    assert generator(model).generate([asked(model, "a bird", *both, most=20)]) == [whole[: new - 1]]
    assert generator(model).generate([asked(model, "a bird", "no such text", most=20)]) == [whole]


def test_rows_that_have_ended_leave_the_batch():
    model, batches = speaker(), []
    hidden = model.decoder.hidden

    def counting(tokens_BT: torch.Tensor, *given: object, **named: object) -> torch.Tensor:
        batches.append(len(tokens_BT))
        return hidden(tokens_BT, *given, **named)

    model.decoder.hidden = counting  # type: ignore[method-assign]
    generator(model).generate([asked(model, "a bird", most=most) for most in (2, 2, 6, 3)])
    assert batches == [4, 4, 2, 1, 1, 1]


def test_prompts_that_wait_join_as_answers_end():
    model, read = speaker(), []
    hidden = model.decoder.hidden

    def counting(tokens_BT: torch.Tensor, *given: object, **named: object) -> torch.Tensor:
        read.append(tuple(tokens_BT.shape))
        return hidden(tokens_BT, *given, **named)

    model.decoder.hidden = counting  # type: ignore[method-assign]
    requests = [asked(model, "a bird", most=most) for most in (2, 2, 6, 9, 3, 4)]
    answers = generator(model, tokens_at_once=4 * 16).generate(requests)
    assert read == [(4, 7), (4, 1), (2, 1), (2, 7), (4, 1), (4, 1), (3, 1), (1, 1), (1, 1), (1, 1)]
    assert answers == [generator(model).generate([request])[0] for request in requests]


def test_invalid_requests_are_refused():
    model = speaker()
    with pytest.raises(UserError, match="an empty text"):
        generator(model).generate([asked(model, "a", "")])
    long = asked(model, "a" * 90, most=10)
    assert generator(model).generate([long]) == generator(model).generate([long.within(64)])
    assert len(long.within(64).prompt) == 54


def test_an_answer_that_leaves_no_room_for_a_prompt_takes_half_of_the_context():
    model = speaker()
    for most in (64, 256):
        long = asked(model, "a" * 90, most=most).within(64)
        assert (len(long.prompt), long.max_tokens) == (32, 32)
        short = asked(model, "a bird", most=most)
        assert generator(model).generate([short]) == [model.tokenizer.decode(alone(model, "a bird", 32))]
