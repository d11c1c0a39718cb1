"""The table and the picture of `docs/layers/positions.md`, from what `linnet inspect positions --json` said of runs.

`python experiments/positions.py rotary.json alibi.json ... --out docs/layers/positions.png`; a name is the file's.
"""

import argparse
import json
from collections.abc import Sequence
from pathlib import Path
from typing import Any

from linnet.present import numbers
from linnet.present.plot import Axis, Panel, Plot, Rule, Series

Parts = Sequence[dict[str, Any]]


def parts_of(file: Path) -> Parts:
    """As the model is, not with another scaling."""
    found: Parts = json.loads(file.read_text())["variants"][0]["parts"]
    return found


def table(runs: dict[str, Parts]) -> str:
    """Markdown: bits per byte by the tokens before, a row for each run; `-` where it has other parts, or none."""
    bounds = [(part["begin"], part["end"]) for part in max(runs.values(), key=len)]
    heads = [f"{begin:,} to {end - 1:,}" for begin, end in bounds]
    lines = ["| | " + " | ".join(heads) + " |", "|---" * (len(heads) + 1) + "|"]
    for name, parts in runs.items():
        said = {(part["begin"], part["end"]): f"{part['bits_per_byte']:.2f}" for part in parts}
        lines.append(f"| {name} | " + " | ".join(said.get(each, "-") for each in bounds) + " |")
    return "\n".join(lines)


def picture(runs: dict[str, Parts], trained: int) -> Plot:
    """A line for each run, over the position, which is logarithmic."""
    series = [
        Series([(p["begin"] + p["end"]) / 2 for p in parts], [p["bits_per_byte"] for p in parts], name, "o-", number)
        for number, (name, parts) in enumerate(runs.items())
    ]
    x = Axis("position", "log2", numbers.grouped)
    return Plot([Panel(x, Axis("bits per byte"), series, rules=[Rule(trained, "trained", upright=True)])], (9.0, 5.2))


def main() -> None:
    """Draw, and print the table."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("files", type=Path, nargs="+")
    parser.add_argument("--out", type=Path, required=True)
    asked = parser.parse_args()
    runs = {file.stem: parts_of(file) for file in asked.files}
    picture(runs, json.loads(asked.files[0].read_text())["trained_length"]).write(asked.out)
    print(table(runs))


if __name__ == "__main__":
    main()
