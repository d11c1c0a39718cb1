"""Runs of pairs of inputs and targets, for each kind of decoder, and streams of what was trained."""

import json
from pathlib import Path

import pytest

import linnet
from linnet.core.errors import UserError
from linnet.data.token_data import TokenData
from linnet.evaluation.text import evaluate_folder
from linnet.inference.readers import Caches
from linnet.inference.sampling import Sampling
from linnet.training.data import fit_to_data
from linnet.training.run import resolve_run_config
from linnet.training.run_files import given_files, prepare_run_files
from linnet.training.verification import verify_resume

WORDS = ["red", "blue", "green", "cat", "dog", "sun", "moon", "tree"]
LAYER = {"mixer": {"kind": "attention", "heads": 2}, "feed_forward": {"kind": "glu", "hidden": 24}}
KINDS = {
    "causal": {"blocks": [LAYER]},
    "prefix": {"blocks": [LAYER], "prefix": True},
    "encoder-decoder": {
        "blocks": [{**LAYER, "cross_attention": {"heads": 2}}],
        "encoder": {"blocks": [LAYER], "norm": {}},
    },
}
TRAINING = {
    "steps": 15,
    "batch_size": 4,
    "precision": "float32",
    "evaluate": {"every": 3},
    "log": {"every": 1},
    "checkpoint": {"every": 3},
    "optimizer": {"lr": 1e-2},
}


def model(kind: str) -> linnet.ModelSpec:
    plain = {"name": kind, "vocab_size": 300, "d_model": 16, "context_length": 64, "initialization": {"std": 0.2}}
    return linnet.ModelSpec.parse({**plain, "head": {"norm": {}}, **KINDS[kind]}, kind)


@pytest.fixture(scope="module")
def pairs(tmp_path_factory: pytest.TempPathFactory) -> Path:
    file = tmp_path_factory.mktemp("pairs") / "pairs.jsonl"
    rows = [[WORDS[(n * k) % 8] for k in (1, 3, 5)] for n in range(120)]
    lines = ({"input": f"{n} " + " ".join(row), "target": " ".join(reversed(row))} for n, row in enumerate(rows))
    file.write_text("".join(json.dumps(line) + "\n" for line in lines))
    return file


@pytest.fixture(autouse=True)
def _quick(quick: None) -> None:
    """Without what takes time and changes no run."""


@pytest.fixture(scope="module", params=KINDS)
def run(request: pytest.FixtureRequest, pairs: Path, tmp_path_factory: pytest.TempPathFactory) -> Path:
    out = tmp_path_factory.mktemp("runs") / request.param
    linnet.train(out, model=model(request.param), pairs=pairs, training=TRAINING)
    return out


def lines(run: Path) -> list[dict]:
    return [json.loads(line) for line in (run / "metrics.jsonl").read_text().splitlines()]


def test_a_run_learns_and_is_measured_on_targets_alone(run: Path):
    found = lines(run)
    assert found[-1]["bits_per_byte"] < found[0]["bits_per_byte"]
    again = evaluate_folder(run, run / "pairs")
    assert again.to_dict()["bits_per_byte"] == pytest.approx(found[-1]["validation"]["bits_per_byte"], rel=1e-5)
    held_out = TokenData.open(run / "pairs").manifest.splits["validation"]
    assert again.causal.bytes < held_out.bytes / 2


def test_the_same_command_resumes_with_the_same_pairs(run: Path, pairs: Path, tmp_path: Path):
    again = linnet.train(run, model=model(run.name), pairs=pairs, training=TRAINING)
    assert again.finished and again.summary["step"] == 15
    longer = linnet.train(run, training={"steps": 16})
    assert longer.summary["step"] == 16
    other = tmp_path / "other.jsonl"
    other.write_text(pairs.read_text() + json.dumps({"input": "a", "target": "b"}) + "\n")
    with pytest.raises(UserError, match=r"not the file that .* was made from; choose another `out`"):
        linnet.train(run, model=model(run.name), pairs=other, training=TRAINING)


def test_generation_is_the_same_cached_batched_and_saved(run: Path, tmp_path: Path):
    speaker, given = linnet.load(run), ["7 blue cat", "red"]
    texts = speaker.generate(["", "sun"], 12, temperature=0, ignore_eos=True, input=given)
    for text, own, prompt in zip(texts, given, ("", "sun"), strict=True):
        for caches in (Caches(), Caches(kv=False)):
            pieces = speaker.stream(prompt, 12, Sampling(0), caches=caches, ignore_eos=True, input=own)
            assert "".join(pieces) == text
        session = linnet.Session(speaker, input=own)
        session.feed(prompt)
        session.save(tmp_path / "unread")
        session = linnet.Session.load(speaker, tmp_path / "unread")
        begun = session.generate(5, temperature=0, ignore_eos=True)
        session.save(tmp_path / "stream")
        session = linnet.Session.load(speaker, tmp_path / "stream")
        assert begun + session.fork().generate(7, temperature=0, ignore_eos=True) == text
        twin, first = session.fork(), session.tokens - 5 - len(speaker.tokenizer.encode(prompt))
        twin.rewind(3)
        twin.generate(10, temperature=0, ignore_eos=True)
        session.generate(7, temperature=0, ignore_eos=True)
        assert twin.token_ids == session.token_ids
        twin.rewind(twin.tokens - first)
        with pytest.raises(UserError, match="expected 0 to 0, the tokens behind the beginning"):
            twin.rewind(1)
        twin.feed(prompt)
        twin.generate(12, temperature=0, ignore_eos=True)
        assert twin.token_ids == session.token_ids


def test_a_model_with_an_encoder_is_refused_for_text(run: Path, tmp_path: Path):
    kind, text = run.name, tmp_path / "text.txt"
    text.write_text("one two three\n" * 40)
    linnet.prepare([str(text)], tmp_path / "data", "bytes")
    if kind == "causal":
        assert linnet.load(run).generate("red", 3, temperature=0) is not None
        return
    with pytest.raises(UserError, match=r"reads pairs of an input and a target; .* holds text"):
        linnet.train(tmp_path / "run", model=model(kind), data=tmp_path / "data", training=TRAINING)
    if kind == "encoder-decoder":
        with pytest.raises(UserError, match="input: missing: the model has an encoder"):
            linnet.load(run).generate("red", 3)


def test_fine_tuning_on_pairs_uses_the_tokenizer_of_the_model(run: Path, pairs: Path, tmp_path: Path):
    linnet.train(tmp_path / "tuned", start_from=run, pairs=pairs, training={**TRAINING, "steps": 1})
    names = [folder / "model" / "tokenizer.json" for folder in (run, tmp_path / "tuned")]
    assert names[0].read_bytes() == names[1].read_bytes()


@pytest.mark.parametrize("kind", KINDS)
@pytest.mark.slow
def test_a_run_on_pairs_resumes_bit_for_bit(kind: str, pairs: Path, tmp_path: Path):
    files = given_files({"pairs": pairs})
    asked = resolve_run_config(tmp_path / "run", model=model(kind), files=files, training=TRAINING)
    prepare_run_files(asked, files)
    assert verify_resume(asked, tmp_path / "run", 5).same


@pytest.mark.parametrize(
    "field", [{"tokens": 1000}, {"windows": "documents"}, {"document_mask": True}, {"compile": True}]
)
def test_fields_for_text_are_refused_for_pairs(field: dict, pairs: Path, tmp_path: Path):
    training = {**TRAINING, "steps": None, **field}
    files = given_files({"pairs": pairs})
    asked = resolve_run_config(tmp_path / "run", model=model("causal"), files=files, training=training)
    prepare_run_files(asked, files)
    with pytest.raises(UserError, match=f"training.{next(iter(field))}: .*: applies only to text"):
        fit_to_data(asked, TokenData.open(asked.data))


def test_pairs_and_data_exclude_each_other(pairs: Path, tmp_path: Path):
    with pytest.raises(UserError, match=r"pairs: .*cannot be combined with `data`"):
        linnet.train(tmp_path / "run", model=model("causal"), pairs=pairs, data=tmp_path, training=TRAINING)


def test_pairs_longer_than_the_context_are_refused_before_training(pairs: Path, tmp_path: Path):
    short = model("causal").replace(context_length=8)
    with pytest.raises(UserError, match=r"train: row \d+: input and target of \d+ tokens: more than the context of 8"):
        linnet.train(tmp_path / "run", model=short, pairs=pairs, training=TRAINING)
