"""Tasks of the LM Evaluation Harness over rows at hand, with nothing downloaded."""

from pathlib import Path
from typing import Any


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
