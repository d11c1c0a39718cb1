from hypothesis import given
from hypothesis import strategies as st

from linnet.core.text import MOST_CHARACTERS, one_line, printable


@given(text=st.text(st.characters(codec=None)))
def test_nothing_that_a_terminal_obeys_is_left(text: str):
    assert all(character.isprintable() or character in "\n\t" for character in printable(text))
    assert not text.isprintable() or printable(text) == text


def test_what_is_escaped_can_be_told():
    assert printable("é 🐦\n\t") == "é 🐦\n\t"
    assert printable("\x1b[2J \x9b \r \x7f \u202e \udcff") == r"\x1b[2J \x9b \r \x7f \u202e \udcff"


@given(text=st.text(max_size=1000))
def test_a_line_stays_one_and_is_short(text: str):
    assert one_line(text).isprintable() and len(one_line(text)) <= MOST_CHARACTERS


def test_a_long_line_keeps_its_ends():
    assert len(one_line("x" * 1000)) == MOST_CHARACTERS
    line = one_line(f"/a/folder/{'x' * 400}: must be a number")
    assert line.startswith("/a/folder/xxx") and "x … x" in line and line.endswith("xxx: must be a number")
    assert one_line("x" * MOST_CHARACTERS) == "x" * MOST_CHARACTERS
