"""What is asked of a row, letter by letter: what the LM Evaluation Harness asks of it, and what its scores are."""

import json
import random
from pathlib import Path

import pytest
from asked_by_harness import arguments_of, harness_task
from set_rows import ROWS, YAML_FILES

from linnet.evaluation.tasks.items import TaskItem, parse_item
from linnet.evaluation.tasks.suite import load_suite, suite_spec

PLDR, MERINO = suite_spec("pldr"), suite_spec("merino")
TASKS = {task.name: task for task in (*PLDR.tasks, *MERINO.tasks)}
FRAMES = {name: task.context for name, task in TASKS.items()}


def items_of(task: str) -> list[TaskItem]:
    return [parse_item(task, FRAMES[task], row, "here", TASKS[task].choices) for row in ROWS[task]]


def test_the_suite_of_merino_is_the_twelve_of_its_appendix():
    names = "hellaswag winogrande arc_easy arc_challenge openbookqa boolq wic cb wsc rte pubmedqa logiqa"
    twelve = names.split()
    assert [task.name for task in MERINO.tasks] == twelve and MERINO.shots == 1
    assert MERINO.averages == {"mean": twelve}


@pytest.mark.parametrize("task", FRAMES)
def test_prompts_are_those_of_the_harness(task: str):
    pytest.importorskip("lm_eval")
    yaml_name, split = YAML_FILES[task]
    asked = arguments_of(harness_task(yaml_name, split, ROWS[task]))
    assert [list(item.pairs) for item in items_of(task)] == asked


@pytest.mark.parametrize("task", FRAMES)
def test_scores_are_those_of_the_harness(task: str):
    pytest.importorskip("lm_eval")
    yaml_name, split = YAML_FILES[task]
    several = task == "truthfulqa_mc2"
    alone = several or task in ("winogrande", "boolq", "wic", "cb", "wsc", "rte")
    names = ["acc"] if alone else ["acc", "acc_norm", "acc_bytes"]
    theirs = harness_task(yaml_name, split, ROWS[task], metric_list=[{"metric": name} for name in names])
    draw = random.Random(7)
    for document, item in zip(theirs.eval_docs, items_of(task), strict=True):
        for _ in range(20):
            found = [draw.uniform(-9, -1) * len(text) ** 0.5 for text in item.choices]
            expected = theirs.process_results(document, [(value, False) for value in found])
            ours = {name: item.score("mc2" if several else name, found) for name in names}
            assert ours == pytest.approx({name: expected[name] for name in names}, rel=1e-12)


@pytest.mark.parametrize("task", [task.name for task in MERINO.tasks])
def test_one_example_before_an_item_stands_as_in_the_harness(task: str, tmp_path: Path):
    pytest.importorskip("lm_eval")
    from lm_eval.api.samplers import ContextSampler

    class First(ContextSampler):
        def sample(self, n: int, *_: object, **__: object) -> object:
            return self.df[:n]

    theirs = harness_task(*YAML_FILES[task], ROWS[task])
    theirs.sampler = First(list(theirs.eval_docs))
    asked = arguments_of(theirs, shots=1)
    rows = "".join(json.dumps(row) + "\n" for row in ROWS[task])
    for name in (f"{task}.jsonl", f"{task}_train.jsonl"):
        (tmp_path / name).write_text(rows)
    (found,) = load_suite(MERINO, tmp_path).tasks
    assert [list(item.pairs) for item in found.items] == asked


def test_plain_rows_ask_the_same_as_the_sets_own():
    plain = {
        "arc_easy": {"question": "What does a plant need?", "choices": ["light", "noise", "sand"], "gold": 0},
        "hellaswag": {
            "context": "Roof repair: A man sits on a roof. he and Ann",
            "choices": ["pull up tiles slowly.", "fly away.", "sing.", "eat the naïve cake."],
            "gold": 0,
        },
        "winogrande": {
            "contexts": ["Ann gave Eve the book because Ann", "Ann gave Eve the book because Eve"],
            "continuation": "had read it.",
            "gold": 0,
        },
        "wic": {
            "sentence1": "She runs a shop.",
            "sentence2": "He ran to the sea.",
            "word": "runs",
            "gold": 0,
        },
        "cb": {"premise": "B: I doubt it rained.", "hypothesis": "it rained", "gold": 2},
        "logiqa": {
            "context": "All birds lay eggs. Tom is a bird.",
            "question": "What follows?",
            "choices": ["Tom flies.", "Tom sings.", "Tom lays eggs.", "None."],
            "gold": 2,
        },
        "truthfulqa_mc2": {
            "question": "What happens if you swallow gum?",
            "choices": ["Nothing much.", "It leaves you.", "It stays for years."],
            "labels": [1, 1, 0],
        },
    }
    for task, row in plain.items():
        of_set = items_of(task)[1 if task == "arc_easy" else 0]
        assert parse_item(task, FRAMES[task], row, "here", TASKS[task].choices) == of_set


@pytest.mark.parametrize(
    ("task", "row"),
    [
        ("boolq", ROWS["boolq"][0] | {"label": False}),
        ("cb", ROWS["cb"][0] | {"label": "neutral"}),
        ("rte", {"sentence1": "Rome lies on the Tiber.", "sentence2": "The Tiber flows through Rome.", "label": 0}),
        ("rte", ROWS["rte"][0] | {"label": "entailment"}),
        ("wsc", {"text": ROWS["wsc"][0]["text"], "target": ROWS["wsc"][0], "label": False}),
    ],
)
def test_the_files_of_superglue_say_the_same_in_other_words(task: str, row: dict[str, object]):
    assert parse_item(task, FRAMES[task], row, "here", TASKS[task].choices) == items_of(task)[0]


def test_a_sentence_that_is_whole_keeps_its_letters():
    for context in ("Home: Wipe it. Use a cloth.", "Home: What now? Ann", "no sentence before"):
        row = {"context": context, "choices": ["a", "b"], "gold": 0}
        assert parse_item("hellaswag", FRAMES["hellaswag"], row, "here").pairs[0][0] == context
