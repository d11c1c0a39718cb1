"""Rewards by a function, and by a reward model, whose weights a run is held to."""

import json
from pathlib import Path
from typing import Any

import pytest
from pydantic import ValidationError
from runs_alike import same

import linnet
from chat_models import HEAD, write_chat_model
from linnet.core.errors import UserError
from linnet.core.files import sha256_of
from linnet.data.prompts import parse_prompt
from linnet.data.tokenizer import Tokenizer
from linnet.model.decoder import Decoder
from linnet.model.store import write_model
from linnet.training.rewards import Rewards
from linnet.training.run_folder import RunFolder
from linnet.training.sections import GrpoSpec, reward_function

GRPO = {"group": 4, "max_tokens": 6, "held_out": 4}
TRAINING = {
    "steps": 4, "batch_size": 4, "precision": "float32", "log": {"every": 1}, "evaluate": {"every": 2},
    "checkpoint": {"every": 2}, "optimizer": {"lr": 1e-2}, "schedule": {"kind": "constant", "warmup_steps": 0},
}  # fmt: skip
CHECKED = parse_prompt(json.dumps({"prompt": "q", "checker": {"kind": "begins_with", "text": "b"}}), "line 1")
UNCHECKED = parse_prompt(json.dumps({"prompt": "q"}), "line 2", needs_checker=False)


@pytest.fixture(autouse=True)
def _quick(quick: None) -> None:
    """Without what takes time and changes no run."""


@pytest.fixture
def models(tmp_path: Path, tiny_model) -> Path:
    """A folder with `chat`, a model that writes a few letters or ends, and `reward`, a reward model."""
    for name, head in (("chat", HEAD), ("reward", {**HEAD, "bias": False, "value": True})):
        write_chat_model(tmp_path / name, tiny_model(context_length=32, head=head))
    return tmp_path


@pytest.fixture
def prompts(tmp_path: Path) -> Path:
    """Prompts of which nothing says what a right answer is."""
    path = tmp_path / "prompts.jsonl"
    path.write_text("".join(json.dumps({"prompt": f"q{n}"}) + "\n" for n in range(100)))
    return path


def test_a_reward_may_be_a_function_of_a_file(tmp_path: Path):
    (tmp_path / "reward.py").write_text(
        "number = 1\n\ndef short(row, answer):\n    return 1 if len(answer) < 3 else 0.5\n"
    )
    (tmp_path / "folder.py").mkdir()
    rewards = Rewards(GrpoSpec(reward=f"{tmp_path / 'reward.py'}:short"))
    assert rewards.of([UNCHECKED, UNCHECKED], ["ab", "abcd"]) == [(1.0, True), (0.5, False)]
    assert not rewards.needs_checker and rewards.describe() is None
    accepted = r"expected FILE\.py:FUNCTION"
    for wrong, expected in (
        ("reward.py:short", rf"reward\.py:short: reward\.py: no such file; {accepted}"),
        (f"{tmp_path / 'reward.py'}:long", rf"reward\.py:long: .*reward\.py has no function long; {accepted}"),
        (f"{tmp_path / 'reward.py'}:number", rf"number of .*reward\.py is no function; {accepted}"),
        (f"{tmp_path / 'reward.py'}:", rf"reward\.py:: no such model folder; {accepted}"),
        (f"{tmp_path / 'folder.py'}:short", rf"folder\.py: a folder; {accepted}"),
        ("short", rf"short: no such model folder; {accepted}"),
    ):
        with pytest.raises(UserError, match=rf"training\.grpo\.reward: .*{expected}"):
            Rewards(GrpoSpec(reward=wrong))


def test_a_function_that_fails_is_named_with_the_prompt(tmp_path: Path):
    path = tmp_path / "reward.py"
    path.write_text(
        "def wrong(row, answer):\n    return row['length']\n\n\ndef endless(row, answer):\n    return float('inf')\n"
    )
    with pytest.raises(UserError, match=r"reward\.py:wrong: it failed for the prompt of line 2: KeyError: 'length'"):
        Rewards(GrpoSpec(reward=f"{path}:wrong")).of([UNCHECKED], ["ab"])
    with pytest.raises(UserError, match="endless: it returned inf for the prompt of line 2; expected a finite number"):
        Rewards(GrpoSpec(reward=f"{path}:endless")).of([UNCHECKED], ["ab"])
    for value, shown in (("'1'", "'1'"), ("None", "None"), ("[1.0]", r"\[1\.0\]")):
        path.write_text(f"def strange(row, answer):\n    return {value}\n")
        with pytest.raises(
            UserError, match=f"strange: it returned {shown} for the prompt of line 2; expected a finite"
        ):
            Rewards(GrpoSpec(reward=f"{path}:strange")).of([UNCHECKED], ["ab"])
    path.write_text("import nothing_of_the_kind\n")
    with pytest.raises(UserError, match=r"reward\.py: ModuleNotFoundError: No module named"):
        Rewards(GrpoSpec(reward=f"{path}:wrong"))


def test_a_reward_model_may_have_any_name_and_a_function_is_a_file_and_a_name(models: Path):
    """`v2.py:best` is no name of a function, if what stands behind the file is none."""
    named = models / "v2.py: 2"
    (models / "reward").rename(named)
    assert Rewards(GrpoSpec(reward=str(named), checker_weight=1.0)).describe()
    assert reward_function("C:\\x\\a.py:short") == (Path("C:\\x\\a.py"), "short")
    with pytest.raises(ValidationError, match="checker_weight: 1: needs a reward model as reward"):
        GrpoSpec(reward="rewards.py:short", checker_weight=1.0)


def test_a_reward_model_gives_answers_its_value_and_the_checker_says_which_pass(models: Path):
    model = linnet.load(models / "reward")
    values = model.values(["U:qA:b", "U:qA:"])
    plain, weighted = (Rewards(GrpoSpec(reward=str(models / "reward"), checker_weight=weight)) for weight in (0.0, 2.0))
    assert plain.of([CHECKED, UNCHECKED], ["b", ""]) == [(values[0], True), (values[1], None)]
    assert weighted.of([CHECKED, CHECKED], ["b", ""]) == [(values[0] + 2, True), (values[1], False)]
    assert "answers earn the value that the reward model" in plain.describe() and "2 times" in weighted.describe()
    plain.check([UNCHECKED])
    with pytest.raises(UserError, match="line 2: field 'checker': missing"):
        weighted.check([UNCHECKED])


def test_a_run_earns_more_of_a_reward_model_and_resumes_bit_for_bit(models: Path, prompts: Path, told):
    grpo = {**GRPO, "updates": 3, "reward": str(models / "reward")}
    given = {"start_from": models / "chat", "prompts": prompts}
    straight = linnet.train(models / "straight", **given, training={**TRAINING, "steps": 12, "grpo": grpo})
    before, after = straight.summary["rollouts"]["before"], straight.summary["rollouts"]["after"]
    assert before["reward"] < before["reward_interval"][1] < after["reward"] and "pass@1" not in after
    linnet.train(models / "parts", **given, training={**TRAINING, "steps": 4, "grpo": grpo})
    again = linnet.train(models / "parts", training={"steps": 12})
    assert same(again.folder, straight.folder)
    assert RunFolder(straight.folder).hashes()["training.grpo.reward"] == sha256_of(
        models / "reward" / "model.safetensors"
    )


def test_a_run_keeps_its_reward(models: Path, prompts: Path):
    (models / "reward.py").write_text("def short(row, answer):\n    return 1 if len(answer) < 3 else 0.5\n")
    for name, named in (("model", str(models / "reward")), ("function", f"{models / 'reward.py'}:short")):
        training: dict[str, Any] = {**TRAINING, "steps": 1, "grpo": {**GRPO, "reward": named}}
        settings = {"start_from": models / "chat", "prompts": prompts}
        linnet.train(models / name, **settings, training=training)
        if name == "model":
            write_model(models / "reward", Decoder(linnet.load(named).spec), Tokenizer.train("bytes", []), {})
        else:
            (models / "reward.py").write_text("def short(row, answer):\n    return 0\n")
        with pytest.raises(UserError, match=r"holds a run with training\.grpo\.reward: .*SHA-256.* not .*SHA-256"):
            linnet.train(models / name, **settings, training={**training, "steps": 2})


def test_other_models_and_prompts_without_a_checker_are_refused(models: Path, prompts: Path):
    settings = {"start_from": models / "chat", "prompts": prompts}
    for grpo, expected in (
        ({}, r"prompts\.jsonl, line 1: field 'checker': missing"),
        (
            {"reward": str(models / "reward"), "checker_weight": 1.0},
            r"prompts\.jsonl, line 1: field 'checker': missing",
        ),
        ({"reward": str(models / "chat")}, r"a model that gives texts no value; expected a reward model"),
        ({"checker_weight": 1.0}, "checker_weight: 1: needs a reward model"),
    ):
        with pytest.raises(UserError, match=expected):
            linnet.train(models / "run", **settings, training={**TRAINING, "grpo": {**GRPO, **grpo}})
