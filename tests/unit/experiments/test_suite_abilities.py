"""Comparisons whose text is an ability: what is trained on, measured, and shown."""

from pathlib import Path
from typing import Any

import pytest

from linnet.cli.main import main
from linnet.core.errors import UserError
from linnet.data.token_data import TokenData
from linnet.evaluation.abilities.contract import Question, SymbolEncoder
from linnet.experiments.data import prepare_data
from linnet.experiments.jobs import Runner
from linnet.experiments.results import Failure, Findings, RunSummary, SeedResult
from linnet.experiments.run import run_suite
from linnet.experiments.suite import Suite
from linnet.experiments.suite_report import curves_plot, measures_ability, results_table, state_panel
from linnet.ops.cross_entropy import IGNORE_INDEX

PLGA = {"kind": "plga", "heads": 2, "metric_hidden": 8, "residual_units": 1}
MODEL = {
    "vocab_size": 300, "d_model": 8, "context_length": 32,
    "blocks": [{"mixer": {"kind": "attention", "heads": 2}, "feed_forward": {"kind": "glu", "hidden": 8}}],
}  # fmt: skip
TRAINING = {"steps": 1, "batch_size": 4, "evaluate": {"every": 1}, "threads": 1, "precision": "float32"}
RECALL = {"kind": "recall", "pairs": 3, "key_symbols": 6, "value_symbols": 6}
ROW = 1 + 3 * 2 + 3
SHIPPED = Path(__file__).parents[3] / "experiments"


def spec(text: dict[str, Any], **more: Any) -> Suite:
    plain = {"text": text, "model": MODEL, "training": TRAINING, "seeds": [0], "runs": [{"name": "attention"}]}
    return Suite.parse({**plain, **more}, "test")


def test_the_text_is_the_items_of_both_sides(tmp_path: Path):
    described = spec({"ability": RECALL, "items": 60})
    (part,) = prepare_data(described, tmp_path)
    data = TokenData.open(part)
    assert data.tokenizer.vocab_size == 257 + len(described.text.ability.alphabet)
    for split, count in (("train", 60), ("validation", 3)):
        sequence = data.split(split)
        rows = data.spans(sequence, 1000)
        expected = [item.row(SymbolEncoder(data.tokenizer)) for item in described.text.ability.items(count, 0, split)]
        assert len(rows) == count
        batch = rows.read(sequence, range(count))
        assert (batch.tokens.tolist(), batch.labels.tolist()) == (
            [r.tokens for r in expected],
            [r.targets for r in expected],
        )
    before = (part / "manifest.json").stat().st_mtime_ns
    prepare_data(described, tmp_path)
    assert (part / "manifest.json").stat().st_mtime_ns == before, "made once"


@pytest.mark.parametrize("kind", ["bytes", "bpe"])
def test_text_is_encoded_by_the_configured_tokenizer(tmp_path: Path, kind: str):
    described = spec({"ability": {"kind": "facts", "people": 2}, "items": 40}, tokenizer={"kind": kind})
    (part,) = prepare_data(described, tmp_path)
    data = TokenData.open(part)
    sequence = data.split("train")
    batch = data.spans(sequence, 1000).read(sequence, [0])
    tokens, targets = batch.tokens, batch.labels
    item = next(iter(described.text.ability.items(1, 0, "train")))
    assert data.tokenizer.kind == kind
    assert data.tokenizer.decode(targets[targets != IGNORE_INDEX]) == item.answer
    assert data.tokenizer.decode(tokens[0]) in item.prompt + item.answer


@pytest.fixture(scope="module")
def compared(tmp_path_factory: pytest.TempPathFactory) -> tuple[Path, Findings]:
    runs = [{"name": "attention"}, {"name": "plga", "set": {"model.blocks.0.mixer": PLGA}}]
    out = tmp_path_factory.mktemp("abilities") / "out"
    return out, run_suite(spec({"ability": RECALL, "items": 100}, runs=runs), out, Runner(lambda line: None))


def test_models_are_measured_on_whole_answers_and_state(compared: tuple[Path, Findings]):
    _, findings = compared
    found = findings.to_dict()
    for run in found["runs"]:
        (each,) = run["seeds"]
        measured = each["ability"]
        assert measured["items"] == 5 and len(measured["by_place"]) == 3
        assert measured["symbols_right"] == pytest.approx(each["accuracy"]), "both count the same tokens"
        assert (measured["symbols_chance"], measured["chance"]) == pytest.approx((1 / 3, 1 / 6))
    attention, plga = (run["seeds"][0]["state_bytes"] for run in found["runs"])
    assert attention == 4 * ROW * 2 * 8 < plga
    assert found["runs"][1]["leak"] is not None, "of a model whose own pass sees the future"
    assert results_table(findings).title == "Answers, and their cost"


def test_folders_side_by_side_show_the_same_table(compared: tuple[Path, Findings], capsys: pytest.CaptureFixture[str]):
    assert main(["compare", str(compared[0])]) == 0
    assert "Answers, and their cost" in capsys.readouterr().out


def outcome(seed: int, right: float, above: bool, symbols_chance: float | None = 0.25) -> SeedResult:
    measured = {"symbols_right": right, "right": right / 2, "chance": 0.0125, "items": 1000, "above_chance": above,
                "symbols_chance": symbols_chance}  # fmt: skip
    evaluation = {"bits_per_byte": 1.0, "accuracy": right, "tokens": 9, "ability": measured, "state_bytes": 4096}
    return SeedResult(seed, evaluation, [], 50.0)


def test_a_row_has_answers_and_their_cost():
    one = RunSummary("a", 1000, 9, [outcome(0, 0.5, True), outcome(1, 0.7, False)], [], 1e9)
    lost = RunSummary("b", None, None, [], [Failure("b", 0, 3, "loss nan")])
    table = results_table(Findings("two", [lost, one], lost.failures))
    assert table.rows[0] == ["b", "0 of 1", "diverged", *["–"] * 6]
    assert table.rows[1] == ["a", "2", "60.0 ± 14.1", "30.0 ± 7.1", "1 of 2", "4,096", "1,000", "1e9", "50"]
    assert "25.00 % by chance" in table.meaning and "whole answers: 1.25 % by chance, 1,000 held-out" in table.meaning


def test_the_picture_has_a_point_for_each_run_and_the_line_of_chance():
    runs = [RunSummary("a", 1, 1, [outcome(0, 0.5, True)]), RunSummary("b", 1, 1, [outcome(0, 0.9, True)])]
    panel = state_panel(runs)
    assert [(list(one.x), list(one.y), one.name) for one in panel.series] == [
        ([4096], [0.5], "a"), ([4096], [0.9], "b")
    ]  # fmt: skip
    assert [rule.at for rule in panel.rules] == [0.25]
    assert len(curves_plot(runs, "two").panels) == 2
    words = [RunSummary("a", 1, 1, [outcome(0, 0.5, True, None)])]
    assert not state_panel(words).rules


def test_text_has_the_other_table():
    plain = RunSummary("a", 1, 1, [SeedResult(0, {"bits_per_byte": 1.0, "accuracy": 0.5, "tokens": 9}, [])])
    assert not measures_ability([plain]) and not measures_ability([])
    assert not measures_ability([plain, RunSummary("b", 1, 1, [outcome(0, 0.5, True)])])
    assert len(curves_plot([plain], "one").panels) == 1


@pytest.mark.parametrize(
    ("text", "more", "said"),
    [
        ({"ability": RECALL, "stories": 9}, {}, "text.ability: give one of stories, files, ability, instructions; the"),
        ({}, {}, "text.stories: give one of stories, files, ability"),
        ({"ability": RECALL, "parts": 2}, {}, "text.parts: 2: expected 1 with ability"),
        ({"ability": RECALL, "forms": ["answer"]}, {}, "text.forms: answer: need an ability in words"),
        ({"stories": 9, "forms": ["steps"]}, {}, "text.forms: steps: need an ability in words"),
        ({"ability": {"kind": "facts"}, "forms": ["steps", "steps"]}, {}, "forms: steps, steps: expected each once"),
        (
            {"ability": {"kind": "facts"}, "forms": ["answer", "steps"]}, {"runs": [{"name": "a", "part": 3}]},
            "runs[0].part: 3: expected at most the number of text.forms, 2",
        ),
        ({"ability": {**RECALL, "pairs": 9}}, {}, "key_symbols: 6: expected at least `pairs`, 9"),
        ({"ability": RECALL}, {"tokenizer": {"kind": "bytes"}}, "tokenizer: is decided by text.ability"),
    ],
)  # fmt: skip
def test_unfitting_settings_are_refused(text: dict[str, Any], more: dict[str, Any], said: str):
    with pytest.raises(UserError) as refused:
        spec(text, **more)
    assert said in str(refused.value)


def test_rows_that_are_longer_than_the_context_are_refused(tmp_path: Path):
    described = spec({"ability": RECALL, "items": 60}, model={**MODEL, "context_length": ROW - 1})
    with pytest.raises(UserError, match=f"row 1: {ROW} tokens: more than the context of {ROW - 1}"):
        run_suite(described, tmp_path / "out", Runner(lambda line: None))


WHEREABOUTS = {"kind": "whereabouts", "people": 2, "moves": 1}


@pytest.fixture(scope="module")
def both_forms(tmp_path_factory: pytest.TempPathFactory) -> tuple[Path, Findings]:
    out = tmp_path_factory.mktemp("forms") / "out"
    text = {"ability": WHEREABOUTS, "items": 60, "forms": ["answer", "steps"]}
    runs = [{"name": "direct"}, {"name": "steps", "part": 2}]
    described = spec(text, runs=runs, tokenizer={"kind": "bytes"}, model={**MODEL, "context_length": 200})
    return out, run_suite(described, out, Runner(lambda line: None))


def test_a_form_is_a_part_with_the_same_questions(both_forms: tuple[Path, Findings]):
    direct, steps = (TokenData.open(both_forms[0] / "data" / f"part-{part}") for part in (1, 2))
    assert direct.tokenizer.hash == steps.tokenizer.hash
    for split in ("train", "validation"):
        read = []
        for data in (direct, steps):
            sequence = data.split(split)
            batch = data.spans(sequence, 1000).read(sequence, [1])
            tokens, targets = batch.tokens, batch.labels
            asked = data.tokenizer.decode(tokens[0][1:]).split("?")[0]
            read.append((asked, data.tokenizer.decode(targets[targets != IGNORE_INDEX])))
        (asked, answer), (again, written) = read
        assert asked == again and written.endswith(answer) and written.count(".") == 2 and answer.count(".") == 1


def test_both_forms_are_measured_by_their_final_answers(both_forms: tuple[Path, Findings]):
    _, findings = both_forms
    measured = [run["seeds"][0]["ability"] for run in findings.to_dict()["runs"]]
    assert [(one["chance"], one["final_chance"], one["items"]) for one in measured] == [(0.5, 0.5, 3), (0.25, 0.5, 3)]
    assert measured[0]["final_right"] == measured[0]["right"] and "final_right" in measured[1]
    table = results_table(findings)
    assert table.columns[4] == "final, %" and [row[4] for row in table.rows] == [
        f"{100 * one['final_right']:.1f}" for one in measured
    ]
    assert "whole answers: 50.0 or 25.0 % by chance" in table.meaning
    assert "final: the end of what is written, 50.0 % by chance" in table.meaning


@pytest.mark.parametrize("path", sorted(SHIPPED.glob("*.yaml")), ids=lambda path: path.stem)
def test_shipped_comparisons_of_abilities_can_be_read(path: Path):
    if "ability:" not in path.read_text():
        pytest.skip("of a text")
    described = Suite.load(path)
    item = next(iter(described.text.ability.items(1)))
    if isinstance(item, Question):
        pytest.skip("in words: so many tokens as a tokenizer makes of them")
    assert (
        len(item.symbols) + 1
        <= described.run_spec(described.runs[0], 0, Path("data")).resolved().training.context_length
    )
