import json
from pathlib import Path

import pytest

from linnet.core.errors import UserError
from linnet.data.prepare import prepare_texts
from linnet.evaluation.tasks.contamination import WordRunIndex, documents_of, overlaps_with
from linnet.evaluation.tasks.items import TaskItem
from linnet.evaluation.tasks.suite import SuiteTask

WORDS = [f"word{n}" for n in range(20)]


def _task(*questions: str) -> SuiteTask:
    return SuiteTask("t", "acc", [TaskItem.of_choices(question, ["yes", "no"], [1, 0]) for question in questions])


def _shared(question: str, *texts: str) -> bool:
    runs = WordRunIndex([_task(question)])
    for text in texts:
        runs.read(text)
    (overlap,) = runs.overlaps()
    return bool(overlap.shared_N[0])


def test_thirteen_words_in_a_row_are_shared_and_twelve_are_not():
    question = " ".join(WORDS)
    assert _shared(question, f"before {' '.join(WORDS[3:16])} after")
    assert not _shared(question, f"before {' '.join(WORDS[3:15])} after")
    assert not _shared(question, " ".join(WORDS[:7]), " ".join(WORDS[7:]).replace("word10", "other"))


def test_case_and_punctuation_do_not_matter():
    assert _shared(" ".join(WORDS), ", ".join(WORDS[:13]).upper() + "!")


def test_an_item_of_few_words_counts_as_a_whole():
    nine = " ".join(WORDS[:9])  # ten with the choice
    assert _shared(nine, f"so {nine} yes it was") and _shared(nine, f"so {nine} no")
    assert not _shared(nine, f"so {nine} but") and not _shared(nine, " ".join([*WORDS[1:9], "yes"]))
    runs = WordRunIndex([_task(nine, "word0 word1")])
    runs.read("word0 word1 yes")
    (overlap,) = runs.overlaps()
    assert overlap.short_N.tolist() == [False, True] and overlap.shared_N.tolist() == [False, False]


def test_the_template_of_a_task_is_no_overlap():
    frame = " ".join(WORDS)
    item = TaskItem.of_choices(f"{frame} {{}}", ["yes", "no"], [1, 0], own="what is it")
    runs = WordRunIndex([SuiteTask("t", "acc", [item])])
    runs.read(frame)
    assert not runs.overlaps()[0].shared_N.any()


def test_texts_come_from_files_folders_and_prepared_data(tmp_path: Path):
    texts = ["a first document of some words here", "a second one, which is " + " ".join(WORDS)]
    (tmp_path / "deep").mkdir()
    (tmp_path / "deep" / "a.jsonl").write_text("".join(json.dumps({"text": text}) + "\n" for text in texts))
    (tmp_path / "b.txt").write_text("<|endoftext|>".join(texts))
    (tmp_path / "other.bin").write_bytes(b"\xff")
    assert list(documents_of(tmp_path)) == texts * 2
    assert list(documents_of(tmp_path / "b.txt")) == texts
    prepare_texts(texts, ["held out"], tmp_path / "data", tokenizer="bytes")
    assert list(documents_of(tmp_path / "data")) == texts
    (overlap,) = overlaps_with([_task(" ".join(WORDS), " ".join(WORDS[::-1]))], tmp_path / "data")
    assert overlap.shared_N.tolist() == [True, False]
    (tmp_path / "none").mkdir()
    with pytest.raises(UserError, match="a folder without text"):
        list(documents_of(tmp_path / "none"))
