"""Fuzzing: every option of every command, every field of every section, every document that a user writes.

Each result is a figure or a line; a number that would take for ever or all memory is refused.
"""

import random
from collections.abc import Iterator
from functools import cache, partial
from pathlib import Path
from typing import Any

from campaigns.campaign import Case, Ground, Subject, attacked, rotated
from campaigns.children import run
from campaigns.corruption import readable, written_by_linnet
from campaigns.nasty import VALUES, mutated
from campaigns.oracle import Finding, said
from linnet.cli.main import load_verb
from linnet.experiments.suite import Suite
from linnet.model.spec import ModelSpec
from linnet.training.spec import TrainingSpec

DOCUMENTS = 150
"""Variants of each document that a command reads."""

LIMIT_S = 15.0

WORDS = [value for value in VALUES if "\0" not in value]
"""What a command line can hold."""

OF_SPACES = (
    "search.population", "search.parents", "search.iterations", "search.seed", "search.mutations", "vocab_size",
    "block.width", "block.repeat", "block.hidden", "block.heads", "model.d_model",
)  # fmt: skip


def cases(ground: Ground, seed: int) -> Iterator[Case]:
    """All inputs, in an order that a sample of can be taken from."""
    fresh = [subject for subject in ground.subjects if subject.label.endswith("[fresh]")]
    return rotated([(subject, list(_of(ground, subject, seed))) for subject in fresh], seed)


def _of(ground: Ground, subject: Subject, seed: int) -> Iterator[Case]:
    words = list(subject.command.words)
    for number, changed in enumerate(_command_lines(subject, words, seed)):
        yield Case(f"{subject.label} | words {number} of seed {seed}", partial(_run, ground, subject, changed))
    for name in readable(subject):
        if not written_by_linnet(ground, subject, name):
            for number in range(DOCUMENTS):
                told = f"{subject.label} | {name} | variant {number} of seed {seed}"
                yield Case(told, partial(_run, ground, subject, words, name, told))


def _command_lines(subject: Subject, words: list[str], seed: int) -> Iterator[list[str]]:
    inner = len(subject.command.name.split())
    for parameter in _command(subject).params:
        for value in WORDS:
            if parameter.param_type_name == "argument":
                yield [*words[:inner], value, *words[inner + 1 :]]
            elif parameter.name == "set":
                continue
            elif getattr(parameter, "is_flag", False):
                yield [*words, parameter.opts[-1]]
                break
            else:
                yield [*words, parameter.opts[0], value]
    if any(parameter.opts[0] == "--set" for parameter in _command(subject).params):
        source = random.Random(f"{subject.label} {seed}")
        for field in fields(subject.command.name):
            for value in source.sample(WORDS, 12):
                yield [*words, "--set", f"{field}={value}"]
        yield from ([*words, "--set", value] for value in WORDS)


def _command(subject: Subject) -> Any:
    names = subject.command.name.split()
    command = load_verb(names[0])
    return command.commands[names[1]] if len(names) > 1 else command


@cache
def fields(command: str) -> tuple[str, ...]:
    """What `--set` of a command may name, and more."""
    model = _paths(ModelSpec.load("tiny-ted").model_dump(mode="json")) + _paths(
        ModelSpec.load("llama-110m").model_dump(mode="json")
    )
    if command.startswith("spec"):
        return tuple(dict.fromkeys(model))
    if command.startswith("design"):
        return OF_SPACES
    training = TrainingSpec.model_construct().model_dump(mode="json", warnings=False)
    listed = [f"training.{path}" for path in _paths(training)] + [f"model.{path}" for path in model]
    more = (
        ["data", "model", "training", "start_from", *Suite.model_fields]
        if command != "train"
        else ["data", "model", "training"]
    )
    return tuple(dict.fromkeys([*listed, *more, "training.steps", "training.tokens"]))


def _paths(value: Any, lead: str = "") -> list[str]:
    pairs = value.items() if isinstance(value, dict) else enumerate(value) if isinstance(value, list) else ()
    return [path for key, inner in pairs for path in (f"{lead}{key}", *_paths(inner, f"{lead}{key}."))]


def _run(ground: Ground, subject: Subject, words: list[str], name: str = "", told: str = "") -> list[Finding]:
    def attack(folder: Path, beside: Path) -> list[Finding]:
        if name:
            path = folder / name
            path.write_bytes(mutated(name, path.read_bytes(), random.Random(told)))
        outcome = run(words, folder, limit_s=max(LIMIT_S, 4 * subject.clean.seconds))
        return [
            Finding(finding.fault, f"{' '.join(map(repr, _new(subject, words)))} {finding.told}")
            for finding in said(outcome)
        ]

    return attacked(ground, subject.template, attack)


def _new(subject: Subject, words: list[str]) -> list[str]:
    return [word[:60] for word in words if word not in subject.command.words][-3:] or words[-2:]
