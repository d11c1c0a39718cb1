import gzip
import struct

import numpy as np
import pytest
from hypothesis import example, given
from hypothesis import strategies as st

from linnet.core.errors import UserError
from linnet.data import word_vectors
from linnet.data.tokenizer import Tokenizer
from linnet.data.word_vectors import read_vectors, token_vectors, words_for

numbers = st.floats(width=32, allow_nan=False, allow_infinity=False)
words = st.text(st.characters(exclude_categories=["Cs", "Cc", "Z"]), min_size=1, max_size=12)
FORMS = ["word2vec", "glove", "binary", "binary with newlines"]


def _packed(values):
    return struct.pack(f"<{len(values)}f", *values)


def _file(rows, form, ending="\n"):
    """What each program writes of `[(word, numbers)]`."""
    if form.startswith("binary"):
        between = b"\n" if form.endswith("newlines") else b""
        body = b"".join(word.encode() + b" " + _packed(values) + between for word, values in rows)
    else:
        lines = (" ".join([word, *(str(np.float32(value)) for value in values)]) for word, values in rows)
        body = "".join(line + ending for line in lines).encode()
    header = b"" if form == "glove" else f"{len(rows)} {len(rows[0][1])}\n".encode()
    return header + body


def _name(form):
    return "vectors.bin" if form.startswith("binary") else "vectors.txt"


@st.composite
def files(draw):
    width = draw(st.integers(2, 5))
    named = draw(st.lists(words, min_size=1, max_size=6, unique=True))
    return [(word, draw(st.lists(numbers, min_size=width, max_size=width))) for word in named]


@pytest.mark.parametrize("compressed", [False, True])
@pytest.mark.parametrize("form", FORMS)
@given(rows=files(), data=st.data())
@example(rows=[("1", [2.0, 3.0])], data=None)
def test_written_vectors_are_read(tmp_path_factory, form, compressed, rows, data):
    wanted = {word for word, _ in rows} if data is None else data.draw(st.sets(st.sampled_from([w for w, _ in rows])))
    path = tmp_path_factory.getbasetemp() / (_name(form) + ".gz" * compressed)
    content = _file(rows, form)
    path.write_bytes(gzip.compress(content, 0) if compressed else content)
    found = read_vectors(path, wanted | {"nowhere in it"}, len(rows[0][1]))
    assert {word: vector.tobytes() for word, vector in found.items()} == {
        word: _packed(values) for word, values in rows if word in wanted
    }


ROWS = [("the", [0.5, 1.0, -2.0]), ("bird", [1.5, 0.25, 3.0]), ("tree", [4.0, 5.0, 6.0])]


def _read(tmp_path, content, name="v.txt", wanted=("the", "bird", "tree"), width=3):
    path = tmp_path / name
    path.write_bytes(content)
    return read_vectors(path, wanted, width)


def test_the_format_is_recognized_whatever_the_name(tmp_path):
    expected = dict(ROWS)
    for form in FORMS:
        found = _read(tmp_path, _file(ROWS, form), "vectors")
        assert {word: vector.tolist() for word, vector in found.items()} == expected, form
    found = _read(tmp_path, _file(ROWS, "word2vec"), "text.bin")
    assert {word: vector.tolist() for word, vector in found.items()} == expected


def test_a_line_longer_than_the_peek_is_still_text(tmp_path):
    values = np.random.default_rng(0).normal(size=40_000).astype(np.float32).tolist()
    found = _read(tmp_path, _file([("the", values)], "word2vec"), "text.bin", width=40_000)
    assert found["the"].tolist() == values
    assert not word_vectors._is_binary(b"the 0.5 -", "text.bin", 40) and word_vectors._is_binary(
        b"the 0.5 -\n", "text.bin", 2
    )


@pytest.mark.parametrize("ending", [" \n", "\r\n", "\n\n"])
def test_other_line_endings_are_accepted(tmp_path, ending):
    for form in ("word2vec", "glove"):
        found = _read(tmp_path, _file(ROWS, form, ending))
        assert found["bird"].tolist() == [1.5, 0.25, 3.0] and len(found) == 3


def test_a_byte_order_mark_is_no_part_of_the_first_word(tmp_path):
    assert len(_read(tmp_path, b"\xef\xbb\xbf" + _file(ROWS, "glove"))) == 3


def test_the_first_of_two_alike_counts_and_a_word_may_have_spaces(tmp_path):
    content = _file([*ROWS, ("the", [9.0, 9.0, 9.0]), (". . .", [1.0, 1.0, 1.0])], "glove")
    found = _read(tmp_path, content, wanted=("the", ". . ."))
    assert {word: vector.tolist() for word, vector in found.items()} == {
        "the": [0.5, 1.0, -2.0],
        ". . .": [1.0, 1.0, 1.0],
    }


def test_binary_words_beyond_a_block(tmp_path, monkeypatch):
    monkeypatch.setattr(word_vectors, "_BLOCK_BYTES", 7)
    for form in ("binary", "binary with newlines"):
        assert _read(tmp_path, _file(ROWS, form), "v.bin")["tree"].tolist() == [4.0, 5.0, 6.0]


TEXT, BINARY = _file(ROWS, "word2vec"), _file(ROWS, "binary")
HOSTILE = {
    "few numbers": (b"the 1 2 3\nbird 1 2\n", "v.txt, line 2: a word with 2 numbers; expected 3, as in the first line"),
    "many numbers": (b"the 1 2 3\nbird 1 2 3 4\n", "line 2: a word with 4 numbers; expected 3"),
    "no number": (b"the 1 2 3\nbird 1 x 3\n", "v.txt, line 2: 'x': expected a number"),
    "two spaces": (b"the 1 2 3\nbird 1  3\n", "line 2: '': expected a number"),
    "long field": (b"the 1 2 3\nbird 1 " + b"x" * 99 + b" 3\n", f"line 2: '{'x' * 40}…': expected a number"),
    "not finite": (b"the 1 2 3\nbird 1 nan 3\n", "line 2: number 2 is nan; expected finite numbers of float32"),
    "too large": (b"the 1 2 3\nbird 1 2 -1e39\n", "line 2: number 3 is -inf"),
    "width": (b"the 1 2\n", "line 1: a word with 2 numbers; expected 3, the width of the model's token embedding"),
    "what to set": (b"the 1 2\n", "(`set` model.embedding.width=2 makes it that of the file)"),
    "width of header": (b"7 300\nthe 1", "line 1: a header of 7 words with 300 numbers; expected 3, the width of"),
    "tabs": (b"the\t1\t2\t3\n", r"line 1: 'the\t1\t2\t3': expected a word and 3 numbers, with single spaces"),
    "a text": (b"Once upon a time there was", "line 1: 'Once upon a time there was': expected a word and 3 numbers"),
    "packed": (gzip.compress(TEXT), "(the name of a file that is compressed ends in .gz)"),
    "one line": (b"the " + b"1" * (1 << 20), "line 1: more than 1,048,576 bytes; expected a word and its numbers"),
    "empty": (b"", "v.txt: no words; expected lines of a word and its numbers"),
    "empty lines": (b"\n\n", "v.txt: no words"),
    "no words": (b"0 3\n", "v.txt: no words"),
    "too few": (TEXT.replace(b"3 3", b"4 3", 1), "v.txt: ends after 3 words; expected 4, as its header says"),
    "too many": (TEXT.replace(b"3 3", b"2 3", 1), "line 4: one word more than the 2 that the header says"),
    "cut": (TEXT[:-6], "line 4: a word with 2 numbers; expected 3"),
    "binary cut": (BINARY[:-1], "v.txt, word 3: the file ends in it; expected 3 words, as its header says"),
    "binary too few": (BINARY.replace(b"3 3", b"9 3", 1), "word 4: the file ends in it; expected 9 words"),
    "binary too many": (BINARY.replace(b"3 3", b"2 3", 1), "word 3: one word more than the 2"),
    "binary nan": (b"1 3\nthe " + _packed([0.0, 1.0, float("nan")]), "word 1: number 3 is nan"),
    "binary word": (b"2 3\nt " + b"\0" * ((1 << 21) + 12), "word 2: no space in 1,048,576 bytes"),
    "digits": (b"9" * 5000 + b" 3\n", "line 1: a word with 1 numbers; expected 3"),
}


@pytest.mark.parametrize("case", HOSTILE)
def test_a_hostile_file_is_refused_in_a_line(tmp_path, case):
    content, expected = HOSTILE[case]
    with pytest.raises(UserError) as refused:
        _read(tmp_path, content)
    assert expected in str(refused.value) and str(refused.value).startswith(str(tmp_path / "v.txt"))
    assert len(str(refused.value)) < 400 and "\n" not in str(refused.value)


@pytest.mark.parametrize(
    "content",
    [b"the 1 2 3\n", gzip.compress(TEXT)[:-9], gzip.compress(TEXT)[:10] + b"\xff" * 60],
    ids=["plain", "cut", "overwritten"],  # the bytes have the time of compression, which differs between workers
)
def test_a_damaged_gzip_file_is_refused(tmp_path, content):
    with pytest.raises(UserError, match=r"v\.txt\.gz: not a whole gzip file"):
        _read(tmp_path, content, "v.txt.gz")


def test_a_missing_file_and_a_folder_are_refused(tmp_path):
    with pytest.raises(UserError, match="no such file"):
        read_vectors(tmp_path / "none", {"the"}, 3)
    with pytest.raises(UserError, match="is a directory"):
        read_vectors(tmp_path, {"the"}, 3)


@given(content=st.binary(max_size=80), headed=st.booleans())
def test_any_bytes_are_read_or_refused(tmp_path_factory, content, headed):
    path = tmp_path_factory.getbasetemp() / "any"
    path.write_bytes(b"2 2\n" * headed + content)
    try:
        found = read_vectors(path, {"a", "the"}, 2)
    except UserError:
        return
    assert all(vector.shape == (2,) and np.isfinite(vector).all() for vector in found.values())


def test_only_requested_words_are_returned(tmp_path):
    rows = [(f"w{number}", [1.0, 2.0, 3.0]) for number in range(500)]
    for form in FORMS:
        assert list(_read(tmp_path, _file(rows, form), _name(form), wanted=("w7", "w499"))) == ["w7", "w499"]


BPE = Tokenizer.train("bpe", ["The bird sang to the tree, and the Tree heard the bird. " * 20], 300)


@pytest.mark.parametrize(
    ("text", "expected"),
    [
        ("the", ["the"]),
        (" the", [" the", "the"]),
        (" The", [" The", "The", "the"]),
        ("The", ["The", "the"]),
        ("  the", ["  the", " the"]),
        (" ", [" "]),
        ("ÉTÉ", ["ÉTÉ", "été"]),
        (None, []),
    ],
)
def test_words_of_a_token(text, expected):
    assert list(words_for(text)) == expected


def _found(tmp_path, lines, tokenizer=BPE):
    (tmp_path / "v.txt").write_text("\n".join(lines))
    found = token_vectors(tmp_path / "v.txt", tokenizer, 2)
    texts = tokenizer.texts()
    return {texts[token]: vector_E.tolist() for token, vector_E in zip(found.tokens_F, found.vectors_FE, strict=True)}


def test_tokens_find_their_words(tmp_path):
    found = _found(tmp_path, ["the 1 2", "bird 3 4", "The 5 6", "unheard-of 7 8"])
    assert found == {" the": [1, 2], " bird": [3, 4], " The": [5, 6]}


def test_missing_words_are_looked_up_in_lower_case(tmp_path):
    assert _found(tmp_path, ["the 1 2"]) == {" the": [1, 2], " The": [1, 2]}


def test_a_byte_is_a_word_of_one_letter_and_half_a_character_is_none(tmp_path):
    found = _found(tmp_path, ["a 1 2", "Z 3 4", "é 5 6"], Tokenizer.train("bytes", []))
    assert found == {"a": [1, 2], "A": [1, 2], "Z": [3, 4]}


def test_the_end_token_has_no_vector(tmp_path):
    end = BPE.definition["added_tokens"][0]["content"]
    assert list(_found(tmp_path, ["the 1 2", f"{end} 9 9"])) == [" the", " The"]
    assert BPE.texts()[BPE.end_id] is None


def test_tokens_and_vectors_are_arrays_in_step(tmp_path):
    (tmp_path / "v.txt").write_text("the 1 2\nbird 3 4\n")
    found = token_vectors(tmp_path / "v.txt", BPE, 2)
    assert found.vectors_FE.dtype == np.float32 and found.vectors_FE.shape == (len(found.tokens_F), 2)
    assert sorted(found.tokens_F) == list(found.tokens_F)


@pytest.mark.parametrize(
    ("line", "expected"),
    [("zzzz 1 2", "has a word for none of the tokenizer's 280 tokens"), ("the 0 -0.0", "words are zero")],
)
def test_a_file_without_any_token_is_refused(tmp_path, line, expected):
    (tmp_path / "v.txt").write_text(line)
    with pytest.raises(UserError, match=expected):
        token_vectors(tmp_path / "v.txt", BPE, 2)
