import subprocess
import sys
from collections.abc import Callable

import pytest

from linnet.core.notes import note, tell


def test_a_note_is_told_once(told: Callable[[], list[str]]):
    for line in ("one", "two", "one"):
        note(line)
    assert told() == ["one", "two"]


def test_where_nobody_has_set_up_logging_it_is_printed_as_one_harmless_line():
    code = r"from linnet.core.notes import note; note('a \x1b[2J b\nc')"
    found = subprocess.run([sys.executable, "-c", code], capture_output=True, check=True)
    assert found.stdout == b"" and found.stderr == rb"note: a \x1b[2J b c" + b"\n"


def test_what_is_told_goes_to_the_standard_error(capsys: pytest.CaptureFixture[str]):
    tell("step 1 \x1b[2J")
    assert capsys.readouterr() == ("", "step 1 \\x1b[2J\n")
