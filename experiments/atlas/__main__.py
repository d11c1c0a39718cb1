"""The atlas: suites of every mixer at equal tokens, at equal time, on stories and on abilities; and its page.

`python experiments/atlas --text FOLDER --work DIR` trains what `experiments/atlas.jsonl` lacks, or has of another
model, recipe or text, logs which and why, adds the results to it, and writes `docs/atlas.md`; hours on 2 cores.
The same command continues. FOLDER holds `tinystories_train.txt` and `wikitext2-train.txt`.
`--speeds` first measures all speeds again (nothing else should run), also needed once for a new mixer.
`--abilities --work DIR` trains every mixer on recall, copying and state tracking: about an hour of 2 cores.
`--page` only writes the page from the record.
"""

import argparse
import json
import re
import sys
from pathlib import Path

HERE = Path(__file__).parent
sys.path.insert(0, str(HERE))

from page import ABILITIES, RECORD, SPEED_SUITE, load_suites, write_page  # noqa: E402

from linnet.core.errors import UserError  # noqa: E402
from linnet.core.files import write_text  # noqa: E402
from linnet.experiments.data import text_hash  # noqa: E402
from linnet.experiments.executors import LocalExecutor  # noqa: E402
from linnet.experiments.jobs import ExperimentStopped, Runner, origin  # noqa: E402
from linnet.experiments.results import LIKELIHOOD, ResultRow, ResultTable, hash_of  # noqa: E402
from linnet.experiments.run import TRAINING_SPEED, measure_speeds, run_suite, speed_inputs  # noqa: E402
from linnet.experiments.suite import Suite  # noqa: E402
from linnet.training.ngram.interface import evaluate_ngram, train_ngram  # noqa: E402

COMMAND = "python experiments/atlas"
NGRAM_ORDER = 5


def parsed() -> argparse.Namespace:
    """Parse the command line."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--text", type=Path, help="folder of the two texts")
    parser.add_argument("--work", type=Path, help="data and runs")
    parser.add_argument("--speeds", action="store_true", help="measure all speeds again; nothing else should run")
    parser.add_argument("--abilities", action="store_true", help="the second part: recall, copying, state tracking")
    parser.add_argument("--page", action="store_true", help="only write the page from the record")
    arguments = parser.parse_args()
    if not arguments.page and not (arguments.work and (arguments.text or arguments.abilities)):
        parser.error("give --text and --work, or --abilities and --work, or --page")
    return arguments


def articles(file: Path, work: Path) -> Path:
    """WikiText-2 as JSON lines, one article in each: articles begin with ` = Title = `."""
    parts = re.split(r"(?m)^(?= = [^=].* = $)", file.read_text(encoding="utf-8"))
    lines = [json.dumps({"text": part.strip()}, ensure_ascii=False) + "\n" for part in parts if part.strip()]
    work.mkdir(parents=True, exist_ok=True)
    write_text(made := work / "wikitext2.jsonl", "".join(lines))
    return made


def with_texts(suites: dict[str, Suite], files: Path, work: Path) -> dict[str, Suite]:
    """The suites with the paths of their texts."""
    paths = {
        "tinystories_train.txt": files / "tinystories_train.txt",
        "wikitext2.jsonl": articles(files / "wikitext2-train.txt", work),
    }
    found = {}
    for key, suite in suites.items():
        text = suite.text
        if text is not None and text.files is not None:
            text = text.model_copy(update={"files": [str(paths[name]) for name in text.files]})
        found[key] = suite.model_copy(update={"text": text})
    return found


def measure_ngram(suite: Suite, out: Path, record: ResultTable) -> None:
    """Bits per byte of an n-gram model that counts all of the training text, unless the record has it."""
    inputs = {"text": text_hash(suite), "order": hash_of(NGRAM_ORDER)}
    known = record.find(suite.name, "n-gram", 0, LIKELIHOOD)
    if known is not None and known.outdated_by(inputs) is None:
        return
    (data,), model = suite.data_folders(out), out / f"ngram-{NGRAM_ORDER}"
    if not model.exists():
        train_ngram(data, model, NGRAM_ORDER, "atlas")
    bits = evaluate_ngram(model, data, "validation").figures()["bits_per_byte"]
    values = {"bits_per_byte": bits, "order": NGRAM_ORDER}
    about = {"suite": suite.name, "run": "n-gram", "seed": 0, "measure": LIKELIHOOD, "origin": origin()}
    record.add([ResultRow(**about, values=values, inputs=inputs)])


def measure_all_speeds(suite: Suite, out: Path, record: ResultTable) -> None:
    """Times of training steps and of decoded tokens of all runs, in turn."""
    (data,) = suite.data_folders(out)
    runs = {run.name: suite.run_spec(run, 0, data).resolved() for run in suite.runs}
    about = {"suite": suite.name, "seed": 0, "measure": TRAINING_SPEED, "origin": origin()}
    rows = [
        ResultRow(**about, run=name, values=values, inputs=speed_inputs(runs[name]))
        for name, values in measure_speeds(runs, data).items()
    ]
    record.add(rows)


def main() -> None:
    """Train, measure, write the page; errors that the user can correct are one line."""
    arguments, runner = parsed(), Runner(print, COMMAND)
    record, suites = ResultTable(RECORD), load_suites()
    try:
        if arguments.abilities:
            for key in ABILITIES:
                run_suite(suites[key], arguments.work / key, runner, key, LocalExecutor(2), record)
        elif not arguments.page:
            texts = {key: suite for key, suite in suites.items() if key not in ABILITIES}
            for key, suite in with_texts(texts, arguments.text, arguments.work).items():
                if suite.equal_time_as is not None and arguments.speeds:
                    measure_all_speeds(suites[SPEED_SUITE], arguments.work / SPEED_SUITE, record)
                    arguments.speeds = False
                run_suite(suite, arguments.work / key, runner, key, record=record)
                if suite.more_seeds is not None:
                    measure_ngram(suite, arguments.work / key, record)
        write_page(record)
    except (UserError, ExperimentStopped) as error:
        sys.exit(f"{COMMAND}: {error}")


if __name__ == "__main__":
    main()
