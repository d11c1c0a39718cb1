"""A text of several sources is read in the shares of a mixture."""

from collections import Counter
from pathlib import Path

import numpy as np
import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st

from linnet.core.errors import UserError
from linnet.data.loader import Batches
from linnet.data.mixed_batches import Interleaving, MixedBatches, mixed_batches, source_parts, within_limits
from linnet.data.mixture import MixtureSpec
from linnet.data.packing import PackedBatches
from linnet.data.prepare import prepare
from linnet.data.token_data import TokenData

WORDS = {"books": "abc", "code": "xyz", "web": "123"}
"""The letters of each source: a token says where it is from."""

CONTEXT, ROWS = 8, 4


@pytest.fixture(scope="module")
def data(tmp_path_factory: pytest.TempPathFactory) -> TokenData:
    folder = tmp_path_factory.mktemp("mixture")
    for name, count in (("books", 60), ("code", 20), ("web", 30)):
        documents = [WORDS[name][number % 3] * (10 + number % 5) for number in range(count)]
        (folder / f"{name}.txt").write_text("<|endoftext|>".join(documents))
    (folder / "web2.jsonl").write_text('{"page": "3333333333"}\n' * 30)
    sources = {name: {"inputs": str(folder / f"{name}.txt")} for name in ("books", "code")}
    sources["web"] = {"inputs": [str(folder / "web*")], "field": "page"}
    mixture = MixtureSpec.parse({"sources": sources}, "test")
    prepare([], folder / "data", "bytes", validation=0.1, mixture=mixture)
    return TokenData.open(folder / "data")


def mixed(data: TokenData, steps: int = 40, accumulation: int = 1, **fields) -> MixedBatches:
    mixture = MixtureSpec.parse(fields, "test")
    parts = source_parts(data, mixture)
    batches = [Batches(part.sequence, ROWS, CONTEXT, seed=1) for part in parts]
    return mixed_batches(mixture, parts, batches, accumulation, steps)


def source_of(data: TokenData, row: torch.Tensor) -> str:
    """The source of a window's tokens; windows of a source have no token of another."""
    letters = set(data.tokenizer.decode(row.tolist()).replace("<|endoftext|>", ""))
    (name,) = (name for name, own in WORDS.items() if letters <= set(own))
    return name


def counts(data: TokenData, batches: MixedBatches, numbers: range) -> Counter[str]:
    rows = [row for number in numbers for row in batches.batch(number).tokens]
    return Counter(source_of(data, row) for row in rows)


def test_a_part_is_the_text_of_its_source(data: TokenData):
    assert data.source_names == ["books", "code", "web"] and len(data.manifest.sources) == 4
    parts = source_parts(data, MixtureSpec.parse({"sources": {name: {} for name in WORDS}}, "test"))
    train = data.split("train")
    assert sum(len(part.sequence) - 1 for part in parts) == len(train) - 1
    of_documents = data.sources("train")
    for number, part in enumerate(parts):
        sequence = part.sequence
        starts, bounds = sequence.document_starts, [*sequence.document_starts, len(sequence) - 1]
        text = data.tokenizer.decode(sequence.read(0, len(sequence)).tolist())
        assert set(text.replace("<|endoftext|>", "")) <= set(WORDS[part.name])
        assert len(starts) == (of_documents == number).sum()
        assert all(sequence.read(int(start), 1)[0] == sequence.end_id for start in bounds)
    assert parts[0].bytes_per_token == pytest.approx(12 / 13, abs=0.01)


def test_windows_come_in_the_given_shares(data: TokenData):
    sources = {"books": {"weight": 2}, "code": {"weight": 1}, "web": {"weight": 1}}
    batches = mixed(data, sources=sources, by="tokens")
    found = counts(data, batches, range(40))
    assert found == {"books": 80, "code": 40, "web": 40}
    assert [(share.source, share.tokens) for share in batches.shares(40)] == [
        (name, CONTEXT * found[name]) for name in WORDS
    ]
    assert [share.share for share in batches.shares(40)] == [0.5, 0.25, 0.25]


def test_a_source_without_weight_is_not_read(data: TokenData):
    assert set(counts(data, mixed(data, sources={"books": {}, "web": {}}), range(20))) == {"books", "web"}
    sources = {"books": {"weight": 1}, "web": {"weight": 0}}
    assert set(counts(data, mixed(data, sources=sources), range(20))) == {"books"}


def test_shares_of_bytes_are_those_of_the_text(data: TokenData):
    batches = mixed(data, 200, sources={"books": {"weight": 1}, "web": {"weight": 1}})
    books, web = batches.shares(200)
    assert books.share_of_bytes == pytest.approx(0.5, abs=0.002)
    assert books.share != pytest.approx(0.5, abs=1e-4) and web.share + books.share == pytest.approx(1)


def test_epochs_follow_the_sizes_of_the_sources(data: TokenData):
    batches = mixed(data, 400, sources={"books": {"epochs": 1}, "code": {"epochs": 3}})
    books, code = batches.shares(400)
    assert code.epochs / books.epochs == pytest.approx(3, rel=0.1)  # of whole windows


def test_a_curriculum_changes_the_shares(data: TokenData):
    stages = [{"after_step": 5, "weights": {"code": 1}}, {"after_step": 8, "weights": {"books": 1, "web": 1}}]
    batches = mixed(
        data,
        12,
        2,
        sources={name: {"weight": float(name == "books")} for name in WORDS},
        curriculum=stages,
    )
    assert set(counts(data, batches, range(10))) == {"books"}
    assert set(counts(data, batches, range(10, 16))) == {"code"}
    assert set(counts(data, batches, range(16, 24))) == {"books", "web"}
    assert sum(share.tokens for share in batches.shares(24)) == 24 * ROWS * CONTEXT


def test_no_window_is_read_twice_in_an_epoch_and_a_batch_depends_on_its_number_alone(data: TokenData):
    fields = {"sources": {"books": {"weight": 3}, "code": {"weight": 1}}, "by": "tokens"}
    one, other = mixed(data, **fields), mixed(data, **fields)
    epochs = source_parts(data, MixtureSpec.parse({"sources": {"books": {}}}, "test"))[0].sequence
    whole = Batches(epochs, ROWS, CONTEXT, seed=1).examples_per_epoch
    numbers = [window for number in range(40) for window in one.windows_of(number)]
    for source in (0, 1):
        assert [at for of, at in numbers if of == source] == list(range(sum(of == source for of, _ in numbers)))
    assert sum(of == 0 for of, _ in numbers) > whole  # the second epoch is begun
    for number in (39, 3, 17):
        assert torch.equal(one.batch(number).tokens, other.batch(number).tokens)
        assert torch.equal(one.batch(number).targets[:, :-1], one.batch(number).tokens[:, 1:])


def test_a_bound_on_epochs_leaves_the_rest_to_the_others(data: TokenData):
    sources = {"books": {"weight": 1}, "code": {"weight": 1, "max_epochs": 1}}
    books, code = mixed(data, 40, sources=sources).shares(40)
    assert code.epochs == pytest.approx(1, abs=0.05) and books.tokens + code.tokens == 40 * ROWS * CONTEXT
    with pytest.raises(UserError, match=r"training.mixture: max_epochs: the run reads 12,800 tokens, and its sources"):
        mixed(data, 400, sources=sources, max_epochs=1)


def test_sources_that_the_data_lack_are_named(data: TokenData):
    with pytest.raises(UserError, match=r"mixture.sources.news: expected sources of .*data: books, code, web$"):
        mixed(data, sources={"news": {}})


weights = st.lists(st.floats(0, 1), min_size=1, max_size=6).filter(lambda values: sum(values) > 1e-3)


@given(weights=weights, first=st.integers(0, 500), length=st.integers(0, 60))
def test_any_part_of_an_interleaving_follows_the_shares(weights: list[float], first: int, length: int):
    shares_S = np.array(weights)
    order = Interleaving(shares_S)
    taken, before = order.order(first, first + length), order.counts(first)
    assert sum(before) == first and order.counts(first + length) == [
        count + sum(source == each for source, _ in taken) for each, count in enumerate(before)
    ]
    wanted = shares_S / shares_S.sum() * first
    assert np.abs(np.array(before) - wanted).max() <= len(weights) / 2 + 1e-3
    for source in range(len(weights)):
        numbers = [number for of, number in taken if of == source]
        assert numbers == list(range(before[source], before[source] + len(numbers)))


@given(
    windows=st.lists(st.lists(st.floats(0, 50), min_size=3, max_size=3), min_size=1, max_size=3),
    limits=st.lists(st.floats(0.5, 100), min_size=3, max_size=3),
)
def test_bounds_hold_and_nothing_is_lost(windows: list[list[float]], limits: list[float]):
    windows_IS, limits_S = np.array(windows) + 1e-3, np.array(limits)
    try:
        found_IS = within_limits(windows_IS, limits_S, 8)
    except UserError:
        assert windows_IS.sum() > limits_S.sum() * (1 - 1e-6)
        return
    assert (found_IS.sum(0) <= limits_S * (1 + 1e-6)).all()
    assert np.allclose(found_IS.sum(1), windows_IS.sum(1))


def test_preparing_says_what_does_not_fit(tmp_path: Path):
    (tmp_path / "a.txt").write_text("one<|endoftext|>two")
    folders = {"first": str(tmp_path), "second": f"{tmp_path}/../{tmp_path.name}"}
    both = {name: {"inputs": [f"{folder}/a.txt"]} for name, folder in folders.items()}
    for fields, message in (
        ({"sources": both}, "a.txt is of first and of second; expected one source"),
        ({"sources": {"first": {}}}, "mixture.sources.first.inputs: expected files, folders or patterns of text"),
        ({"sources": {"first": {"inputs": "none.txt"}}}, "mixture.sources.first: none.txt: no such file"),
    ):
        with pytest.raises(UserError, match=message):
            prepare([], tmp_path / "out", "bytes", mixture=MixtureSpec.parse(fields, "test"))
        assert not (tmp_path / "out").exists()
    with pytest.raises(UserError, match=r"inputs: a.txt: expected nothing beside mixture"):
        prepare(["a.txt"], tmp_path / "out", "bytes", mixture=MixtureSpec.parse({"sources": both}, "test"))


def test_a_folder_without_a_mixture_is_described_as_before(tmp_path: Path):
    (tmp_path / "a.txt").write_text("one<|endoftext|>two")
    manifest = prepare([str(tmp_path / "a.txt")], tmp_path / "data", "bytes")
    assert manifest.model_dump()["sources"] == [{"file": str(tmp_path / "a.txt"), "documents": 2, "bytes": 6}]
    assert "mixture" not in manifest.settings


def test_packed_windows_are_mixed_with_their_weights(data: TokenData):
    mixture = MixtureSpec.parse({"sources": {"books": {"weight": 1}, "web": {"weight": 1}}, "by": "tokens"}, "test")
    parts = source_parts(data, mixture)
    packed = [PackedBatches(part.sequence, ROWS, 16, seed=1, document_starts=True) for part in parts]
    batches = mixed_batches(mixture, parts, packed, 1, 10)
    counted = dict.fromkeys(("books", "web"), 0)
    for number in range(10):
        batch = batches.batch(number)
        for row, weights, starts in zip(batch.tokens, batch.weights, batch.document_starts, strict=True):
            counted[source_of(data, row[weights])] += int(weights.sum())
            assert starts[0] == 0 and (bool(weights.all()) or starts[-1] == int(weights.sum()))
    shares = batches.shares(10)
    assert [share.tokens for share in shares] == pytest.approx(list(counted.values()), rel=0.05)
    assert sum(counted.values()) < 10 * ROWS * 16
