"""Self-instruct: a model writes instructions with answers after the pattern of seeds (Wang et al., arXiv 2212.10560).

Each candidate comes from a prompt of tasks, most of them seeds and some of what was kept before, as many as fit into
the model's context. Rules leave out what is no task, a measure of overlap (ROUGE-L) what is nearly a task that there is
already, and a round trip what the model itself answers otherwise when it is asked again after other tasks. Everything
that is left out is counted by reason.
"""

import json
import re
from collections import Counter
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from random import Random
from typing import Any, NamedTuple

from linnet.core.atomic import atomic_path
from linnet.core.errors import UserError, note
from linnet.data.conversations import read_conversations
from linnet.inference.continuation import Continuation
from linnet.inference.engine import Engine
from linnet.inference.language_model import LanguageModel
from linnet.inference.sampling import Sampling
from linnet.inference.streams import Request
from linnet.inference.text_events import TextEvents
from linnet.present.progress import progress
from linnet.present.result import Result
from linnet.present.table import Table

ANSWER = "\nAnswer:"
TASK = "\n\nTask:"
"""What stands before the answer of a task, and before the next task."""

AT_ONCE = 16
"""Candidates of a round; the later ones see what was kept of the earlier ones."""

REASONS = {
    "form": "no answer behind an instruction",
    "length": "an instruction that is too short or too long",
    "beginning": "an instruction that begins with a sign or a small letter",
    "unsuitable": "an instruction about what is not text: an image, a file, a link",
    "repetition": "an answer that repeats itself or the instruction",
    "near_duplicate": "nearly an instruction that there is already",
    "round_trip": "asked again, the model answers otherwise",
}
"""Why a candidate is left out, in the order in which it is looked at."""

_UNSUITABLE = re.compile(r"\b(?:image|picture|photo|graph|chart|video|audio|file|website|url|link)s?\b", re.IGNORECASE)
_WORD = re.compile(r"\w+")


@dataclass(frozen=True)
class SelfInstructSpec:
    """seed_tasks, own_tasks: tasks of a prompt that are seeds, and that the model wrote (6 and 2 in the paper).

    overlap: the ROUGE-L with another instruction from which on a candidate is nearly the same (0.7 in the paper).
    agreement: the least ROUGE-L of an answer with that of the round trip. most_words: of an instruction.
    attempts: candidates for each example that is wanted; then the rest is given up.
    """

    seed_tasks: int = 6
    own_tasks: int = 2
    overlap: float = 0.7
    agreement: float = 0.5
    most_words: int = 150
    max_tokens: int = 256
    temperature: float = 0.7
    attempts: int = 20


class SelfInstructTask(NamedTuple):
    """An instruction with its answer."""

    instruction: str
    answer: str

    @property
    def text(self) -> str:
        return f"{TASK} {self.instruction}{ANSWER} {self.answer}"


@dataclass(frozen=True)
class SelfInstructReport(Result):
    """What was written and left out. candidates: that the model wrote; dropped: of these by reason (`REASONS`)."""

    model: str
    out: str
    asked: int
    seeds: int
    candidates: int
    kept: int
    dropped: dict[str, int]
    examples: dict[str, str] = field(default_factory=dict)

    def tables(self) -> list[Table]:
        rows = [("written by the model", f"{self.candidates:,}", "")]
        for reason, meaning in REASONS.items():
            rows.append((f" {reason.replace('_', ' ')}", f"{self.dropped.get(reason, 0):,}", meaning))
        rows.append(("kept", f"{self.kept:,}", ""))
        note = f"{self.out}: {self.kept:,} examples after {self.seeds:,} seeds."
        if self.kept < self.asked:
            note += f" {self.asked:,} were asked for; the model wrote no more that pass in the attempts allowed."
        return [Table(f"self-instruct with {self.model}", ("", "tasks", "left out because of"), rows, note)]

    def to_dict(self) -> dict[str, Any]:
        counts = {name: getattr(self, name) for name in ("model", "out", "asked", "seeds", "candidates", "kept")}
        return {
            **counts,
            "dropped": {reason: self.dropped.get(reason, 0) for reason in REASONS},
            "examples": self.examples,
        }


def self_instruct(
    model: LanguageModel,
    seeds: str | Path,
    out: str | Path,
    count: int,
    seed: int = 0,
    overwrite: bool = False,
    spec: SelfInstructSpec | None = None,
) -> SelfInstructReport:
    """Write `count` conversations of one question and one answer, by a model, into a .jsonl file.

    seeds: a file of conversations; of each the first question and its answer count, and a note tells how many are too
    long for the model. `UserError` for fewer than two seeds and a file that is there already.
    """
    spec, out = spec or SelfInstructSpec(), Path(out)
    if out.suffix != ".jsonl":
        raise UserError(field="out", value=out, accepted="a file whose name ends in .jsonl")
    if out.exists() and not overwrite:
        raise UserError("exists already; `overwrite` replaces it", field="out", value=out)
    tasks = list(_seed_tasks(seeds))
    if len(tasks) < 2:
        raise UserError(f"{seeds}: {len(tasks)} seeds; expected at least 2 conversations with a question and an answer")
    tasks = _short_tasks(tasks, model, _room(model, spec), str(seeds))
    writer = _Writer(model, tasks, spec, Random(f"linnet self-instruct {seed}"))
    with (
        progress("writing", count, "examples") as advance,
        atomic_path(out) as target,
        target.open("w", encoding="utf-8", newline="\n") as file,
    ):
        while len(writer.kept) < count and writer.candidates < count * spec.attempts:
            wanted = min(AT_ONCE, count * spec.attempts - writer.candidates)
            for task in writer.round(wanted)[: count - len(writer.kept)]:
                writer.kept.append(task)
                turns = {"user": task.instruction, "assistant": task.answer}
                messages = [{"role": role, "content": text} for role, text in turns.items()]
                file.write(json.dumps({"messages": messages, "type": "self-instruct"}, ensure_ascii=False) + "\n")
                advance(1)
        if not writer.kept:
            why = ", ".join(f"{reason} {number}" for reason, number in writer.dropped.most_common())
            raise UserError(f"of {writer.candidates} tasks that the model wrote none is kept ({why})")
    name = str(model.folder or model.spec.name)
    dropped, examples = dict(writer.dropped), writer.examples
    return SelfInstructReport(name, str(out), count, len(tasks), writer.candidates, len(writer.kept), dropped, examples)


def _room(model: LanguageModel, spec: SelfInstructSpec, behind: str = "") -> int:
    """The tokens of tasks for which the context has room beside what stands `behind` them and an answer."""
    room = model.spec.context_length
    return room - min(spec.max_tokens, room // 2) - len(model.prompt_tokens(behind))


def _short_tasks(
    tasks: Sequence[SelfInstructTask], model: LanguageModel, room: int, origin: str
) -> list[SelfInstructTask]:
    """The tasks of at most `room` tokens; `UserError` for fewer than two."""
    found = [task for task in tasks if len(model.tokenizer.encode(task.text)) <= room]
    context = f"the {room:,} tokens that the model's context of {model.spec.context_length:,} leaves for them"
    if len(found) < 2:
        raise UserError(f"{origin}: {len(found)} of {len(tasks):,} seeds fit into {context}; expected at least 2")
    if left_out := len(tasks) - len(found):
        note(f"{origin}: {left_out:,} of {len(tasks):,} seeds do not fit into {context}, and are left out")
    return found


def _seed_tasks(path: str | Path) -> Iterator[SelfInstructTask]:
    """The first question and answer of each conversation; those without text, or with a tool between, do not count."""
    for conversation in read_conversations(path):
        turns = [turn for turn in conversation.messages if turn.role not in ("system", "developer")]
        if len(turns) > 1 and [turn.role for turn in turns[:2]] == ["user", "assistant"]:
            question, answer = turns[0].content, turns[1].content
            if question and answer and question.strip() and answer.strip():
                yield SelfInstructTask(question.strip(), answer.strip())


@dataclass
class _Writer:
    """Writes candidates, and judges them. examples: the first candidate that was left out for each reason."""

    model: LanguageModel
    seeds: list[SelfInstructTask]
    spec: SelfInstructSpec
    rng: Random
    kept: list[SelfInstructTask] = field(default_factory=list)
    candidates: int = 0
    dropped: Counter[str] = field(default_factory=Counter)
    examples: dict[str, str] = field(default_factory=dict)

    def round(self, wanted: int) -> list[SelfInstructTask]:
        """Write some candidates, and return those that pass."""
        spec = self.spec
        prompts = [f"{self._shown()}{TASK}" for _ in range(wanted)]
        seeds = [self.rng.getrandbits(31) for _ in prompts]
        samplings = [Sampling(spec.temperature, seed=seed) for seed in seeds]
        texts = self._complete(prompts, samplings, (TASK,))
        self.candidates += len(texts)
        passed = list[SelfInstructTask]()
        for text in texts:
            task, reason = self._judged(text, passed)
            if task is None:
                self._drop(reason, text)
            else:
                passed.append(task)
        asks = [f"{TASK} {task.instruction}{ANSWER}" for task in passed]
        asked = [f"{self._shown(ask)}{ask}" for ask in asks]
        again = self._complete(asked, [Sampling(0.0)] * len(asked), (TASK,))
        agreed = list[SelfInstructTask]()
        for task, answer in zip(passed, again, strict=True):
            if rouge_l(_words(task.answer), _words(answer)) >= spec.agreement:
                agreed.append(task)
            else:
                self._drop("round_trip", f"{task.text.strip()} | {answer.strip()}")
        return agreed

    def _shown(self, behind: str = "") -> str:
        """Tasks for a prompt, drawn afresh and in any order, that leave room for what stands `behind` and an answer."""
        spec = self.spec
        tasks = self.rng.sample(self.kept, min(spec.own_tasks, len(self.kept)))
        tasks += self.rng.sample(self.seeds, min(spec.seed_tasks, len(self.seeds)))
        self.rng.shuffle(tasks)
        left = _room(self.model, spec, behind)
        shown = list[str]()
        for task in tasks:
            length = len(self.model.tokenizer.encode(task.text))
            if length <= left:
                shown.append(task.text)
                left -= length
        return "".join(shown).lstrip("\n")

    def _judged(self, text: str, passed: Sequence[SelfInstructTask]) -> tuple[SelfInstructTask | None, str]:
        """The candidate as a task, or the reason why it is none."""
        instruction, found, answer = (part.strip() for part in text.partition(ANSWER))
        task = SelfInstructTask(instruction, answer)
        words = _words(instruction)
        if not found or not instruction or not answer:
            return None, "form"
        if not 2 <= len(words) <= self.spec.most_words:
            return None, "length"
        if not (instruction[0].isupper() or instruction[0].isdigit() or instruction[0] in "\"'“‘"):
            return None, "beginning"
        if _UNSUITABLE.search(instruction):
            return None, "unsuitable"
        if _repeats(_words(answer)) or _words(answer) == words:
            return None, "repetition"
        others = (*self.seeds, *self.kept, *passed)
        if any(rouge_l(words, _words(other.instruction), self.spec.overlap) >= self.spec.overlap for other in others):
            return None, "near_duplicate"
        return task, ""

    def _drop(self, reason: str, text: str) -> None:
        self.dropped[reason] += 1
        self.examples.setdefault(reason, text.strip()[:200])

    def _complete(self, prompts: Sequence[str], samplings: Sequence[Sampling], stops: tuple[str, ...]) -> list[str]:
        """The text behind each prompt up to a stop text; all prompts are continued together."""
        model, room = self.model, self.model.spec.context_length
        engine = Engine(model.decoder, vocab_size=model.tokenizer.vocab_size)
        answers = list[Continuation]()
        for prompt, sampling in zip(prompts, samplings, strict=True):
            tokens = model.prompt_tokens(prompt)
            most = max(1, min(self.spec.max_tokens, room - len(tokens)))
            request = Request(tokens, most, sampling, model.tokenizer.end_ids, keep_state=False)
            texts = TextEvents(model.tokenizer, tokens, stops)
            answers.append(Continuation(engine.submit(request), texts, len(tokens), lambda _: 0))
        return ["".join(answer) for answer in answers]


def _words(text: str) -> list[str]:
    return _WORD.findall(text.casefold())


def _repeats(words: Sequence[str]) -> bool:
    """True if more than half of the runs of three words came before."""
    runs = list(zip(words, words[1:], words[2:], strict=False))
    return len(runs) >= 4 and len(set(runs)) < len(runs) / 2


def rouge_l(one: Sequence[str], other: Sequence[str], at_least: float = 0.0) -> float:
    """ROUGE-L of two texts in words (Lin 2004): the F-measure of their longest common subsequence, 0 to 1.

    at_least: where the words in common leave less, 0 is returned at once. Two empty texts are equal.
    """
    total = len(one) + len(other)
    if not total:
        return 1.0
    shared = sum((Counter(one) & Counter(other)).values())
    if 2 * shared / total < at_least or not shared:
        return 0.0
    lengths = [0] * (len(other) + 1)
    for word in one:
        diagonal = 0
        for place, candidate in enumerate(other, start=1):
            above = lengths[place]
            lengths[place] = diagonal + 1 if word == candidate else max(above, lengths[place - 1])
            diagonal = above
    return 2 * lengths[-1] / total
