import subprocess
import sys
from collections.abc import Callable

import pytest
from hypothesis import given
from hypothesis import strategies as st

from linnet.core.errors import (
    MAX_LINE_CHARACTERS,
    UserError,
    check_kind,
    did_you_mean,
    exceeds_memory,
    is_out_of_memory,
    note,
    one_line,
    print_error,
    printable,
)


def test_a_user_error_is_one_line():
    assert str(UserError("file.yaml: heads:\n  5\tmust   divide")) == "file.yaml: heads: 5 must divide"


def test_a_user_error_is_a_value_error():
    """So that Python users catch what they expect."""
    assert isinstance(UserError("x"), ValueError)


def test_the_line_is_made_of_its_parts():
    error = UserError("is a file", field="out", value="a.txt", accepted="a folder")
    assert str(error) == "out: a.txt: is a file; expected a folder"
    assert (error.field, error.value, error.accepted) == ("out", "a.txt", "a folder")
    assert str(UserError(field="top_p", value=2, accepted="at most 1")) == "top_p: 2: expected at most 1"
    assert str(UserError("missing", field="spec")) == "spec: missing"
    assert UserError("damaged").field is None


OPTIONS = {"top_p": "--top-p", "out": "--out", "kv_cache": "--kv-cache"}


def test_fields_may_be_named_as_they_are_typed():
    assert UserError(field="top_p", value=2, accepted="less").message(OPTIONS) == "--top-p 2: expected less"
    assert UserError("missing", field="top_p").message(OPTIONS) == "--top-p: missing"
    assert UserError("is none", field="lr", value=0).message(OPTIONS) == "lr: 0: is none"
    assert UserError("/x: choose another `out`, not `in`").message(OPTIONS) == "/x: choose another --out, not `in`"


def test_a_switch_is_named_without_its_value():
    assert UserError("is of no use", field="kv_cache", value=True).message(OPTIONS) == "--kv-cache: is of no use"
    assert UserError("is of no use", field="kv_cache", value=False).message(OPTIONS) == "--no-kv-cache: is of no use"


def test_similar_names_are_suggested():
    assert did_you_mean("tiny-tde", ["tiny-ted", "tiny-pldr"], "presets: two") == "did you mean tiny-ted?"
    assert did_you_mean("something else", ["tiny-ted", "tiny-pldr"], "presets: two") == "presets: two"


def test_a_note_is_logged_once(told: Callable[[], list[str]]):
    for line in ("one", "two", "one"):
        note(line)
    assert told() == ["one", "two"]


def test_where_nobody_has_set_up_logging_it_is_printed_as_one_harmless_line():
    code = r"from linnet.core.errors import note; note('a \x1b[2J b\nc')"
    found = subprocess.run([sys.executable, "-c", code], capture_output=True, check=True)
    assert found.stdout == b"" and found.stderr == rb"note: a \x1b[2J b c" + b"\n"


def test_messages_go_to_the_standard_error(capsys: pytest.CaptureFixture[str]):
    print_error("step 1 \x1b[2J")
    assert capsys.readouterr() == ("", "step 1 \\x1b[2J\n")


@given(text=st.text(st.characters(codec=None)))
def test_terminal_control_characters_are_escaped(text: str):
    assert all(character.isprintable() or character in "\n\t" for character in printable(text))
    assert not text.isprintable() or printable(text) == text


def test_escaped_text_can_be_printed():
    assert printable("é 🐦\n\t") == "é 🐦\n\t"
    assert printable("\x1b[2J \x9b \r \x7f \u202e \udcff") == r"\x1b[2J \x9b \r \x7f \u202e \udcff"


@given(text=st.text(max_size=1000))
def test_a_line_stays_one_and_is_short(text: str):
    assert one_line(text).isprintable() and len(one_line(text)) <= MAX_LINE_CHARACTERS


def test_a_long_line_keeps_its_ends():
    assert len(one_line("x" * 1000)) == MAX_LINE_CHARACTERS
    line = one_line(f"/a/folder/{'x' * 400}: must be a number")
    assert line.startswith("/a/folder/xxx") and "x … x" in line and line.endswith("xxx: must be a number")
    assert one_line("x" * MAX_LINE_CHARACTERS) == "x" * MAX_LINE_CHARACTERS


def test_a_value_of_another_type_is_named():
    check_kind("count", 5, (int, str), "a number")
    with pytest.raises(UserError, match=r"^count: None: expected a number$"):
        check_kind("count", None, int, "a number")


def test_a_lack_of_memory_is_told_from_other_errors():
    for lack in (MemoryError(), RuntimeError("CUDA out of memory"), RuntimeError("can't allocate memory")):
        assert is_out_of_memory(lack) and exceeds_memory(lack)
    for size in (
        OverflowError("int too large to convert"),
        RuntimeError("Storage size calculation overflowed with sizes=[1000000000000, 1000000000000]"),
        TypeError("zeros(): argument 'size' failed to unpack: Overflow when unpacking long long"),
    ):
        assert exceeds_memory(size) and not is_out_of_memory(size)
    for other in (
        RuntimeError("the device is lost"),
        TypeError("a wrong argument"),
        ValueError("overflow"),
        KeyError(),
    ):
        assert not exceeds_memory(other) and not is_out_of_memory(other)
