"""The atlas: every mixer at equal parameters and tokens, and at equal time, on three texts; and its page.

`python experiments/atlas --text FOLDER --work DIR` trains, measures, and writes `experiments/atlas.json` and
`docs/atlas.md`; hours on 2 cores, and the same command goes on. FOLDER holds `tinystories_train.txt` and
`wikitext2-train.txt`. The speeds are measured between the trainings: nothing else should run then.
`--page` makes the page anew from the record.
"""

import argparse
import json
import sys
from pathlib import Path

HERE = Path(__file__).parent
sys.path += [str(HERE), str(HERE.parent.parent / "benchmarks")]

from gathered import NAMES, gather  # noqa: E402
from measured import kept, names, speeds  # noqa: E402
from page import write_page  # noqa: E402
from trainings import equal_time, equal_tokens, more_seeds, texts  # noqa: E402

from linnet.core.files import write_json  # noqa: E402

RECORD, PAGE = HERE.parent / "atlas.json", HERE.parent.parent / "docs" / "atlas.md"


def parsed() -> argparse.Namespace:
    """The command line."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--text", type=Path, help="folder of the two texts")
    parser.add_argument("--work", type=Path, help="data and runs")
    parser.add_argument("--page", action="store_true", help="only the page, from experiments/atlas.json")
    arguments = parser.parse_args()
    if not arguments.page and not (arguments.text and arguments.work):
        parser.error("give --text and --work, or --page")
    return arguments


def train_and_measure(text: Path, work: Path) -> None:
    """Everything that is not there yet."""
    *compared, stories = all_texts = texts(text, work)
    assert stories.key == NAMES
    for each in all_texts:
        equal_tokens(each, work)
    found = kept(work / "speeds.json", lambda: speeds(compared[0], work))
    seconds = {name: of_mixer["step_s"] for name, of_mixer in found["mixers"].items()}
    for each in compared:
        equal_time(each, work, seconds)
        more_seeds(each, work)
    kept(work / "names.json", lambda: names(stories, work))
    write_json(RECORD, gather(all_texts, work))


def main() -> None:
    """Train, measure, write the page."""
    arguments = parsed()
    if not arguments.page:
        train_and_measure(arguments.text, arguments.work)
    write_page(json.loads(RECORD.read_text()), PAGE)


if __name__ == "__main__":
    main()
