"""The atlas: every mixer at equal parameters and tokens, and at equal time, on three texts; and its page.

`python experiments/atlas --text FOLDER --work DIR` trains what `experiments/atlas.json` lacks and writes it and
`docs/atlas.md`; hours on 2 cores for all of it, and the same command goes on. FOLDER holds `tinystories_train.txt` and
`wikitext2-train.txt`. A mixer that is new has to be timed before it is trained for attention's time: `--speeds`, with
nothing else running. Without a record everything is trained.
`--abilities --work DIR` trains its second part, every mixer on recall, copying and state tracking: about an hour of
2 cores, and the same command goes on. It writes `experiments/atlas-abilities.json`, and the page.
`--page` makes the page anew from the records.
"""

import argparse
import json
import sys
from pathlib import Path

HERE = Path(__file__).parent
sys.path += [str(HERE), str(HERE.parent.parent / "benchmarks")]

from abilities import gather_abilities, train_abilities  # noqa: E402
from gathered import NAMES, gather, seeds_of  # noqa: E402
from measured import SPEEDS, known_speeds, speeds  # noqa: E402
from page import write_page  # noqa: E402
from record import Record  # noqa: E402
from trainings import equal_time, equal_tokens, models_of, more_seeds, texts  # noqa: E402

from linnet.core.files import write_json  # noqa: E402

RECORD, PAGE = HERE.parent / "atlas.json", HERE.parent.parent / "docs" / "atlas.md"
ABILITIES = HERE.parent / "atlas-abilities.json"


def parsed() -> argparse.Namespace:
    """The command line."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--text", type=Path, help="folder of the two texts")
    parser.add_argument("--work", type=Path, help="data and runs")
    parser.add_argument("--speeds", action="store_true", help="measure all speeds anew; nothing else should run")
    parser.add_argument("--abilities", action="store_true", help="the second part: recall, copying, state tracking")
    parser.add_argument("--page", action="store_true", help="only the page, from the records")
    arguments = parser.parse_args()
    if not arguments.page and not (arguments.work and (arguments.text or arguments.abilities)):
        parser.error("give --text and --work, or --abilities and --work, or --page")
    return arguments


def train_and_measure(text: Path, work: Path, anew: bool) -> None:
    """Everything that the record lacks. anew: the speeds of all are measured first."""
    known = Record.read(RECORD)
    *compared, stories = all_texts = texts(text, work)
    assert stories.key == NAMES
    if anew:
        write_json(work / SPEEDS, speeds(compared[0], work))
    seconds = {name: of_mixer["step_s"] for name, of_mixer in known_speeds(work, known).items()}
    for each in compared:
        equal_tokens(each, work, {name for name in known.mixers if known.seeds(name, each.key)})
        more_seeds(each, work, {name: seeds_of(each, work, name, known) for name in models_of(each)})
        equal_time(each, work, seconds, {name for name in known.mixers if known.timed(name, each.key)})
    equal_tokens(stories, work, {name for name in known.mixers if known.names(name)})
    write_json(RECORD, gather(all_texts, work, known))


def main() -> None:
    """Train, measure, write the page."""
    arguments = parsed()
    if arguments.abilities:
        train_abilities(arguments.work)
        write_json(ABILITIES, gather_abilities(arguments.work))
    elif not arguments.page:
        train_and_measure(arguments.text, arguments.work, arguments.speeds)
    abilities = json.loads(ABILITIES.read_text()) if ABILITIES.is_file() else None
    write_page(json.loads(RECORD.read_text()), PAGE, abilities)


if __name__ == "__main__":
    main()
