"""How the examples are made small, and which are not run."""

from collections.abc import Collection
from functools import cache

from linnet.cli.main import load_verb

TRAINING = """
    --set training.steps=2 --set training.batch_size=2 --set training.gradient_accumulation=1 --set
    training.context_length=16
    --set training.schedule.warmup_steps=1 --set training.schedule.warmup_share=null
    --set training.evaluate.every=1 --set training.evaluate.tokens=64 --set training.checkpoint.every=2
    --set training.threads=1
"""
SEARCH = "--set search.population=16 --set search.parents=8 --set search.iterations=2 --tokens 16"

SMALL = {
    "train": TRAINING,
    **{
        f"train {files}": f"{TRAINING} --set training.context_length=128"
        for files in ("--chat", "--preferences", "--prompts", "data/chat", "data/prompts")
    },
    "train --sweep": f"{TRAINING} --sweep-steps 2",
    "compare": TRAINING,
    "compare experiments/scaling/ladder.yaml": "--set training.batch_size=1 --set training.evaluate.tokens=64",
    "demo": "--steps 2 --stories 60",
    "design": SEARCH,
    "design --max-latency": f"{SEARCH} --max-latency 10s --set block.width=[192,256] --set block.repeat=[1,2]",
    "design study": "--shapes 6 --bands 2 --seeds 1 --steps 2",
    "design validate": "--bootstrap 20",
    "plan fit": "--bootstrap 20",
    "evaluate --shots": "--limit 2 --shots 0,1",
    "evaluate instructions": "--limit 1",
    "evaluate --limit": "--limit 2",
    "generate": "--max-tokens 8",
    "tokenizer compare --flops": "--flops 3e9",
    "vectors train": "--epochs 1 --width 4 --min-count 2",
    "inspect caches": "--tokens 8",
    "inspect contexts": "--windows 2",
    "inspect positions": "--windows 2 --times 2",
}
"""By command, or command and one of its words, what is put behind an example. It stands last, so it counts."""

DESCRIBED = ("--model", "--config", "--from", "--recipe")
"""Without any of these `train` goes on with the run that lies in its --out."""

LONGER = "--set training.steps=4"

TRAINS = ("train", "compare", "design study")
"""Their examples are also started as they stand, and stopped before the first step: what is written has to be right."""

SLOW = ("train", "compare", "demo", "design", "design study", "plan", "plan fit")
"""Commands whose examples take seconds: run by `make test-slow`."""

PARSED_ONLY = {
    "make ": "runs pip, the whole demo, or these tests; the targets are checked",
    "linnet plan fit runs/ladder": "runs of few steps determine no law, and the ladder takes half an hour",
    "linnet compare experiments/scaling/recall.yaml": "its runs set their steps, minutes of them",
    "linnet compare experiments/atlas.yaml": "it reads real texts and trains for hours",
    "python experiments/answers.py": "it trains for hours; tests/experiments makes the page",
    "python experiments/atlas/page.py": "it reads the whole record; tests/experiments makes the page",
    "linnet plan task runs/recall-ladder": "a ladder of runs with few steps is all at chance",
    "linnet plan task ladder.csv": "its table is the user's; tests/cli/test_plan.py runs the command on one",
    "linnet evaluate runs/best runs/ted --tasks": "lm_eval is an extra; tests/golden/test_harness.py runs the command",
    "linnet export runs/ted --to onnx": "graphs take half a minute to export; tests/unit/interop/onnx runs them",
    "linnet export runs/stories --to onnx": "graphs take half a minute to export; tests/unit/interop/onnx runs them",
    "linnet generate onnx/": "graphs take half a minute to export; tests/unit/interop/onnx runs them",
    "linnet export runs/ted --to web": "the runtime comes from npm; tests/unit/interop/web runs the command",
    "linnet data mix": "it needs a mixture with its data; tests/cli/test_data.py runs it",
    "linnet data synthesise --from": "a model of a few steps writes no tasks; tests/cli/test_data.py runs it",
    "linnet serve": "it serves until a signal; tests/cli/test_serve.py runs it",
    "linnet chat": "it reads a conversation; tests/cli/test_serve.py runs it",
    "python -m linnet.serve.conformance": "it needs a server; tests/unit/serve runs it against one",
    "source .venv/bin/activate": "the tests run in an environment",
}
"""Commands that are not run, by how they begin, and why."""


def small(words: list[str]) -> list[str]:
    """What makes this command line small."""
    if goes_on(words):
        return LONGER.split() if {"--set", "--verify-resume"} & set(words) else []
    name = name_of(words)
    found = [SMALL[key] for key in (*(f"{name} {word}" for word in words), name) if key in SMALL]
    return found[0].split() if found else []


def goes_on(words: list[str]) -> bool:
    """Whether a command line trains what its output folder holds already."""
    return words[0] == "train" and not set(DESCRIBED) & set(words)


def name_of(words: list[str]) -> str:
    """The name of the command that a command line calls: `train`, `inspect caches`."""
    inner = _commands(words[0])
    return " ".join(words[:2] if len(words) > 1 and words[1] in inner else words[:1])


@cache  # hundreds of examples are named
def _commands(verb: str) -> Collection[str]:
    return getattr(load_verb(verb), "commands", {}).keys()
