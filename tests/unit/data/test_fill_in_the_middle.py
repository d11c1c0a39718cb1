"""Documents rearranged to fill in the middle, in the order that the seed and their text determine."""

import re
from pathlib import Path

import numpy as np
import pytest

from linnet.core.errors import UserError, note
from linnet.data.fill_in_the_middle import FillInTheMiddle, Rearranger
from linnet.data.prepare import prepare
from linnet.data.shards import Manifest
from linnet.data.token_data import TokenData
from linnet.data.tokenizer import Tokenizer

NAMES = ("<|fim_prefix|>", "<|fim_suffix|>", "<|fim_middle|>")
TEXTS = [f"Number {number} goes {'up and ' * (number % 9)}down, été." for number in range(400)]


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    path = tmp_path_factory.mktemp("fim")
    (path / "all.txt").write_text("<|endoftext|>".join(TEXTS))
    return path


def made(folder: Path, name: str, tokenizer: str = "bpe", **fields) -> tuple[Manifest, TokenData]:
    spec = FillInTheMiddle.parse(fields, "test")
    size = 300 if tokenizer == "bpe" else None
    inputs = [str(folder / "all.txt")]
    manifest = prepare(inputs, folder / name, tokenizer, size, validation=0.1, overwrite=True, fill_in_the_middle=spec)
    return manifest, TokenData.open(folder / name)


def documents(data: TokenData, split: str = "train") -> list[list[int]]:
    """The tokens of each document, without its end token."""
    sequence = data.split(split)
    bounds = sequence.document_bounds
    pairs = zip(bounds[:-1].tolist(), np.diff(bounds).tolist(), strict=True)
    return [sequence.read(start + 1, length - 1).tolist() for start, length in pairs]


def restored(data: TokenData, tokens: list[int]) -> tuple[str, str]:
    """The order of a document (`plain`, `psm`, `spm`) and its text as it was; PSM without a prefix looks like SPM."""
    ids = [data.tokenizer.special_ids[name] for name in NAMES]
    decode = data.tokenizer.decode
    if not set(ids) & set(tokens):
        return "plain", decode(tokens)
    assert [tokens.count(token) for token in ids] == [1, 1, 1] and tokens[0] == ids[0]
    suffix, middle = tokens.index(ids[1]), tokens.index(ids[2])
    assert suffix < middle
    if suffix == 1:
        return "spm", decode(tokens[middle + 1 :]) + decode(tokens[2:middle])
    return "psm", decode(tokens[1:suffix]) + decode(tokens[middle + 1 :]) + decode(tokens[suffix + 1 : middle])


@pytest.mark.parametrize("tokenizer", ["bpe", "char", "bytes"])
def test_documents_are_rearranged_and_lose_nothing(folder: Path, tokenizer: str, caplog) -> None:
    note.cache_clear()  # a line is logged once
    manifest, data = made(folder, tokenizer, tokenizer, rate=0.6, spm_rate=0.3)
    found = [restored(data, tokens) for tokens in documents(data)]
    held_out = [data.tokenizer.decode(tokens) for tokens in documents(data, "validation")]
    assert sorted([text for _, text in found] + held_out) == sorted(TEXTS)
    orders = [order for order, _ in found]
    assert orders.count("plain") / len(orders) == pytest.approx(0.4, abs=0.08)
    assert orders.count("spm") / (len(orders) - orders.count("plain")) == pytest.approx(0.3, abs=0.1)
    assert manifest.splits["train"].bytes == sum(len(text.encode()) for _, text in found)
    rearranged = len(orders) - orders.count("plain")
    said = re.search(r"middle: (\d+) of (\d+) documents to train on: (\d+) with .* first, (\d+)", caplog.text)
    assert said is not None
    total, documents_of_all, psm, spm = map(int, said.groups())
    assert (total, documents_of_all) == (rearranged, len(orders)) and psm + spm == total
    assert orders.count("psm") <= psm <= orders.count("psm") + 20, "few have no prefix"
    seen = {token for each in documents(data, "validation") for token in each}
    assert not set(data.tokenizer.special_ids.values()) & seen
    assert manifest.settings["fill_in_the_middle"]["rate"] == 0.6


def test_the_seed_and_the_text_decide(folder: Path) -> None:
    tokenizer = Tokenizer.train("bytes", []).with_special(NAMES)

    def all_sections(seed: int, texts: list[str]) -> dict[str, list]:
        rearranger = Rearranger(FillInTheMiddle(rate=0.5, seed=seed), tokenizer)
        return {text: rearranger.sections(text) for text in texts}

    assert all_sections(1, TEXTS) == all_sections(1, TEXTS[::-1])
    assert all_sections(1, TEXTS) != all_sections(2, TEXTS)
    cuts = [len(sections[0].text) for sections in all_sections(1, ["abcdefgh" + text for text in TEXTS]).values()]
    assert len(set(cuts)) > 20


@pytest.mark.parametrize(("rate", "spm_rate", "order"), [(0, 0.5, "plain"), (1, 0, "psm"), (1, 1, "spm")])
def test_rates_of_none_and_all(folder: Path, rate: float, spm_rate: float, order: str) -> None:
    _, data = made(folder, "extreme", rate=rate, spm_rate=spm_rate)
    orders = [restored(data, tokens)[0] for tokens in documents(data)]
    without_prefix = orders.count("spm") if order == "psm" else 0
    assert orders.count(order) + without_prefix == len(orders) and without_prefix < 0.1 * len(orders)


def test_control_tokens_of_the_user_are_those_of_the_tokenizer(folder: Path, tmp_path: Path) -> None:
    own = ("<PRE>", "<SUF>", "<MID>")
    Tokenizer.train("bytes", []).with_special(own).save(tmp_path / "tokenizer.json")
    _, data = made(folder, "own", str(tmp_path / "tokenizer.json"), rate=1, tokens=own)
    assert {tokens[0] for tokens in documents(data)} == {data.tokenizer.special_ids["<PRE>"]}
    assert data.tokenizer.vocab_size == 260 and data.tokenizer.kind == "bytes"
    with pytest.raises(UserError) as raised:
        made(folder, "none", str(tmp_path / "tokenizer.json"))
    assert str(raised.value) == (
        "fim_tokens: the tokenizer has no such control token <|fim_prefix|>; expected three of its special tokens"
        " (<PRE>, <SUF>, <MID>)"
    )
    assert not (folder / "none").exists()
    with pytest.raises(UserError, match="tokens: a, b, a: expected three different names"):
        FillInTheMiddle.parse({"tokens": ["a", "b", "a"]}, "test")


def test_special_tokens_are_added_once() -> None:
    tokenizer = Tokenizer.train("bpe", TEXTS, 300)
    more = tokenizer.with_special(NAMES)
    assert more.vocab_size == tokenizer.vocab_size + 3 and more.kind == "bpe"
    assert more.with_special(NAMES).definition == more.definition
    text = "a <|fim_prefix|> in a text"
    assert more.encode(text) == tokenizer.encode(text) and more.decode(more.encode(text)) == text
