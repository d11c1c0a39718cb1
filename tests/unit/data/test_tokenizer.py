import json
import random
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import tokenizers
from hypothesis import assume, given, settings
from hypothesis import strategies as st
from tokenizers import AddedToken, decoders, models, normalizers, pre_tokenizers, processors

from linnet.core.bounds import MAX_VOCABULARY
from linnet.core.errors import UserError
from linnet.data.pieces import BYTE_LEVEL
from linnet.data.tokenizer import MAX_NORMALIZER_DEPTH, Tokenizer, check_bounds, without_ends
from linnet.data.tokenizer_training import KINDS

STORY = "Once upon a time there was a girl named Lily. Lily's dog said: \"don't go, Lily!\"\n"
TRAINING = [STORY * 30, "naïve café ▁ <|end|> <0x41> 東京 😀\n" * 5, "  indented\tby\r\n\x00 odd\u0301 things"]
NASTY = [
    "",
    " ",
    "  ",
    " leading and trailing  ",
    "\n\n\t\r\n \r",
    "▁a ▁▁ b▁",
    "<0x41><0x0A>",
    "<|end|>a<|end|> <|end|>",
    "<|endoftext|></s>[END]",
    "e\u0301 \u0301",
    "\x00\x00\x7f\x1f",
    "👩‍👩‍👧‍👦 😀🏳️‍🌈",
    "\ufeffbom \ufffd \uffff \ud7ff\ue000",
    "\U0010ffff",
    "\u2028\u2029\x85\xa0\u3000",
    "ĠĊĉ",
    "ﬁ Å Å ½",
]
TRAINED = {kind: Tokenizer.train(kind, TRAINING, 600 if kind in ("bpe", "unigram") else None) for kind in KINDS}

any_text = st.text(st.characters(exclude_categories=["Cs"]), max_size=60)
pieces_of_text = st.sampled_from([*NASTY, "Lily", " Lily's", "<", "|", "end", "0x41", ">"])
texts = st.one_of(any_text, st.lists(pieces_of_text, max_size=8).map("".join))
each_kind = pytest.mark.parametrize("kind", KINDS)


@each_kind
@given(text=texts)
def test_round_trip_is_exact(kind: str, text: str) -> None:
    tokenizer = TRAINED[kind]
    ids = tokenizer.encode(text)
    assert tokenizer.decode(ids) == text
    assert tokenizer.end_id not in ids
    assert tokenizer.token_bytes()[ids].sum() == len(text.encode())


@each_kind
@pytest.mark.parametrize("text", NASTY)
def test_round_trip_of_nasty_text(kind: str, text: str) -> None:
    test_round_trip_is_exact.hypothesis.inner_test(kind, text)


@each_kind
@given(data=st.data())
def test_stream_adds_up_to_decode(kind: str, data: st.DataObject) -> None:
    tokenizer = TRAINED[kind]
    ids = data.draw(st.lists(st.integers(0, tokenizer.vocab_size - 1), max_size=40))
    stream = tokenizer.stream()
    assert "".join([stream.push(token) for token in ids]) + stream.finish() == tokenizer.decode(ids)


def test_stream_holds_back_half_a_character() -> None:
    stream = TRAINED["bytes"].stream()
    assert [stream.push(byte) for byte in "é€".encode()] == ["", "é", "", "", "€"]
    assert stream.push(0xE2) == ""
    assert stream.push(ord("a")) == "\ufffda"
    assert stream.push(0xF0) == ""
    assert stream.finish() == "\ufffd"


@each_kind
def test_library_agrees_on_ids_and_text(kind: str, tmp_path: Path) -> None:
    tokenizer = TRAINED[kind]
    tokenizer.save(tmp_path / "tokenizer.json")
    library = tokenizers.Tokenizer.from_file(str(tmp_path / "tokenizer.json"))
    library.encode_special_tokens = True
    for text in [*TRAINING, *NASTY]:
        ids = library.encode(text, add_special_tokens=False).ids
        assert ids == tokenizer.encode(text)
        assert library.decode(ids) == text


@each_kind
def test_long_text_is_encoded_as_if_in_one(kind: str) -> None:
    tokenizer = TRAINED[kind]
    words = random.Random(0).choices(["Lily", "café", "don't", "\n\n", " ", "  x", "😀", "1234"], k=20_000)
    text = " ".join(words)
    parts = tokenizer.cut(text)
    assert len(parts) > 2 and "".join(parts) == text
    assert tokenizer.encode(text) == tokenizer._library.encode(text, add_special_tokens=False).ids
    assert tokenizer.encode(text) == [token for part in parts for token in tokenizer.encode(part)]


def test_cut_does_not_fall_into_a_run_of_newlines() -> None:
    tokenizer = Tokenizer.train("bpe", ["a\n\n\n\n\n\nb " * 50], 290)
    text = "a" * ((1 << 15) - 3) + "\n" * 6 + "b" * 99
    assert tokenizer.cut(text)[1] == "\n" * 6 + "b" * 99
    assert tokenizer.encode(text) == tokenizer._library.encode(text, add_special_tokens=False).ids


def test_text_without_spaces_is_cut_all_the_same() -> None:
    text = "東" * 100_000
    assert max(map(len, TRAINED["bpe"].cut(text))) <= 1 << 15
    assert TRAINED["bpe"].decode(TRAINED["bpe"].encode(text)) == text


@each_kind
def test_batch_is_the_same_as_one_by_one(kind: str) -> None:
    tokenizer = TRAINED[kind]
    texts = [*NASTY, STORY * 1000]
    assert tokenizer.encode_batch(texts) == [tokenizer.encode(text) for text in texts]
    assert tokenizer.encode_batch([]) == []


@pytest.mark.parametrize("kind", KINDS)
def test_tokens_with_offsets_are_those_of_encode_and_cover_the_text(kind: str) -> None:
    tokenizer = Tokenizer.train(kind, ["the bird sang to the tree é " * 20]).parsing_special()
    text = "the bird<|end|>é sang 日"
    ids, offsets = tokenizer.encode_with_offsets(text)
    assert ids == tokenizer.encode(text)
    assert text[slice(*offsets[ids.index(tokenizer.end_id)])] == "<|end|>"
    assert {place for start, stop in offsets for place in range(start, stop)} == set(range(len(text)))
    assert offsets == sorted(offsets)


def test_ids_of_bytes_are_their_values() -> None:
    tokenizer = TRAINED["bytes"]
    assert tokenizer.encode("é\n") == [0xC3, 0xA9, 0x0A]
    assert (tokenizer.vocab_size, tokenizer.end_id) == (257, 256)


NUMBERS = "In 2024 and 1234567, 3.14159 km or ٣٤٥ ½ 二0٣1"


@pytest.mark.parametrize("kind", ["bpe", "unigram"])
@pytest.mark.parametrize(
    ("split", "groups"),
    [(None, ["2024", "1234567"]), ("three", ["202", "4", "123", "456", "7"]), ("one", list("20241234567"))],
)
def test_numbers_are_split_as_the_file_says(kind: str, split: str | None, groups: list[str], tmp_path: Path):
    """No token reaches beyond a group; without a rule frequent numbers are one token."""
    texts = [f"{NUMBERS} {word}\n" for word in ("a", "b", "cd", "ef")] * 30
    Tokenizer.train(kind, texts, 420, split).save(tmp_path / "tokenizer.json")
    tokenizer = Tokenizer.load(tmp_path)
    assert (tokenizer.kind, tokenizer.split_digits) == (kind, split)
    assert tokenizer.hash == Tokenizer.train(kind, texts[::-1], 420, split).hash
    pieces = [
        piece.decode().strip() for piece in map(tokenizer.pieces.table.__getitem__, tokenizer.encode(NUMBERS[:20]))
    ]
    assert [piece for piece in pieces if piece.isdigit()] == groups
    longest = max(len(text.strip()) for text in tokenizer.texts() if text and text.strip().isnumeric())
    assert longest == max(map(len, groups))
    for text in [NUMBERS, *NASTY, "x1y22z333 4444  5\n6"]:
        ids = tokenizer.encode(text)
        assert tokenizer.decode(ids) == text and ids == tokenizer._library.encode(text, add_special_tokens=False).ids


@pytest.mark.parametrize("kind", ["bpe", "unigram"])
def test_long_text_with_split_numbers_is_encoded_as_if_in_one(kind: str):
    tokenizer = Tokenizer.train(kind, TRAINING, 400, "three")
    text = " ".join(random.Random(0).choices(["Lily", "12345", "\n\n", " ", "  7", "😀", "1234"], k=20_000))
    assert len(tokenizer.cut(text)) > 2
    assert tokenizer.encode(text) == tokenizer._library.encode(text, add_special_tokens=False).ids


def test_digits_of_other_kinds_are_not_split():
    with pytest.raises(UserError, match="split_digits: one: the tokenizer char has digits of its own; expected bpe"):
        Tokenizer.train("char", ["a"], None, "one")
    with pytest.raises(UserError, match="split_digits: two: expected one, three"):
        Tokenizer.train("bpe", ["a"], None, "two")


def test_char_has_one_token_per_character_seen_and_bytes_for_others() -> None:
    tokenizer = Tokenizer.train("char", ["aé", "é😀"])
    assert tokenizer.vocab_size == 257 + 3
    assert len(tokenizer.encode("aé😀")) == 3
    assert tokenizer.encode("ö") == [0xC3, 0xB6]


def test_char_names_the_size_it_needs() -> None:
    with pytest.raises(UserError, match=r"vocab_size: 258: .* 2 different characters.*at least 259"):
        Tokenizer.train("char", ["ab"], 258)
    assert Tokenizer.train("char", ["ab"], 259).vocab_size == 259


@pytest.mark.parametrize("kind", ["bpe", "unigram"])
def test_learned_vocabulary_has_the_size_asked_for_and_whole_words(kind: str) -> None:
    tokenizer = Tokenizer.train(kind, [STORY * 30, *_varied_sentences(400)], 290)
    assert tokenizer.vocab_size == 290
    assert [tokenizer.decode([token]) for token in tokenizer.encode(" Lily")] == [" Lily"]


@pytest.mark.parametrize("kind", ["bpe", "unigram"])
@pytest.mark.parametrize("text", ["", "a", "ab ab ab", "\x00", "東京" * 40])
def test_text_too_small_gives_a_smaller_tokenizer(kind: str, text: str) -> None:
    tokenizer = Tokenizer.train(kind, [text], 5000)
    assert 257 <= tokenizer.vocab_size < 300
    assert tokenizer.decode(tokenizer.encode("any 😀")) == "any 😀"


def test_bpe_does_not_learn_what_occurs_once() -> None:
    assert Tokenizer.train("bpe", ["abcdef xyz"]).vocab_size == 257
    assert Tokenizer.train("bpe", ["abcdef xyz ab"]).vocab_size > 257


@each_kind
def test_training_does_not_depend_on_order_or_luck(kind: str) -> None:
    texts = _varied_sentences(300)
    first = Tokenizer.train(kind, texts)
    for seed in range(4):
        random.Random(seed).shuffle(texts)
        assert Tokenizer.train(kind, texts).hash == first.hash


@each_kind
def test_save_and_load_keep_everything(kind: str, tmp_path: Path) -> None:
    tokenizer = TRAINED[kind]
    tokenizer.save(tmp_path / "tokenizer.json")
    for path in (tmp_path, tmp_path / "tokenizer.json"):
        loaded = Tokenizer.load(path)
        assert (loaded.kind, loaded.hash, loaded.vocab_size) == (kind, tokenizer.hash, tokenizer.vocab_size)
        assert loaded.end_id == tokenizer.end_id
        assert np.array_equal(loaded.token_bytes(), tokenizer.token_bytes())
        assert loaded.encode(STORY) == tokenizer.encode(STORY)


def test_kinds_have_different_hashes() -> None:
    assert len({tokenizer.hash for tokenizer in TRAINED.values()}) == len(KINDS)


@each_kind
def test_end_token_stands_for_nothing(kind: str) -> None:
    tokenizer = TRAINED[kind]
    ids = [tokenizer.end_id, *tokenizer.encode("a"), tokenizer.end_id]
    assert tokenizer.decode(ids) == "a"
    assert tokenizer.token_bytes()[tokenizer.end_id] == 0


@each_kind
def test_tokens_are_shown_as_people_read_them(kind: str) -> None:
    tokenizer = TRAINED[kind]
    shown = [tokenizer.describe_token(token) for token in range(tokenizer.vocab_size)]
    assert shown[tokenizer.end_id] == "<|end|>"
    assert {repr(character) for character in "aZ 9'"} | {r"'\n'", r"b'\xff'"} <= set(shown)
    assert all(text.isprintable() for text in shown)
    if kind == "bpe":
        assert "' Lily'" in shown


def test_unused_ids_are_shown_as_such(tmp_path: Path) -> None:
    definition = json.loads(json.dumps(TRAINED["bytes"]._definition))
    definition["model"]["vocab"]["a b"] = 300
    tokenizer = Tokenizer.load(_write(tmp_path, definition))
    assert (tokenizer.describe_token(299), tokenizer.describe_token(300)) == ("unused id 299", "'a b'")


@each_kind
def test_half_a_surrogate_pair_is_refused(kind: str) -> None:
    with pytest.raises(UserError, match=r"character 3 of the text is U\+D83D"):
        TRAINED[kind].encode("ab\ud83d")


@pytest.mark.parametrize(
    ("kind", "vocab_size", "message"),
    [
        ("bpe", 257, "vocab_size: 257: expected more than 257"),
        ("unigram", -1, "vocab_size: -1: expected more than 257"),
        ("bytes", 300, "vocab_size: 300: the bytes tokenizer always has 257"),
        ("words", None, "tokenizer: 'words': expected one of bytes, char, bpe, unigram"),
    ],
)
def test_impossible_training_is_one_line(kind: str, vocab_size: int | None, message: str) -> None:
    with pytest.raises(UserError, match=message):
        Tokenizer.train(kind, [STORY], vocab_size)


def test_imported_sentencepiece_tokenizer(tmp_path: Path) -> None:
    tokenizer = Tokenizer.load(_sentencepiece(tmp_path))
    assert tokenizer.kind == "imported"
    assert (tokenizer.end_id, tokenizer.vocab_size) == (3, 4 + 256 + 12)
    ids = tokenizer.encode("hello é hell")
    assert tokenizer.decode(ids) == "hello é hell"
    stream = tokenizer.stream()
    assert "".join([stream.push(token) for token in ids]) + stream.finish() == "hello é hell"
    # The space that the tokenizer puts before a text counts behind other text alone.
    assert tokenizer.token_bytes()[ids].sum() == len("hello é hell".encode()) + 1
    assert tokenizer.byte_counts().of(np.array(ids), np.array([3, *ids[:-1]])).sum() == len("hello é hell".encode())


def test_name_of_a_special_token_is_text_in_a_unigram_too(tmp_path: Path) -> None:
    tokenizer = Tokenizer.load(_sentencepiece(tmp_path))
    ids = tokenizer.encode("hell[END][START]")
    assert not {0, 1, 2, 3} & set(ids)
    assert tokenizer.decode(ids) == "hell[END][START]"
    tokenizer.save(tmp_path / "again.json")
    again = Tokenizer.load(tmp_path / "again.json")
    assert again.hash == tokenizer.hash and again.encode("[END]") == tokenizer.encode("[END]")


def test_imported_byte_level_tokenizer_keeps_its_end(tmp_path: Path) -> None:
    definition = json.loads(json.dumps(TRAINED["bpe"]._definition).replace("<|end|>", "<|endoftext|>"))
    tokenizer = Tokenizer.load(_write(tmp_path, definition))
    assert tokenizer.kind == "bpe" and tokenizer.end_id == TRAINED["bpe"].end_id
    assert tokenizer.end_id not in tokenizer.encode("<|endoftext|>")


def test_end_that_is_not_marked_as_special_is_treated_as_such(tmp_path: Path) -> None:
    definition = json.loads(json.dumps(TRAINED["bpe"]._definition))
    definition["added_tokens"] = []
    tokenizer = Tokenizer.load(_write(tmp_path, definition))
    assert tokenizer.end_id not in tokenizer.encode("<|end|>")
    assert tokenizer.decode([tokenizer.end_id]) == ""


SIZE = TRAINED["bpe"].vocab_size


def _with_ends(tmp_path: Path, **files: dict[str, Any]) -> Path:
    """A folder whose tokenizer has three added tokens, as chat models have them; `files` are written beside it."""
    library = tokenizers.Tokenizer.from_str(json.dumps(TRAINED["bpe"]._definition))
    library.add_special_tokens(["<|endoftext|>", "<|im_end|>", "<eos>"])
    for name, plain in files.items():
        (tmp_path / f"{name}.json").write_text(json.dumps(plain))
    return _write(tmp_path, json.loads(library.to_str())).parent


@pytest.mark.parametrize("rule", [None, "begin", "offsets"])
def test_files_beside_a_tokenizer_name_its_ends(tmp_path: Path, rule: str | None) -> None:
    """What the folder says decides, whatever other names there are; a saved tokenizer says it alone."""
    said = {"tokenizer_config": {"eos_token": {"content": "<|im_end|>"}}, "config": {"eos_token_id": 0}}
    folder = _with_ends(tmp_path, **said, generation_config={"eos_token_id": [SIZE + 2, SIZE]})
    definition = json.loads((folder / "tokenizer.json").read_text())
    first = {"single": "<eos> $A", "pair": "<eos> $A $B", "special_tokens": [("<eos>", SIZE + 2)]}
    rules = {"begin": processors.TemplateProcessing(**first), "offsets": processors.ByteLevel(trim_offsets=False)}
    if rule is not None:
        definition["post_processor"] = json.loads(rules[rule].__getstate__())
        _write(folder, definition)
    tokenizer = Tokenizer.load(folder)
    assert [tokenizer.describe_token(token) for token in tokenizer.end_ids] == ["<|im_end|>", "<eos>", "<|endoftext|>"]
    assert tokenizer.end_id == tokenizer.end_ids[0] and not set(tokenizer.end_ids) & set(
        tokenizer.encode("<eos><|im_end|>")
    )
    tokenizer.save(tmp_path / "alone.json")
    alone = Tokenizer.load(tmp_path / "alone.json")
    assert (alone.end_ids, alone.hash, alone.kind) == (tokenizer.end_ids, tokenizer.hash, tokenizer.kind)
    assert without_ends(alone.definition["post_processor"]) == definition["post_processor"]
    usual = Tokenizer.load(tmp_path / "alone.json", ["<|end|>"])
    assert (
        usual.end_ids == (TRAINED["bpe"].end_id,) and usual.definition["post_processor"] == definition["post_processor"]
    )


def test_the_configuration_names_the_end_where_nothing_else_does(tmp_path: Path) -> None:
    folder = _with_ends(tmp_path, config={"eos_token_id": SIZE + 1}, generation_config={"do_sample": True})
    assert Tokenizer.load(folder).end_ids == (SIZE + 1,)


def test_an_end_of_any_name_can_be_given(tmp_path: Path) -> None:
    path = _write(tmp_path, json.loads(_without_end(TRAINED["bpe"]._definition)))
    assert Tokenizer.load(path, ["<|stop|>"]).end_ids == (TRAINED["bpe"].end_id,)


@pytest.mark.parametrize("kind", KINDS)
def test_names_of_special_tokens_are_parsed_on_request(tmp_path: Path, kind: str) -> None:
    library = tokenizers.Tokenizer.from_str(json.dumps(TRAINED[kind]._definition))
    library.add_special_tokens(["<|im_start|>", "<|im_end|>"])
    plain = Tokenizer.load(_write(tmp_path, json.loads(library.to_str())))
    parsing, (start, stop) = plain.parsing_special(), map(library.token_to_id, ("<|im_start|>", "<|im_end|>"))
    text = "<|im_start|>user\nHello.<|im_end|>\n"
    ids = [start, *plain.encode("user\nHello."), stop, *plain.encode("\n")]
    assert parsing.encode(text) == parsing.encode_document(text) == ids
    assert parsing.encode_document("user") == [plain.end_id, *plain.encode("user")] == plain.encode_document("user")
    assert not {start, stop} & set(plain.encode(text)) and plain.encode_document(text) == [
        plain.end_id,
        *plain.encode(text),
    ]
    assert parsing.hash == plain.hash and parsing.decode(ids) == "user\nHello.\n"


@pytest.mark.parametrize(
    ("field", "value", "message"),
    [
        ("eos_token_id", 7, r"eos_token_id: 7: .* is text in .*; expected an added token"),
        ("eos_token_id", [SIZE, 9999], r"eos_token_id: 9999: .* has no such token"),
        ("eos_token_id", True, r"eos_token_id: True; expected a token"),
    ],
)
def test_an_end_that_is_none_is_refused_with_its_file(tmp_path: Path, field: str, value: Any, message: str) -> None:
    folder = _with_ends(tmp_path, generation_config={field: value})
    with pytest.raises(UserError, match=rf"generation_config\.json: {message}"):
        Tokenizer.load(folder)


def test_ordinary_added_tokens_are_text(tmp_path: Path) -> None:
    library = tokenizers.Tokenizer.from_str(json.dumps(TRAINED["bpe"]._definition))
    library.add_tokens([AddedToken("éé", normalized=False)])
    tokenizer = Tokenizer.load(_write(tmp_path, json.loads(library.to_str())))
    ids = tokenizer.encode("aééa")
    assert tokenizer.kind == "imported" and len(ids) == 3 and tokenizer.decode(ids) == "aééa"
    assert tokenizer.token_bytes()[ids].tolist() == [1, 4, 1]


def test_truncation_padding_and_dropout_of_an_imported_tokenizer_are_dropped(tmp_path: Path) -> None:
    library = tokenizers.Tokenizer.from_str(json.dumps(TRAINED["bpe"]._definition))
    library.enable_truncation(2)
    library.enable_padding(length=50)
    definition = json.loads(library.to_str())
    definition["model"]["dropout"] = 0.9
    tokenizer = Tokenizer.load(_write(tmp_path, definition))
    assert tokenizer.encode(STORY) == TRAINED["bpe"].encode(STORY)


def test_byte_level_tokenizer_without_some_byte_is_imported(tmp_path: Path) -> None:
    definition = json.loads(json.dumps(TRAINED["bpe"]._definition))
    definition["model"]["vocab"] = {("nul" if piece == "Ā" else piece): n for piece, n in _vocabulary("bpe").items()}
    assert Tokenizer.load(_write(tmp_path, definition)).kind == "imported"


def test_normalizing_tokenizer_is_imported(tmp_path: Path) -> None:
    library = tokenizers.Tokenizer.from_str(json.dumps(TRAINED["bpe"]._definition))
    library.normalizer = normalizers.NFC()
    assert Tokenizer.load(_write(tmp_path, json.loads(library.to_str()))).kind == "imported"


def _without_end(definition: dict[str, Any]) -> str:
    return json.dumps(definition).replace("<|end|>", "<|stop|>")


def _with_word_pieces(definition: dict[str, Any]) -> str:
    return json.dumps({**definition, "decoder": {"type": "WordPiece", "prefix": "##", "cleanup": True}})


@pytest.mark.parametrize(
    ("content", "message"),
    [
        (lambda definition: "{", "line 1: not valid JSON"),
        (lambda definition: "[]", "not a tokenizer.json .no field 'model'"),
        (lambda definition: '{"model": {"type": "Magic"}}', "not a tokenizer that the tokenizers library can read"),
        (_without_end, r"no end token; expected one of <\|end\|>, <\|endoftext\|>, <\|end_of_text\|>, </s>, \[END\]"),
        (_with_word_pieces, "decoder: WordPiece: expected ByteLevel; or Metaspace, or Replace and Strip of single"),
    ],
)
def test_unusable_file_is_one_line_that_names_it(tmp_path: Path, content: Any, message: str) -> None:
    path = tmp_path / "tokenizer.json"
    path.write_text(content(TRAINED["bpe"]._definition))
    with pytest.raises(UserError, match=message) as caught:
        Tokenizer.load(path)
    assert str(caught.value).startswith(str(path)) and "\n" not in str(caught.value)


def test_missing_file_is_named(tmp_path: Path) -> None:
    with pytest.raises(UserError, match=r"tokenizer\.json: no such file"):
        Tokenizer.load(tmp_path)


def _vocabulary(kind: str) -> dict[str, int]:
    vocabulary: dict[str, int] = TRAINED[kind]._definition["model"]["vocab"]
    return vocabulary


def _varied_sentences(count: int) -> list[str]:
    choose = random.Random(7).choice
    names, verbs = ["Lily", "Tom", "Zoë", "東京"], ["runs", "ran", "sings", "singing", "sang"]
    places = ["home", "there", "nowhere", "to the sea", "by the seaside"]
    return [f"Then {choose(names)} {choose(verbs)} {choose(places)}, {n % 13} times." for n in range(count)]


def _write(folder: Path, definition: dict[str, Any]) -> Path:
    path = folder / "tokenizer.json"
    path.write_text(json.dumps(definition))
    return path


def _sentencepiece(folder: Path) -> Path:
    """A small tokenizer.json as conversions of SentencePiece unigram models write it."""
    specials = ["[PAD]", "[UNK]", "[START]", "[END]"]
    words = ["▁hell", "o", "▁", "[", "]", "h", "e", "l", "E", "N", "D", "▁hello"]
    vocabulary = [(name, 0.0) for name in specials] + [(f"<0x{byte:02X}>", -20.0) for byte in range(256)]
    vocabulary += [(word, -float(number + 1)) for number, word in enumerate(words)]
    library = tokenizers.Tokenizer(models.Unigram(vocabulary, unk_id=1, byte_fallback=True))
    library.pre_tokenizer = pre_tokenizers.Metaspace(prepend_scheme="always")
    library.decoder = decoders.Sequence(
        [decoders.Replace("▁", " "), decoders.ByteFallback(), decoders.Fuse(), decoders.Strip(" ", 1, 0)]
    )
    library.add_special_tokens(specials)
    return _write(folder, json.loads(library.to_str()))


def test_a_panic_of_the_library_names_the_file(tmp_path: Path):
    path = tmp_path / "tokenizer.json"
    Tokenizer.train("bpe", TRAINING, 300).save(path)
    endless = {"type": "Replace", "pattern": {"Regex": "(a+)+$"}, "content": ""}
    path.write_text(json.dumps(json.loads(path.read_text()) | {"normalizer": endless}))
    with pytest.raises(UserError, match=r"tokenizer.json: the tokenizers library gave up on a text \(Onig"):
        Tokenizer.load(path).encode(40 * "a" + "b")


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
def test_too_deep_nesting_is_refused(part: str, written: dict[str, Any], tmp_path: Path):
    line = refusal({**written, part: nested(MAX_NORMALIZER_DEPTH + 1)}, tmp_path)
    assert line == f": {part}: nested too deep; expected at most {MAX_NORMALIZER_DEPTH} levels"
    check_bounds({**written, part: nested(MAX_NORMALIZER_DEPTH)}, "x")


def replacing(*contents: str) -> dict[str, Any]:
    one = {"type": "Replace", "pattern": {"Regex": "."}}
    return {"type": "Sequence", "normalizers": [{**one, "content": content} for content in contents]}


def test_replacements_with_unbounded_growth_are_refused(written: dict[str, Any], tmp_path: Path):
    line = refusal({**written, "normalizer": replacing(*["x" * 16] * 12)}, tmp_path)
    assert line == (
        ": normalizer: makes a text 2.81e+14 times as long; expected replacements that make it at most 256 times as"
        " long"
    )
    check_bounds({**written, "normalizer": replacing("▁", "", "▁▁", " ")}, "x")


def test_a_vocabulary_that_is_too_long_is_refused():
    with pytest.raises(UserError, match=r"^x: token id 4194305: expected 0 to 4,194,303"):
        check_bounds({"model": {"vocab": [None] * (MAX_VOCABULARY + 1)}}, "x")


SPECIAL = ["<unk>", "</s>", "ab"]
NORMALIZERS = [
    None,
    normalizers.Lowercase(),
    normalizers.NFC(),
    normalizers.Sequence([normalizers.Prepend("▁"), normalizers.Replace(" ", "▁")]),
]
PRE_TOKENIZERS = [
    None,
    pre_tokenizers.Metaspace(),
    pre_tokenizers.Metaspace(prepend_scheme="never"),
    pre_tokenizers.ByteLevel(add_prefix_space=False),
    pre_tokenizers.ByteLevel(add_prefix_space=True, use_regex=False),
    pre_tokenizers.WhitespaceSplit(),
]
UNMARK, STRIP = decoders.Replace("▁", " "), decoders.Strip(" ", 1, 0)
DECODERS = [
    decoders.ByteLevel(),
    decoders.Metaspace(),
    decoders.Metaspace(prepend_scheme="never"),
    decoders.Fuse(),
    decoders.Sequence([UNMARK, decoders.ByteFallback(), decoders.Fuse(), STRIP]),
    decoders.Sequence([UNMARK, decoders.ByteFallback(), decoders.Fuse()]),
    decoders.Sequence([decoders.Metaspace(), decoders.ByteFallback(), decoders.Fuse()]),
    decoders.Sequence([decoders.Replace(tokenizers.Regex("[▁a]+"), "_"), decoders.Strip("_", 2, 0)]),
    # These are refused:
    decoders.Sequence([decoders.Fuse(), decoders.Strip("a", 2, 1)]),
    decoders.Sequence([decoders.Fuse(), UNMARK]),
    decoders.Sequence([decoders.ByteFallback(), UNMARK, decoders.Fuse()]),
    decoders.Sequence([decoders.Metaspace(), decoders.Fuse(), STRIP]),
    decoders.WordPiece(),
]


@st.composite
def tokenizers_of_the_library(draw: st.DrawFn) -> dict[str, Any]:
    """The data of any tokenizer.json: what a user of the library could have put together."""
    flag, before = st.booleans(), draw(st.sampled_from(PRE_TOKENIZERS))
    alphabet = draw(st.lists(st.sampled_from("aAb▁ é</>unks"), min_size=1, unique=True))
    alphabet += [f"<0x{byte:02X}>" for byte in range(256)] * draw(flag)
    names = [*SPECIAL, *dict.fromkeys(sorted(BYTE_LEVEL) if isinstance(before, pre_tokenizers.ByteLevel) else alphabet)]
    pairs = draw(st.lists(st.tuples(*[st.sampled_from(names[3:20])] * 2), max_size=4, unique=True))
    names += [name for name in dict.fromkeys(map("".join, pairs)) if name not in names]
    vocabulary, unknown = {name: n for n, name in enumerate(names)}, draw(st.sampled_from([None, "<unk>", "ab"]))
    model: Any
    kind = draw(st.sampled_from(["Unigram", "BPE", "WordLevel", "WordPiece"]))
    if kind.startswith("Word"):
        model = getattr(models, kind)(vocabulary, unk_token=unknown or "nowhere")
    elif kind == "Unigram":
        scores = [(name, 0.0 if name in SPECIAL else -1.0 - n % 7) for n, name in enumerate(names)]
        model = models.Unigram(scores, unk_id=vocabulary.get(unknown or ""), byte_fallback=draw(flag))
    else:
        merges = [pair for pair in pairs if "".join(pair) not in SPECIAL]
        rules = {"byte_fallback": draw(flag), "fuse_unk": draw(flag), "ignore_merges": draw(flag)}
        model = models.BPE(vocabulary, merges, unk_token=unknown, **rules)
    library = tokenizers.Tokenizer(model)
    library.normalizer, library.pre_tokenizer = draw(st.sampled_from(NORMALIZERS)), before
    library.decoder = draw(st.sampled_from(DECODERS))
    library.add_special_tokens(draw(st.lists(st.sampled_from(SPECIAL), unique=True)))
    ordinary = draw(st.lists(st.sampled_from(["Ab", "é "]), unique=True))
    library.add_tokens([AddedToken(name, normalized=draw(flag)) for name in ordinary])
    definition = dict(json.loads(library.to_str()))
    for token in definition["added_tokens"][-1:] * draw(flag):
        token["id"] += 7
    return definition


def accepted(definition: dict[str, Any]) -> Tokenizer:
    try:
        tokenizer = Tokenizer(definition, "drawn")
        tokenizer.encode("aAb é ▁<unk></s>\u0301")  # a unigram without an unknown token refuses unknown characters
    except UserError:
        assume(False)
    return tokenizer


@settings(max_examples=60)
@given(definition=tokenizers_of_the_library(), text=st.text("aAb é▁<unk></s>", max_size=20))
def test_a_tokenizer_that_was_saved_is_read_as_it_is(definition: dict[str, Any], text: str) -> None:
    tokenizer = accepted(definition)
    again = Tokenizer(json.loads(json.dumps(tokenizer.definition)), "drawn")
    assert (again.hash, again.kind, again.end_id) == (tokenizer.hash, tokenizer.kind, tokenizer.end_id)
    assert again.encode(text) == tokenizer.encode(text)
    assert again.token_bytes().tolist() == tokenizer.token_bytes().tolist()
    if tokenizer.kind != "imported":
        assert tokenizer.decode(tokenizer.encode(text)) == text


@settings(max_examples=60)
@given(definition=tokenizers_of_the_library(), text=st.text("aAb é▁<unk></s>", max_size=20), data=st.data())
def test_text_and_bytes_are_the_library_s(definition: dict[str, Any], text: str, data: st.DataObject) -> None:
    tokenizer = accepted(definition)
    drawn = data.draw(st.lists(st.integers(0, tokenizer.vocab_size - 1), max_size=6))
    ordinary = {id_ for id_, token in tokenizer._library.get_added_tokens_decoder().items() if not token.special}
    for ids in (tokenizer.encode(text), drawn):
        printed = tokenizer.decode(ids)
        if not ordinary & set(ids) and "\ufffd" not in printed:  # the library reads added tokens as pieces
            assert printed == tokenizer._library.decode(ids, skip_special_tokens=True)
    ids_T = np.array(tokenizer.encode_document(text) + tokenizer.encode_document("ab " + text))
    size_bytes = int(tokenizer.byte_counts().of(ids_T[1:], ids_T[:-1]).sum())
    decoded = [tokenizer.decode(tokenizer.encode(part)) for part in (text, "ab " + text)]
    text_bytes = len(text.encode()) + len(f"ab {text}".encode())
    is_lossless = decoded == [text, "ab " + text] and tokenizer._pieces.unknown not in ids_T
    assert not is_lossless or size_bytes == text_bytes
    if "\ufffd" not in "".join(decoded) and tokenizer._pieces.unknown not in ids_T:  # whatever changes the text
        assert size_bytes == sum(len(part.encode()) for part in decoded)
    told = tokenizer.loss_note(np.bincount(ids_T), size_bytes, text_bytes)
    assert bool(told) == (size_bytes != text_bytes)


def space_first(kind: str, before: Any) -> Tokenizer:
    """A tokenizer that puts a space before a text: with Metaspace, or as Llama 2 with a normalizer."""
    names = ["<unk>", "</s>", *(f"<0x{byte:02X}>" for byte in range(256)), "▁", "a", "b", "▁a", "ab", "▁ab"]
    if kind == "Unigram":
        model: Any = models.Unigram([(name, -float(n % 7)) for n, name in enumerate(names)], 0, byte_fallback=True)
    else:
        merges = [("▁", "a"), ("a", "b"), ("▁a", "b")]
        vocabulary = {name: n for n, name in enumerate(names)}
        model = models.BPE(vocabulary, merges, unk_token="<unk>", byte_fallback=True, fuse_unk=True)
    library = tokenizers.Tokenizer(model)
    if isinstance(before, str):
        library.pre_tokenizer = pre_tokenizers.Metaspace(prepend_scheme=before)
    else:
        library.normalizer = normalizers.Sequence([normalizers.Prepend("▁"), normalizers.Replace(" ", "▁")])
    library.decoder = decoders.Sequence([UNMARK, decoders.ByteFallback(), decoders.Fuse(), STRIP])
    library.add_special_tokens(["<unk>", "</s>"])
    return Tokenizer(json.loads(library.to_str()), "drawn")


SPACE_FIRST = {
    (kind, before): space_first(kind, before) for kind in ("Unigram", "BPE") for before in ("always", "first", None)
}


@pytest.mark.parametrize("which", SPACE_FIRST, ids=str)
@settings(max_examples=15)
@given(texts=st.lists(st.text("ab é\n▁", min_size=1, max_size=12), min_size=1, max_size=3))
def test_bytes_of_a_text_with_a_space_before_it_are_those_of_the_text(which: Any, texts: list[str]) -> None:
    """Of documents one after the other, of which each is printed as it was."""
    tokenizer = SPACE_FIRST[which]
    texts = [text for text in texts if tokenizer.decode(tokenizer.encode(text)) == text]
    ids_T = np.array([tokenizer.end_id, *(token for text in texts for token in tokenizer.encode_document(text))])
    assert tokenizer.byte_counts().of(ids_T[1:], ids_T[:-1]).sum() == len("".join(texts).encode())


def test_most_texts_with_a_space_before_them_are_kept() -> None:
    for tokenizer in SPACE_FIRST.values():
        assert all(tokenizer.decode(tokenizer.encode(text)) == text for text in ("ab", "é ab", "a\n b "))


def sentencepiece_bpe(folder: Path) -> Path:
    """A tokenizer with an unknown token, no bytes, and without the letters of that token's name."""
    library = tokenizers.SentencePieceBPETokenizer()
    library.train_from_iterator(["ab ab ab ab"], special_tokens=["<unk>", "</s>"], show_progress=False)
    library.save(str(folder / "tokenizer.json"))
    return folder / "tokenizer.json"


def test_an_unknown_token_in_its_own_name_needs_no_split(tmp_path: Path):
    path = sentencepiece_bpe(tmp_path)
    tokenizer = Tokenizer.load(path)
    assert tokenizer.definition["pre_tokenizer"]["type"] == "Metaspace"
    for _ in range(2):
        tokenizer.save(path)
        assert Tokenizer.load(path).hash == tokenizer.hash


def test_a_unigram_without_an_unknown_token_refuses_unknown_characters(tmp_path: Path):
    library = tokenizers.Tokenizer(models.Unigram([("<unk>", 0.0), ("</s>", 0.0), ("a", -1.0)]))
    library.decoder = decoders.Fuse()
    library.add_special_tokens(["<unk>", "</s>"])
    tokenizer = Tokenizer.load(_write(tmp_path, json.loads(library.to_str())))
    assert tokenizer.encode("aa") == [2, 2]
    with pytest.raises(UserError, match=r"gave up on a text \(Encountered an unknown token but `unk_id` is missing\)"):
        tokenizer.encode("ab")


@pytest.mark.parametrize(
    ("decoder", "problem"),
    [
        (decoders.Sequence([decoders.Fuse(), decoders.Strip(" ", 2, 1)]), r"Fuse, Strip\(' ', start 2, stop 1\)"),
        (decoders.Sequence([decoders.Fuse(), decoders.Replace("▁", " ")]), "Fuse, Replace"),
        (decoders.Sequence([decoders.ByteFallback(), decoders.Replace("▁", " ")]), "ByteFallback, Replace"),
        (decoders.Sequence([decoders.Fuse(), decoders.Metaspace()]), "Fuse, Metaspace"),
        (None, "none"),
    ],
)
def test_a_decoder_whose_text_depends_on_neighbors_is_refused(decoder: Any, problem: str, tmp_path: Path):
    library = tokenizers.Tokenizer.from_file(str(sentencepiece_bpe(tmp_path)))
    library.decoder = decoder
    library.save(str(tmp_path / "tokenizer.json"))
    with pytest.raises(UserError, match=rf"tokenizer\.json: decoder: {problem}: expected ByteLevel; or"):
        Tokenizer.load(tmp_path)


def test_steps_of_single_tokens_are_the_library_s(tmp_path: Path):
    library = tokenizers.Tokenizer.from_file(str(sentencepiece_bpe(tmp_path)))
    library.decoder = decoders.Sequence([decoders.Replace(tokenizers.Regex("▁|b+"), "_"), decoders.Strip("a", 1, 0)])
    library.save(str(tmp_path / "tokenizer.json"))
    tokenizer = Tokenizer.load(tmp_path)
    ids = tokenizer.encode("ab ab")
    assert tokenizer.decode(ids) == library.decode(ids) == "_a__a_"


def test_metaspace_drops_all_spaces_of_the_first_token(tmp_path: Path):
    definition = json.loads(sentencepiece_bpe(tmp_path).read_text())
    definition["model"]["vocab"]["▁▁a"] = number = len(definition["model"]["vocab"])
    tokenizer = Tokenizer.load(_write(tmp_path, definition))
    assert tokenizer.decode([number, number]) == "a  a" == tokenizer._library.decode([number, number])


def test_an_added_token_is_printed_as_the_normalizer_writes_it(tmp_path: Path):
    library = tokenizers.Tokenizer.from_str(json.dumps(TRAINED["bpe"]._definition))
    library.normalizer = normalizers.Lowercase()
    library.add_tokens([AddedToken("ABC", normalized=True), AddedToken("DE", normalized=False)])
    tokenizer = Tokenizer.load(_write(tmp_path, json.loads(library.to_str())))
    for text, printed in (("xABC", "xabc"), ("xabc", "xabc"), ("xDE", "xDE"), ("xde", "xde")):
        assert tokenizer.decode(tokenizer.encode(text)) == printed
    assert len(tokenizer.encode("xABC")) == len(tokenizer.encode("xDE")) == 2


@pytest.mark.parametrize(
    "changed",
    [
        {"model": {"ignore_merges": True}},
        {"model": {"end_of_word_suffix": "a"}},
        {"pre_tokenizer": {"type": "Whitespace"}},
        {"decoder": {"type": "Fuse"}},
    ],
    ids=str,
)
@pytest.mark.parametrize("kind", ["bytes", "char"])
def test_what_no_merges_alone_do_not_decide(kind: str, changed: dict[str, Any], tmp_path: Path):
    definition = json.loads(json.dumps(TRAINED[kind]._definition))
    definition = {**definition, **changed, "model": {**definition["model"], **changed.get("model", {})}}
    definition["model"]["vocab"]["ab"] = len(definition["model"]["vocab"])
    tokenizer = Tokenizer.load(_write(tmp_path, definition))
    assert tokenizer.kind == "imported"
    assert tokenizer.encode("ab") == tokenizer._library.encode("ab", add_special_tokens=False).ids


def with_added(name: str, token: int, **fields: Any) -> dict[str, Any]:
    definition: dict[str, Any] = json.loads(json.dumps(TRAINED["bytes"]._definition))
    definition["added_tokens"].append({**definition["added_tokens"][0], "content": name, "id": token, **fields})
    return definition


def test_added_tokens_behind_a_gap_have_the_ids_of_the_file(tmp_path: Path, told: Callable[[], list[str]]):
    tokenizer = Tokenizer.load(_write(tmp_path, with_added("<tool>", 300, special=False)))
    assert tokenizer.encode("<tool>[UNUSED_260]")[:2] == [300, ord("[")] and tokenizer.vocab_size == 301
    assert tokenizer.decode([260, 300]) == "<tool>" and tokenizer.token_name(260) == "[UNUSED_260]"
    assert not told()
    tokenizer.save(tmp_path / "tokenizer.json")
    assert Tokenizer.load(tmp_path).hash == tokenizer.hash


def test_an_end_behind_a_gap_is_that_of_the_configuration(tmp_path: Path):
    (tmp_path / "config.json").write_text(json.dumps({"eos_token_id": [300, 256]}))
    assert Tokenizer.load(_write(tmp_path, with_added("<|im_end|>", 300))).end_ids == (300, 256)


def test_an_id_that_another_token_has_is_told(tmp_path: Path, told: Callable[[], list[str]]):
    tokenizer = Tokenizer.load(_write(tmp_path, with_added("<tool>", 97)))
    assert tokenizer.definition["added_tokens"][1]["id"] == 257
    problem = "added_tokens: '<tool>': id 97: it is 257, as the tokenizers library numbers added tokens"
    assert told() == [f"{tmp_path / 'tokenizer.json'}: {problem}"]


def test_a_gap_of_a_million_ids_is_refused(tmp_path: Path):
    with pytest.raises(UserError, match=r"added_tokens: '<tool>': .*tokenizer.json: 999,743 ids before it have no"):
        Tokenizer.load(_write(tmp_path, with_added("<tool>", 1_000_000)))


def test_an_end_token_that_unknown_characters_become_is_refused(tmp_path: Path):
    definition = json.loads(sentencepiece_bpe(tmp_path).read_text())
    definition["model"]["unk_token"] = "</s>"
    with pytest.raises(UserError, match=r"tokenizer\.json: the end token </s> is the unknown token too, so an unknown"):
        Tokenizer.load(_write(tmp_path, definition))
    plain = json.loads(json.dumps(TRAINED["bpe"]._definition))
    plain["model"]["unk_token"] = "<|end|>"  # all bytes are known, as in GPT-2's files
    assert Tokenizer.load(_write(tmp_path, plain)).kind == "bpe"
