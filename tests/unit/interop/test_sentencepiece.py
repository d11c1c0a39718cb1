"""Ids and texts are those of the sentencepiece package: for models of many kinds, trained here, and for PLDR-LLM's."""

import json
import random
import sys
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest
import tokenizers
from hypothesis import given, settings
from hypothesis import strategies as st
from sentencepiece import SentencePieceProcessor
from sentencepiece.sentencepiece_model_pb2 import ModelProto
from small_sentencepieces import BPE, NASTY, OPTIONS, SENTENCES, trained

from linnet.core.errors import UserError
from linnet.data.prepare import prepare, prepare_texts
from linnet.data.token_data import TokenData
from linnet.data.tokenizer import Tokenizer
from linnet.interop.sentencepiece import tokenizer_from_sentencepiece, train_sentencepiece

Pair = tuple[SentencePieceProcessor, Tokenizer]


def pair(folder: Path, model: bytes) -> Pair:
    path = folder / "any.model"
    path.write_bytes(model)
    return SentencePieceProcessor(model_proto=model), tokenizer_from_sentencepiece(path)


def changed(model: bytes, change: Callable[[Any], None]) -> bytes:
    message = ModelProto.FromString(model)
    change(message)
    return bytes(message.SerializeToString())


@pytest.fixture(scope="module", params=OPTIONS)
def both(request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory) -> Pair:
    return pair(tmp_path_factory.mktemp("model"), trained(**OPTIONS[request.param]))


@pytest.fixture(scope="module")
def pldr(real_data: Path) -> Pair:
    path = real_data / "tokenizer" / "pldr_refinedweb_unigram_32k.model"
    return SentencePieceProcessor(model_file=str(path)), tokenizer_from_sentencepiece(path)


def check(both: Pair, text: str) -> None:
    """The same ids and the same text again, at once and token by token; every byte is counted."""
    processor, tokenizer = both
    ids = processor.encode(text)
    assert tokenizer.encode(text) == ids
    assert tokenizer.decode(ids) == processor.decode(ids)
    stream = tokenizer.stream()
    assert "".join([stream.push(token) for token in ids]) + stream.finish() == tokenizer.decode(ids)
    if processor.unk_id() not in ids:
        spelled = processor.normalize(text).replace("▁", " ")
        assert tokenizer.token_bytes()[ids].sum() == len(spelled.encode())


any_text = st.text(st.characters(exclude_categories=["Cs"]), max_size=40)
parts = st.sampled_from([*NASTY, *SENTENCES, *" ▁\n!abcLe", "[SEP]", "Lily", "\u0301", "\u0302", "\u11a8", "the ", "¨"])
texts = st.one_of(any_text, st.lists(st.one_of(parts, any_text), max_size=12).map("".join))


@settings(max_examples=50)
@given(text=texts)
def test_any_text(both: Pair, text: str) -> None:
    check(both, text)


def test_nasty_text(both: Pair) -> None:
    for text in NASTY:
        check(both, text)


@settings(max_examples=25)
@given(data=st.data())
def test_any_tokens_are_decoded_alike(both: Pair, data: st.DataObject) -> None:
    """Bytes apart: half a character becomes one U+FFFD here, one for each byte there."""
    processor, tokenizer = both
    whole = [token for token in range(tokenizer.vocab_size) if not processor.is_byte(token)]
    ids = data.draw(st.lists(st.sampled_from(whole), max_size=20))
    assert tokenizer.decode(ids) == processor.decode(ids)


def test_a_saved_tokenizer_is_the_same(both: Pair, tmp_path: Path) -> None:
    processor, tokenizer = both
    tokenizer.save(tmp_path / "tokenizer.json")
    loaded = Tokenizer.load(tmp_path)
    assert (loaded.hash, loaded.kind, loaded.vocab_size) == (tokenizer.hash, "imported", processor.vocab_size())
    assert loaded.end_id == processor.eos_id()
    for text in [*NASTY, *SENTENCES]:
        check((processor, loaded), text)


def test_library_reads_the_file_and_mostly_agrees(both: Pair, tmp_path: Path) -> None:
    """Its own ways show in the nasty texts alone; it has no user-defined pieces in a byte-pair encoding."""
    processor, tokenizer = both
    tokenizer.save(tmp_path / "tokenizer.json")
    library = tokenizers.Tokenizer.from_file(str(tmp_path / "tokenizer.json"))
    for sentence in (SENTENCES[0], "a girl named time, said a girl "):
        plain = sentence.replace("Lily", "a girl")
        ids = processor.encode(plain)
        assert library.encode(plain).ids == ids
        assert library.decode(ids) == processor.decode(ids)


def test_library_takes_no_name_for_its_piece(tmp_path: Path) -> None:
    processor, tokenizer = pair(tmp_path, trained(byte_fallback=True, required_chars="<>/0x41skun"))
    text = "a<0x41> <s></s><unk>"
    assert tokenizer._library.encode(text).ids == processor.encode(text)


def test_rounding_decides_as_in_the_package(tmp_path: Path) -> None:
    """Equally good segmentations, behind sums of all sizes; and sums so large that they are reset."""
    both = pair(tmp_path, trained())
    choose = random.Random(1).choices
    for count in range(1, 60):
        check(both, "a girl. " * count + "!" * count + " " + "abc" * count + "-" * count)
    check(both, "".join(choose("ab!- ", k=20_000)))
    check(both, "".join(choose("ab!-東", k=20_000)))
    check(both, " ".join(choose(SENTENCES, k=900)))
    check(both, "a girl. " * 30_000 + "!!!!!!! abcabc----- " * 50)


def test_many_symbols_make_large_sums_too(tmp_path: Path) -> None:
    symbol = f"<{'😀' * 20}>"  # scores 0.1 for each of its bytes but one
    check(pair(tmp_path, trained(user_defined_symbols=[symbol])), f"{symbol}{symbol} !!!" * 9_000)


@pytest.mark.parametrize("kind", ["UNUSED", "USER_DEFINED"])
@pytest.mark.parametrize("options", [{}, BPE, {**BPE, "byte_fallback": True}])
def test_pieces_that_became_others(kind: str, options: dict[str, Any], tmp_path: Path) -> None:
    """Unused ones are left out, though byte-pair encoding gets past them; user-defined ones come first."""

    def change(model: Any) -> None:
        for piece in model.pieces:
            if piece.type == piece.NORMAL and piece.piece != "▁" and random.Random(piece.piece).random() < 0.3:
                piece.type = getattr(piece, kind)

    both = pair(tmp_path, changed(trained(**options), change))
    for text in [*SENTENCES, *NASTY, " ".join(SENTENCES * 3)]:
        check(both, text)


@pytest.mark.parametrize("symbols", ["ﬁ", "\n", "a\nb a", "a\u0301", "ze", "\u0301", "▁", "ｶ", "x_y"])
def test_symbols_that_rules_would_change(symbols: str, tmp_path: Path) -> None:
    each = [symbol.replace("_", " ") for symbol in symbols.split(" ")]
    both = pair(tmp_path, trained(user_defined_symbols=each))
    for symbol in each:
        for text in ("{}", "a{}", "{}\u0301", "{}\u0301{}\u0302 {} {}{}", "e{}ﾞ\n\u00a0{}", "▁{}▁ {} \u3000"):
            check(both, text.replace("{}", symbol))


def test_rules_that_give_two_spaces(tmp_path: Path) -> None:
    rules = tmp_path / "rules.tsv"
    rules.write_text("A0\t20 20\n65 301\t20 78 20 20\n")
    both = pair(tmp_path, trained(normalization_rule_tsv=str(rules)))
    for text in ["\u00a0", "a\u00a0b", "e\u0301", " e\u0301a\u00a0 \u00a0be\u0301 "]:
        check(both, text)


def test_end_is_the_model_s_own_and_names_are_text(tmp_path: Path) -> None:
    options = {"user_defined_symbols": ["</s>", "<|end|>"], "eos_piece": "<stop>", "control_symbols": ["[END]"]}
    both = pair(tmp_path, trained(**options))
    processor, tokenizer = both
    assert tokenizer.end_id == processor.piece_to_id("<stop>")
    check(both, "a</s>b<|end|><stop>[END]")
    assert {processor.piece_to_id("</s>"), processor.piece_to_id("<|end|>")} <= set(tokenizer.encode("</s> <|end|>"))


def test_prepared_shards_hold_the_ids_of_the_package(tmp_path: Path) -> None:
    processor, tokenizer = pair(tmp_path, trained(**OPTIONS["unigram like PLDR-LLM's"]))
    tokenizer.save(tmp_path / "model" / "tokenizer.json")
    documents = [text for text in NASTY if text]
    prepare_texts(documents, SENTENCES, tmp_path / "data", tokenizer=str(tmp_path / "model" / "tokenizer.json"))
    train = TokenData.open(tmp_path / "data").split("train")
    expected = [token for text in documents for token in [processor.eos_id(), *processor.encode(text)]]
    assert train.read(0, len(train)).tolist() == [*expected, processor.eos_id()]


def test_half_a_surrogate_pair_is_refused(both: Pair) -> None:
    with pytest.raises(UserError, match=r"character 3 of the text is U\+D83D"):
        both[1].encode("ab\ud83d")


def documents(folder: Path) -> Iterator[tuple[str, list[str]]]:
    """Every real text, whole and in parts."""
    for path in sorted((folder / "text").iterdir()):
        text = path.read_text(encoding="utf-8")
        if path.suffix == ".jsonl":
            yield path.name, [json.loads(line)["text"] for line in text.splitlines()]
        yield path.name, text.split("<|endoftext|>") if "<|endoftext|>" in text else text.split("\n\n")
        yield path.name, text.splitlines()
        yield path.name, [text]


def test_pldr_tokenizer(pldr: Pair) -> None:
    processor, tokenizer = pldr
    assert (tokenizer.vocab_size, tokenizer.end_id, tokenizer.kind) == (32_000, 3, "imported")
    assert tokenizer.decode([0, 1, 2, 3]) == processor.decode([0, 1, 2, 3]) == " ⁇ "
    for text in [*NASTY, *SENTENCES]:
        check(pldr, text)


@given(text=texts)
def test_pldr_tokenizer_on_any_text(pldr: Pair, text: str) -> None:
    check(pldr, text)


def test_pldr_tokenizer_on_the_start_of_each_text(pldr: Pair, real_data: Path) -> None:
    for path in sorted((real_data / "text").iterdir()):
        check(pldr, path.read_bytes()[:200_000].decode(errors="ignore"))


@pytest.mark.slow
def test_pldr_tokenizer_on_all_texts(pldr: Pair, real_data: Path) -> None:
    processor, tokenizer = pldr
    for name, texts in documents(real_data):
        ids = processor.encode(texts)
        assert tokenizer.encode_batch(texts) == ids, name
        assert [tokenizer.decode(tokens) for tokens in ids] == processor.decode(ids), name


def refusal(folder: Path, model: bytes) -> str:
    path = folder / "odd.model"
    path.write_bytes(model)
    with pytest.raises(UserError) as caught:
        tokenizer_from_sentencepiece(path)
    message = str(caught.value)
    assert message.startswith(f"{path}: ") and "\n" not in message
    return message.removeprefix(f"{path}: ")


@pytest.mark.parametrize("content", [b"", b"\x00\x01", b"{}\n", b"plain text"])
def test_a_file_of_another_kind_is_refused(content: bytes, tmp_path: Path) -> None:
    assert refusal(tmp_path, content).startswith("not a SentencePiece model (")


def test_missing_file_is_named(tmp_path: Path) -> None:
    with pytest.raises(UserError, match=r"gone\.model: no such file"):
        tokenizer_from_sentencepiece(tmp_path / "gone.model")


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ({"model_type": "char"}, "trainer_spec.model_type: CHAR: expected UNIGRAM or BPE"),
        ({"model_type": "word"}, "trainer_spec.model_type: WORD: expected UNIGRAM or BPE"),
        ({"treat_whitespace_as_suffix": True}, "trainer_spec.treat_whitespace_as_suffix: true: expected false"),
        ({"eos_id": -1}, "trainer_spec.eos_piece: '</s>': expected a control piece, to end documents with"),
    ],
)
def test_a_model_that_cannot_be_converted_is_refused(options: dict[str, Any], message: str, tmp_path: Path) -> None:
    assert refusal(tmp_path, trained(**options)) == message


def _without_marks(model: Any) -> None:
    model.normalizer_spec.escape_whitespaces = False


def _with_denormalizer(model: Any) -> None:
    model.denormalizer_spec.precompiled_charsmap = model.normalizer_spec.precompiled_charsmap


def _with_a_piece_twice(model: Any) -> None:
    model.pieces.add(piece="<s>", score=-5.0)


@pytest.mark.parametrize(
    ("change", "message"),
    [
        (_without_marks, "normalizer_spec.escape_whitespaces: false: expected true"),
        (_with_denormalizer, "denormalizer_spec.precompiled_charsmap: has rules: expected none"),
        (_with_a_piece_twice, "pieces: '<s>': occurs 2 times, expected once"),
    ],
)
def test_a_changed_model_is_refused(change: Callable[[Any], None], message: str, tmp_path: Path) -> None:
    assert refusal(tmp_path, changed(trained(), change)).startswith(message)


def test_missing_package_is_named(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    monkeypatch.setitem(sys.modules, "sentencepiece", None)
    assert refusal(tmp_path, b"").startswith("needs sentencepiece: pip install 'linnet[sentencepiece]' (")


def test_prepare_misses_the_package_before_it_reads_a_text(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    pair(tmp_path, trained())[1].save(tmp_path / "tokenizer.json")
    monkeypatch.setitem(sys.modules, "sentencepiece", None)
    with pytest.raises(UserError, match=r"tokenizer\.json: needs sentencepiece: pip install 'linnet"):
        prepare(["gone.txt"], tmp_path / "data", tokenizer=str(tmp_path))


def test_a_damaged_tokenizer_file_is_refused(tmp_path: Path) -> None:
    _, tokenizer = pair(tmp_path, trained())
    definition = json.loads(json.dumps(tokenizer._definition))
    del definition["post_processor"]["special_tokens"]["sentencepiece:end"]
    (tmp_path / "tokenizer.json").write_text(json.dumps(definition))
    with pytest.raises(UserError, match=r"tokenizer\.json: made from a SentencePiece model, but changed since .*end"):
        Tokenizer.load(tmp_path)


NUMBERS = [f"{sentence}\nIn 2024 and 2024 it was 1984.\n" for sentence in SENTENCES] * 20


def test_a_trained_unigram_normalizes_and_falls_back_to_bytes():
    tokenizer = train_sentencepiece(NUMBERS, 400, "one")
    assert tokenizer.hash == train_sentencepiece(iter(NUMBERS), 400, "one").hash
    assert tokenizer.decode(tokenizer.encode("ﬁ  2024\n日")) == "fi 2024 日"
    assert [tokenizer.token_name(token) for token in tokenizer.encode("ѣ")][1:] == ["<0xD1>", "<0xA3>"]


def test_digits_of_a_trained_unigram_are_single_on_request():
    source = random.Random(0)
    texts = [" ".join(source.choice(["bird", "tree", "sang", "2024", "1999"]) for _ in range(9)) for _ in range(99)]
    single, whole = (train_sentencepiece(texts, 300, digits) for digits in ("one", None))
    assert "2024" in {text.strip() for text in whole.texts() if text}
    assert {len(text.strip()) for text in single.texts() if text and text.strip().isdigit()} == {1}


def test_a_trained_unigram_has_the_special_pieces_and_rules_of_pldr(real_data: Path):
    published = tokenizer_from_sentencepiece(real_data / "tokenizer" / "pldr_refinedweb_unigram_32k.model")
    tokenizer = train_sentencepiece(NUMBERS, 400, "one")
    assert tokenizer.definition["decoder"] == published.definition["decoder"]
    own, other = (each.definition["normalizer"]["normalizers"] for each in (tokenizer, published))
    assert own[1:] == other[1:] and own[0]["type"] == other[0]["type"] == "Precompiled"  # of another Unicode
    names = [[each.token_name(token) for token in range(262)] for each in (tokenizer, published)]
    assert names[0] == names[1]


@pytest.mark.parametrize(
    ("texts", "size", "digits", "problem"),
    [
        (["a b"], 262, None, "vocab_size: 262: expected 263 to 1,048,576"),
        (["a b"], 400, "three", "split_digits: three: expected one"),
        ([" \n"], 400, None, "sentencepiece cannot train on this text"),
    ],
    ids=["size", "digits", "text"],
)
def test_what_it_cannot_be_trained_for_is_told(texts: list[str], size: int, digits: str | None, problem: str):
    with pytest.raises(UserError, match=problem):
        train_sentencepiece(texts, size, digits)
