"""Runs that learn from what their own answers earn."""

import json
import shutil
import signal
from pathlib import Path

import pytest
import torch
from runs_alike import same

import linnet
from chat_models import HEAD, write_chat_model
from linnet.core.errors import UserError
from linnet.data.chat_template import CHAT_TEMPLATE
from linnet.data.prepare_prompts import rows_file, rows_of
from linnet.data.token_data import TokenData
from linnet.model.decoder import Decoder
from linnet.training.callbacks import Callback, rollouts
from linnet.training.data import fit_to_data
from linnet.training.reporter import TextReporter
from linnet.training.rewards import Judgement
from linnet.training.rollout_batches import pass_rates
from linnet.training.run import resolve_run_config
from linnet.training.spec import TrainingSpec

GRPO = {"group": 4, "max_tokens": 6, "held_out": 8}
TRAINING = {
    "steps": 4, "batch_size": 4, "precision": "float32", "log": {"every": 1}, "evaluate": {"every": 2},
    "checkpoint": {"every": 2}, "schedule": {"kind": "constant", "warmup_steps": 0},
}  # fmt: skip


@pytest.fixture(autouse=True)
def _quick(quick: None) -> None:
    """Without what takes time and changes no run."""


@pytest.fixture(scope="module")
def chat_model(tmp_path_factory: pytest.TempPathFactory, tiny_model) -> Path:
    """A model that writes one of a few letters, or ends."""
    folder = tmp_path_factory.mktemp("models") / "chat"
    write_chat_model(folder, tiny_model(context_length=32, head=HEAD))
    return folder


@pytest.fixture(scope="module")
def prompts(tmp_path_factory: pytest.TempPathFactory) -> Path:
    rows = [{"prompt": f"q{n}", "checker": {"kind": "begins_with", "text": "b"}} for n in range(160)]
    path = tmp_path_factory.mktemp("prompts") / "prompts.jsonl"
    path.write_text("".join(json.dumps(row) + "\n" for row in rows))
    return path


def terms_of(run: Path) -> list[dict[str, float]]:
    return [json.loads(line)["terms"] for line in (run / "metrics.jsonl").read_text().splitlines()]


def test_a_run_earns_more_and_says_how_many_answers_pass(chat_model: Path, prompts: Path, tmp_path: Path):
    training = {**TRAINING, "steps": 16, "evaluate": {"every": 16}, "optimizer": {"lr": 1e-2}, "grpo": GRPO}
    run = linnet.train(tmp_path / "run", start_from=chat_model, prompts=prompts, training=training)
    terms, figures = terms_of(run.folder), run.summary["rollouts"]
    assert terms[0]["reward"] < 0.5 < 0.8 < terms[-1]["reward"]
    assert figures["before"]["pass@1"]["value"] < 0.5 < figures["after"]["pass@1"]["value"]
    low, high = figures["before"]["pass@1"]["interval"]
    assert low <= figures["before"]["pass@1"]["value"] <= high and figures["after"]["step"] == 16
    assert terms[0]["clipped"] == 0 and 1 <= terms[0]["answer_tokens"] <= 7 and 0 <= terms[0]["cut"] <= 1


def test_held_out_prompts_tell_what_guesses_and_reference_answers_reach(chat_model: Path, tmp_path: Path):
    rows = [
        {"prompt": f"q{n}", "checker": {"kind": "begins_with", "text": "b"}, "answer": "ba"[n % 2 :], "chance": 0.25}
        for n in range(80)
    ]
    (tmp_path / "prompts.jsonl").write_text("".join(json.dumps(row) + "\n" for row in rows))
    (tmp_path / "reward.py").write_text("def any(row, answer):\n    return 1\n")
    training = {**TRAINING, "steps": 1}
    given = {"start_from": chat_model, "prompts": tmp_path / "prompts.jsonl"}
    run = linnet.train(tmp_path / "run", **given, training={**training, "grpo": {**GRPO, "held_out": 80}})
    before = run.summary["rollouts"]["before"]
    assert before["chance"] == {"pass@1": 0.25, "pass@4": pytest.approx(1 - 0.75**4)}
    passed = [row["answer"] == "ba" for row in rows_held_out(run.folder)]
    assert before["ceiling"] == sum(passed) / len(passed) and 0 < before["ceiling"] < 1
    grpo = {**GRPO, "reward": f"{tmp_path / 'reward.py'}:any"}
    by_function = linnet.train(tmp_path / "function", **given, training={**training, "grpo": grpo})
    assert not {"chance", "ceiling"} & by_function.summary["rollouts"]["before"].keys()


def rows_held_out(run: Path) -> list[dict[str, object]]:
    data = TokenData.open(run / "prompts")
    return [dict(line.row) for line in rows_of(data, "validation")]


def test_a_run_whose_answers_all_earn_the_same_tells_it_once(
    chat_model: Path, prompts: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
):
    monkeypatch.setattr(rollouts, "STEPS_WITHOUT_SIGNAL", 2)
    rows = [{"prompt": f"q{n}", "checker": {"kind": "begins_with", "text": "never"}} for n in range(20)]
    (tmp_path / "hard.jsonl").write_text("".join(json.dumps(row) + "\n" for row in rows))
    training = {**TRAINING, "evaluate": {"every": 4}, "grpo": {**GRPO, "held_out": 1}}
    for file, told in ((tmp_path / "hard.jsonl", 1), (prompts, 0)):
        given = {"start_from": chat_model, "prompts": file, "training": training, "reporter": TextReporter()}
        linnet.train(tmp_path / f"run {told}", **given)
        assert capsys.readouterr().err.count("for 2 steps all answers to each prompt earned the same") == told


def test_memory_that_runs_out_while_answers_are_drawn_is_one_line_with_what_to_lower(
    chat_model: Path, prompts: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
):
    given = {"start_from": chat_model, "prompts": prompts, "training": {**TRAINING, "grpo": GRPO}}
    draw, calls = rollouts.draw, []

    def full_at(number: int):
        def out_of_memory(*given: object) -> None:
            calls.append(given)
            if len(calls) == number:
                raise RuntimeError("DefaultCPUAllocator: can't allocate memory: you tried to allocate 1 bytes")
            draw(*given)

        return out_of_memory

    monkeypatch.setattr(rollouts, "draw", full_at(1))
    with pytest.raises(
        UserError, match=r"training\.grpo\.group: 4: out of memory while .* to held-out prompts \(saved: n"
    ):
        linnet.train(tmp_path / "first", **given)
    calls.clear()
    monkeypatch.setattr(rollouts, "draw", full_at(5))  # held-out prompts, two steps, those prompts again
    told = r"in front of step 3 \(saved: step 2\); expected a smaller group, or a smaller training\.batch_size or t"
    with pytest.raises(UserError, match=told):
        linnet.train(tmp_path / "run", **given)
    monkeypatch.setattr(rollouts, "draw", draw)
    assert linnet.train(tmp_path / "run", **given).finished


@pytest.mark.parametrize("grpo", [{}, {"updates": 3, "kl": 0.1}], ids=["on-policy", "three updates"])
def test_a_stopped_run_resumes_bit_for_bit(grpo: dict, chat_model: Path, prompts: Path, tmp_path: Path):
    given = {"start_from": chat_model, "prompts": prompts}
    training = {**TRAINING, "optimizer": {"lr": 1e-2}, "grpo": {**GRPO, **grpo}}
    straight = linnet.train(tmp_path / "straight", **given, training=training)
    linnet.train(tmp_path / "parts", **given, training={**training, "steps": 2})
    again = linnet.train(tmp_path / "parts", **given, training=training)
    assert same(again.folder, straight.folder)
    terms = terms_of(straight.folder)
    if grpo:  # the answers of the second step are those of the first
        assert terms[0]["reward"] == terms[1]["reward"] == terms[2]["reward"] and terms[0]["kl"] < terms[2]["kl"]
        assert terms[0]["answer_tokens"] == terms[1]["answer_tokens"]


def test_low_rank_parts_are_switched_off_for_the_reference(
    chat_model: Path, prompts: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
):
    lora = {"rank": 2, "alpha": 32.0}
    training = {**TRAINING, "optimizer": {"lr": 2e-2}, "grpo": {**GRPO, "updates": 2, "kl": 0.1}, "lora": lora}
    given = {"start_from": chat_model, "prompts": prompts, "training": training}
    with monkeypatch.context() as patched:
        patched.setattr(rollouts, "trains_parts_alone", lambda decoder: False)
        second = linnet.train(tmp_path / "second", **given)
    monkeypatch.delattr(rollouts, "reference_decoder")  # no second model is made
    one = linnet.train(tmp_path / "one", **given)
    assert same(one.folder, second.folder)
    assert terms_of(one.folder)[0]["kl"] < 1e-6 < 1e-4 < terms_of(one.folder)[-1]["kl"]


def test_a_second_model_as_reference_is_rounded_as_the_frozen_weights_are(
    chat_model: Path, prompts: Path, tmp_path: Path
):
    """A base model gets control tokens, whose vectors are trained too, so that parts that are off are not enough."""
    shutil.copytree(chat_model, tmp_path / "base")
    (tmp_path / "base" / CHAT_TEMPLATE).unlink()
    lora = {"rank": 2, "precision": "int4"}
    grpo = {**GRPO, "max_tokens": 4, "kl": 0.1, "held_out": 1}
    training = {**TRAINING, "steps": 1, "grpo": grpo, "lora": lora}
    run = linnet.train(tmp_path / "run", start_from=tmp_path / "base", prompts=prompts, training=training)
    assert terms_of(run.folder)[0]["kl"] < 1e-12


def test_the_first_pass_has_a_ratio_of_one(chat_model: Path, prompts: Path, tmp_path: Path):
    seen = []

    class Look(Callback):
        def before_step(self) -> None:
            rollouts = next(each for each in self.context.callbacks if each.name == "rollouts")
            (batch,) = rollouts.batches.current.values()
            from linnet.model.example_loss import example_nats

            now = example_nats(self.context.model.decoder, batch.tokens, batch.labels)
            seen.append((torch.exp(batch.extras["drawn"] - now)[batch.weights] - 1).abs().max().item())

    training = {**TRAINING, "grpo": GRPO}
    linnet.train(tmp_path / "run", start_from=chat_model, prompts=prompts, training=training, callbacks=[Look()])
    assert len(seen) == 4 and max(seen) < 1e-5


def test_a_stop_while_held_out_prompts_are_measured_leaves_them_to_the_next_start(
    chat_model: Path, prompts: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
):
    """They are drawn a few at a time, each as if all were drawn at once."""
    given = {"start_from": chat_model, "prompts": prompts, "training": {**TRAINING, "steps": 2, "grpo": GRPO}}
    straight = linnet.train(tmp_path / "straight", **given)
    monkeypatch.setattr(rollouts, "ANSWERS", 12)
    counts, draw = list[int](), rollouts.draw

    def drawn(decoder: Decoder, of: object, groups: list, *others: object) -> None:
        counts.append(len(groups))
        draw(decoder, of, groups, *others)

    with monkeypatch.context() as patched:
        patched.setattr(rollouts, "draw", lambda *arguments: (drawn(*arguments), signal.raise_signal(signal.SIGINT)))
        stopped = linnet.train(tmp_path / "run", **given)
    assert counts == [3] and not stopped.finished and stopped.summary["rollouts"] == {"before": None, "after": None}
    monkeypatch.setattr(rollouts, "draw", drawn)
    again = linnet.train(tmp_path / "run", **given)
    assert counts[1:] == [3, 3, 2, 4, 4, 3, 3, 2] and same(again.folder, straight.folder)
    assert again.summary["rollouts"] == straight.summary["rollouts"]


def test_what_does_not_fit_is_named(chat_model: Path, prompts: Path, tmp_path: Path, tiny_data, tiny_model):
    run = linnet.train(
        tmp_path / "run", start_from=chat_model, prompts=prompts, training={**TRAINING, "steps": 1, "grpo": GRPO}
    )
    data = run.folder / "prompts"
    for wrong, expected in (
        ({"data": tiny_data, "training": {"grpo": {}}}, "training.grpo: .* holds no prompts"),
        ({"data": data, "training": {"grpo": {"max_tokens": 26}}}, "a prompt of 7 tokens; expected at most 6"),
        (
            {"data": data, "training": {"grpo": {"max_tokens": 32}}},
            "max_tokens: 32: expected less than the context",
        ),
        ({"data": data, "training": {"grpo": {}, "z_loss": 0.1}}, "z_loss: cannot be combined with preference or grpo"),
    ):
        with pytest.raises(UserError, match=expected):
            linnet.train(tmp_path / "new", start_from=chat_model, **wrong)
    described = resolve_run_config(tmp_path / "new", start_from=chat_model, data=data)
    with pytest.raises(UserError, match=r"training\.grpo: null: .* holds prompts"):
        fit_to_data(described.model_copy(update={"training": TrainingSpec()}), TokenData.open(data))
    shutil.copytree(data, tmp_path / "changed")
    rows_file(tmp_path / "changed", "train").write_text("{}\n")
    with pytest.raises(UserError, match=r"train\.prompts\.jsonl: missing, or changed since it was written"):
        rows_of(TokenData.open(tmp_path / "changed"), "train")


def test_pass_rates_are_unbiased_estimates():
    rewards = [[1, 0, 0, 0], [0, 0, 0, 0], [1, 1, 0.5, 1]]
    figures = pass_rates([[Judgement(reward, reward >= 1) for reward in each] for each in rewards])
    assert figures["pass@1"]["value"] == pytest.approx((0.25 + 0 + 0.75) / 3)
    assert figures["pass@4"]["value"] == pytest.approx(2 / 3)
    assert (figures["prompts"], figures["answers"]) == (3, 4) and figures["reward"] == pytest.approx(4.5 / 12)
    low, high = figures["reward_interval"]
    assert low < figures["reward"] < high
