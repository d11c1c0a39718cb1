"""The table and the picture of what positions are worth beyond the trained length."""

import json
import subprocess
import sys
from pathlib import Path

SCRIPT = Path(__file__).parents[2] / "experiments" / "positions.py"


def said(bits: list[float]) -> str:
    """As `linnet inspect positions --json` prints it, with a scaling that is not shown."""
    parts = [
        {"begin": 64 * number, "end": 64 * (number + 1), "bits_per_byte": each, "standard_error": 0.01}
        for number, each in enumerate(bits)
    ]
    variants = [{"positions": "as it is", "parts": parts}, {"positions": "YaRN", "parts": parts[:1]}]
    return json.dumps({"trained_length": 64, "variants": variants})


def test_a_row_and_a_line_for_each_file_also_of_fewer_positions(tmp_path: Path):
    (tmp_path / "rotary.json").write_text(said([2.0, 2.1, 2.25]))
    (tmp_path / "learned.json").write_text(said([2.4]))
    out = tmp_path / "positions.png"
    command = [sys.executable, SCRIPT, tmp_path / "rotary.json", tmp_path / "learned.json", "--out", out]
    run = subprocess.run(command, capture_output=True, text=True, check=True)
    assert run.stdout.splitlines() == [
        "| | 0 to 63 | 64 to 127 | 128 to 191 |",
        "|---|---|---|---|",
        "| rotary | 2.00 | 2.10 | 2.25 |",
        "| learned | 2.40 | - | - |",
    ]
    assert out.read_bytes().startswith(b"\x89PNG")
