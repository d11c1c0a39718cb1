"""Every example of the documentation works: the blocks of its pages, and the examples of the help texts."""

import re
import shlex
from pathlib import Path
from typing import Any

import pytest
from documented_examples import LANGUAGES, PAGES, ROOT, Block, blocks, executable, help_examples
from example_runner import run_block, run_command
from example_settings import PARSED_ONLY, SLOW, name_of
from example_workspace import Workspace
from typer.core import TyperGroup

from linnet.cli.main import VERBS, main

HELP = list(help_examples())
SHELL = [
    (block, command)
    for page in PAGES
    for block in blocks(page)
    if block.language == "bash"
    for command in block.commands
]
COMMANDS = [*HELP, *(command for _, command in SHELL)]
TOLD = [page for page in PAGES if executable(page)]


def is_directive(block: Block) -> bool:
    """Of the site: ```{toctree}."""
    return bool(block.language and block.language.startswith("{"))


def slow(command: str) -> bool:
    return name_of(command.split()[1:]) in SLOW


@pytest.mark.parametrize("page", PAGES, ids=lambda page: str(page.relative_to(ROOT)))
def test_every_block_says_what_it_is(page: Path):
    told = {block.origin: block.language for block in blocks(page) if not is_directive(block)}
    assert {origin: language for origin, language in told.items() if language not in LANGUAGES} == {}


@pytest.mark.parametrize("page", PAGES, ids=lambda page: str(page.relative_to(ROOT)))
def test_commands_stand_in_shell_blocks(page: Path):
    hidden = [b.origin for b in blocks(page) if b.language == "text" and re.search("^(linnet|make) ", b.text, re.M)]
    assert hidden == []


def test_every_verb_has_an_example():
    assert {command.split()[1] for command in HELP} == VERBS.keys()


# An example that ends with --help is carried out while it is parsed, so it needs its folders: it is run below.
PARSED = [c for c in dict.fromkeys(COMMANDS) if c.startswith("linnet") and not c.endswith("--help")]


@pytest.mark.parametrize("command", PARSED)
def test_options_and_values_of_examples_exist(command: str, monkeypatch: pytest.MonkeyPatch):
    monkeypatch.setattr(TyperGroup.context_class, "invoke", lambda *given, **named: None)
    assert main(shlex.split(command)[1:]) == 0


@pytest.mark.parametrize("command", [pytest.param(c, marks=pytest.mark.slow) if slow(c) else c for c in HELP])
def test_examples_of_the_help_work(command: str, workspace: Workspace, elsewhere: Path):
    run_command(command, workspace)


@pytest.mark.slow
@pytest.mark.parametrize("page", TOLD, ids=lambda page: str(page.relative_to(ROOT)))
def test_blocks_of_the_pages_work(page: Path, workspace: Workspace, elsewhere: Path):
    names: dict[str, Any] = {}
    for block in executable(page):
        run_block(block, workspace, names)


def test_what_is_not_run_is_still_there():
    assert [beginning for beginning in PARSED_ONLY if not any(c.startswith(beginning) for c in COMMANDS)] == []


def test_targets_of_make_are_those_that_there_are():
    targets = re.findall(r"^([a-z-]+):.*##", (ROOT / "Makefile").read_text(), flags=re.MULTILINE)
    named = [command.split()[1] for _, command in SHELL if command.startswith("make ")]
    assert named and set(named) <= set(targets)
