"""The script behind `make venv`, with a Python that only writes down what it is asked."""

import os
import subprocess
from pathlib import Path

import pytest

SCRIPT = Path(__file__).resolve().parents[2] / ".ci" / "set-up"
PYTHON = """#!/bin/sh
echo "$@" >>"$LOG"
if [ "$2" = venv ]; then
  mkdir -p "$4/bin"
  cp "$0" "$4/bin/python"
fi
case "$*" in *"$FAIL"*) exit 1 ;; esac
"""

pytestmark = pytest.mark.skipif(os.name != "posix", reason="a shell script")


class Machine:
    """A folder with a Python in it, and what that Python was asked."""

    def __init__(self, folder: Path) -> None:
        self.folder, self.log, self.python = folder, folder / "log", folder / "python"
        self.mark = folder / "env.unfinished"
        self.python.write_text(PYTHON)
        self.python.chmod(0o755)

    def set_up(
        self, fail: str = "nothing at all", python: str | None = None, extra: str = "dev", torch: str = "cuda"
    ) -> subprocess.CompletedProcess[str]:
        environment = {"PATH": os.environ["PATH"], "LOG": str(self.log), "FAIL": fail, "TORCH": torch}
        environment |= {"PYTHON": python or str(self.python), "PIP_FLAGS": "--one --two"}
        return subprocess.run(
            ["sh", SCRIPT, "env", *([extra] if extra else [])],
            cwd=self.folder,
            env=environment,
            capture_output=True,
            text=True,
            check=False,
        )

    def asked(self) -> list[str]:
        """What Python was run for since the last time: the module, and for pip what is installed."""
        modules = [line.split() for line in self.log.read_text().splitlines() if line.startswith("-m")]
        self.log.unlink()
        return [
            " ".join([words[1], *words[words.index("constraints.txt") + 1 :]]) if "pip" in words else words[1]
            for words in modules
        ]


INSTALL = ["pip setuptools torch", "pip --no-build-isolation -e .[dev]"]


@pytest.fixture
def machine(tmp_path: Path) -> Machine:
    return Machine(tmp_path)


def test_an_environment_is_made_and_filled(machine: Machine):
    assert machine.set_up().returncode == 0
    asked = machine.log.read_text()
    assert machine.asked() == ["venv", *INSTALL]
    assert "--require-virtualenv --disable-pip-version-check install --one --two -c constraints.txt setuptools" in asked
    assert not machine.mark.exists()


def test_without_an_extra_only_what_running_needs_is_installed(machine: Machine):
    assert machine.set_up(extra="").returncode == 0
    assert machine.asked()[-1] == "pip --no-build-isolation -e ."


CPU_INDEX = "--extra-index-url https://download.pytorch.org/whl/cpu"


def test_the_cpu_build_of_torch_is_taken_where_it_is_asked_for(machine: Machine):
    assert machine.set_up(torch="cpu").returncode == 0
    assert f"pip {CPU_INDEX} setuptools torch" in machine.asked()
    machine.set_up(torch="cuda")
    assert machine.asked() == INSTALL


def test_the_default_index_serves_where_that_of_the_cpu_build_cannot_be_reached(machine: Machine):
    result = machine.set_up(torch="cpu", fail="urllib.request")
    assert result.returncode == 0 and "cannot be reached" in result.stderr
    assert machine.asked()[-2:] == INSTALL


def test_an_unknown_build_of_torch_is_refused(machine: Machine):
    result = machine.set_up(torch="gpu")
    assert result.returncode == 1 and "TORCH: gpu: expected cpu or cuda" in result.stderr


def test_a_complete_environment_is_brought_up_to_date_and_not_made_anew(machine: Machine):
    machine.set_up()
    machine.asked()
    assert machine.set_up().returncode == 0
    assert machine.asked() == INSTALL


@pytest.mark.parametrize("moment", ["-m venv", "setuptools torch", "-e .[dev]"])
def test_what_failed_or_was_interrupted_is_begun_anew(machine: Machine, moment: str):
    assert machine.set_up(fail=moment).returncode != 0
    assert machine.mark.exists()
    machine.asked()
    assert machine.set_up().returncode == 0
    assert machine.asked() == ["venv", *INSTALL]
    assert not machine.mark.exists()


def test_an_environment_whose_python_is_the_machines_is_made_anew(machine: Machine):
    """Installing into it would change the machine's Python."""
    broken = machine.folder / "env" / "bin" / "python"
    broken.parent.mkdir(parents=True)
    broken.write_text('#!/bin/sh\ncase "$2" in *base_prefix*) exit 1 ;; esac\necho broken "$@" >>"$LOG"\n')
    broken.chmod(0o755)
    assert machine.set_up().returncode == 0
    assert "broken" not in machine.log.read_text()
    assert machine.asked() == ["venv", *INSTALL]


def test_two_at_once_do_not_meet(machine: Machine):
    machine.mark.write_text(f"{os.getpid()}\n")
    refused = machine.set_up()
    assert refused.returncode == 1
    assert refused.stderr.startswith(f"error: env is being set up by process {os.getpid()}; wait for it")
    assert not machine.log.exists()


@pytest.mark.parametrize("python", ["no-such-python", "false"])
def test_without_a_python_that_serves_there_is_one_line(machine: Machine, python: str):
    refused = machine.set_up(python=python)
    assert refused.returncode == 1
    assert refused.stderr.startswith("error: no Python 3.11 or newer with venv")
    assert refused.stderr.count("\n") == 1
    assert not machine.mark.exists()
