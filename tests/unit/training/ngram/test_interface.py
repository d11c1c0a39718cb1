import json
import signal
import subprocess
import sys

import numpy as np
import pytest

from linnet.core.errors import UserError
from linnet.data.prepare import prepare_texts
from linnet.data.token_data import TokenData
from linnet.inference.sampling import Sampling
from linnet.training.ngram import interface as room
from linnet.training.ngram.interface import continue_ngram, evaluate_ngram, load_ngram, train_ngram

pytestmark = pytest.mark.usefixtures("warm_python")

TRAIN = [f"the bird {n % 7} sang to the tree and the tree was glad of {n % 3}. " * 2 for n in range(20)]
VALIDATION = [f"tree {n} was glad of the bird. " for n in range(9)]

KILLED = """
import os, signal, sys
from linnet.training.ngram import interface
from linnet.training.ngram.interface import train_ngram
interface.write_file_checksums = lambda *arguments: os.kill(os.getpid(), signal.SIGKILL)
train_ngram(sys.argv[1], sys.argv[2])
"""


@pytest.fixture(scope="module")
def data(tmp_path_factory):
    folder = tmp_path_factory.mktemp("ngram") / "data"
    prepare_texts(TRAIN, VALIDATION, folder, tokenizer="bpe", vocab_size=300)
    return folder


@pytest.fixture(scope="module")
def trained(data, tmp_path_factory):
    return train_ngram(data, tmp_path_factory.mktemp("ngram") / "model", order=4, command="linnet ngram train")


def test_every_token_and_byte_is_counted_once(trained, data):
    found = evaluate_ngram(trained, data)
    split = TokenData.open(data).manifest.splits["validation"]
    assert (found.losses.likelihood.tokens, found.losses.likelihood.bytes) == (split.tokens - 1, split.bytes)
    tokens = TokenData.open(data).split("validation").read(0, split.tokens)
    assert found.losses.likelihood.nats == pytest.approx(-np.log(trained.model.token_probabilities(tokens)[1:]).sum())
    assert found.losses.likelihood.bits_per_byte < 3


def test_the_share_of_ngrams_never_seen(trained, data):
    training = TokenData.open(data).split("train")
    known = evaluate_ngram(trained, data, "train")
    assert [one.share_never_seen for one in known.seen] == [0.0] * 4
    new = evaluate_ngram(trained, data)
    shares = [one.share_never_seen for one in new.seen]
    assert shares == sorted(shares) and 0 < shares[0] < shares[3] <= 1
    assert [one.ngrams for one in known.seen][:2] == [len(training) - 1] * 2
    assert known.seen[3].ngrams == len(training) - 1 - 2 * len(TRAIN)
    assert evaluate_ngram(trained, data).to_dict() == new.to_dict()


def test_a_folder_is_the_model(trained, data):
    read = load_ngram(trained.folder)
    assert evaluate_ngram(trained.folder, data).to_dict() == evaluate_ngram(trained, data).to_dict()
    assert (read.model.order, read.model.end_id) == (4, trained.model.end_id)
    made = json.loads((trained.folder / "run.json").read_text())
    assert made["command"] == "linnet ngram train" and made["tokens"] == len(TokenData.open(data).split("train"))


def test_the_same_data_gives_the_same_bytes(trained, data, tmp_path):
    train_ngram(data, tmp_path / "again", order=4)
    for name in ("counts.safetensors", "ngram.json", "tokenizer.json"):
        assert (tmp_path / "again" / name).read_bytes() == (trained.folder / name).read_bytes()


def test_the_same_seed_gives_the_same_text(trained):
    def text(**settings):
        return "".join(continue_ngram(trained, "the bird", 30, Sampling(**settings)))

    assert text(seed=1) == text(seed=1) != text(seed=2)
    assert text(temperature=0.0) == text(temperature=0.0, seed=3)
    assert text(top_k=2, seed=1) != text(seed=1)
    pieces = continue_ngram(trained, "the bird", 30, Sampling(temperature=0.0))
    said = "".join(pieces)
    assert said.startswith(" ") and 0 < pieces.figures.tokens <= 30
    assert pieces.figures.state_bytes == 8 * 3


def test_greedy_text_follows_the_probabilities(trained):
    tokens = [trained.model.end_id]
    for _ in range(40):
        token = int(trained.model.next_probabilities(np.array(tokens)).argmax())
        if token == trained.model.end_id:
            break
        tokens.append(token)
    said = "".join(continue_ngram(trained, "", 40, Sampling(temperature=0.0)))
    assert said == trained.tokenizer.decode(tokens[1:])


def test_a_kill_leaves_nothing_half_written(data, tmp_path):
    """Before the last step, when all other files of the folder are there."""
    out = tmp_path / "model"
    killed = subprocess.run([sys.executable, "-c", KILLED, str(data), str(out)], check=False)
    assert killed.returncode == -signal.SIGKILL
    assert not out.exists() and any(path.suffix == ".linnet-partial" for path in tmp_path.iterdir())
    train_ngram(data, out, order=2)
    assert [path.name for path in tmp_path.iterdir()] == ["model"]


def test_impossible_values_are_refused(trained, data, tmp_path, monkeypatch):
    with pytest.raises(UserError, match="order: 41: expected 1 to 40"):
        train_ngram(data, tmp_path / "model", order=41)
    with pytest.raises(UserError, match=r"out: .*exists already; expected a new folder"):
        train_ngram(data, trained.folder)
    with pytest.raises(UserError, match="max_tokens: 0: expected at least 1"):
        continue_ngram(trained, "", 0, Sampling())
    prepare_texts(TRAIN, VALIDATION, tmp_path / "bytes", tokenizer="bytes")
    with pytest.raises(UserError, match="made with another tokenizer"):
        evaluate_ngram(trained, tmp_path / "bytes")
    monkeypatch.setattr(room, "available_bytes", lambda device: 1000)
    with pytest.raises(UserError, match=r"length 1 of .* tokens may take .*; 1,000 B are free; expected a lower order"):
        train_ngram(data, tmp_path / "model")
    assert not (tmp_path / "model").exists()
