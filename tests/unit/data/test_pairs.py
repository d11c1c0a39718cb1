"""Pairs from files to batches, and what is said of files that hold none."""

import json
from pathlib import Path

import pytest
import torch

from linnet.core.errors import UserError
from linnet.data.pairs import PairBatches, Pairs, read_pairs, validation_pairs
from linnet.data.prepare import prepare_pairs
from linnet.data.shards import TokenData
from linnet.ops.cross_entropy import IGNORE_INDEX

PAIRS = [(f"number {number}", "odd" if number % 2 else f"even, {number}") for number in range(40)]


def write(path: Path, *lines: object) -> Path:
    path.write_text("".join((line if isinstance(line, str) else json.dumps(line)) + "\n" for line in lines))
    return path


@pytest.fixture(scope="module")
def data(tmp_path_factory: pytest.TempPathFactory) -> TokenData:
    folder = tmp_path_factory.mktemp("pairs")
    file = write(folder / "pairs.jsonl", *({"input": a, "target": b} for a, b in PAIRS))
    prepare_pairs(file, folder / "data", "bytes", validation=0.2)
    return TokenData.open(folder / "data")


def texts(data: TokenData, pairs: Pairs) -> list[tuple[str, str]]:
    """Input and target of each row as the batches have them."""
    found = []
    for number in range(len(pairs)):
        tokens, targets = (part[0] for part in pairs.rows([number]))
        counted = targets != IGNORE_INDEX
        target = data.tokenizer.decode(targets[counted])
        found.append((data.tokenizer.decode(tokens[: int(counted.nonzero()[0])]), target))
    return found


def test_every_pair_is_on_one_side_whole(data: TokenData):
    end = data.tokenizer.end_id
    sides = [texts(data, Pairs(data.split(split), end)) for split in ("train", "validation")]
    assert sorted(sides[0] + sides[1]) == sorted(PAIRS) and all(sides)
    assert data.holds_pairs
    assert len(data.manifest.settings["pairs"]) == 64


def test_pairs_with_the_same_input_are_on_the_same_side(tmp_path: Path):
    lines = [{"input": f"word {number % 9}", "target": str(number)} for number in range(60)]
    prepare_pairs(write(tmp_path / "pairs.jsonl", *lines), tmp_path / "data", "bytes", validation=0.3)
    opened = TokenData.open(tmp_path / "data")
    sides = [
        {given for given, _ in texts(opened, Pairs(opened.split(split), opened.tokenizer.end_id))}
        for split in ("train", "validation")
    ]
    assert all(sides) and not sides[0] & sides[1]


def test_a_row_is_input_and_target_between_ends_and_predicts_the_target(data: TokenData):
    pairs = Pairs(data.split("train"), data.tokenizer.end_id)
    tokens, targets = pairs.rows([0, 1, 2])
    for row, number in enumerate((0, 1, 2)):
        given, wanted = int(pairs.input_lengths[number]), int(pairs.target_lengths[number])
        assert tokens[row, 0] == tokens[row, given] == data.tokenizer.end_id
        assert (targets[row, :given] == IGNORE_INDEX).all() and (targets[row, given + wanted :] == IGNORE_INDEX).all()
        assert torch.equal(targets[row, given : given + wanted - 1], tokens[row, given + 1 : given + wanted])
        assert targets[row, given + wanted - 1] == data.tokenizer.end_id


def test_batches_follow_from_number_and_seed_and_an_epoch_has_each_pair_once(data: TokenData):
    pairs = Pairs(data.split("train"), data.tokenizer.end_id)
    batches, again = PairBatches(pairs, 3, 7), PairBatches(pairs, 3, 7)
    assert all(torch.equal(*each) for each in zip(batches.batch(11), again.batch(11), strict=True))
    other = PairBatches(pairs, 3, 8)
    assert any(not torch.equal(batches.batch(n)[0], other.batch(n)[0]) for n in range(3))
    single = PairBatches(pairs, 1, 7)
    seen = [data.tokenizer.decode(single.batch(number)[0][0]) for number in range(2 * len(pairs))]
    first, second = seen[: len(pairs)], seen[len(pairs) :]
    assert sorted(first) == sorted(second) and first != second and len(set(first)) == len(pairs)


def test_held_out_pairs_come_in_order_or_spread(data: TokenData):
    pairs = Pairs(data.split("train"), data.tokenizer.end_id)
    predicted = sum(int((targets != IGNORE_INDEX).sum()) for _, targets in validation_pairs(pairs, 4))
    assert predicted == pairs.target_lengths.sum()
    some = list(validation_pairs(pairs, 4, predicted // 3))
    assert 0 < sum(len(tokens) for tokens, _ in some) <= len(pairs) // 2


def test_what_is_longer_than_the_context_is_named(data: TokenData):
    pairs = Pairs(data.split("train"), data.tokenizer.end_id)
    longest = int((pairs.input_lengths + pairs.target_lengths).max())
    pairs.check_lengths(longest, apart=False)
    with pytest.raises(UserError, match=rf"pair \d+: input and target of {longest} tokens: more than the context of"):
        pairs.check_lengths(longest - 1, apart=False)
    pairs.check_lengths(int(max(pairs.input_lengths + 1)), apart=True)
    with pytest.raises(UserError, match="input or target of"):
        pairs.check_lengths(5, apart=True)


@pytest.mark.parametrize(
    ("lines", "said"),
    [
        (["{"], "line 1: not valid JSON"),
        ([{"input": "a", "target": "b"}, ["a"]], "line 2: expected a JSON object with a field 'input', found a list"),
        (["", {"input": "a", "output": "b"}], "line 2: no field 'target'; this line has 'input', 'output'"),
        ([{"input": 3, "target": "b"}], "line 1: field 'input': expected a string, found a number"),
        ([{"input": "a", "target": ""}], "line 1: field 'target': empty; expected some text"),
        (["", "  "], "no pairs; expected lines like"),
    ],
)
def test_what_is_no_pair_is_named_with_file_line_and_field(tmp_path: Path, lines: list[object], said: str):
    file = write(tmp_path / "pairs.jsonl", *lines)
    with pytest.raises(UserError) as caught:
        list(read_pairs(file))
    assert str(caught.value).startswith(str(file)) and said in str(caught.value)


def test_one_input_alone_leaves_nothing_to_hold_out(tmp_path: Path):
    file = write(tmp_path / "pairs.jsonl", *({"input": "a", "target": str(n)} for n in range(9)))
    with pytest.raises(UserError, match="all pairs have the same input"):
        prepare_pairs(file, tmp_path / "data", "bytes")


def test_text_is_no_folder_of_pairs(data: TokenData):
    sequence = data.split("train")
    with pytest.raises(UserError, match="expected pairs of an input and a target"):
        Pairs(sequence, 300)
