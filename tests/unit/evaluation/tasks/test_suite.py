import json
import re
from pathlib import Path

import pytest
from set_rows import ROWS

from linnet.core.errors import UserError
from linnet.evaluation.tasks.suite import (
    SuiteSpec,
    load_minimal_pairs,
    load_suite,
    load_task_file,
    suite_names,
    suite_spec,
)

PLDR, MERINO = suite_spec("pldr"), suite_spec("merino")


def _file(path: Path, *rows: object) -> Path:
    path.write_text("".join(json.dumps(row) + "\n" for row in rows))
    return path


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    for name, rows in ROWS.items():
        _file(tmp_path / f"{name}.jsonl", *rows)
    return tmp_path


def test_the_suite_of_the_papers(folder: Path):
    suite = load_suite(PLDR, folder)
    assert [task.name for task in suite.tasks] == [task.name for task in PLDR.tasks]
    assert {task.name: task.score for task in suite.tasks} == {
        task.name: "mc2" if task.name == "truthfulqa_mc2" else "acc_bytes" for task in PLDR.tasks
    }
    without, with_truthful = suite.averages["Avg-1"], suite.averages["Avg-2"]
    assert len(without) == 7 and with_truthful == [*without, "truthfulqa_mc2"]
    assert [len(task.items) for task in load_suite(PLDR, folder, limit=1).tasks] == [1] * 8


def test_every_suite_that_is_shipped_can_be_read():
    assert "pldr" in suite_names() and all(suite_spec(name).tasks for name in suite_names())


def test_examples_come_from_a_file_of_their_own(folder: Path):
    for name, rows in ROWS.items():
        _file(folder / f"{name}_train.jsonl", *rows)
    tasks = {task.name: task for task in load_suite(PLDR, folder, shots=1).tasks}
    context, _ = tasks["winogrande"].items[0].pairs[1]
    assert context.startswith("Ann gave Eve the book because Ann had read it.\n\nAnn gave Eve the book because Eve")
    assert "swallow" not in tasks["truthfulqa_mc2"].items[0].pairs[0][0].split("Q: What happens")[0]
    assert (tasks["piqa"].shots, tasks["piqa"].shots_from) == (1, "piqa_train.jsonl")
    assert tasks["truthfulqa_mc2"].shots_from is None
    with pytest.raises(UserError, match=r"piqa_train.jsonl: 1 rows; expected at least 2"):
        _file(folder / "openbookqa_train.jsonl", *ROWS["openbookqa"] * 2)
        load_suite(PLDR, folder, shots=2)


def test_without_such_a_file_the_first_other_items_are_examples(tmp_path: Path):
    rows = [{"passage": f"P{n}.", "question": f"is it {n}", "label": n % 2} for n in range(4)]
    _file(tmp_path / "boolq.jsonl", *rows)
    asked = [f"P{n}.\nQuestion: is it {n}?\nAnswer:" for n in range(4)]
    (task,) = load_suite(MERINO, tmp_path, limit=3).tasks
    contexts = [item.pairs[0][0] for item in task.items]
    behind_first = [f"{asked[0]} no\n\n{asked[n]}" for n in (1, 2)]
    assert contexts == [f"{asked[1]} yes\n\n{asked[0]}", *behind_first]
    assert (task.shots, task.shots_from) == (1, "boolq.jsonl")
    (task,) = load_suite(MERINO, tmp_path, shots=2).tasks
    assert task.items[1].pairs[0][0] == f"{asked[0]} no\n\n{asked[2]} no\n\n{asked[1]}"
    with pytest.raises(UserError, match=r"boolq.jsonl: 4 rows; expected at least 5 for 4 examples"):
        load_suite(MERINO, tmp_path, shots=4)


def test_existing_tasks_are_loaded_and_missing_files_are_named(tmp_path: Path):
    names = [task.name for task in PLDR.tasks if task.name not in ("piqa", "truthfulqa_mc2")]
    for name in names:
        _file(tmp_path / f"{name}.jsonl", *ROWS[name])
    suite = load_suite(PLDR, tmp_path)
    assert [task.name for task in suite.tasks] == names
    assert suite.missing == ["piqa.jsonl", "truthfulqa_mc2.jsonl"] and suite.averages == {}
    _file(tmp_path / "piqa.jsonl", *ROWS["piqa"])
    assert list(load_suite(PLDR, tmp_path).averages) == ["Avg-1"]


def test_a_task_file_of_every_form(tmp_path: Path):
    rows = [
        {"context": "One and one is", "choices": ["two", "three"], "gold": 0},
        {"contexts": ["A bird", "A stone"], "continuation": "can fly.", "gold": 0},
    ]
    (task,) = load_task_file(_file(tmp_path / "mine.jsonl", *rows)).tasks
    assert (task.name, task.score) == ("mine", "acc_bytes")
    assert task.items[0].pairs == (("One and one is", " two"), ("One and one is", " three"))
    assert task.items[1].pairs == (("A bird", " can fly."), ("A stone", " can fly."))
    rows = [{"context": "Even:", "choices": ["1", "2", "4"], "labels": [0, 1, 1]}]
    assert load_task_file(_file(tmp_path / "several.jsonl", *rows)).tasks[0].score == "mc2"
    _file(tmp_path / "several_train.jsonl", *rows)
    (task,) = load_task_file(tmp_path / "several.jsonl", shots=1).tasks
    assert task.items[0].pairs[0] == ("Even: 2\n\nEven:", " 1")


@pytest.mark.parametrize(
    "row",
    [
        {"question": "Even?", "choices": ["1", "2", "4x"], "answer": 2},
        {"question": "Even?", "choices": ["1", "2", "4x"], "answer": "2"},
        {"question": "Even?", "choices": ["one", "two", "four"], "label": "2"},
        {"context": "", "question": "Even?", "choices": ["one", "two", "four"], "answer": 2},
        {"context": "Even?", "question": "of the set", "choices": ["one", "two", "four"], "gold": 2},
        {"question": "Even?", "options": ["one", "two", "four"], "answer": "C"},
        {"question": "Even?", "choices": ["one", "two", "four"], "answer": "four"},
        {"context": "Even?", "endings": ["one", "two", "four"], "label": 2},
        {"question_stem": "Even?", "choices": {"text": ["1", "2", "4"], "label": ["P", "Q", "R"]}, "answerKey": "R"},
    ],
)
def test_a_task_file_takes_the_names_of_published_sets(tmp_path: Path, row: dict[str, object]):
    (task,) = load_task_file(_file(tmp_path / "mine.jsonl", row)).tasks
    assert task.items[0].pairs[0][0] == "Even?" and len(task.items[0].choices) == 3
    right = 1 if row.get("choices") == ["1", "2", "4x"] and row.get("answer") == "2" else 2  # the text of a choice
    assert task.items[0].labels == tuple(int(number == right) for number in range(3))


def test_a_question_follows_its_context(tmp_path: Path):
    row = {"context": "Two birds sang.", "question": "How many?", "choices": ["two", "three"], "answer": "two"}
    (task,) = load_task_file(_file(tmp_path / "mine.jsonl", row)).tasks
    assert task.items[0].pairs[0] == ("Two birds sang. How many?", " two")
    accepted = r"expected a number from 0 to 1, one of A, B, or the text of a choice"
    for answer in ("Z", "1"):  # of a text that is a number nobody knows whether it counts from 0
        with pytest.raises(UserError, match=rf"mine\.jsonl, line 1: answer: '{answer}'; {accepted}"):
            load_task_file(_file(tmp_path / "mine.jsonl", {**row, "answer": answer}))
    with pytest.raises(UserError, match=r"line 1: answer: 'B' is the answer in 2 ways"):
        load_task_file(_file(tmp_path / "mine.jsonl", {**row, "choices": ["B", "A"], "answer": "B"}))


def test_minimal_pairs_are_split_by_phenomenon(tmp_path: Path):
    pairs = [{"sentence_good": f"Birds sing {n}.", "sentence_bad": f"Birds sings {n}."} for n in range(3)]
    (task,) = load_minimal_pairs(_file(tmp_path / "own.jsonl", *pairs)).tasks
    assert (task.name, task.score) == ("own", "acc")
    assert task.items[0].pairs == (("", " Birds sing 0."), ("", " Birds sings 0."))
    parted = [{**pair, "UID": f"kind{n % 2}"} for n, pair in enumerate(pairs)]
    suite = load_minimal_pairs(_file(tmp_path / "parted.jsonl", *parted), limit=1)
    assert [(task.name, len(task.items)) for task in suite.tasks] == [("kind0", 1), ("kind1", 1)]
    assert suite.averages == {"mean": ["kind0", "kind1"]}
    with pytest.raises(UserError, match=r"mean\.jsonl: UID: mean: is the name of the average of all"):
        load_minimal_pairs(_file(tmp_path / "mean.jsonl", *parted, {**pairs[0], "UID": "mean"}))


ROW = {"context": "c", "choices": ["a", "b"], "gold": 0}


@pytest.mark.parametrize(
    ("row", "problem"),
    [
        ([], "expected a JSON object"),
        ({**ROW, "context": "c\ud800"}, "'c\\ud800': half of a surrogate pair"),
        ({**ROW, "context": "c\udc80"}, "'c\\udc80': half of a surrogate pair"),
        ({"choices": ["a", "b"], "gold": 0}, "no field 'context'; this line has 'choices', 'gold'"),
        ({**ROW, "context": 3}, "context: 3: expected a text"),
        ({**ROW, "choices": ["a"]}, 'choices: ["a"]: expected a list of at least two texts'),
        ({**ROW, "choices": ["a", ""]}, 'choices: ["a", ""]: expected a list of at least two texts'),
        ({**ROW, "gold": 2}, "gold: 2: expected a number from 0 to 1"),
        ({**ROW, "gold": True}, "gold: true: expected a number from 0 to 1"),
        ({**ROW, "labels": [1]}, "labels: [1]: expected 2 numbers, each 0 or 1"),
        ({**ROW, "labels": [0, 0]}, "labels: [0, 0]: expected a 1 for at least one right choice"),
    ],
)
def test_a_mistake_in_a_row_is_named(tmp_path: Path, row: object, problem: str):
    path = _file(tmp_path / "mine.jsonl", ROW, row)
    with pytest.raises(UserError, match=re.escape(f"{path}, line 2: {problem}")):
        load_task_file(path)


def test_other_mistakes_are_named_too(tmp_path: Path):
    (tmp_path / "mine.jsonl").write_text("{\n")
    with pytest.raises(UserError, match="line 1: not valid JSON"):
        load_task_file(tmp_path / "mine.jsonl")
    (tmp_path / "mine.jsonl").write_text("\n")
    with pytest.raises(UserError, match="no rows"):
        load_task_file(tmp_path / "mine.jsonl")
    with pytest.raises(UserError, match="line 1: no field 'sentence_bad'"):
        load_minimal_pairs(_file(tmp_path / "pairs.jsonl", {"sentence_good": "a"}))
    broken = {"question": "x", "choices": {"text": ["a", "b"], "label": ["A", "B"]}, "answerKey": "Z"}
    only = PLDR.model_copy(update={"tasks": [task for task in PLDR.tasks if task.name == "arc_easy"]})
    _file(tmp_path / "arc_easy.jsonl", broken)
    with pytest.raises(UserError, match="line 1: not a row of arc_easy"):
        load_suite(only, tmp_path)
    with pytest.raises(UserError, match=r"averages\.mean: .*expected some of a"):
        SuiteSpec.parse({"name": "s", "tasks": [{"name": "a", "score": "acc"}], "averages": {"mean": ["b"]}}, "s")
