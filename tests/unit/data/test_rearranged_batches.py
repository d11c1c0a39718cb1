"""Documents of a batch are rearranged anew for each batch, and lose nothing but what a window has no room for."""

from pathlib import Path

import pytest
import torch

from linnet.core.errors import UserError
from linnet.data.fill_in_the_middle import FillInTheMiddle
from linnet.data.loader import Batch, Batches, document_windows
from linnet.data.packing import PackedBatches
from linnet.data.prepare import prepare
from linnet.data.rearranged_batches import BatchRearranger
from linnet.data.token_data import TokenData

NAMES = ("<|fim_prefix|>", "<|fim_suffix|>", "<|fim_middle|>")
TEXTS = [f"Number {number} goes {'up and ' * (number % 5)}down, été." for number in range(60)]
ROWS = 4


@pytest.fixture(scope="module")
def data(tmp_path_factory: pytest.TempPathFactory) -> TokenData:
    folder = tmp_path_factory.mktemp("fim")
    (folder / "all.txt").write_text("<|endoftext|>".join(TEXTS))
    controls = FillInTheMiddle(rate=0)
    prepare([str(folder / "all.txt")], folder / "data", "bpe", 320, validation=0.1, fill_in_the_middle=controls)
    return TokenData.open(folder / "data")


def batches(data: TokenData, windows: str, context: int) -> Batches | PackedBatches:
    sequence = data.split("train")
    if windows == "packed":
        return PackedBatches(sequence, ROWS, context, 0, document_starts=True)
    spans = document_windows(sequence, context).whole_windows(sequence, context) if windows == "documents" else None
    return Batches(sequence, ROWS, context, 0, spans, document_starts=True)


def rearranger(data: TokenData, of_run: int = 0, **fields) -> BatchRearranger:
    return BatchRearranger(FillInTheMiddle.parse(fields, "test"), data.tokenizer, of_run)


def documents(data: TokenData, batch: Batch) -> list[list[int]]:
    """What follows each end token of a batch of packed windows, until the next."""
    found = list[list[int]]()
    for tokens, weights in zip(batch.tokens, batch.weights, strict=True):
        for token in tokens[weights].tolist():
            if token == data.tokenizer.end_id:
                found.append([])
            else:
                found[-1].append(token)
    return found


def restored(data: TokenData, tokens: list[int]) -> tuple[str, str]:
    """The order of a document and its text as it was."""
    prefix, suffix, middle = (data.tokenizer.special_ids[name] for name in NAMES)
    decode = data.tokenizer.decode
    if middle not in tokens:
        return "plain", decode(tokens)
    at_suffix, at_middle = tokens.index(suffix), tokens.index(middle)
    assert tokens[0] == prefix and 0 < at_suffix < at_middle
    before, between, last = tokens[1:at_suffix], tokens[at_suffix + 1 : at_middle], tokens[at_middle + 1 :]
    if at_suffix == 1:
        return "spm", decode(last) + decode(between)
    return "psm", decode(before) + decode(last) + decode(between)


def test_documents_are_rearranged_and_are_still_theirs(data: TokenData) -> None:
    packed, orders = batches(data, "packed", 128), list[str]()
    made = rearranger(data, rate=0.7, spm_rate=0.4)
    for number in range(12):
        before, after = packed.batch(number), made.rearranged(packed.batch(number), number)
        assert after.tokens.shape == before.tokens.shape and after.weights.dtype == torch.bool
        found = [restored(data, tokens) for tokens in documents(data, after)]
        texts = [data.tokenizer.decode(tokens) for tokens in documents(data, before)]
        # The last ones of a full window are cut, or left out.
        whole = [text for _, text in found if text in TEXTS]
        assert set(whole) <= set(texts) and len(whole) >= 0.7 * len(texts)
        orders += [order for order, _ in found]
    shares = {order: orders.count(order) / len(orders) for order in ("plain", "psm", "spm")}
    assert shares == pytest.approx({"plain": 0.3, "psm": 0.42, "spm": 0.28}, abs=0.1)


@pytest.mark.parametrize("windows", ["stream", "documents", "packed"])
@pytest.mark.parametrize("context", [8, 64], ids=["short", "long"])
def test_what_is_not_drawn_stays_where_it_was(data: TokenData, windows: str, context: int) -> None:
    plain, made = batches(data, windows, context), rearranger(data, rate=0)
    for number in range(6):
        before, after = plain.batch(number), made.rearranged(plain.batch(number), number)
        assert torch.equal(after.tokens, before.tokens) and torch.equal(after.labels, before.labels)
        for starts, expected in zip(after.document_starts, before.document_starts, strict=True):
            # Packed windows begin another document after a piece of a long one; a row begins at 0 either way.
            assert set(starts) == {0, *expected}


@pytest.mark.parametrize("windows", ["stream", "documents", "packed"])
@pytest.mark.parametrize("context", [8, 64], ids=["short", "long"])
def test_a_target_is_what_follows_and_no_row_is_longer(data: TokenData, windows: str, context: int) -> None:
    plain, made, end_id = batches(data, windows, context), rearranger(data, rate=1), data.tokenizer.end_id
    controls, seen = {data.tokenizer.special_ids[name] for name in NAMES}, set[int]()
    for number in range(6):
        after = made.rearranged(plain.batch(number), number)
        assert after.tokens.shape == (ROWS, context)
        for tokens, targets, weights, starts in zip(
            after.tokens, after.targets, after.weights, after.document_starts, strict=True
        ):
            count = int(weights.sum())
            assert weights[:count].all(), "what fills a row up is at its end"
            same = tokens[1:count] == targets[: count - 1]
            begins = [start for start in starts if 0 < start < count]
            assert all(same[place - 1] or place in begins for place in range(1, count))
            assert {place for place in range(1, count) if tokens[place] == end_id} <= set(begins)
            seen |= controls & set(targets.tolist())
    assert seen == controls


def test_batches_and_seeds_are_drawn_alike_again_and_differ_from_each_other(data: TokenData) -> None:
    batch, found = batches(data, "documents", 64).batch(3), dict[tuple[int, int, int], bytes]()
    for fill, seed, number in ((0, 0, 3), (0, 0, 8), (0, 1, 3), (1, 0, 3)):
        made = [rearranger(data, seed, seed=fill).rearranged(batch, number).tokens.numpy().tobytes() for _ in range(2)]
        assert made[0] == made[1]
        found[fill, seed, number] = made[0]
    assert len(set(found.values())) == 4


def test_half_a_character_at_the_edge_of_a_window_stays_as_it_is(tmp_path: Path) -> None:
    (tmp_path / "all.txt").write_text("<|endoftext|>".join(f"{n}é" for n in range(20)))
    controls = FillInTheMiddle(rate=0)
    prepare([str(tmp_path / "all.txt")], tmp_path / "data", "bytes", fill_in_the_middle=controls)
    data = TokenData.open(tmp_path / "data")
    end_id, accent = data.tokenizer.end_id, "é".encode()
    tokens = torch.tensor([[accent[1], end_id, 49, accent[0]]])
    batch = Batch(tokens, torch.tensor([[end_id, 49, accent[0], accent[1]]]))
    after = rearranger(data, rate=1).rearranged(batch, 0)
    assert after.tokens[0, :2].tolist() == [accent[1], end_id], "its rest would be no text"
    assert after.tokens[0, 2] == data.tokenizer.special_ids[NAMES[0]] and after.document_starts is None


def test_documents_with_control_tokens_of_their_own_stay_as_they_are(data: TokenData) -> None:
    """Decoding would lose them, as of token files of another program."""
    end_id, control = data.tokenizer.end_id, data.tokenizer.special_ids[NAMES[2]]
    row = [end_id, *data.tokenizer.encode("one"), control, *data.tokenizer.encode("two"), end_id]
    batch = Batch(torch.tensor([row[:-1]]), torch.tensor([row[1:]]))
    after = rearranger(data, rate=1).rearranged(batch, 0)
    assert torch.equal(after.tokens, batch.tokens) and torch.equal(after.targets, batch.targets)


def test_control_tokens_are_needed(data: TokenData) -> None:
    with pytest.raises(UserError, match=r"training.fill_in_the_middle.tokens: the tokenizer has no such .* <a>"):
        rearranger(data, tokens=["<a>", "<b>", "<c>"])
