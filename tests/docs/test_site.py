"""The site is made without a warning, and has what it should."""

import pkgutil
import subprocess
import sys
from pathlib import Path

import pytest

import linnet

ROOT = Path(__file__).resolve().parents[2]
NO_REFERENCE = {"__main__", "cli", "stories"}
"""The command line has its help; the stories are data."""


def test_every_room_has_a_page():
    rooms = {module.name for module in pkgutil.iter_modules(linnet.__path__)} - NO_REFERENCE
    pages = {path.stem for path in (ROOT / "docs" / "reference").glob("*.rst")} - {"python", "rooms"}
    assert pages == rooms
    listed = (ROOT / "docs" / "reference" / "rooms.rst").read_text().split("toctree::")[1].split()
    assert rooms <= set(listed)


@pytest.mark.slow
def test_the_site_is_made_without_a_warning(tmp_path: Path):
    command = [sys.executable, "-m", "sphinx", "-W", "--keep-going", "-q", "-c", "docs", ".", str(tmp_path)]
    made = subprocess.run(command, cwd=ROOT, capture_output=True, text=True, check=False)
    assert (made.returncode, made.stderr) == (0, "")
    assert 'id="linnet.core.errors.UserError"' in (tmp_path / "docs" / "reference" / "core.html").read_text()
    assert "Example: linnet train" in (tmp_path / "docs" / "reference" / "commands.html").read_text()
