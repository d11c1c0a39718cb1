"""A run whose tokens begin with word vectors."""

import hashlib
import json
import shutil

import pytest
import torch

from linnet.core.errors import UserError
from linnet.data.token_data import TokenData
from linnet.model.store import load_decoder
from linnet.training.data import fit_to_data
from linnet.training.distributed import Processes
from linnet.training.initialization import initial_decoder, load_word_vectors
from linnet.training.reporter import Reporter
from linnet.training.run import train_run

pytestmark = pytest.mark.usefixtures("quick")

LETTERS = "abcdefghi"


@pytest.fixture
def file(tmp_path):
    return _written(tmp_path / "letters.txt")


def _written(path, width=16, factor=1.0):
    drawn = torch.randn(len(LETTERS), width, generator=torch.Generator().manual_seed(1)) * factor
    rows = zip(LETTERS, drawn.tolist(), strict=True)
    path.write_text("\n".join(" ".join([letter, *map(str, row)]) for letter, row in rows))
    return path


def _vectors(path):
    rows = [line.split(" ") for line in path.read_text().splitlines()]
    return torch.tensor([[float(number) for number in row[1:]] for row in rows])


class _StopAt(Reporter):
    def __init__(self, step=None):
        self.at, self.notes = step, []

    def step(self, progress):
        if progress.step == self.at:
            raise KeyboardInterrupt

    def note(self, line):
        self.notes.append(line)


def _weights(folder):
    return (folder / "model" / "model.safetensors").read_bytes()


def _begun(run, processes=None):
    """Count of tokens found, the embedding that the seed draws, and the one that training begins with."""
    data = TokenData.open(run.data)
    run = fit_to_data(run, data)
    drawn, begun = initial_decoder(run, data), initial_decoder(run, data)
    found = load_word_vectors(begun, run, data, processes or Processes())
    for name, tensor in drawn.state_dict().items():
        assert name == "embedding.tokens.weight" or torch.equal(tensor, begun.state_dict()[name])
    return found, drawn.embedding.tokens.weight, begun.embedding.tokens.weight


def test_word_vectors_are_scaled_together_and_other_rows_stay(tiny_run, file):
    found, drawn_VE, begun_VE = _begun(tiny_run(embedding_from=str(file)))
    capitals, small = ([ord(letter) for letter in text] for text in (LETTERS.upper(), LETTERS))
    assert found == 18 and torch.equal(begun_VE[small], begun_VE[capitals])
    both = small + capitals
    ratio = begun_VE[small] / _vectors(file)
    torch.testing.assert_close(ratio, ratio[0, 0].expand_as(ratio))
    torch.testing.assert_close(begun_VE[both].square().mean(), drawn_VE[both].square().mean())
    others = [token for token in range(257) if token not in both]
    assert torch.equal(begun_VE[others], drawn_VE[others])


@pytest.mark.parametrize("factor", [1e-30, 1e30])
def test_the_dtype_in_the_file_does_not_matter(tmp_path, tiny_run, file, factor):
    other = _written(tmp_path / "other.txt", factor=factor)
    _, _, expected_VE = _begun(tiny_run(embedding_from=str(file)))
    torch.testing.assert_close(_begun(tiny_run(embedding_from=str(other)))[2], expected_VE)


def test_a_narrow_embedding_needs_vectors_of_its_width(tmp_path, tiny_run, tiny_model):
    path = _written(tmp_path / "narrow.txt", width=6)
    run = tiny_run(embedding_from=str(path)).model_copy(update={"model": tiny_model(embedding={"width": 6})})
    assert _begun(run)[0] == 18


def test_other_processes_use_the_word_vectors_of_rank_0(tmp_path, tiny_run, file):
    read = []

    class First(Processes):
        def broadcast_from_rank0(self, make):
            read.append(make())
            return read[-1]

    class Second(Processes):
        rank = 1

        def broadcast_from_rank0(self, make):
            return read[-1]

    run = tiny_run(embedding_from=str(file))
    first = _begun(run, First())
    file.unlink()
    assert torch.equal(first[2], _begun(run, Second())[2])


def test_it_resumes_bit_for_bit_without_the_file(tmp_path, tiny_run, file):
    run = tiny_run(embedding_from=str(file))
    straight, reporter = train_run(run, tmp_path / "straight").summary, _StopAt(5)
    with pytest.raises(KeyboardInterrupt):
        train_run(run, tmp_path / "run", reporter)
    told = (
        f"note: training.embedding_from: {file}: a word vector for 18 of 257 tokens (7.0%); the others begin with"
        " random vectors"
    )
    assert told in reporter.notes
    file.unlink()
    reporter = _StopAt()
    summary = train_run(run, tmp_path / "run", reporter).summary
    assert _weights(tmp_path / "run") == _weights(tmp_path / "straight")
    assert not any("word vector" in note for note in reporter.notes)
    assert summary["embedding_from"] == straight["embedding_from"]
    train_run(tiny_run(), tmp_path / "without")
    assert _weights(tmp_path / "run") != _weights(tmp_path / "without")


def test_run_json_has_file_hash_and_share(tmp_path, tiny_run, file):
    digest = hashlib.sha256(file.read_bytes()).hexdigest()
    summary = train_run(tiny_run(embedding_from=str(file)), tmp_path / "run").summary
    known = json.loads((tmp_path / "run" / "model" / "run.json").read_text())["embedding_from"]
    assert known == summary["embedding_from"]
    assert known == {"file": str(file), "sha256": digest, "tokens_found": 18, "tokens": 257}
    assert json.loads((tmp_path / "run" / "files.json").read_text())["training.embedding_from"] == digest
    assert train_run(tiny_run(), tmp_path / "fresh").summary["embedding_from"] is None


def test_initial_files_are_compared_by_content(tmp_path, tiny_run, file):
    with pytest.raises(KeyboardInterrupt):
        train_run(tiny_run(embedding_from=str(file)), tmp_path / "run", _StopAt(5))
    moved = shutil.move(file, tmp_path / "moved.txt")
    _written(file, factor=2.0)
    with pytest.raises(UserError, match=r"training\.embedding_from: '.*txt \(SHA-256 \w{12}\)', not '.*txt \(SHA-256"):
        train_run(tiny_run(embedding_from=str(file)), tmp_path / "run")
    with pytest.raises(UserError, match=r"training\.embedding_from"):
        train_run(tiny_run(), tmp_path / "run")
    assert train_run(tiny_run(embedding_from=str(moved)), tmp_path / "run").finished


def test_without_an_undamaged_checkpoint_it_needs_the_file_again(tmp_path, tiny_run, file):
    run = tiny_run(embedding_from=str(file))
    train_run(run, tmp_path / "straight")
    with pytest.raises(KeyboardInterrupt):
        train_run(run, tmp_path / "run", _StopAt(5))
    for weights in (tmp_path / "run" / "checkpoints").glob("*/model.safetensors"):
        weights.write_bytes(b"half")
    summary = train_run(run, tmp_path / "run").summary
    assert _weights(tmp_path / "run") == _weights(tmp_path / "straight")
    assert summary["embedding_from"]["tokens_found"] == 18


def test_a_missing_initial_model_is_refused_before_the_run(tmp_path, tiny_run, file):
    wide, nothing = _written(tmp_path / "wide.txt", width=20), tmp_path / "nothing.txt"
    nothing.write_text("unheard-of" + " 1" * 16)
    for path, said in (
        (wide, "a word with 20 numbers; expected 16, the width of the model's token embedding"),
        (nothing, "has a word for none of the tokenizer's 257 tokens"),
        (tmp_path / "none.txt", "none.txt: no such file"),
    ):
        with pytest.raises(UserError, match=said):
            train_run(tiny_run(embedding_from=str(path)), tmp_path / "run")
        assert not (tmp_path / "run").exists()


def test_embedding_from_is_refused_with_start_from(tmp_path, tiny_run, file):
    plain = tiny_run(embedding_from=str(file)).to_dict() | {"start_from": str(tmp_path)}
    with pytest.raises(
        UserError, match=r"training\.embedding_from: .*letters.txt: cannot be combined with `start_from`"
    ):
        tiny_run().parse(plain, "run")


def test_the_model_is_that_of_any_run(tmp_path, tiny_run, file):
    still = {"optimizer": {"lr": 1e-30, "weight_decay": 0}, "schedule": {"warmup_steps": 0}}
    run = tiny_run(embedding_from=str(file), **still)
    found_VE = load_decoder(train_run(run, tmp_path / "run").model).embedding.tokens.weight
    assert torch.equal(found_VE, _begun(run)[2])
