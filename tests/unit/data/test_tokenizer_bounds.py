import json
from pathlib import Path
from typing import Any

import pytest

from linnet.core.bounds import MAX_VOCABULARY
from linnet.core.errors import UserError
from linnet.data.tokenizer import Tokenizer
from linnet.data.tokenizer_bounds import DEEPEST, check_bounds


@pytest.fixture(scope="module")
def written(tmp_path_factory: pytest.TempPathFactory) -> dict[str, Any]:
    path = tmp_path_factory.mktemp("tokenizer") / "tokenizer.json"
    Tokenizer.train("bytes", []).save(path)
    return dict(json.loads(path.read_text()))


def refusal(definition: dict[str, Any], folder: Path) -> str:
    path = folder / "tokenizer.json"
    path.write_text(json.dumps(definition))
    with pytest.raises(UserError) as refused:
        Tokenizer.load(path)
    return str(refused.value).removeprefix(str(path))


@pytest.mark.parametrize("number", [200_000_000, MAX_VOCABULARY, -1, True, "1", 1.5, None, [0] * 1000])
def test_a_token_id_that_no_vocabulary_has_is_refused(number: Any, written: dict[str, Any], tmp_path: Path):
    added = [{"id": number, "content": "<x>", "special": True}]
    line = refusal({**written, "added_tokens": [*written["added_tokens"], *added]}, tmp_path)
    assert line.endswith(": expected 0 to 4,194,303") and line.startswith(": token id ") and len(line) < 100
    model = written["model"]
    assert refusal({**written, "model": {**model, "vocab": {**model["vocab"], "x": number}}}, tmp_path) == line


def nested(levels: int) -> dict[str, Any]:
    part: dict[str, Any] = {"type": "NFC"}
    for _ in range(levels):
        part = {"type": "Sequence", "normalizers": [part]}
    return part


@pytest.mark.parametrize("part", ["normalizer", "pre_tokenizer", "post_processor", "decoder"])
def test_parts_within_parts_without_end_are_refused(part: str, written: dict[str, Any], tmp_path: Path):
    line = refusal({**written, part: nested(DEEPEST + 1)}, tmp_path)
    assert line == f": {part}: nested too deep; expected at most {DEEPEST} levels"
    check_bounds({**written, part: nested(DEEPEST)}, "x")


def replacing(*contents: str) -> dict[str, Any]:
    one = {"type": "Replace", "pattern": {"Regex": "."}}
    return {"type": "Sequence", "normalizers": [{**one, "content": content} for content in contents]}


def test_replacements_that_make_a_text_as_long_as_they_like_are_refused(written: dict[str, Any], tmp_path: Path):
    line = refusal({**written, "normalizer": replacing(*["x" * 16] * 12)}, tmp_path)
    assert line == (
        ": normalizer: makes a text 2.81e+14 times as long; expected replacements that make it at most 256 times as"
        " long"
    )
    check_bounds({**written, "normalizer": replacing("▁", "", "▁▁", " ")}, "x")


def test_a_vocabulary_that_is_too_long_is_refused():
    with pytest.raises(UserError, match=r"^x: token id 4194305: expected 0 to 4,194,303"):
        check_bounds({"model": {"vocab": [None] * (MAX_VOCABULARY + 1)}}, "x")
