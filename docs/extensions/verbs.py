"""The directive `verbs`: the help of every command, as `--help-all` prints it."""

from collections.abc import Iterator

from docutils import nodes
from sphinx.application import Sphinx
from sphinx.util.docutils import SphinxDirective
from typer.testing import CliRunner

from linnet.cli.main import VERBS, app, load_verb

WIDTH = 92
"""What a page has room for."""


def commands() -> Iterator[list[str]]:
    """The words of every command: `[]` for linnet itself, `["inspect"]`, `["inspect", "caches"]`, ..."""
    yield []
    for verb in VERBS:
        yield [verb]
        yield from ([verb, inner] for inner in getattr(load_verb(verb), "commands", {}))


def help_text(words: list[str]) -> str:
    """What `linnet WORDS --help-all` prints; linnet itself has `--help` alone."""
    option = "--help-all" if words else "--help"
    shown = CliRunner().invoke(app, [*words, option], prog_name="linnet", terminal_width=WIDTH)
    assert shown.exit_code == 0, shown.output
    return shown.output.strip()


class Verbs(SphinxDirective):
    """One section for each command."""

    def run(self) -> list[nodes.Node]:
        """A title, and the text of the help."""
        found: list[nodes.Node] = []
        for words in commands():
            title = " ".join(["linnet", *words])
            section = nodes.section("", nodes.title("", title), nodes.literal_block("", help_text(words)))
            section["ids"] = [nodes.make_id(title)]
            section[1]["language"] = "none"
            found.append(section)
        return found


def setup(app: Sphinx) -> dict[str, bool]:
    """Called by Sphinx."""
    app.add_directive("verbs", Verbs)
    return {"parallel_read_safe": True}
