"""The atlas: what is compared is comparable, what the record has is not trained again, and the page is made of it."""

import json
import shutil
from collections.abc import Iterator
from pathlib import Path
from typing import Any, get_args

import page
import pytest
from page import (
    Atlas,
    abilities_plot,
    ability_cell,
    atlas_suites,
    by_seed,
    origins_table,
    outdated,
    recall_cell,
    write_articles,
)

from linnet.core.spec import Spec, without_defaults
from linnet.experiments import jobs
from linnet.experiments.data import text_hash
from linnet.experiments.jobs import Diverged, Planned, Runner
from linnet.experiments.results import ABILITY, LIKELIHOOD, NAME_RECALL, ResultRow, ResultTable, inputs_of
from linnet.experiments.run import (
    DECODING_SPEED,
    TRAINING_SPEED,
    decoding_speed_inputs,
    run_suite,
    training_speed_inputs,
)
from linnet.experiments.suite import Suite
from linnet.experiments.suite_report import side_by_side
from linnet.layers.registry import MIXERS
from linnet.model.cost import model_cost
from linnet.present.plot import Plot
from linnet.training.spec import RunSpec

ROOT = Path(__file__).parents[2]
DEFAULTS = Path(__file__).parent / "recorded_defaults.json"


@pytest.fixture(scope="module")
def suites() -> dict[str, Suite]:
    return atlas_suites()


def specs(suite: Suite) -> dict[str, Any]:
    return {run.name: suite.run_spec(run, 0, Path("data")).resolved() for run in suite.runs}


def test_every_mixer_has_as_many_parameters(suites: dict[str, Suite]):
    for key in ("tinystories", "wikitext2", "tinystories-time", "stories"):
        counts = {name: model_cost(run.model).parameters for name, run in specs(suites[key]).items()}
        assert max(counts.values()) / min(counts.values()) < 1.002, counts


def test_every_kind_of_mixer_is_in_every_part(suites: dict[str, Suite]):
    for key, suite in suites.items():
        kinds = {block.mixer.kind for run in specs(suite).values() for block in run.model.blocks}
        assert kinds == set(MIXERS), f"a new mixer needs its run in {key}"


def test_the_suites_differ_in_what_they_should(suites: dict[str, Suite]):
    first, second, time = (suites[key] for key in ("tinystories", "wikitext2", "tinystories-time"))
    assert specs(first) == specs(second) == specs(time)
    assert first.more_seeds is not None and first.more_seeds.best == 6 and time.more_seeds is None
    assert time.equal_time_as == "attention" and suites["stories"].measures.name_recall is not None
    recall, *others = (suites[key] for key in page.ABILITIES)
    assert all(other.runs == recall.runs and other.seeds == recall.seeds for other in others)


@pytest.fixture
def record(tmp_path: Path) -> ResultTable:
    """The shipped record, in a folder of the test."""
    return ResultTable(Path(shutil.copy(page.RECORD, tmp_path)))


@pytest.fixture
def trained(monkeypatch: pytest.MonkeyPatch) -> list[str]:
    """Titles of what would be trained; each diverges at once."""
    titles: list[str] = []

    def attempt(runner: Runner, planned: Planned) -> Diverged:
        titles.append(planned.title)
        planned.folder.mkdir(parents=True)
        return Diverged(step=1, reason="a test")

    monkeypatch.setattr(jobs.Runner, "attempt", attempt)
    rows = ResultTable(page.RECORD).rows.values()
    known = {row.suite: row.inputs["text"] for row in rows if "text" in row.inputs}
    monkeypatch.setattr("linnet.experiments.run.text_hash", lambda suite: known[suite.name])
    monkeypatch.setattr("linnet.experiments.run.prepare_data", lambda *_: None)
    monkeypatch.setattr("linnet.experiments.run.file_hashes", lambda *_: [])
    return titles


@pytest.mark.parametrize("key", ["tinystories", "wikitext2-time", "stories", "copying"])
def test_recorded_results_are_not_trained_again(
    key: str, suites: dict[str, Suite], record: ResultTable, trained: list[str], tmp_path: Path
):
    logged: list[str] = []
    findings = run_suite(suites[key], tmp_path / "work", Runner(logged.append), record=record)
    rows = side_by_side(findings).summary().rows
    assert len(rows) > 1 and all(run.results for run in findings.runs if run.name != suites[key].equal_time_as)
    assert trained == [] and f"{suites[key].name}: 0 to train;" in logged[0]


def test_another_recipe_trains_all_again_with_a_reason(
    suites: dict[str, Suite], record: ResultTable, trained: list[str], tmp_path: Path
):
    suite, logged = suites["tinystories"], list[str]()
    training = {**suite.training, "optimizer": {**suite.training["optimizer"], "lr": 5.0e-3}}
    run_suite(suite.model_copy(update={"training": training}), tmp_path, Runner(logged.append), record=record)
    assert trained[:20] == [f"{run.name}, seed 0" for run in suite.runs]
    assert "atlas tinystories: TED, seed 0: made with another training" in logged


def test_missing_and_outdated_rows_are_made_and_unknown_inputs_accepted(
    suites: dict[str, Suite], record: ResultTable, trained: list[str], tmp_path: Path
):
    name = "atlas stories"
    del record.rows[name, "attention", 0, NAME_RECALL]
    for mixer, changed in (("TED", {"model": "another"}), ("H3", {"training": None})):
        row = record.rows[name, mixer, 0, NAME_RECALL]
        inputs = {part: value for part, value in {**row.inputs, **changed}.items() if value is not None}
        record.rows[row.key] = row.model_copy(update={"inputs": inputs})
    run_suite(suites["stories"], tmp_path, Runner([].append), record=record)
    assert trained == ["attention, seed 0", "TED, seed 0"]


def test_equal_time_is_trained_again_where_the_steps_changed_by_a_tenth(
    suites: dict[str, Suite], record: ResultTable, trained: list[str], tmp_path: Path
):
    times = {row.run: row.values["step_s"] for row in record.of("atlas tinystories", TRAINING_SPEED)}
    for row in record.of("atlas tinystories time", LIKELIHOOD):
        steps = round(400 * times["attention"] / times[row.run])
        changed = {"RG-LRU": 2 * steps, "H3": steps + steps // 11}.get(row.run, steps)
        values = {**row.values, "steps": changed}
        record.rows[row.key] = row.model_copy(update={"values": values})
    logged: list[str] = []
    run_suite(suites["tinystories-time"], tmp_path, Runner(logged.append), record=record)
    assert trained == ["RG-LRU, seed 0"] and "by measured times" in logged[0]


def test_hashes_leave_out_a_rate_that_no_parameter_uses(suites: dict[str, Suite]):
    runs = specs(suites["tinystories"])
    for name, matters in (("TED", False), ("PLGA", True)):
        run = runs[name]
        optimizer = run.training.optimizer.model_copy(update={"low_lr": 1e-3})
        training = run.training.model_copy(update={"optimizer": optimizer, "seed": 7, "threads": 1})
        other = run.model_copy(update={"training": training})
        assert (inputs_of(run, "t") != inputs_of(other, "t")) is matters


def defaults_of(spec: type[Spec], found: dict[str, dict[str, Any]]) -> dict[str, dict[str, Any]]:
    """The defaults of a configuration and of all that may stand in it, by the name of the class and of the field."""

    def sections(annotation: Any) -> Iterator[type[Spec]]:
        if isinstance(annotation, type) and issubclass(annotation, Spec):
            yield annotation
        for part in get_args(annotation):
            yield from sections(part)

    own = found.setdefault(spec.__name__, {})
    for name, field in spec.model_fields.items():
        if not field.is_required():
            own[name] = without_defaults(field.get_default(call_default_factory=True))
        for section in sections(field.annotation):
            if section.__name__ not in found:
                defaults_of(section, found)
    return found


def test_defaults_are_those_that_results_were_recorded_with():
    """Hashes of inputs leave defaults out: another default makes other results under the same hash.

    Who changes one records the atlas anew, or gives its suites the former value, and then changes the file.
    """
    recorded, today = json.loads(DEFAULTS.read_text()), defaults_of(RunSpec, {})
    changed = {
        f"{kind}.{name}": (value, today[kind][name])
        for kind, fields in recorded.items()
        for name, value in fields.items()
        if name in today.get(kind, {}) and today[kind][name] != value
    }
    assert changed == {} and len(recorded) > 50


def test_the_hash_of_a_text_is_that_of_its_content(suites: dict[str, Suite], tmp_path: Path):
    hashes = []
    for name, content in (("a", "one"), ("b", "one"), ("b", "two")):
        (tmp_path / name).write_text(content)
        text = suites["tinystories"].text.model_copy(update={"files": [str(tmp_path / name)]})
        hashes.append(text_hash(suites["tinystories"].model_copy(update={"text": text})))
    assert hashes[0] == hashes[1] != hashes[2]


def test_those_who_follow_most_instructions_come_first(record: ResultTable):
    lines = page.taught_table(Atlas(record)).splitlines()
    names = [line.split(" | ")[0].lstrip("| ") for line in lines[3:]]
    shares = [float(line.split(" | ")[1].split(" ± ")[0]) for line in lines[3:]]
    assert shares == sorted(shares, reverse=True) and len(names) == len(set(names)) == 20
    (points,) = page.taught_plot(Atlas(record)).panels[0].series
    assert sorted(points.labels or []) == sorted(names) and max(points.y) == pytest.approx(shares[0] / 100, abs=5e-4)
    bytes_of = dict(zip(points.labels or [], points.x, strict=True))
    assert bytes_of["RWKV-7"] < bytes_of["gated delta with attention"] < bytes_of["attention"] == 2**21


def test_every_row_of_the_record_has_an_origin():
    rows = list(ResultTable(page.RECORD).rows.values())
    assert len(rows) >= 20 * 7 + 18 * 3 * 2
    for row in rows:
        assert {"commit", "date", "processor", "amx"} <= row.origin.keys()
        assert row.origin["commit"] or row.origin["recorded"], "if the commit is not known, the one that recorded it is"


def test_the_page_names_what_is_of_another_model(record: ResultTable):
    atlas = Atlas(record)
    assert outdated(atlas, [*atlas.suites]) == "All results are of today's models and recipes."
    row = record.rows["atlas stories", "TED", 0, NAME_RECALL]
    record.rows[row.key] = row.model_copy(update={"inputs": {"model": "another"}})
    assert outdated(atlas, ["stories"]).endswith("so that the next call makes them: stories: TED.")


def test_the_page_is_made_of_the_record(tmp_path: Path, monkeypatch: pytest.MonkeyPatch):
    monkeypatch.setattr(Plot, "write", lambda plot, path: None)
    page.write_page(ResultTable(page.RECORD), tmp_path / "atlas.md")
    assert (tmp_path / "atlas.md").read_text() == (ROOT / "docs" / "atlas.md").read_text()


def timed(run: str, measure: str, spec: RunSpec, processor: str, **values: float) -> ResultRow:
    """A row of a speed of the atlas."""
    inputs = decoding_speed_inputs(spec) if measure == DECODING_SPEED else training_speed_inputs(spec)
    origin = {"commit": "abc", "date": "2026-11-28", "processor": processor, "amx": None}
    about: dict[str, Any] = {"suite": "atlas tinystories", "seed": 0, "inputs": inputs, "origin": origin}
    return ResultRow(**about, run=run, measure=measure, values=values)


def test_decoding_is_shown_of_its_own_rows_alone(suites: dict[str, Suite]):
    """An old row of training has both speeds; only its time of training is shown."""
    runs, record = specs(suites["tinystories"]), ResultTable()
    atlas = Atlas(record, suites)
    assert page.timed_on(atlas) == "training and decoding were timed on none yet."
    old = {"step_s": 0.1, "training_tokens_per_s": 20480.0, "decode_tokens_per_s": 1111.0}
    record.add(timed(name, TRAINING_SPEED, run, "X", **old) for name, run in runs.items())
    table = page.quality_table(atlas)
    assert "training, tokens/s | decoding, tokens/s" in table
    assert "| 20,480 | – |" in table and "1,111" not in table
    assert page.missing_speeds(atlas) == {"decoding, tokens/s": [*runs]}
    assert page.timed_on(atlas).startswith("decoding was timed on none yet; training, whose times decide")
    record.add(timed(name, DECODING_SPEED, run, "Y", decode_tokens_per_s=9999.0) for name, run in runs.items())
    assert "| 20,480 | 9,999 |" in page.quality_table(atlas) and page.missing_speeds(atlas) == {}
    assert page.timed_on(atlas).startswith("decoding was timed on Y; training, whose times decide")
    columns = page.quality_columns(atlas)
    assert [line for line in origins_table(columns).splitlines() if "tokens/s" in line] == [
        "| abc | 2026-11-28 | X | training, tokens/s: all |",
        "| abc | 2026-11-28 | Y | decoding, tokens/s: all |",
    ]
    record.add([timed("TED", DECODING_SPEED, runs["H3"], "Y", decode_tokens_per_s=1.0)])
    record.add([timed("H3", TRAINING_SPEED, runs["TED"], "X", **old)])
    assert page.missing_speeds(atlas) == {"training, tokens/s": ["H3"], "decoding, tokens/s": ["TED"]}
    record.add(timed(name, DECODING_SPEED, run, "X", decode_tokens_per_s=9999.0) for name, run in runs.items())
    assert page.timed_on(atlas) == "training and decoding were timed on X."


def test_the_first_page_of_the_project_shows_figures_of_the_atlas():
    """Six rows of README.md: bits per byte, at equal time, name recall in whole per cent, training speed."""
    lines = (ROOT / "README.md").read_text().splitlines()
    head = next(number for number, line in enumerate(lines) if line.startswith("| mixer | bits per byte |"))
    rows = [[cell.strip() for cell in line.strip("|").split("|")] for line in lines[head + 2 : head + 8]]
    atlas = Atlas(ResultTable(page.RECORD))
    for mixer, bits, equal_time, recall, training, *_ in rows:
        name = mixer.removesuffix(" (PLDR-LLM)")
        timed_row, recalled = atlas.timed("tinystories", name), atlas.row("stories", name, NAME_RECALL)
        assert timed_row is not None and recalled is not None
        names = recalled.values["name_recall"]
        assert f"{sum(own := atlas.bits('tinystories', name)) / len(own):.3f}" == bits
        assert f"{timed_row.values['bits_per_byte']:.3f}" == equal_time
        assert f"{names['right'] / names['mentions']:.0%}".replace("%", " %") == recall
        assert f"{atlas.speed(name, TRAINING_SPEED):,.0f}" == training


def test_the_best_six_have_three_seeds():
    atlas = Atlas(ResultTable(page.RECORD))
    by_first_seed = sorted(atlas.models, key=lambda name: atlas.bits("tinystories", name)[0])
    assert [len(atlas.bits("tinystories", name)) for name in by_first_seed[:6]] == [3] * 6


def test_names_have_a_binomial_error():
    assert recall_cell({"right": 2068, "mentions": 2914}) == "71.0 ± 0.8 %"


def made(commit: str | None, seed: int = 0, right: float = 0.5, run: str = "A") -> ResultRow:
    origin = {"commit": commit, "date": "2026-11-23", "processor": "X", "amx": True}
    origin = origin if commit else {"commit": None, "recorded": "def", "date": None, "processor": None, "amx": None}
    values = {"ability": {"symbols_right": right, "symbols_chance": 0.125, "items": 2000}, "state_bytes": 4096}
    return ResultRow(suite="recall", run=run, seed=seed, measure=ABILITY, values=values, origin=origin)


def test_a_row_for_each_origin(suites: dict[str, Suite]):
    rows = [made("abc", 0, run="attention"), made(None, 1, run="attention"), made("abc", 0, run="TED")]
    rows += [made(None, 0, run="PLGA")]
    record = ResultTable()
    record.add(row.model_copy(update={"suite": suites["recall"].name}) for row in rows)
    table = origins_table(by_seed(Atlas(record, suites), "recall", "T", ABILITY))
    assert table.splitlines()[2:] == [
        "| abc | 2026-11-23 | X, AMX | T: all others |",
        "| unknown; recorded in def | unknown | unknown | T: PLGA; T, more seeds: all |",
    ]


def test_a_cell_has_a_verdict():
    def cell(*shares: float) -> str:
        return ability_cell([made("abc", seed, right) for seed, right in enumerate(shares)])

    assert cell(1.0, 0.96) == "98.0 ± 2.0, **can**"
    assert cell(0.5, 0.97) == "73.5 ± 23.5", "one seed can: neither"
    assert cell(0.13) == "13.0, no better than chance"
    assert cell(0.125 + 3.1 * (0.125 * 0.875 / 2000) ** 0.5) == "14.8"
    assert cell() == "diverged"


def test_the_plot_has_a_point_for_each_mixer_and_the_line_of_chance():
    plot = abilities_plot(Atlas(ResultTable(page.RECORD)))
    assert [panel.title for panel in plot.panels] == list(page.ABILITIES.values())
    panel = plot.panels[0]
    assert len(panel.series[0].labels) == 18 and [rule.at for rule in panel.rules] == [0.125]
    assert all(
        low <= y <= high
        for low, y, high in zip(*(getattr(panel.series[0], n) for n in ("low", "y", "high")), strict=True)
    )


def test_an_article_is_a_document(tmp_path: Path):
    (tmp_path / "wikitext2-train.txt").write_text(" = One = \n\n first\n = = Part = = \n more\n = Two = \n second\n")
    lines = write_articles(tmp_path / "wikitext2-train.txt").read_text().splitlines()
    texts = [json.loads(line)["text"] for line in lines]
    assert [text.splitlines()[0].strip() for text in texts] == ["= One =", "= Two ="]
    assert "= = Part = =" in texts[0]


def test_a_suite_adds_its_rows_to_the_record(tmp_path: Path):
    plain = {
        "name": "tiny", "text": {"ability": {"kind": "copying", "length": 3, "symbols": 3}, "items": 40},
        "model": {"vocab_size": 300, "d_model": 8, "context_length": 16, "blocks": [{"mixer": {"kind": "minlstm"}}]},
        "training": {"steps": 1, "batch_size": 4, "evaluate": {"every": 1}, "threads": 1, "precision": "float32"},
        "seeds": [3, 4], "runs": [{"name": "minLSTM"}],
    }  # fmt: skip
    suite, file = Suite.parse(plain, "tiny"), tmp_path / "record.jsonl"
    run_suite(suite, tmp_path / "first", Runner([].append), record=ResultTable(file))
    rows = ResultTable(file).of("tiny", ABILITY)
    assert [row.seed for row in rows] == [3, 4]
    assert all(row.values["ability"]["symbols_chance"] == 1 / 3 and row.values["state_bytes"] for row in rows)
    logged: list[str] = []
    findings = run_suite(suite, tmp_path / "second", Runner(logged.append), record=ResultTable(file))
    assert "tiny: 0 to train; 6 rows are in the record" in logged and not (tmp_path / "second" / "runs").exists()
    assert [result.seed for result in findings.runs[0].results] == [3, 4]
