"""How docstrings become reStructuredText: `docs/extensions/plain_docstrings.py`."""

from inspect import cleandoc

from docutils.core import publish_doctree
from docutils.nodes import bullet_list, literal, literal_block, system_message
from plain_docstrings import plain

DOCSTRING = """
    What holds for |x| * y_ and `linnet.load`, `[B, T]`.

    causal: without a state, no output depends
        on a later one.
    window: so many tokens.

        while step < steps:

            step += 1

    Formula: a sentence that goes on
    in the next line.
"""


def test_text_list_and_code():
    lines = plain(cleandoc(DOCSTRING).splitlines())
    tree = publish_doctree(
        "\n".join(lines).replace("`linnet.load`", "linnet.load"), settings_overrides={"report_level": 5}
    )
    assert not list(tree.findall(system_message))
    assert tree.children[0].astext() == "What holds for |x| * y_ and linnet.load, [B, T]."
    (listed,) = tree.findall(bullet_list)
    assert [item.astext() for item in listed] == [
        "causal: without a state, no output depends\non a later one.",
        "window: so many tokens.",
    ]
    (code,) = tree.findall(literal_block)
    assert code.astext() == "while step < steps:\n\n    step += 1"
    assert tree.children[-1].astext() == "Formula: a sentence that goes on\nin the next line."


def test_a_name_may_become_a_link_and_other_code_is_code():
    assert plain(["`linnet.load` and `[B, T]` and `.model`"])[0] == "`linnet.load` and ``[B, T]`` and ``.model``"
    assert next(publish_doctree("``[B, T]``").findall(literal)).astext() == "[B, T]"
