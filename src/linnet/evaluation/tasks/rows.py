"""Rows of the published sets, as their data sets have them, brought into the plain form that tasks read.

A plain row has `choices` and `gold`, or `labels`, with what the task's context names (`question`, `context`); or
`contexts`, `continuation` and `gold`. What the LM Evaluation Harness does to a row before it is asked is done here.
"""

import re
from collections.abc import Callable, Sequence
from typing import Any

Row = dict[str, Any]


def normalize_row(task: str, row: Row) -> Row:
    """The plain form of a row of a known task; a row of another task, or a plain one, as it is."""
    known = NORMALIZERS.get(task)
    return row if known is None else known(row)


def _arc(row: Row) -> Row:
    """ARC's and OpenBookQA's: choices with their letters, and the letter of the answer."""
    if "answerKey" not in row:
        return row
    choices = row["choices"]
    question = row.get("question", row.get("question_stem"))
    gold = choices["label"].index(row["answerKey"].lstrip())
    return {"question": question, "choices": choices["text"], "gold": gold}


def _hellaswag(row: Row) -> Row:
    """The set's own row, or a plain one; in both what has begun to be said of the ending begins with a capital."""
    if "ctx_a" not in row:
        return {**row, "context": _capitalized_ending(row["context"])}
    begun = f"{row['ctx_a']} {row['ctx_b'].capitalize()}"
    context = _without_marks(f"{row['activity_label']}: {begun}")
    return {"context": context, "choices": list(map(_without_marks, row["endings"])), "gold": int(row["label"])}


def _capitalized_ending(context: str) -> str:
    """The words behind the last sentence, where they begin in lower case: they are the set's `ctx_b`."""
    found = re.search(r"(?<=[.!?:] )[a-z][^.!?]*$", context)
    return context if found is None else context[: found.start()] + found[0].capitalize()


def _without_marks(text: str) -> str:
    """WikiHow's marks in brackets go, a title's becomes a full stop."""
    text = text.strip().replace(" [title]", ". ")
    return re.sub(r"\[.*?\]", "", text).replace("  ", " ")


def _piqa(row: Row) -> Row:
    if "goal" not in row:
        return row
    return {"question": row["goal"], "choices": [row["sol1"], row["sol2"]], "gold": int(row["label"])}


def _siqa(row: Row) -> Row:
    if "answerA" not in row:
        return row
    choices = [row[f"answer{letter}"] for letter in "ABC"]
    return {"context": row["context"], "question": row["question"], "choices": choices, "gold": int(row["label"]) - 1}


def _winogrande(row: Row) -> Row:
    """The sentence up to the gap with each option, and what follows it."""
    if "sentence" not in row:
        return row
    before, _, after = row["sentence"].partition("_")
    contexts = [before + row[option] for option in ("option1", "option2")]
    return {"contexts": contexts, "continuation": after.strip(), "gold": int(row["answer"]) - 1}


def _truthfulqa(row: Row) -> Row:
    if "mc2_targets" not in row:
        return row
    targets = row["mc2_targets"]
    return {"question": row["question"], "choices": targets["choices"], "labels": targets["labels"]}


def _boolq(row: Row) -> Row:
    return row if "gold" in row else {**row, "gold": _label(row, (False, True))}


def _wic(row: Row) -> Row:
    """The word as the first sentence has it."""
    if "start1" not in row:
        return row
    word = row["sentence1"][row["start1"] : row["end1"]]
    return {**row, "word": word, "gold": _label(row, (False, True))}


def _cb(row: Row) -> Row:
    return row if "gold" in row else {**row, "gold": _label(row, ("entailment", "contradiction", "neutral"))}


def _rte(row: Row) -> Row:
    """SuperGLUE's, or GLUE's, which calls its two texts sentences."""
    if "gold" in row:
        return row
    premise, hypothesis = (row.get(name, row.get(glue)) for name, glue in RTE_TEXTS)
    gold = _label(row, ("entailment", "not_entailment"))
    return {"premise": premise, "hypothesis": hypothesis, "gold": gold}


def _wsc(row: Row) -> Row:
    """The passage with stars around the pronoun, whose place is counted in words."""
    if "text" not in row:
        return row
    spans = row.get("target", row)
    pronoun = spans["span2_text"]
    before = " ".join(row["text"].split()[: spans["span2_index"]])
    after = row["text"][len(before) + len(pronoun) + 1 :]
    passage = _without_gaps(f"{before} *{pronoun}*{after}")
    return {
        "passage": passage,
        "pronoun": pronoun,
        "noun": spans["span1_text"],
        "gold": _label(row, (False, True)),
    }


def _without_gaps(text: str) -> str:
    """Spaces go that a tokenized text has before its marks."""
    for mark, close in ((" n't", "n't"), (" )", ")"), ("( ", "("), ('" ', '"'), (' "', '"')):
        text = text.replace(mark, close)
    return re.sub(r" (['.,])", r"\1", text)


def _pubmedqa(row: Row) -> Row:
    if "CONTEXTS" not in row:
        return row
    gold = ("yes", "no", "maybe").index(row["final_decision"])
    return {"abstract": "\n".join(row["CONTEXTS"]), "question": row["QUESTION"], "gold": gold}


def _logiqa(row: Row) -> Row:
    """The choices stand in the context too, each behind a letter."""
    gold = row["gold"] if "gold" in row else "abcd".index(row["label"].strip())
    choices = row["choices"] if "choices" in row else row["options"]
    listed = "\n".join(f"{letter}. {choice}" for letter, choice in zip("ABCD", choices, strict=False))
    return {"context": row["context"], "question": row["question"], "listed": listed, "choices": choices, "gold": gold}


RTE_TEXTS = (("premise", "sentence1"), ("hypothesis", "sentence2"))


def _label(row: Row, names: Sequence[bool | str]) -> int:
    """The number of a row's label, which is that number already, or one of the names."""
    label = row["label"]
    return label if isinstance(label, int) and not isinstance(label, bool) else names.index(label)


NORMALIZERS: dict[str, Callable[[Row], Row]] = {
    "arc_challenge": _arc,
    "arc_easy": _arc,
    "hellaswag": _hellaswag,
    "openbookqa": _arc,
    "piqa": _piqa,
    "siqa": _siqa,
    "winogrande": _winogrande,
    "truthfulqa_mc2": _truthfulqa,
    "boolq": _boolq,
    "wic": _wic,
    "cb": _cb,
    "wsc": _wsc,
    "rte": _rte,
    "pubmedqa": _pubmedqa,
    "logiqa": _logiqa,
}
