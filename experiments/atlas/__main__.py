"""The atlas: every mixer at equal parameters and tokens, and at equal time, on three texts; and its page.

`python experiments/atlas --text FOLDER --work DIR` trains what `experiments/atlas.json` lacks, and what was made with
another description than today's, says which and why, and writes it and `docs/atlas.md`; hours on 2 cores for all of it,
and the same command goes on. FOLDER holds `tinystories_train.txt` and `wikitext2-train.txt`. A mixer that is new has
to be timed before it is trained for attention's time: `--speeds`, with nothing else running. Without a record
everything is trained.
`--abilities --work DIR` trains its second part, every mixer on recall, copying and state tracking: about an hour of
2 cores, and the same command goes on. It writes `experiments/atlas-abilities.json`, and the page.
`--page` makes the page anew from the records.
"""

import argparse
import sys
from pathlib import Path

HERE = Path(__file__).parent
sys.path += [str(HERE), str(HERE.parent.parent / "benchmarks")]

from abilities import Abilities  # noqa: E402
from measured import keep_counted, keep_sizes, keep_speeds, known_seconds, names  # noqa: E402
from page import write_page  # noqa: E402
from record import AbilityRecord, AtlasRecord  # noqa: E402
from trainings import Atlas, Text, texts  # noqa: E402

from linnet.core.errors import UserError  # noqa: E402
from linnet.experiments.runner import ExperimentStopped, Runner  # noqa: E402

RECORD, PAGE = HERE.parent / "atlas.json", HERE.parent.parent / "docs" / "atlas.md"
ABILITIES = HERE.parent / "atlas-abilities.json"
COMMAND = "python experiments/atlas"


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


def train_and_measure(all_texts: list[Text], atlas: Atlas, anew: bool) -> None:
    """Everything that the record lacks. anew: the speeds of all are measured first."""
    *compared, stories = all_texts
    record, say = atlas.record, atlas.runner.say
    record.content.update({"tokens": compared[0].tokens, "story_tokens": stories.tokens})
    keep_sizes(compared[0], record)
    if anew:
        keep_speeds(compared[0], atlas.work, record)
    seconds = known_seconds(compared[0], record, say)
    for each in compared:
        atlas.equal_tokens(each)
        atlas.more_seeds(each)
        atlas.equal_time(each, seconds)
    atlas.names(stories, names(stories))
    keep_counted(compared, atlas.work, record, say)
    record.write()


def main() -> None:
    """Train, measure, write the page; one line for what the user can change, and where training was asked to stop."""
    arguments, runner = parsed(), Runner(print, COMMAND)
    record, second = AtlasRecord.read(RECORD), AbilityRecord.read(ABILITIES)
    try:
        if arguments.abilities:
            Abilities(second, arguments.work, print).train()
        elif not arguments.page:
            all_texts = texts(arguments.text, arguments.work)
            train_and_measure(all_texts, Atlas(record, arguments.work, runner), arguments.speeds)
        write_page(record.content, PAGE, second.content if "tasks" in second.content else None)
    except (UserError, ExperimentStopped) as error:
        sys.exit(f"{COMMAND}: {error}")


if __name__ == "__main__":
    main()
