"""A warm process is in all that a program can see of itself what a cold one is."""

import json
import os
import signal
import subprocess
import sys
from pathlib import Path

import pytest

import warm_python
from warm_python import WarmPython

SEEN = """
import json, os, signal, sys
what = {"argv": sys.argv, "folder": os.getcwd(), "path": sys.path[0], "name": __name__, "read": sys.stdin.read()}
what |= {"environment": {key: os.environ.get(key) for key in ("GIVEN", "HOME", "COLUMNS")}}
what |= {"leader": os.getpid() == os.getsid(0)}
what |= {"handlers": [str(signal.getsignal(each)) for each in (signal.SIGINT, signal.SIGTERM, signal.SIGPIPE)]}
what |= {"parent": os.getppid(), "encodings": [each.encoding for each in (sys.stdin, sys.stdout, sys.stderr)]}
what |= {"first": sys.path.count(os.environ["PYTHONPATH"].split(os.pathsep)[0])}
json.dump(what, sys.stdout)
print("and on the other", file=sys.stderr)
sys.exit(7)
"""

TESTS = str(Path(warm_python.__file__).parent)

pytestmark = pytest.mark.skipif(sys.platform != "linux", reason="processes are adopted on Linux")


@pytest.mark.parametrize("form", ["program", "module", "file"])
@pytest.mark.parametrize("session", [True, False])
def test_what_a_process_finds(tmp_path: Path, form: str, session: bool):
    (tmp_path / "seen.py").write_text(SEEN)
    form_words = {"program": ["-c", SEEN], "module": ["-m", "seen"], "file": [tmp_path / "seen.py"]}[form]
    found = []
    for kind in (subprocess.Popen, WarmPython):
        pipes = dict.fromkeys(("stdin", "stdout", "stderr"), subprocess.PIPE)
        environment = {**os.environ, "GIVEN": "é", "PYTHONPATH": os.pathsep.join([TESTS, str(tmp_path)])}
        command = [sys.executable, *form_words, "one", "two words"]
        process = kind(command, cwd=tmp_path, env=environment, text=True, start_new_session=session, **pipes)
        out, errors = process.communicate("typed", timeout=60)
        found.append((process.returncode, json.loads(out), errors))
    assert found[0] == found[1] and found[1][0] == 7 and found[1][1]["read"] == "typed"
    assert found[1][1]["parent"] == os.getpid() and found[1][1]["leader"] is session


@pytest.mark.parametrize(
    ("program", "code", "last"),
    [
        ("raise ValueError('wrong')", 1, "ValueError: wrong"),
        ("import os; os.kill(os.getpid(), 15)", -signal.SIGTERM, ""),
        ("import atexit, sys; atexit.register(print, 'end', file=sys.stderr)", 0, "end"),
    ],
)
def test_how_a_process_ends(program: str, code: int, last: str):
    for kind in (subprocess.Popen, WarmPython):
        with kind([sys.executable, "-c", program], stderr=subprocess.PIPE, text=True) as process:
            errors = process.communicate(timeout=60)[1]
        assert (process.returncode, (errors.splitlines() or [""])[-1]) == (code, last)


def test_no_file_of_a_process_is_closed_at_its_end():
    """The last destructor runs after what the program leaves running, such as a thread of PyTorch's connections."""
    program = """
import os, sys
class Last:
    def __init__(self, *opened):
        self.opened = [(fd, os.fstat(fd).st_ino) for fd in opened]
    def __del__(self, write=os.write, fstat=os.fstat):
        write(1, b"same" if all(fstat(fd).st_ino == number for fd, number in self.opened) else b"other")
sys.last_of_all = Last(*(os.open("/dev/null", os.O_RDONLY) for _ in range(32)))
"""
    with WarmPython([sys.executable, "-c", program], stdout=subprocess.PIPE) as process:
        assert process.communicate(timeout=60)[0] == b"same"


def test_other_commands_are_ordinary():
    for command in (
        ["sh", "-c", "exit 3"],
        [sys.executable, "-I", "-c", "import sys; sys.exit(3 * sys.flags.isolated)"],
    ):
        assert WarmPython(command).wait(60) == 3
