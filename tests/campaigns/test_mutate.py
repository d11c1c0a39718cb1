import json
from pathlib import Path

from campaigns.mutate import EQUIVALENT, ROOT, commands_of, edits_of

SOURCE = '''"""A docstring with 1 + 1."""
SCALE: int = 2

@staticmethod
def f(x: int | None, rate=0.5) -> "list[int]":
    if x is None:
        raise ValueError(f"{1 + 2}")
    return -(x - 1) * g(x)[:-1].sum() if x < 3 and x else True
'''


def test_edits_change_constants_signs_comparisons_terms_and_names():
    found = [(edit.line, edit.old, edit.new) for edit in edits_of(SOURCE)]
    assert all(SOURCE[edit.begin : edit.end] == edit.old for edit in edits_of(SOURCE))
    assert set(found) == {
        (2, "2", "3"), (5, "0.5", "0.625"), (6, "is", "is not"), (8, "-", ""), (8, "-", "+"), (8, "1", "2"),
        (8, "*", "/"), (8, " * g(x)[:-1].sum()", ""), (8, " - 1", ""), (8, "sum", "mean"), (8, "<", "<="),
        (8, "3", "4"), (8, "and", "or"), (8, "True", "False"),
    }  # fmt: skip


def test_every_source_has_tests():
    for folder in ("ops", "layers"):
        for path in (ROOT / "src/linnet" / folder).glob("*.py"):
            source = str(path.relative_to(ROOT))
            assert all(
                (ROOT / word).exists() for command in commands_of(source) for word in command if word.endswith(".py")
            )


def test_equivalent_edits_are_still_edits_of_their_source():
    for source, reasons in json.loads(EQUIVALENT.read_text()).items():
        text = (ROOT / source).read_text()
        assert reasons.keys() <= {edit.key(text) for edit in edits_of(text)}, Path(source).name
        assert all(reasons.values())
