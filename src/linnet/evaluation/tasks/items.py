"""Multiple-choice items, their scores, and the rows of JSON-lines files that they are read from.

A plain row has `choices` with `gold` or `labels`, and the fields that the task's context names (`question`, `context`);
or `contexts`, `continuation` and `gold`. Rows of published sets are normalized to this form, with the changes that the
LM Evaluation Harness makes to them. A mistake in a row is a `UserError` that names file, line and field.
"""

import json
import math
import re
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Literal, Self, get_args

import numpy as np
from numpy.typing import NDArray

from linnet.core.errors import UserError
from linnet.core.files import check_unicode
from linnet.data.readers import lines_of, valid
from linnet.data.sources import open_source

ScoreName = Literal["acc", "acc_norm", "acc_bytes", "mc2"]
"""How an item is scored from the log-likelihoods of its choices.

acc: 1 if the likeliest choice is right. acc_norm, acc_bytes: the same with log-likelihoods divided by the characters of
the choice (as the LM Evaluation Harness does), or by its UTF-8 bytes. mc2: share of the right choices in the
probability of all choices.
"""

DELIMITER = " "
"""Between a context and its continuation, as in the LM Evaluation Harness, also if the context is empty."""


@dataclass(frozen=True)
class TaskItem:
    """One question.

    pairs: for each choice, the context and the text that is scored after it. choices: the texts to choose among.
    normalizers: for each choice, the text whose length normalizes its score. labels: 1 for a right choice, else 0.
    own_texts: the item's own text with each choice, without the prompt template that all items of a task share.
    """

    pairs: tuple[tuple[str, str], ...]
    choices: tuple[str, ...]
    normalizers: tuple[str, ...]
    labels: tuple[int, ...]
    own_texts: tuple[str, ...]

    @classmethod
    def of_choices(cls, context: str, choices: Sequence[str], labels: Sequence[int], own: str | None = None) -> Self:
        """Several continuations of one context. own: the question without the template; None: the context."""
        own = context if own is None else own
        return cls(
            tuple((context, f"{DELIMITER}{choice}") for choice in choices),
            tuple(choices),
            tuple(choices),
            tuple(labels),
            tuple(f"{own} {choice}" for choice in choices),
        )

    @classmethod
    def of_contexts(cls, contexts: Sequence[str], continuation: str, labels: Sequence[int]) -> Self:
        """One continuation of several contexts, which are the choices."""
        return cls(
            tuple((context, f"{DELIMITER}{continuation}") for context in contexts),
            tuple(contexts),
            (continuation,) * len(contexts),
            tuple(labels),
            tuple(f"{context} {continuation}" for context in contexts),
        )

    @property
    def chance(self) -> float:
        """The mean score of guessing, the same for every `ScoreName`; only for an item with choices."""
        return sum(self.labels) / len(self.labels)

    def score(self, name: ScoreName | str, log_likelihoods: Sequence[float]) -> float:
        """The score from 0 to 1; the first of equally likely choices counts. NaN if a log-likelihood is NaN."""
        assert name in get_args(ScoreName), name
        found = self._normalized(name, log_likelihoods)
        if np.isnan(found).any():
            return math.nan
        if name == "mc2":
            shares = np.exp(found - found.max())
            return float(shares[np.asarray(self.labels) == 1].sum() / shares.sum())
        return float(self.labels[int(found.argmax())])

    def is_tied(self, name: ScoreName | str, log_likelihoods: Sequence[float]) -> bool:
        """True if right and wrong choices are equally likely, and likeliest, so that their order decides the score."""
        found = self._normalized(name, log_likelihoods)
        likeliest = {label for label, value in zip(self.labels, found, strict=True) if value == found.max()}
        return name != "mc2" and len(likeliest) > 1

    def _normalized(self, name: ScoreName | str, log_likelihoods: Sequence[float]) -> NDArray[np.float64]:
        found = np.asarray(log_likelihoods, dtype=np.float64)
        if name == "acc_norm":
            return found / [len(text) for text in self.normalizers]
        if name == "acc_bytes":
            return found / [len(text.encode()) for text in self.normalizers]
        return found


def one_hot(gold: int, choices: int) -> list[int]:
    """The labels of an item with one right choice, number `gold`."""
    return [int(number == gold) for number in range(choices)]


def baselines(items: Sequence[TaskItem]) -> dict[str, float]:
    """The scores of always taking the longest choice, the shortest, and the position (letter) that is right most often.

    Lengths are in UTF-8 bytes; the first of equally long choices counts. The position is selected on the items
    themselves, so its score is slightly better than what could be known before.
    """

    def mean_label(extreme: Callable[[list[int]], int]) -> float:
        labels = []
        for item in items:
            lengths = [len(choice.encode()) for choice in item.choices]
            labels.append(item.labels[lengths.index(extreme(lengths))])
        return sum(labels) / len(items)

    positions = max(len(item.choices) for item in items)
    right_at = [sum(item.labels[at] for item in items if at < len(item.labels)) for at in range(positions)]
    return {"longest": mean_label(max), "shortest": mean_label(min), "letter": max(right_at) / len(items)}


Row = dict[str, Any]

FIELD = re.compile(r"\{(\w+)\}")
"""In the template of a context: replaced by the text of this field of the row."""


def read_rows(path: Path) -> Iterator[tuple[str, Row]]:
    """The JSON objects of a file, and for each its file and line as text; `UserError` if there are none."""
    found = False
    with open_source(path) as handle:
        for place, line in lines_of(handle, str(path)):
            try:
                row = json.loads(valid(line))
            except (ValueError, RecursionError):
                raise UserError(f"{place}: not valid JSON; expected an object on each line") from None
            check_unicode(row, place, file_names=False)
            if not isinstance(row, dict):
                raise UserError(f"{place}: expected a JSON object")
            found = True
            yield place, row
    if not found:
        raise UserError(f"{path}: no rows; expected a JSON object on each line")


def parse_item(
    task: str,
    template: str | None,
    row: Row,
    place: str,
    fixed_choices: Sequence[str] | None = None,
    any_names: bool = False,
) -> TaskItem:
    """The item of a row, plain or as the task's data set has it.

    template: the context, with `{field}` for fields of the row; None if rows have `contexts`. fixed_choices: the
    choices of every row, for rows without their own. any_names: accept the names of fields that published sets have.
    """
    try:
        plain = normalize_row(task, row)
        if any_names:
            plain = _with_plain_names(plain, place)
    except (LookupError, TypeError, ValueError, AttributeError) as error:
        raise UserError(f"{place}: not a row of {task} ({type(error).__name__}: {error})") from None
    if template is None or "contexts" in plain:
        contexts = _texts(plain, "contexts", place)
        continuation = _text(plain, "continuation", place)
        return TaskItem.of_contexts(contexts, continuation, _labels(plain, len(contexts), place))
    choices = _texts(plain, "choices", place) if fixed_choices is None else fixed_choices
    names = FIELD.findall(template)
    values = {name: _text(plain, name, place, min_length=0) for name in names}
    context = FIELD.sub(lambda match: values[match[1]], template)
    own = " ".join(values[name] for name in names)
    return TaskItem.of_choices(context, choices, _labels(plain, len(choices), place), own)


def parse_minimal_pair(row: Row, place: str) -> TaskItem:
    """A right and a wrong sentence (a row of BLiMP), each at the beginning of a document."""
    sentences = [_text(row, name, place) for name in ("sentence_good", "sentence_bad")]
    return TaskItem.of_choices("", sentences, [1, 0])


def _text(row: Row, field: str, place: str, min_length: int = 1) -> str:
    if field not in row:
        raise UserError(f"{place}: no field {field!r}; this line has {', '.join(map(repr, row)) or 'none'}")
    value = row[field]
    if not isinstance(value, str) or len(value) < min_length:
        raise UserError(f"{place}: {field}: {_shortened(value)}: expected a text")
    return value


def _texts(row: Row, field: str, place: str) -> list[str]:
    value = row.get(field)
    if not isinstance(value, list) or len(value) < 2 or not all(isinstance(text, str) and text for text in value):
        raise UserError(f"{place}: {field}: {_shortened(value)}: expected a list of at least two texts")
    return value


def _labels(row: Row, choices: int, place: str) -> list[int]:
    """1 for each right choice: from `labels`, or from `gold`, the index of the only right one, counted from 0."""
    if "labels" in row:
        labels = row["labels"]
        if not isinstance(labels, list) or len(labels) != choices or any(label not in (0, 1) for label in labels):
            raise UserError(f"{place}: labels: {_shortened(labels)}: expected {choices} numbers, each 0 or 1")
        if not any(labels):
            raise UserError(f"{place}: labels: {_shortened(labels)}: expected a 1 for at least one right choice")
        return [int(label) for label in labels]
    gold = row.get("gold")
    if not isinstance(gold, int) or isinstance(gold, bool) or not 0 <= gold < choices:
        raise UserError(f"{place}: gold: {_shortened(gold)}: expected a number from 0 to {choices - 1}")
    return one_hot(gold, choices)


def _shortened(value: Any, max_length: int = 60) -> str:
    text = json.dumps(value, ensure_ascii=False)
    return text if len(text) <= max_length else f"{text[: max_length - 1]}…"


def normalize_row(task: str, row: Row) -> Row:
    """The plain form of a row of a known task; a plain row, or one of another task, is returned as it is."""
    match task:
        case "arc_challenge" | "arc_easy" | "openbookqa" if "answerKey" in row:
            # Choices with letters, and the letter of the answer.
            choices = row["choices"]
            question = row.get("question", row.get("question_stem"))
            gold = choices["label"].index(row["answerKey"].lstrip())
            return {"question": question, "choices": choices["text"], "gold": gold}
        case "hellaswag":
            return _hellaswag(row)
        case "piqa" if "goal" in row:
            return {"question": row["goal"], "choices": [row["sol1"], row["sol2"]], "gold": int(row["label"])}
        case "siqa" if "answerA" in row:
            choices, gold = [row[f"answer{letter}"] for letter in "ABC"], int(row["label"]) - 1
            return {"context": row["context"], "question": row["question"], "choices": choices, "gold": gold}
        case "winogrande" if "sentence" in row:
            # The sentence up to the gap with each option, and the text after the gap.
            before, _, after = row["sentence"].partition("_")
            contexts = [before + row[option] for option in ("option1", "option2")]
            return {"contexts": contexts, "continuation": after.strip(), "gold": int(row["answer"]) - 1}
        case "truthfulqa_mc2" if "mc2_targets" in row:
            targets = row["mc2_targets"]
            return {"question": row["question"], "choices": targets["choices"], "labels": targets["labels"]}
        case "pubmedqa" if "CONTEXTS" in row:
            gold = ("yes", "no", "maybe").index(row["final_decision"])
            return {"abstract": "\n".join(row["CONTEXTS"]), "question": row["QUESTION"], "gold": gold}
        case "logiqa":
            # The choices are listed in the context too, each after a letter.
            gold = row["gold"] if "gold" in row else "abcd".index(row["label"].strip())
            choices = row["choices"] if "choices" in row else row["options"]
            listed = "\n".join(f"{letter}. {choice}" for letter, choice in zip("ABCD", choices, strict=False))
            fields = {name: row[name] for name in ("context", "question")}
            return {**fields, "listed": listed, "choices": choices, "gold": gold}
        case "boolq" | "wic" | "cb" | "wsc" | "rte":
            return _super_glue_row(task, row)
    return row


def _with_plain_names(row: Row, place: str) -> Row:
    """A row with `context`, `choices` and `gold` from the fields that stand for them in published sets.

    The question follows the context, if there are both. An answer is a number, a letter, or the text of the choice.
    """
    if row.keys() >= {"context", "gold"} and not row.keys() & {"options", "endings"}:
        return row
    found = dict(row)
    if texts := [str(row[name]) for name in ("context", "question", "question_stem") if row.get(name)]:
        found["context"] = " ".join(texts)
    choices = next((row[name] for name in ("choices", "options", "endings") if name in row), None)
    letters = list("ABCDEFGHIJKLMNOPQRSTUVWXYZ")
    if isinstance(choices, dict):  # of ARC
        choices, letters = choices["text"], choices["label"]
    if choices is not None:
        found["choices"] = choices
    field = next((name for name in ("gold", "answer", "answerKey", "label") if name in row), None)
    if field is None:
        return found
    answer = row[field]
    if isinstance(answer, str) and isinstance(choices, list) and "labels" not in row:
        answer = _answer_index(answer, choices, letters[: len(choices)], f"{place}: {field}", field == "label")
    return {**found, "gold": answer}


def _answer_index(answer: str, choices: list[Any], letters: list[str], where: str, digits: bool) -> int:
    """The index of an answer that is a text or a letter; digits: it may be the index as text, as HellaSwag's labels.

    `UserError` where it is none of them, or two that disagree.
    """
    readings = {names.index(answer) for names in (choices, letters) if answer in names}
    if digits and answer.isdecimal() and answer not in letters:
        readings.add(int(answer))
    if len(readings) == 1:
        return readings.pop()
    problem = f"{answer!r} is the answer in {len(readings)} ways" if readings else repr(answer)
    accepted = f"a number from 0 to {len(choices) - 1}, one of {', '.join(map(str, letters))}, or the text of a choice"
    raise UserError(f"{where}: {problem}; expected {accepted}")


def _hellaswag(row: Row) -> Row:
    """The set's own row, or a plain one; in both, the words that begin the ending start with a capital letter."""
    if "ctx_a" not in row:
        # In a plain row, the set's `ctx_b` is what follows the last sentence, if it begins in lower case.
        begun = re.search(r"(?<=[.!?:] )[a-z][^.!?]*$", row["context"])
        if begun is None:
            return row
        return {**row, "context": row["context"][: begun.start()] + begun[0].capitalize()}

    def without_marks(text: str) -> str:
        # Remove WikiHow's marks in brackets; the mark of a title becomes a full stop.
        return re.sub(r"\[.*?\]", "", text.strip().replace(" [title]", ". ")).replace("  ", " ")

    context = without_marks(f"{row['activity_label']}: {row['ctx_a']} {row['ctx_b'].capitalize()}")
    return {"context": context, "choices": list(map(without_marks, row["endings"])), "gold": int(row["label"])}


def _super_glue_row(task: str, row: Row) -> Row:
    """A row of a SuperGLUE task; its label is the number of an answer, or the answer's name."""
    published_field = {"wic": "start1", "wsc": "text"}.get(task)
    is_plain = "gold" in row if published_field is None else published_field not in row
    if is_plain:
        return row
    names = {"cb": ("entailment", "contradiction", "neutral"), "rte": ("entailment", "not_entailment")}
    label, answers = row["label"], names.get(task, (False, True))
    gold = label if isinstance(label, int) and not isinstance(label, bool) else answers.index(label)
    if task == "rte":  # GLUE's rows call the two texts sentences
        fields = (("premise", "sentence1"), ("hypothesis", "sentence2"))
        return {**{name: row.get(name, row.get(glue)) for name, glue in fields}, "gold": gold}
    if task == "wic":  # the word as it stands in the first sentence
        return {**row, "word": row["sentence1"][row["start1"] : row["end1"]], "gold": gold}
    if task != "wsc":
        return {**row, "gold": gold}

    # The passage with stars around the pronoun, whose index counts words.
    spans = row.get("target", row)
    pronoun = spans["span2_text"]
    before = " ".join(row["text"].split()[: spans["span2_index"]])
    after = row["text"][len(before) + len(pronoun) + 1 :]
    passage = f"{before} *{pronoun}*{after}"
    # Remove the spaces that the tokenized text has before punctuation.
    for mark, closed in ((" n't", "n't"), (" )", ")"), ("( ", "("), ('" ', '"'), (' "', '"')):
        passage = passage.replace(mark, closed)
    passage = re.sub(r" (['.,])", r"\1", passage)
    return {"passage": passage, "pronoun": pronoun, "noun": spans["span1_text"], "gold": gold}
