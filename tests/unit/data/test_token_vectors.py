import numpy as np
import pytest

from linnet.core.errors import UserError
from linnet.data.token_vectors import token_vectors, words_for
from linnet.data.tokenizer import Tokenizer

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


def test_where_a_words_own_case_is_missing_it_is_looked_for_in_lower_case(tmp_path):
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
def test_a_file_that_says_nothing_of_the_tokens_is_refused(tmp_path, line, expected):
    (tmp_path / "v.txt").write_text(line)
    with pytest.raises(UserError, match=expected):
        token_vectors(tmp_path / "v.txt", BPE, 2)
