"""The losses of pairs against their definitions, and runs that learn from preferences."""

import json
import math
from dataclasses import replace
from pathlib import Path

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from runs_alike import same
from safetensors.torch import load_file

import linnet
from chat_models import TEMPLATE
from linnet.core.errors import UserError
from linnet.data.chat_template import CHAT_TEMPLATE
from linnet.data.loader import Batch
from linnet.data.token_data import TokenData, read_manifest
from linnet.data.tokenizer import Tokenizer
from linnet.model.decoder import Decoder
from linnet.model.store import write_model
from linnet.training.callbacks import preferences
from linnet.training.callbacks.preferences import Preferences
from linnet.training.data import fit_to_data
from linnet.training.metrics import REFERENCE_LOG_PROBABILITIES
from linnet.training.objectives.preference import REFERENCE, AnswerScores, answer_scores, pair_losses, preference_loss
from linnet.training.run import resolve_run_config
from linnet.training.sections import PreferenceSpec
from linnet.training.spec import TrainingSpec
from several import finish, start

TRAINING = {
    "steps": 6, "batch_size": 4, "precision": "float32", "log": {"every": 1}, "evaluate": {"every": 3},
    "checkpoint": {"every": 3}, "optimizer": {"lr": 3e-3}, "schedule": {"kind": "constant", "warmup_steps": 0},
}  # fmt: skip


MIXERS = {
    "attention": {"kind": "attention", "heads": 2},
    "ted": {"kind": "ted"},
    "mamba2": {"kind": "mamba2", "head_dim": 8, "state": 4},
}


def log_sigmoid(x: float) -> float:
    return -math.log1p(math.exp(-x))


def by_definition(spec: PreferenceSpec, chosen: float, rejected: float, n: int, m: int, r: float, s: float) -> float:
    """chosen, rejected: log-probabilities of `n` and `m` tokens; r, s: those by the reference."""
    if spec.kind == "orpo":
        odds = [math.log(math.exp(mean) / (1 - math.exp(mean))) for mean in (chosen / n, rejected / m)]
        return -chosen / n - spec.beta * log_sigmoid(odds[0] - odds[1])
    if spec.kind == "ipo":
        return ((chosen - r) / n - (rejected - s) / m - 1 / (2 * spec.beta)) ** 2
    if spec.kind == "reward":
        return -log_sigmoid(chosen - rejected)
    h = spec.beta * (chosen - r - rejected + s)
    return -(1 - spec.label_smoothing) * log_sigmoid(h) - spec.label_smoothing * log_sigmoid(-h)


nats = st.floats(-20, -0.5)


@settings(max_examples=40, deadline=None)
@given(
    st.sampled_from([PreferenceSpec(), PreferenceSpec(label_smoothing=0.2, beta=0.5), PreferenceSpec(kind="ipo"),
                     PreferenceSpec(kind="orpo", beta=0.3), PreferenceSpec(kind="reward")]),
    st.tuples(nats, nats, st.integers(1, 9), st.integers(1, 9), nats, nats),
)  # fmt: skip
def test_losses_are_those_of_the_papers(spec: PreferenceSpec, values: tuple[float, float, int, int, float, float]):
    chosen, rejected, n, m, r, s = values
    sums = torch.tensor([chosen, rejected], dtype=torch.float64)
    losses, terms = pair_losses(
        spec, AnswerScores(sums, torch.tensor([n, m]), sums.sum()), torch.tensor([r, s]).double()
    )
    # Losses are computed in float32: a small square of IPO is the difference of numbers up to 40.
    assert float(losses[0]) == pytest.approx(by_definition(spec, *values), rel=1e-6, abs=1e-6)
    assert (float(terms["chosen"][0]), float(terms["rejected"][0])) == (chosen, rejected)


def test_equal_models_begin_at_ln_2_without_a_margin():
    sums = torch.tensor([-3.0, -9.0, -1.0, -2.0])
    losses, terms = pair_losses(PreferenceSpec(), AnswerScores(sums, torch.full((4,), 2), sums.sum()), sums)
    torch.testing.assert_close(losses, torch.full((2,), math.log(2)))
    assert terms["margin"].tolist() == [0, 0] and terms["accuracy"].tolist() == [0.5, 0.5]


def batch_of(lengths: list[tuple[int, int]], width: int, seed: int = 0) -> Batch:
    """Rows of two random tokens and an answer of each length, filled up to a width."""
    generator = torch.Generator().manual_seed(seed)
    tokens, weights = torch.zeros(2 * len(lengths), width + 1, dtype=torch.long), torch.zeros(2 * len(lengths), width)
    for row, length in enumerate(length for pair in lengths for length in pair):
        tokens[row, : 2 + length] = torch.randint(1, 257, (2 + length,), generator=generator)
        weights[row, 1 : 1 + length] = 1
    return Batch(
        tokens[:, :-1], tokens[:, 1:], weights.bool(), rows_per_example=2, mean_over_examples=True,
        extras={REFERENCE: -3.0 * torch.arange(len(tokens), dtype=torch.float64)},
    )  # fmt: skip


@pytest.mark.parametrize("mixer", MIXERS)
@pytest.mark.parametrize("kind", ["dpo", "ipo", "orpo", "reward"])
def test_the_loss_is_the_same_whatever_padding_order_and_parts(kind: str, mixer: str, tiny_model):
    torch.manual_seed(0)
    block = {"mixer": MIXERS[mixer], "feed_forward": {"kind": "glu", "hidden": 24}}
    description = tiny_model(blocks=[block], head={"value": kind == "reward"})
    decoder, spec = Decoder(description).double(), PreferenceSpec(kind=kind)
    if decoder.value is not None:
        torch.nn.init.normal_(decoder.value)
    parameters = list(decoder.parameters())
    lengths = [(3, 5), (1, 2), (6, 4)]
    narrow, wide = batch_of(lengths, 8), batch_of(lengths, 12)
    parts = [narrow.part(2, 3), narrow.part(0, 2)]
    wholes = [[narrow], [wide], parts]
    found = [sum(preference_loss(decoder, each, spec).total for each in batches) for batches in wholes]
    gradients = [torch.autograd.grad(each, parameters, allow_unused=True) for each in found]
    for total, gradient in zip(found[1:], gradients[1:], strict=True):
        torch.testing.assert_close(total, found[0], rtol=1e-8, atol=1e-8)
        torch.testing.assert_close(gradient, gradients[0], rtol=1e-6, atol=1e-8)


def test_a_step_along_the_gradient_prefers_the_chosen_answers(tiny_model):
    torch.manual_seed(0)
    decoder, batch = Decoder(tiny_model()).double(), batch_of([(3, 5), (4, 2)], 8)
    batch = replace(batch, extras={REFERENCE: answer_scores(decoder, batch).sums_B.detach()})
    loss = preference_loss(decoder, batch, PreferenceSpec())
    assert loss.total.item() == pytest.approx(2 * math.log(2))
    loss.total.backward()
    with torch.no_grad():
        for parameter in decoder.parameters():
            if parameter.grad is not None:
                parameter.sub_(0.05 * parameter.grad)
    terms = preference_loss(decoder, batch, PreferenceSpec()).example_terms
    assert float(terms["margin"]) > 0 and float(terms["accuracy"]) == 2.0


@pytest.fixture(autouse=True)
def _quick(quick: None) -> None:
    """Without what takes time and changes no run."""


@pytest.fixture(scope="module")
def chat_model(tmp_path_factory: pytest.TempPathFactory, tiny_model) -> Path:
    folder = tmp_path_factory.mktemp("models") / "chat"
    torch.manual_seed(0)
    write_model(folder, Decoder(tiny_model(context_length=64)), Tokenizer.train("bytes", []), {})
    (folder / CHAT_TEMPLATE).write_text(TEMPLATE)
    return folder


@pytest.fixture(scope="module")
def pairs(tmp_path_factory: pytest.TempPathFactory) -> Path:
    rows = [{"prompt": f"q{n}", "chosen": "yes"[: 1 + n % 3], "rejected": "no"[: 1 + n % 2]} for n in range(30)]
    path = tmp_path_factory.mktemp("pairs") / "pairs.jsonl"
    path.write_text("".join(json.dumps(row) + "\n" for row in rows))
    return path


@pytest.mark.parametrize("kind", ["dpo", "orpo"])
def test_a_run_learns_to_prefer_and_resumes_bit_for_bit(kind: str, chat_model: Path, pairs: Path, tmp_path: Path):
    training = {**TRAINING, "preference": {"kind": kind}}
    given = {"start_from": chat_model, "preferences": pairs}
    straight = linnet.train(tmp_path / "straight", **given, training=training)
    linnet.train(tmp_path / "parts", **given, training={**training, "steps": 3})
    again = linnet.train(tmp_path / "parts", **given, training=training)
    assert same(again.folder, straight.folder)
    assert (straight.folder / REFERENCE_LOG_PROBABILITIES).is_file() == (kind == "dpo")
    figures, lines = straight.summary["preferences"], (straight.folder / "metrics.jsonl").read_text().splitlines()
    first, last = (json.loads(lines[place])["terms"] for place in (0, -1))
    assert figures["accuracy"] > 0.9 and figures["step"] == 6 and figures["pairs"] > 0
    assert last["margin"] > first["margin"] and last["preference_loss"] < first["preference_loss"]
    evaluated = linnet.evaluate(straight.folder, straight.folder / "preferences")
    assert evaluated.bits_per_byte.value == pytest.approx(straight.summary["validation"]["bits_per_byte"])
    assert "only its chosen answer counts" in str(evaluated.tables()[0].rows)
    if kind == "dpo":
        assert first["preference_loss"] == pytest.approx(math.log(2), abs=1e-5)
        assert figures["preference_loss"] < math.log(2)


def test_low_rank_parts_are_switched_off_for_a_reference_that_is_computed_again(
    chat_model: Path, pairs: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
):
    lora = {"rank": 2, "alpha": 32.0}
    training = {**TRAINING, "preference": {}, "lora": lora, "optimizer": {"lr": 1e-2}}
    run = linnet.train(tmp_path / "run", start_from=chat_model, preferences=pairs, training={**training, "steps": 3})
    stored = run.folder / REFERENCE_LOG_PROBABILITIES
    known = load_file(stored)
    stored.unlink()
    monkeypatch.delattr(preferences, "reference_decoder")  # no second model is made
    linnet.train(tmp_path / "run", training={"steps": 6})
    again = load_file(stored)
    assert known.keys() == again.keys() and all(torch.equal(again[side], known[side]) for side in known)


@pytest.mark.parametrize("lora", [None, {"rank": 2}])
def test_a_reward_model_begins_at_ln_2_and_gives_chosen_answers_more(
    lora: dict[str, int] | None, chat_model: Path, pairs: Path, tmp_path: Path
):
    training = {**TRAINING, "preference": {"kind": "reward"}, "lora": lora, "gradient_accumulation": 2}
    run = linnet.train(tmp_path / "run", start_from=chat_model, preferences=pairs, training={**training, "steps": 3})
    again = linnet.train(tmp_path / "run", training={"steps": 12})
    lines = (run.folder / "metrics.jsonl").read_text().splitlines()
    first, figures = json.loads(lines[0]), again.summary["preferences"]
    assert first["terms"]["preference_loss"] == pytest.approx(math.log(2), abs=1e-6)
    assert first["terms"]["chosen"] == first["terms"]["rejected"] == 0.0 and first["bits_per_byte"] > 1
    assert figures["accuracy"] > 0.9 and figures["chosen"] - figures["rejected"] == pytest.approx(figures["margin"])
    decoder = linnet.load(again.model).decoder
    assert decoder.spec.head.value and decoder.value is not None and decoder.value.any()
    assert not (run.folder / REFERENCE_LOG_PROBABILITIES).exists()


@pytest.mark.usefixtures("warm_python")
@pytest.mark.parametrize("kind", ["dpo", "reward"])
def test_two_processes_with_shards_train_the_same_model(kind: str, chat_model: Path, pairs: Path, tmp_path: Path):
    training = {**TRAINING, "steps": 2, "preference": {"kind": kind}}
    one = linnet.train(tmp_path / "one", start_from=chat_model, preferences=pairs, training=training)
    config = {"start_from": str(chat_model), "data": str(one.folder / "preferences"), "training": training}
    (tmp_path / "run.yaml").write_text(json.dumps(config))
    words = ["--out", "two", "--set", "training.parallel.shard=2"]
    ended = finish(start(["-m", "linnet", "train", "--config", "run.yaml", *words], 2, cwd=tmp_path))
    assert [code for code, _, _ in ended] == [0, 0], ended
    found, expected = (linnet.load(each, "cpu").decoder.state_dict() for each in (tmp_path / "two", one.model))
    assert found.keys() == expected.keys()
    for name, tensor in expected.items():
        torch.testing.assert_close(found[name], tensor, atol=1e-4, rtol=1e-3, msg=name)


def test_a_value_needs_a_reward_model(chat_model: Path, pairs: Path, tmp_path: Path, tiny_model):
    given = {"start_from": chat_model, "preferences": pairs}
    with pytest.raises(UserError, match=r"model\.head\.value: True: only a reward model has it \(training\.preference"):
        linnet.train(tmp_path / "run", **given, model=tiny_model(context_length=64, head={"value": True}))
    with pytest.raises(UserError, match=r"preference\.beta: 2: kind: reward has none; expected the default"):
        linnet.train(tmp_path / "run", **given, training={"preference": {"kind": "reward", "beta": 2}})


def test_a_reference_that_is_not_the_model_is_refused_and_one_of_other_weights_made_again(
    chat_model: Path, pairs: Path, tmp_path: Path
):
    from linnet.core.arrays import unpack_tensors, write_tensors

    given = {"start_from": chat_model, "preferences": pairs}
    straight = linnet.train(tmp_path / "run", **given, training={**TRAINING, "steps": 3})
    path = straight.folder / REFERENCE_LOG_PROBABILITIES
    tensors, notes = unpack_tensors(path.read_bytes(), "reference")
    path.unlink()
    linnet.train(straight.folder, training={"steps": 4})
    made, _ = unpack_tensors(path.read_bytes(), "reference")
    torch.testing.assert_close(made, tensors, rtol=1e-6, atol=1e-6)
    other = tmp_path / "other"
    linnet.train(other, **given, training={**TRAINING, "steps": 1})
    for folder in (other / "checkpoints", other / "model"):
        for file in sorted(folder.rglob("*"), reverse=True):
            file.unlink() if file.is_file() else file.rmdir()
    write_tensors(other / REFERENCE_LOG_PROBABILITIES, {k: v - 9 for k, v in tensors.items()}, notes, checksum=True)
    with pytest.raises(UserError, match=r"differs from its reference by .* nats per token before the first step"):
        linnet.train(other, **given, training={**TRAINING, "steps": 1})


def test_pairs_and_their_objective_need_each_other(chat_model: Path, pairs: Path, tmp_path: Path, tiny_data):
    run = linnet.train(tmp_path / "run", start_from=chat_model, preferences=pairs, training={**TRAINING, "steps": 1})
    data = run.folder / "preferences"
    for wrong, expected in (
        ({"data": tiny_data, "training": {"preference": {}}}, "training.preference: applies only to pairs of answers"),
        ({"data": data, "training": {"preference": {}, "windows": "packed"}}, "training.windows: cannot be combined"),
    ):
        with pytest.raises(UserError, match=expected):
            linnet.train(tmp_path / "new", start_from=chat_model, **wrong)
    described = resolve_run_config(tmp_path / "new", start_from=chat_model, data=data)
    assert described.training.preference == PreferenceSpec()
    plain = described.model_copy(update={"training": TrainingSpec()})
    with pytest.raises(UserError, match=r"training\.preference: null: .* holds pairs of answers; expected a kind"):
        fit_to_data(plain, TokenData.open(data))
    with pytest.raises(UserError, match=r"training\.preference: changes the answers of a model that exists"):
        linnet.train(tmp_path / "new", model="tiny-ted", data=data, training={"preference": {}})


def test_long_pairs_are_refused_or_dropped(chat_model: Path, pairs: Path, tmp_path: Path):
    long = tmp_path / "long.jsonl"
    long.write_text(pairs.read_text() + json.dumps({"prompt": "q", "chosen": "y" * 70, "rejected": "no"}) + "\n")
    given = {"start_from": chat_model, "preferences": long, "training": {**TRAINING, "steps": 1}}
    with pytest.raises(UserError, match=r"1 of 31 .*long\.jsonl, line 31"):
        linnet.train(tmp_path / "refused", **given)
    with pytest.raises(UserError, match="long_conversations: cut: would make answers differ; expected refuse or drop"):
        linnet.train(tmp_path / "cut", **given, long_conversations="cut")
    run = linnet.train(tmp_path / "dropped", **given, long_conversations="drop")
    splits = read_manifest(run.folder / "preferences").splits
    assert sum(split.documents for split in splits.values()) == 60


def test_a_stop_while_the_reference_is_computed_leaves_it_to_the_next_start(
    chat_model: Path, pairs: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
):
    given = {"start_from": chat_model, "preferences": pairs, "training": TRAINING}
    scores, calls = Preferences._scores, list[int]()

    def stops(self: Preferences, decoder: Decoder, batch: Batch) -> torch.Tensor:
        calls.append(len(batch))
        self.context.stop.requested = len(calls) == 2
        return scores(self, decoder, batch)

    with monkeypatch.context() as patched:
        patched.setattr(Preferences, "_scores", stops)
        stopped = linnet.train(tmp_path / "run", **given)
    assert not stopped.finished and stopped.summary["step"] == 0 and len(calls) == 2
    assert not (stopped.folder / REFERENCE_LOG_PROBABILITIES).exists()
    assert same(linnet.train(tmp_path / "run", **given).folder, linnet.train(tmp_path / "straight", **given).folder)
