"""Faults that only a process of its own meets: redirections, the locale at its start, a disk that is really full."""

import os
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from functools import cache, partial
from pathlib import Path

from campaigns.campaign import LONG_S, Case, Ground, Subject, attacked
from campaigns.children import Outcome
from campaigns.kills import afterwards
from campaigns.oracle import Finding, said, unheard

LINNET = f'"{sys.executable}" -m linnet "$@"'
LIMIT_S = 60.0

LINES: dict[str, tuple[str, bool]] = {
    "stdout closed": (f"{LINNET} >&-", True),
    "stderr closed": (f"{LINNET} 2>&-", True),
    "stdin closed": (f"{LINNET} <&-", False),
    "all closed": (f"{LINNET} <&- >&- 2>&-", True),
    "stdout full": (f"{LINNET} > /dev/full", False),
    "stderr full": (f"{LINNET} 2> /dev/full", True),
    "both into one pipe that ends": (f"set -o pipefail; {LINNET} 2>&1 | head -c 10", True),
    "stdout into a pipe that ends": (f"set -o pipefail; {LINNET} | head -c 1", True),
    "stderr into a pipe that ends": (f"{{ {LINNET} 2>&1 >&3 | head -c 10 >&2; exit ${{PIPESTATUS[0]}}; }} 3>&1", True),
    "locale C": (f"LC_ALL=C LANG=C PYTHONUTF8=0 PYTHONCOERCECLOCALE=0 {LINNET}", False),
    "streams of ASCII": (f"PYTHONIOENCODING=ascii {LINNET}", False),
    "no environment": (f'env -i PYTHONPATH="$PYTHONPATH" OMP_NUM_THREADS=1 {LINNET}', False),
    "no HOME, no TMPDIR": (f"HOME=/nowhere TMPDIR=/nowhere {LINNET}", False),
    "hung up": (f"{LINNET} & child=$!; sleep 1.7; kill -HUP $child; wait $child", True),
}
"""By name: what a shell runs, and whether no word can be expected."""

DISKS = (0, 4, 40, 400)
"""Kilobytes that a disk has left."""


def cases(ground: Ground, subject: Subject) -> Iterator[Case]:
    """Those of a command that is not long."""
    if not subject.label.endswith("[fresh]") or subject.clean.seconds > LONG_S:
        return
    for name in LINES:
        yield Case(f"{subject.label} | really {name}", partial(_in_a_shell, ground, subject, name))
    if subject.writes and may_mount():
        for free in DISKS:
            yield Case(f"{subject.label} | a disk with {free} kB left", partial(_on_a_disk, ground, subject, free))


def shell(line: str, subject: Subject, folder: Path) -> Outcome:
    """The command within a line of bash."""
    began = time.monotonic()
    command = ["bash", "-c", line, "linnet", *subject.command.words]
    limit_s = LIMIT_S + 10 * subject.clean.seconds
    try:
        found = subprocess.run(command, cwd=folder, capture_output=True, timeout=limit_s, check=False)
    except subprocess.TimeoutExpired:
        return Outcome(-9, "", "", time.monotonic() - began, hung=True)
    out, err = (content.decode("utf-8", errors="surrogateescape") for content in (found.stdout, found.stderr))
    return Outcome(found.returncode, out, err, time.monotonic() - began)


def _in_a_shell(ground: Ground, subject: Subject, name: str) -> list[Finding]:
    line, mute = LINES[name]

    def attack(folder: Path, beside: Path) -> list[Finding]:
        outcome = shell(line, subject, folder)
        return said(outcome, mute) + unheard(subject.clean, outcome, name) + afterwards(subject, folder)

    return attacked(ground, subject.template, attack)


def _on_a_disk(ground: Ground, subject: Subject, free: int) -> list[Finding]:
    def attack(folder: Path, beside: Path) -> list[Finding]:
        with _disk(folder) as (small, fill):
            fill(free << 10)
            outcome = shell(LINNET, subject, small)
            found = said(outcome)
            fill(-1)
            return found + afterwards(subject, small)

    return attacked(ground, subject.template, attack)


@contextmanager
def _disk(folder: Path) -> Iterator[tuple[Path, Callable[[int], None]]]:
    """A disk of its own with the workspace on it; `fill(bytes)` leaves so much, negative: all that there is."""
    place = folder.parent / "disk"
    place.mkdir()
    subprocess.run(["mount", "-t", "tmpfs", "-o", "size=256m", "campaign", str(place)], check=True)
    try:
        subprocess.run(["cp", "-a", str(folder), str(place / "here")], check=True)
        ballast = place / "ballast"

        def fill(free: int) -> None:
            ballast.unlink(missing_ok=True)
            if free >= 0:
                left = os.statvfs(place)
                size = left.f_bavail * left.f_bsize - free
                with ballast.open("wb") as file:
                    os.posix_fallocate(file.fileno(), 0, size)

        yield place / "here", fill
    finally:
        subprocess.run(["umount", "-l", str(place)], check=True)


@cache
def may_mount() -> bool:
    """Whether this user may make such a disk; elsewhere errors at each writing stand for it."""
    with tempfile.TemporaryDirectory() as folder:
        tried = subprocess.run(["mount", "-t", "tmpfs", "campaign", folder], capture_output=True, check=False)
        if tried.returncode == 0:
            subprocess.run(["umount", folder], check=True)
        return tried.returncode == 0
