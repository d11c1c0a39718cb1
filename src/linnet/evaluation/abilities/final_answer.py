"""The final answer of a question that is answered in sentences: what a model writes by itself, its last sentence's end.

With written steps an answer may be right though a step is not, and wrong although each word would be right after the
true ones before it: so the model writes on from its own words.
"""

from collections.abc import Sequence

from linnet.data.tokenizer import Tokenizer
from linnet.evaluation.abilities.item import Question
from linnet.evaluation.tasks.generation import GenerationRequest, Generator
from linnet.evaluation.tasks.streams import StateFactory

END = "."
SPARE_TOKENS = 4
"""More than the longest true answer takes: another name may be longer."""


def final_answers(streams: StateFactory, tokenizer: Tokenizer, questions: Sequence[Question]) -> list[bool]:
    """Which of these questions, each with a final answer, a model ends rightly, writing greedily.

    A prompt that leaves no room for the answer in the model's context loses its beginning.
    """
    most = SPARE_TOKENS + max(len(tokenizer.encode(question.answer)) for question in questions)
    prompts = [(tokenizer.end_id, *tokenizer.encode(question.prompt)) for question in questions]
    written = Generator(streams, tokenizer).generate([GenerationRequest(prompt, (), most) for prompt in prompts])
    return [final_answer_matches(question, text) for question, text in zip(questions, written, strict=True)]


def final_answer_matches(question: Question, written: str) -> bool:
    """Whether so many sentences were written as there should be, and the last ends with the final answer.

    Whatever the others say; what follows does not count.
    """
    assert question.final is not None
    count = question.answer.count(END)
    sentences = written.split(END)
    return len(sentences) > count and f"{sentences[count - 1]}{END}".endswith(question.final)
