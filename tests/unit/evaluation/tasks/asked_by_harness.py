"""Tasks of the LM Evaluation Harness over rows at hand, with nothing downloaded."""

import json
from collections.abc import Sequence
from pathlib import Path
from typing import Any

WORDS = ["a", "bird", "sang", "to", "the", "tree", "and", "the", "old", "tree", "was", "glad", "of", "it"]
SENTENCES = [" ".join(WORDS[start:] + WORDS[:start]) for start in range(len(WORDS))]
QUESTIONS = [
    {
        "question": f"{sentence}, or not {number}?",
        "choices": ["the tree", "a bird sang", "gläd", "of it and it"],
        "gold": number % 4,
    }
    for number, sentence in enumerate(SENTENCES)
]


def question_task(folder: Path, output_type: str, measures: Sequence[str], **more: object) -> dict[str, object]:
    """The YAML of a task over `QUESTIONS`, as plain data; its rows come from a file that is written to `folder`."""
    (folder / "rows.jsonl").write_text("".join(json.dumps(row) + "\n" for row in QUESTIONS))
    plain = {
        "task": f"own_{output_type}",
        "dataset_path": "json",
        "dataset_kwargs": {"data_files": {"test": str(folder / "rows.jsonl")}, "cache_dir": str(folder / "cache")},
        "output_type": output_type,
        "test_split": "test",
        "doc_to_text": "Question: {{question}}\nAnswer:",
        "metric_list": [{"metric": name} for name in measures],
    }
    return plain | more


def harness_scores(model: object, task: dict[str, object], **settings: Any) -> tuple[dict[str, float], list[object]]:
    """The harness's measures, and what the model answered each row. settings: those of `lm_eval.simple_evaluate`."""
    import lm_eval
    from lm_eval.tasks import TaskManager

    settings |= {"bootstrap_iters": 0, "verbosity": "ERROR", "task_manager": TaskManager(include_defaults=False)}
    found = lm_eval.simple_evaluate(model, tasks=[dict(task)], **settings)
    name = task["task"]
    answers = [sample["filtered_resps"] for sample in found["samples"][name]]
    return {key: value for key, value in found["results"][name].items() if isinstance(value, float)}, answers


def harness_task(
    yaml_name: str, split: str, rows: list[dict[str, Any]], own: dict[str, Any] | None = None, **changes: Any
) -> Any:
    """The harness's own task of a YAML file of its package, over these rows; or one of this name that is `own`."""
    import datasets
    import lm_eval.tasks
    from lm_eval.api.task import ConfigurableTask
    from lm_eval.tasks._yaml_loader import load_yaml

    if own is None:
        config = load_yaml(Path(lm_eval.tasks.__file__).parent / yaml_name, resolve_func=True)
    else:
        config = {"task": yaml_name, "test_split": split, **own}
    for name in ("training_split", "validation_split", "test_split"):
        config[name] = split if config.get(name) == split else None
    config["custom_dataset"] = lambda **_: {split: datasets.Dataset.from_list(rows)}
    return ConfigurableTask(config={**config, **changes})


def arguments_of(task: Any, shots: int = 0) -> list[list[tuple[str, str]]]:
    """Of each row, what the harness asks: pairs of context and continuation."""
    task.set_config("num_fewshot", shots)
    task.build_all_requests()
    rows: dict[int, list[tuple[str, str]]] = {}
    for instance in task.instances:
        rows.setdefault(instance.doc_id, []).append(instance.args)
    return list(rows.values())
