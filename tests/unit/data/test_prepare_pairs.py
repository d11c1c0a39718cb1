import json
from pathlib import Path

import pytest

from linnet.core.errors import UserError
from linnet.data.loader import document_rows
from linnet.data.prepare_pairs import prepare_pairs, read_pairs
from linnet.data.split import Split
from linnet.data.token_data import TokenData
from linnet.ops.cross_entropy import IGNORE_INDEX

PAIRS = [(f"number {number}", "odd" if number % 2 else f"even, {number}") for number in range(40)]


def write_lines(path: Path, *lines: object) -> Path:
    path.write_text("".join((line if isinstance(line, str) else json.dumps(line)) + "\n" for line in lines))
    return path


@pytest.fixture(scope="module")
def pairs_data(tmp_path_factory: pytest.TempPathFactory) -> TokenData:
    folder = tmp_path_factory.mktemp("pairs")
    file = write_lines(folder / "pairs.jsonl", *({"input": a, "target": b} for a, b in PAIRS))
    prepare_pairs(file, folder / "data", "bytes", validation=0.2)
    return TokenData.open(folder / "data")


def pairs_of(data: TokenData, split: Split) -> list[tuple[str, str]]:
    """Input and target of each row, as the batches have them."""
    sequence, found = data.split(split), []
    rows = document_rows(sequence)
    for number in range(len(rows)):
        batch = rows.read(sequence, [number])
        assert batch.prefix_lengths is not None
        first = batch.prefix_lengths[0]
        assert batch.tokens[0, 0] == batch.tokens[0, first - 1] == batch.labels[0, -1] == data.tokenizer.end_id
        target = data.tokenizer.decode(batch.targets[0][batch.labels[0] != IGNORE_INDEX])
        found.append((data.tokenizer.decode(batch.tokens[0, :first]), target))
    return found


def test_every_pair_is_a_row_on_one_side_and_its_target_counts(pairs_data: TokenData):
    sides = [pairs_of(pairs_data, split) for split in ("train", "validation")]
    assert sorted(sides[0] + sides[1]) == sorted(PAIRS) and all(sides)
    assert pairs_data.is_rows and len(pairs_data.manifest.settings["pairs"]) == 64
    for split, found in zip(("train", "validation"), sides, strict=True):
        info = pairs_data.manifest.splits[split]
        assert info.documents == len(found) and info.targets == sum(len(target) + 1 for _, target in found)
    pairs_data.check_prefixes("model.encoder")


def test_pairs_with_the_same_input_are_on_the_same_side(tmp_path: Path):
    lines = [{"input": f"word {number % 9}", "target": str(number)} for number in range(60)]
    prepare_pairs(write_lines(tmp_path / "pairs.jsonl", *lines), tmp_path / "data", "bytes", validation=0.3)
    opened = TokenData.open(tmp_path / "data")
    sides = [{given for given, _ in pairs_of(opened, split)} for split in ("train", "validation")]
    assert all(sides) and not sides[0] & sides[1]


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
def test_invalid_pairs_are_named_with_file_line_and_field(tmp_path: Path, lines: list[object], said: str):
    file = write_lines(tmp_path / "pairs.jsonl", *lines)
    with pytest.raises(UserError) as caught:
        list(read_pairs(file))
    assert str(caught.value).startswith(str(file)) and said in str(caught.value)


def test_one_input_alone_leaves_nothing_to_hold_out(tmp_path: Path):
    file = write_lines(tmp_path / "pairs.jsonl", *({"input": "a", "target": str(n)} for n in range(9)))
    with pytest.raises(UserError, match="all pairs have the same input"):
        prepare_pairs(file, tmp_path / "data", "bytes")
