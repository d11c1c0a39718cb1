"""Runs that tokenize a small text, or the texts of a mixture, when they begin."""

import shutil
from pathlib import Path
from typing import Any

import pytest
import yaml
from runs_alike import same

import linnet
from linnet.core.errors import UserError
from linnet.data.fill_in_the_middle import FillInTheMiddle
from linnet.data.prepare import prepare
from linnet.data.token_data import TokenData
from linnet.data.token_files import write_datatrove
from linnet.training import run_files
from linnet.training.run import resolve_run_config
from linnet.training.run_files import given_files, prepare_run_files, text_of

STEPS = {
    "steps": 4,
    "batch_size": 2,
    "precision": "float32",
    "checkpoint": {"every": 2},
    "schedule": {"kind": "constant"},
}


@pytest.fixture(autouse=True)
def _quick(quick: None) -> None:
    """Without what takes time and changes no run."""


@pytest.fixture
def texts(tmp_path: Path) -> Path:
    """A folder of two texts, and the mixture that reads one of them three times as much."""
    for name, word in (("birds", "sang"), ("trees", "grew")):
        documents = [f"the {name} {word} {n} times" for n in range(60)]
        (tmp_path / f"{name}.txt").write_text("<|endoftext|>".join(documents))
    sources = {
        "birds": {"inputs": str(tmp_path / "bi*.txt"), "weight": 3},
        "trees": {"inputs": str(tmp_path / "trees.txt"), "weight": 1},
    }
    (tmp_path / "mixture.yaml").write_text(yaml.safe_dump({"sources": sources}))
    return tmp_path


def contents(folder: Path) -> dict[str, bytes]:
    return {file.name: file.read_bytes() for file in folder.iterdir() if file.name != "manifest.json"}


def test_a_run_on_a_text_is_that_on_the_folder_that_prepare_makes(texts: Path, tiny_model):
    settings = {"model": tiny_model(vocab_size=280), "training": STEPS}
    prepare([str(texts / "birds.txt")], texts / "prepared", "bpe", 280)
    linnet.train(texts / "one", **settings, data=texts / "prepared")
    found = linnet.train(texts / "two", **settings, data=texts / "birds.txt")
    assert found.finished and contents(texts / "two" / "text") == contents(texts / "prepared")
    assert (texts / "one/model/model.safetensors").read_bytes() == (texts / "two/model/model.safetensors").read_bytes()


def test_a_run_on_a_mixture_of_texts_reads_its_shares_and_resumes_bit_for_bit(texts: Path, tiny_model):
    settings: dict[str, Any] = {"model": tiny_model(), "tokenizer": "bytes", "data": texts / "mixture.yaml"}
    straight = linnet.train(texts / "straight", **settings, training=STEPS)
    shares = {source["source"]: source["share_of_bytes"] for source in straight.summary["sources"]}
    assert shares == {"birds": pytest.approx(0.75, abs=0.1), "trees": pytest.approx(0.25, abs=0.1)}
    prepare([], texts / "prepared", "bytes", mixture=texts / "mixture.yaml")
    training = {**STEPS, "mixture": str(texts / "mixture.yaml")}
    linnet.train(texts / "prepared-run", model=tiny_model(), data=texts / "prepared", training=training)
    assert (texts / "straight/model/model.safetensors").read_bytes() == (
        texts / "prepared-run/model/model.safetensors"
    ).read_bytes()
    linnet.train(texts / "parts", **settings, training={**STEPS, "steps": 2})
    again = linnet.train(texts / "parts", **settings, training=STEPS)
    assert again.finished and same(again.folder, straight.folder)


def test_a_run_knows_its_text_wherever_it_is_and_no_other(texts: Path, tiny_model):
    settings: dict[str, Any] = {"model": tiny_model(), "training": {**STEPS, "steps": 1}}
    linnet.train(texts / "run", **settings, data=texts / "birds.txt")
    shutil.move(texts / "birds.txt", texts / "moved.txt")
    assert linnet.train(texts / "run", **settings, data=texts / "moved.txt").finished
    with pytest.raises(UserError, match=r"data: .*trees.txt: not the file that .*text was made from; choose another"):
        linnet.train(texts / "run", **settings, data=texts / "trees.txt")
    with pytest.raises(UserError, match=r"data: .*text was made with another `tokenizer`; choose another"):
        linnet.train(texts / "run", **settings, data=texts / "moved.txt", tokenizer="char")


def test_a_run_that_starts_from_a_model_has_its_tokenizer(texts: Path, tiny_model):
    training = {**STEPS, "steps": 1}
    base = linnet.train(texts / "base", model=tiny_model(), data=texts / "birds.txt", training=training)
    settings: dict[str, Any] = {"start_from": base.folder, "data": texts / "trees.txt", "training": training}
    linnet.train(texts / "next", **settings)
    of_base, of_next = (TokenData.open(texts / name / "text").tokenizer for name in ("base", "next"))
    assert of_base.hash == of_next.hash and of_base.kind == "bytes"
    with pytest.raises(UserError, match="tokenizer: char: expected none beside `start_from`"):
        linnet.train(texts / "other", **settings, tokenizer="char")


@pytest.mark.parametrize(
    ("content", "message"),
    [
        ("sources: {a: {inputs: 'hf:some/texts'}}", "hf:some/texts: expected files; `linnet prepare` reads other"),
        ("sources: {a: {inputs: none.txt}}", "mixture.yaml: none.txt: no such file; expected files"),
        ("sources: {a: {inputs: '-'}}", r"mixture.yaml: -: expected files"),
        ("sources: {a: {inputs: trees.txt}, b: {inputs: birds.txt}}", "bytes of text, more than the 1,000 that a run"),
    ],
    ids=["data-set", "missing", "standard-input", "large"],
)
def test_what_is_no_small_text_is_refused_before_anything_is_made(
    texts: Path, tiny_model, monkeypatch: pytest.MonkeyPatch, content: str, message: str
):
    monkeypatch.chdir(texts)
    monkeypatch.setattr(run_files, "MOST_TEXT_BYTES", 1000)
    (texts / "mixture.yaml").write_text(content)
    with pytest.raises(UserError, match=message):
        linnet.train(texts / "run", model=tiny_model(), data=texts / "mixture.yaml", training=STEPS)
    assert not (texts / "run").exists()


def test_a_small_vocabulary_is_that_of_bytes_and_a_larger_one_of_a_bpe(texts: Path, tiny_model):
    found = {}
    for vocab_size in (90, 257, 258):
        files = given_files({"text": text_of(texts / "trees.txt")})
        run = resolve_run_config(texts / f"{vocab_size}", model=tiny_model(vocab_size=vocab_size), files=files)
        prepare_run_files(run, files)
        tokenizer = TokenData.open(run.data).tokenizer
        found[vocab_size] = (tokenizer.kind, tokenizer.vocab_size)
    assert found == {90: ("bytes", 257), 257: ("bytes", 257), 258: ("bpe", 258)}


def test_a_tokenizer_belongs_to_a_text(texts: Path, tiny_model):
    prepare([str(texts / "birds.txt")], texts / "prepared", "bytes")
    with pytest.raises(UserError, match=r"tokenizer: bytes: expected `data`, a file of text, beside it"):
        linnet.train(texts / "run", model=tiny_model(), data=texts / "prepared", tokenizer="bytes", training=STEPS)
    with pytest.raises(UserError, match=r"^data: .*bird\.txt: no such file$"):
        linnet.train(texts / "run", model=tiny_model(), data=texts / "bird.txt", tokenizer="bytes", training=STEPS)
    with pytest.raises(UserError, match=r"pairs: .*: cannot be combined with `data`; give one of the two"):
        linnet.train(
            texts / "run", model=tiny_model(), data=texts / "birds.txt", pairs=texts / "trees.txt", training=STEPS
        )


def test_a_run_reads_token_files_with_the_tokenizer_that_made_them(texts: Path, tiny_model):
    prepare([str(texts / "birds.txt")], texts / "prepared", "bytes", validation=0.2)
    write_datatrove(TokenData.open(texts / "prepared"), texts / "files")
    sources = {"files": {"inputs": str(texts / "files"), "weight": 1}, "text": {"inputs": str(texts / "trees.txt")}}
    sources["text"]["weight"] = 1
    (texts / "mixture.yaml").write_text(yaml.safe_dump({"sources": sources}))
    settings: dict[str, Any] = {"model": tiny_model(), "training": {**STEPS, "steps": 1}}
    tokenizer = texts / "prepared" / "tokenizer.json"
    for name in ("mixture.yaml", "files/train.ds"):
        found = linnet.train(texts / name.split(".")[0] / "run", **settings, data=texts / name, tokenizer=tokenizer)
        kinds = TokenData.open(found.folder / "text").manifest.settings["token_files"].values()
        assert list(kinds) == (["datatrove", "datatrove", "text"] if name == "mixture.yaml" else ["datatrove"])
    with pytest.raises(UserError, match=r"tokenizer: bytes: expected the path of the tokenizer.json"):
        linnet.train(texts / "other", **settings, data=texts / "files" / "train.ds")


def test_documents_of_a_text_are_rearranged_anew_and_a_stopped_run_resumes_bit_for_bit(texts: Path, tiny_model):
    training = {**STEPS, "windows": "documents", "fill_in_the_middle": {"rate": 0.8}}
    settings: dict[str, Any] = {"model": tiny_model(context_length=32), "data": texts / "birds.txt"}
    straight = linnet.train(texts / "straight", **settings, training=training)
    tokenizer = TokenData.open(texts / "straight" / "text").tokenizer
    assert len(tokenizer.special_ids) == 4 and tokenizer.vocab_size == 260
    linnet.train(texts / "parts", **settings, training={**training, "steps": 2})
    again = linnet.train(texts / "parts", **settings, training=training)
    assert same(again.folder, straight.folder)
    plain = linnet.train(texts / "plain", **settings, training={**training, "fill_in_the_middle": {"rate": 0}})
    found, other = ((run.folder / "model" / "model.safetensors").read_bytes() for run in (straight, plain))
    assert found != other


def test_documents_are_not_rearranged_twice(texts: Path, tiny_model):
    fill = FillInTheMiddle(rate=0.5)
    prepare([str(texts / "birds.txt")], texts / "prepared", "bytes", fill_in_the_middle=fill)
    training = {**STEPS, "fill_in_the_middle": {"rate": 0.5}}
    with pytest.raises(
        UserError, match=r"training.fill_in_the_middle: .*: 50% of its documents are rearranged already"
    ):
        linnet.train(texts / "run", model=tiny_model(), data=texts / "prepared", training=training)
    (texts / "pairs.jsonl").write_text('{"input": "a", "target": "b"}\n{"input": "c", "target": "d"}\n')
    with pytest.raises(
        UserError, match=r"training.fill_in_the_middle: .*: applies only to text: rows keep their order"
    ):
        linnet.train(texts / "run", model=tiny_model(vocab_size=300), pairs=texts / "pairs.jsonl", training=training)
