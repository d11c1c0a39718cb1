"""Plans: sizes, tokens, steps, time, repeated text, and what follows from them."""

import math
import shlex
from dataclasses import replace
from pathlib import Path

import pytest
import torch

from linnet.core.errors import UserError
from linnet.data.prepare import prepare_texts
from linnet.present import numbers
from linnet.present.style import png_of
from linnet.scaling import plan as plan_module
from linnet.scaling.budget import TrainingBudget
from linnet.scaling.law import ParametricLaw, published_laws, read_law
from linnet.scaling.plan import PlanSetting, TrainingText, make_plan, read_training_text
from linnet.scaling.plan_report import PURPOSES, PlanReport, next_commands, plan_warnings
from linnet.scaling.throughput import Throughput
from linnet.training.runs import training_flops_per_token

SETTING = PlanSetting(4096, 256, 8, torch.device("cpu"), Throughput(1e12))
DATA = TrainingText(Path("data/my text"), 10_000_000, 3.0, 4096)
LAW = read_law("replication")


def planned(data: TrainingText | None = None, law=LAW, setting: PlanSetting = SETTING, **amounts):
    return make_plan(TrainingBudget(**amounts), law, published_laws(), setting, data)


def test_everything_follows_from_size_and_tokens():
    plan = planned(DATA, parameters=5e6, tokens=1e8)
    assert plan.counts.total == pytest.approx(5e6, rel=0.05)
    assert plan.tokens == 100_000_000 and plan.tokens_per_step == 2048
    assert plan.steps == math.ceil(1e8 / 2048)
    assert plan.epochs == pytest.approx(10)
    assert plan.exact_flops == pytest.approx(1e8 * training_flops_per_token(plan.model, None))
    assert plan.wall_s == pytest.approx(plan.exact_flops / 1e12)


def test_a_plan_takes_the_given_hours_with_a_given_speed():
    plan = planned(hours=2)
    assert plan.wall_s == pytest.approx(2 * 3600, rel=1e-6)
    assert plan.allocation.parameters == pytest.approx(LAW.best(flops=plan.allocation.flops).parameters, rel=0.1)
    assert planned(hours=2, parameters=5e6).allocation.parameters == 5e6


def test_the_speed_is_measured_with_the_planned_size(monkeypatch: pytest.MonkeyPatch):
    """Larger models are faster here by the root of their size: the first guess is far off."""
    timed: list[float] = []

    def measured(model, batch_size, device):
        timed.append(plan_module.parameter_counts(model).total)
        return Throughput(1e9 * timed[-1] ** 0.5, int(timed[-1]), "cpu")

    monkeypatch.setattr(plan_module, "measure", measured)
    monkeypatch.setattr(plan_module, "estimate_flops_per_s", lambda device: 1e9)
    monkeypatch.setattr(plan_module, "max_parameters", lambda device, length: 1e12)
    plan = planned(setting=PlanSetting(4096, 256, 8, torch.device("cpu")), hours=24)
    assert len(timed) >= 2
    assert timed[-1] == pytest.approx(plan.counts.total, rel=0.5)
    assert plan.wall_s == pytest.approx(24 * 3600, rel=1e-6)
    assert plan.throughput.parameters == timed[-1]


def test_a_large_model_is_timed_at_a_smaller_size(monkeypatch: pytest.MonkeyPatch):
    def measured(model, batch_size, device):
        return Throughput(1e9, plan_module.parameter_counts(model).total, "cpu")

    monkeypatch.setattr(plan_module, "measure", measured)
    monkeypatch.setattr(plan_module, "max_parameters", lambda device, length: 3e6)
    setting = PlanSetting(4096, 256, 8, torch.device("cpu"))
    assert planned(setting=setting, parameters=1e9).throughput.parameters == pytest.approx(3e6, rel=0.1)
    monkeypatch.setattr(plan_module, "max_parameters", lambda device, length: 1.0)
    assert planned(setting=setting, parameters=1e9).throughput.parameters == pytest.approx(70_000, rel=0.1)


def test_each_law_counts_parameters_in_its_own_way():
    plan = planned(flops=1e17)
    by_name = {one.law.name: one for one in plan.predictions}
    kaplan = by_name["kaplan"]
    assert kaplan.loss == pytest.approx(kaplan.law.loss(plan.counts.without_embedding, plan.allocation.tokens))
    assert by_name["replication"].loss == pytest.approx(LAW.loss(plan.counts.total, plan.allocation.tokens))
    assert by_name["replication"].loss_at_best == pytest.approx(LAW.lowest_loss(flops=1e17))
    assert kaplan.best.flops == pytest.approx(1e17)
    assert [name for name, one in by_name.items() if one.extrapolated] == ["chinchilla", "replication"]


def test_bits_per_byte_use_the_laws_own_tokens_if_they_are_known():
    assert planned(flops=1e16).predictions[0].bits_per_byte is None
    from_data = planned(DATA, flops=1e16).predictions[0]
    assert from_data.bits_per_byte == pytest.approx(from_data.loss / math.log(2) / 3.0)
    own = ParametricLaw(E=1, A=100, B=100, alpha=0.3, beta=0.3, bytes_per_token=4.0)
    one = make_plan(TrainingBudget(flops=1e16), own, [own], SETTING, DATA).predictions[0]
    assert one.bits_per_byte == pytest.approx(one.loss / math.log(2) / 4.0)


def test_a_warning_about_more_than_four_epochs_names_the_source():
    few, many = planned(DATA, parameters=5e6, tokens=3.9e7), planned(DATA, parameters=5e6, tokens=4.1e7)
    assert not any("Muennighoff" in line for line in plan_warnings(few))
    (line,) = (line for line in plan_warnings(many) if "Muennighoff" in line)
    assert "4.1 times" in line


def test_a_warning_about_a_shape_of_another_size():
    assert not any("nearest plain shape" in line for line in plan_warnings(planned(flops=1e17)))
    far = planned(parameters=1e5, tokens=1e6)
    (line,) = (line for line in plan_warnings(far) if "nearest plain shape" in line)
    assert f"{far.counts.total / 1e5:.2f} times" in line


def test_a_warning_about_less_than_one_step():
    (line,) = (line for line in plan_warnings(planned(parameters=5e6, tokens=2047)) if "less than one step" in line)
    assert "2,047 of 8 x 256 tokens; a step needs at least 2,048" in line
    assert not any("less than one step" in line for line in plan_warnings(planned(parameters=5e6, tokens=2048)))


@pytest.mark.parametrize(
    ("amounts", "message"),
    [
        ({"flops": 1e6, "parameters": 1e9}, "^`flops` 1e6 `parameters` 1e9: comes to 1.67e-4 tokens; .* `flops` 6e9$"),
        ({"flops": 1e6, "parameters": 7e8}, "comes to 2.38e-4 tokens; expected at least `flops` 4.20e9$"),
        ({"flops": 1e6, "tokens": 1e12}, "comes to 1.67e-7 parameters; expected a larger budget, or fewer `tokens`$"),
        ({"tokens": 1.0}, "^`tokens` 1: comes to 0.0128 parameters; expected more `tokens`$"),
        ({"hours": 1e-4, "tokens": 1e12}, "parameters; expected a larger budget, or fewer `tokens`$"),
        (
            {"hours": 1e-6, "parameters": 1e9},
            "^`hours` 1e-6 `parameters` 1e9: .* tokens; expected at least `hours` .*$",
        ),
    ],
)
def test_a_budget_that_buys_nothing_is_refused_with_what_would_be_accepted(amounts: dict[str, float], message: str):
    slow = replace(SETTING, throughput=Throughput(1e6))
    with pytest.raises(UserError, match=message) as caught:
        planned(setting=slow, **amounts)
    words = str(caught.value).split("at least --")
    if len(words) == 2:
        name, enough = words[1].split()
        assert planned(setting=slow, **{**amounts, name: float(enough)}).tokens == 1


@pytest.mark.parametrize("vocab_size", [None, 32_000])
def test_the_warning_about_a_useless_model_states_a_useful_budget(vocab_size: int | None):
    setting = replace(SETTING, vocab_size=vocab_size)
    small = planned(setting=setting, flops=1e15 if vocab_size else 1e13)
    (line,) = (line for line in plan_warnings(small) if "nothing useful" in line)
    assert line.startswith(f"this budget buys nothing useful: 1 layer of width {small.model.d_model}, and ")
    useful = small.useful_from
    assert useful is not None and f"take about {numbers.scientific(useful.flops)} FLOPs by replication" in line
    enough = planned(setting=setting, flops=1.05 * useful.flops)
    assert enough.model.layers >= 2 and enough.counts.without_embedding >= enough.counts.total / 2
    assert not any("nothing useful" in line for line in plan_warnings(enough))


@pytest.mark.parametrize(("amounts", "layers"), [({"flops": 1e15}, 3), ({"hours": 24}, 5)])
def test_a_fitted_vocabulary_leaves_parameters_for_layers(amounts: dict[str, float], layers: int):
    setting = PlanSetting(None, 1024, 8, torch.device("cpu"), Throughput(1e11))
    plan = planned(setting=setting, **amounts)
    assert plan.model.layers >= layers and plan.model.vocab_size == 2048
    assert planned(setting=replace(setting, vocab_size=32_000), **amounts).model.layers < layers
    assert f"--vocab-size {plan.model.vocab_size} " in next_commands(plan, None)["describe"]


def test_a_warning_about_a_loss_above_that_of_guessing():
    assert any("guessing among 4,096 tokens" in line for line in plan_warnings(planned(flops=1e13)))
    assert not any("guessing" in line for line in plan_warnings(planned(flops=1e18)))


def test_a_text_is_seen_four_times_at_most_unless_its_tokens_are_asked_for():
    plan = planned(DATA, flops=1e18)
    asked = LAW.best(flops=1e18)
    assert plan.epochs == 4 and plan.budget_tokens == asked.tokens > 4 * DATA.tokens
    of_text = LAW.best(tokens=4.0 * DATA.tokens).parameters  # with one layer; a useful one is a little larger
    assert of_text < plan.allocation.parameters < 1.3 * of_text and plan.useful_from is None
    assert any("the budget would see the text" in line for line in plan_warnings(plan))
    fixed = planned(DATA, parameters=5e6)
    assert (fixed.epochs, fixed.allocation.parameters) == (4, 5e6)
    for amounts in ({"parameters": 5e6, "tokens": 1e8}, {"parameters": 5e6, "flops": 6 * 5e14}, {"tokens": 1e8}):
        plan = planned(DATA, **amounts)
        assert plan.epochs == pytest.approx(10) and plan.budget_tokens is None
    tiny = planned(replace(DATA, tokens=100_000), flops=1e18)
    assert tiny.epochs == 4 and tiny.useful_from is None
    shown = PlanReport(tiny).tables()[1]
    above = [one.law.name for one in tiny.predictions if one.loss > math.log(tiny.model.vocab_size)]
    assert above and all(row[4] == "–" for row in shown.rows if row[0].rstrip("*") in above)
    assert "--recipe auto" in next_commands(tiny, None)["train"]


def test_the_figures_are_those_of_the_plan():
    plan = planned(DATA, flops=1e14)
    figures = PlanReport(plan).to_dict()
    losses = [one.loss for one in plan.predictions]
    assert figures["loss_spread"] == {"lowest": min(losses), "highest": max(losses)}
    assert figures["laws"]["kaplan"]["parameters_counted"] == "without_embedding"
    assert figures["data"]["epochs"] == plan.epochs
    assert figures["training_flops"]["6ND"] == pytest.approx(1e14)
    assert figures["commands"] == next_commands(plan, None)
    assert figures["model"]["d_model"] == plan.model.d_model


def test_the_tables_show_the_plan_every_law_and_the_commands():
    plan = planned(DATA, flops=1e16)
    tables = {table.title: table for table in PlanReport(plan, Path("y.yaml")).tables()}
    assert list(tables) == ["Plan", "Predictions of the laws", "Commands"]
    shown = {row[0].strip(): row[1] for row in tables["Plan"].rows}
    assert shown["tokens"] == f"{plan.tokens:,}" and shown["epochs"] == f"{plan.epochs:,.2f}"
    assert [row[0] for row in tables["Predictions of the laws"].rows] == [
        "chinchilla*",
        "kaplan",
        "replication*",
        "highest - lowest",
    ]
    assert "tokenizers differ" in tables["Predictions of the laws"].meaning
    follow = next_commands(plan, Path("y.yaml"))
    assert tables["Commands"].lines == {PURPOSES[name]: [command] for name, command in follow.items()}


def test_commands_can_be_pasted_into_a_shell():
    plan = planned(DATA, flops=1e16)
    commands = next_commands(plan, Path("my shape.yaml"))
    words = shlex.split(commands["train"])
    assert words[:4] == ["linnet", "train", "--model", "my shape.yaml"]
    assert words[words.index("--data") + 1] == "data/my text"
    assert words[words.index("--out") + 1] == "runs/my shape"
    assert f"training.tokens={plan.tokens}" in words
    words = shlex.split(commands["search"])
    assert words[:4] == ["linnet", "design", "--space", "my shape-space.yaml"]
    assert words[-2:] == ["--out", "designed.yaml"]
    assert words[words.index("--tokens") + 1] == str(plan.model.context_length)
    assert "--max-flops" in words and "--max-parameters" in words


def test_a_description_is_written_once():
    plan = planned(flops=1e16)
    described, commands = next_commands(plan, Path("planned.yaml")), next_commands(plan, None)
    assert commands.pop("describe").endswith("--out planned.yaml")
    assert commands == described and list(described) == ["train", "search", "train_found"]
    assert "--model designed.yaml" in commands["train_found"]


def test_the_picture_shows_every_law():
    (picture,) = PlanReport(planned(flops=1e16)).plots()
    (panel,) = picture.drawing.panels
    assert [one.name for one in panel.series if one.style == "-"] == [
        "chinchilla, total",
        "kaplan, without embedding",
        "replication, total",
    ]
    assert png_of(picture.drawing.figure()).startswith(b"\x89PNG")


TEXT = TrainingText(Path("data"), 1_000_000, 3.0, 4096)


def test_repeated_text_is_worth_less_and_less():
    """Muennighoff et al.: nearly as good as new up to 4 epochs, and never more than 16.4 times the text."""
    assert TEXT.equivalent_tokens(0.5e6) == 0.5e6
    assert TEXT.equivalent_tokens(1e6) == 1e6
    assert TEXT.equivalent_tokens(4e6) == pytest.approx(3.7258e6, rel=1e-4)
    assert TEXT.equivalent_tokens(16.387756e6) == pytest.approx(1e6 + 15.387756e6 * (1 - 2.718281828**-1))
    assert TEXT.equivalent_tokens(1e9) == pytest.approx(16.387756e6)


def test_tokens_bytes_and_vocabulary_are_those_of_the_training_split(tmp_path: Path):
    prepare_texts(["abc"] * 10, ["defg"], tmp_path / "data", tokenizer="bytes")
    found = read_training_text(tmp_path / "data")
    assert found.tokens == 41  # an end token before each document, and one at the end
    assert found.bytes_per_token == pytest.approx(30 / 41)
    assert found.vocab_size == 257


def test_a_folder_without_data_is_refused(tmp_path: Path):
    with pytest.raises(UserError, match="not a data folder"):
        read_training_text(tmp_path)
