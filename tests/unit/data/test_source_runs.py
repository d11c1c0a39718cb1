"""Which source a document is from, from the files that are prepared to the data folder that is read."""

import json
from itertools import pairwise

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from linnet.core.checksum import read_checked_json, write_checked_json
from linnet.core.errors import UserError
from linnet.data.prepare import PreparedPart, prepare
from linnet.data.shards import TokenData
from linnet.data.source_runs import SourceRuns, unpacked

SIDES = ("train", "validation")


@given(st.lists(st.integers(0, 3), min_size=1, max_size=60))
def test_packing_and_unpacking_give_the_same_numbers(numbers):
    runs = SourceRuns()
    assert list(runs.follow(PreparedPart("train", str(n), n) for n in numbers)) == [str(n) for n in numbers]
    assert unpacked(runs.packed(), len(numbers), 4).tolist() == numbers


def test_packed_by_hand():
    assert unpacked("0x3 2 1x2", 6, 3).tolist() == [0, 0, 0, 2, 1, 1]


@pytest.mark.parametrize("runs", ["0x5", "0x7", "0x3 3x3", "", "0x3  1x3", "0x-1 1x7", "0x3 1x3 a", "0x0 0x6"])
def test_what_does_not_fit_the_documents_is_refused(runs):
    with pytest.raises(ValueError, match="expected the numbers of 6 documents' sources, each below 3"):
        unpacked(runs, 6, 3)


@pytest.fixture
def mixture(tmp_path):
    """A data folder of two files: documents say themselves which they are from."""
    for name in ("cats", "dogs"):
        lines = [json.dumps({"text": f"{name} number {n} sleep"}) for n in range(30)]
        (tmp_path / f"{name}.jsonl").write_text("\n".join(lines))
    paths = [str(tmp_path / f"{name}.jsonl") for name in ("cats", "dogs")]
    prepare(paths, tmp_path / "data", "bytes", validation=0.3)
    return tmp_path / "data"


def test_a_data_folder_of_two_files_knows_the_source_of_each_document(mixture):
    data = TokenData.open(mixture)
    for side in SIDES:
        sequence, found = data.split(side), data.sources(side)
        ends = sequence.positions(data.tokenizer.end_id)
        texts = [data.tokenizer.decode(sequence.read(a, b - a)) for a, b in pairwise(ends)]
        said = ["cats" if text.startswith("cats") else "dogs" for text in texts]
        assert [("cats", "dogs")[number] for number in found] == said
        assert set(said) == {"cats", "dogs"}
    assert data.manifest.splits["train"].sources.count("x") == 2, "the training side is one run for each source"


def test_one_source_needs_no_record_and_an_earlier_folder_does_not_know(mixture, tmp_path):
    plain = read_checked_json(mixture / "manifest.json")
    for side in SIDES:
        del plain["splits"][side]["sources"]
    write_checked_json(mixture / "manifest.json", plain)
    assert TokenData.open(mixture).sources("train") is None
    manifest = prepare([str(tmp_path / "cats.jsonl")], tmp_path / "one", "bytes")
    assert manifest.splits["train"].sources is None
    assert np.array_equal(
        TokenData.open(tmp_path / "one").sources("validation"), np.zeros(manifest.splits["validation"].documents)
    )


def test_a_manifest_whose_sources_do_not_fit_is_named(mixture):
    plain = read_checked_json(mixture / "manifest.json")
    plain["splits"]["train"]["sources"] = "0x5 1x7"
    write_checked_json(mixture / "manifest.json", plain)
    with pytest.raises(UserError, match=r"manifest.json: splits.train.sources: expected the numbers of \d+ documents'"):
        TokenData.open(mixture).sources("train")
