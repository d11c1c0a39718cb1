"""Greedy answers of a model to prompts, judged by their checkers, with the probability that the model gives them.

Shapes: `N` prompts.
"""

from collections.abc import Sequence
from dataclasses import dataclass, replace
from itertools import chain, islice
from pathlib import Path

import numpy as np
from numpy.typing import NDArray

from linnet.core.errors import UserError
from linnet.data.checkers import count_of
from linnet.data.prompts import ChatPrompt, prompt_of, read_prompts
from linnet.evaluation.models import ModelOptions
from linnet.evaluation.statistics import Estimate
from linnet.evaluation.tasks.generation import GenerationRequest, Generator
from linnet.evaluation.tasks.scorer import LoglikelihoodRequest, LoglikelihoodScorer, StateFactory
from linnet.inference.language_model import LanguageModel
from linnet.present.progress import progress
from linnet.stories.instructions import KINDS, SPLITS, examples
from linnet.stories.instructions.reading import SAYS_SO

Values = NDArray[np.float64]

SPARE_TOKENS = 16
"""Tokens that an answer may have beyond twice those of the reference."""

CALL_TOKENS = 32
"""Added for a prompt with a tool: a call of the calculator, in bytes."""

UNKNOWN_LENGTH = 256
"""Tokens that an answer may have where there is no reference."""

IMPOSSIBLE = "impossible"


@dataclass(frozen=True)
class InstructionScores:
    """What a model did with each prompt.

    answers: its texts. passed: 1 where the checker passes. probability: of the answer, its end left out. refused: 1
    where the answer says that it cannot be known. cut: prompts whose beginning did not fit into the model's context.
    bits_per_byte: of the base text, if one is given. called_N: 1 where the model called a tool, and the answer is that
    behind its result; None if that was not counted.
    """

    model: str
    answers: list[str]
    passed_N: Values
    probability_N: Values
    refused_N: Values
    cut: int
    bits_per_byte: Estimate | None = None
    called_N: Values | None = None


def default_prompts(per_kind: int, seed: int = 0, kinds: Sequence[str] = ()) -> list[ChatPrompt]:
    """Prompts of the kinds of the story world (all by default), `per_kind` of each in each split not for training."""
    found = []
    for split in SPLITS[1:]:
        rows = islice(examples(seed, split, kinds), per_kind * len(kinds or KINDS))
        found += [prompt_of(row, f"stories, {split} {number}") for number, row in enumerate(rows)]
    return found


def load_prompts(files: Sequence[str | Path], limit: int | None = None) -> list[ChatPrompt]:
    """The prompts of files; limit: the first of each type."""
    found, counts = list[ChatPrompt](), dict[str, int]()
    for prompt in chain.from_iterable(map(read_prompts, files)):
        counts[prompt.type] = counts.get(prompt.type, 0) + 1
        if limit is None or counts[prompt.type] <= limit:
            found.append(prompt)
    return found


def measure_instructions(
    name: str | Path, prompts: Sequence[ChatPrompt], options: ModelOptions, bits_per_byte: Estimate | None = None
) -> InstructionScores:
    """Load a model folder, or a run, and let it answer (`answer_prompts`)."""
    return replace(answer_prompts(options.load(name), str(name), prompts), bits_per_byte=bits_per_byte)


def answer_prompts(model: LanguageModel, name: str, prompts: Sequence[ChatPrompt]) -> InstructionScores:
    """Answer all prompts by a model, with its chat template, and judge the answers; `UserError` for one of pairs."""
    if model.spec.prefix_field is not None:
        raise UserError(f"{name}: a model of pairs; expected a decoder that reads a text")
    model_of_chats, states, room = model.parsing_special(), StateFactory.of_model(model), model.spec.context_length
    asked, answers = list(prompts), [""] * len(prompts)
    requests = [_request(model_of_chats, prompt) for prompt in asked]
    called_N, waiting = np.zeros(len(prompts)), list(range(len(prompts)))
    with progress(f"{name}: instructions", len(requests), "answers") as advance:
        counted = advance
        while waiting:
            found = Generator(states, model.tokenizer).generate([requests[number] for number in waiting], counted)
            going_on = []
            for number, answer in zip(waiting, found, strict=True):
                answers[number], further = answer, asked[number].continued(answer)
                if further is not None:  # it called a tool, and goes on with the result
                    asked[number], called_N[number] = further, 1.0
                    requests[number] = _request(model_of_chats, further)
                    going_on.append(number)
            waiting, counted = going_on, lambda *_: None
    return InstructionScores(
        name,
        answers,
        np.array([prompt.judged().passes(answer) for prompt, answer in zip(prompts, answers, strict=True)], np.float64),
        _probabilities(model, states, requests, answers),
        np.array([says_unknown(answer) for answer in answers], np.float64),
        sum(len(request.within(room).prompt) < len(request.prompt) for request in requests),
        called_N=called_N,
    )


def says_unknown(answer: str) -> bool:
    """True for an answer that says that it cannot be known."""
    return any(count_of(answer, phrase) for phrase in SAYS_SO)


def _request(model: LanguageModel, prompt: ChatPrompt) -> GenerationRequest:
    """The prompt in the model's chat template, and how long the answer may become."""
    template = model.chat_template
    text = template.render([turn.as_dict() for turn in prompt.messages], **prompt.variables)
    most = UNKNOWN_LENGTH
    if prompt.reference is not None:
        most = SPARE_TOKENS + 2 * len(model.tokenizer.encode(prompt.reference))
        most += CALL_TOKENS if prompt.tool_rounds else 0  # a call may be longer than the answer behind it
    return GenerationRequest(tuple(model.prompt_tokens(text)), tuple(template.stops), most)


def _probabilities(
    model: LanguageModel, states: StateFactory, requests: Sequence[GenerationRequest], answers: Sequence[str]
) -> Values:
    """The probability of each answer after its prompt, as its text is encoded; 1 for an empty one."""
    encoded = model.tokenizer.encode_batch(list(answers))
    asked = [
        LoglikelihoodRequest(request.prompt, tuple(tokens))
        for request, tokens in zip(requests, encoded, strict=True)
        if tokens
    ]
    found = iter(LoglikelihoodScorer(states).score(asked))
    return np.array([np.exp(next(found).log_likelihood) if tokens else 1.0 for tokens in encoded], np.float64)
