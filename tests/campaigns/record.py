"""The counts of all campaigns: kept as JSON, and as the table of `docs/reliability.md`."""

import datetime
import json
import platform
import subprocess
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import torch

from campaigns.campaign import Result
from campaigns.oracle import Fault

ROOT = Path(__file__).resolve().parents[2]
RESULTS = ROOT / "tests" / "campaigns" / "results.json"
PAGE = ROOT / "docs" / "reliability.md"
BEGIN, END = "<!-- campaigns: begin -->", "<!-- campaigns: end -->"
COLUMNS = ("tracebacks", "hangs", "silent changes", "losses")


def plain(results: Sequence[Result], commands: int, seed: int) -> dict[str, Any]:
    """What is kept of them."""
    python = platform.python_version()
    return {
        "date": datetime.date.today().isoformat(),
        "commit": _commit(),
        "machine": f"{platform.machine()}, {platform.system()}, Python {python}, torch {torch.__version__}",
        "commands": commands,
        "seed": seed,
        "campaigns": {
            result.campaign: {
                "inputs": result.inputs,
                **{column: result.count(fault) for column, fault in zip(COLUMNS, Fault, strict=True)},
                "minutes": round(result.seconds / 60, 1),
            }
            for result in results
        },
    }


def table(found: dict[str, Any]) -> str:
    """As Markdown."""
    rows = [["campaign", "inputs", *COLUMNS]]
    for name, counts in found["campaigns"].items():
        rows.append([name, *(f"{counts[column]:,}" for column in ("inputs", *COLUMNS))])
    rows.append(["all", *(f"{sum(c[k] for c in found['campaigns'].values()):,}" for k in ("inputs", *COLUMNS))])
    rows.insert(1, ["---", *["---:"] * (len(COLUMNS) + 1)])
    return "\n".join(f"| {' | '.join(row)} |" for row in rows)


def record(found: dict[str, Any]) -> None:
    """Keep them, and show them on the page."""
    RESULTS.write_text(json.dumps(found, indent=2) + "\n")
    minutes = sum(counts["minutes"] for counts in found["campaigns"].values())
    told = (
        f"{found['commands']} commands of the documentation, {minutes:.0f} minutes, {found['date']}, commit "
        f"{found['commit']}, {found['machine']}:"
    )
    before, rest = PAGE.read_text().split(BEGIN)
    after = rest.split(END)[1]
    PAGE.write_text(f"{before}{BEGIN}\n{told}\n\n{table(found)}\n{END}{after}")


def _commit() -> str:
    def git(*words: str) -> str:
        return subprocess.run(["git", *words], cwd=ROOT, capture_output=True, text=True, check=False).stdout.strip()

    return git("rev-parse", "--short", "HEAD") + ("-dirty" if git("status", "--porcelain", "src") else "")
