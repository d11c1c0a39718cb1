from random import Random

import numpy as np
import pytest

from linnet.core.errors import UserError
from linnet.data.nearest_words import WordVectors
from linnet.data.tokenizer import Tokenizer
from linnet.data.word_vector_training import (
    MAX_SENTENCE_WORDS,
    VectorSettings,
    WordReader,
    cooccurrences,
    train_vectors,
    write_vectors,
)

FOODS, ROADS = ("bread", "apple", "soup", "cake"), ("car", "truck", "train", "bus")


@pytest.fixture(scope="module")
def planted(tmp_path_factory):
    """Words of a group occur mostly in the same contexts, and never beside each other."""
    draw, documents = Random(1), []
    for _ in range(600):
        verbs, ends = (("eats", "cooks"), ("drives", "parks")), (("warm", "fresh"), ("fast", "late"))
        group = draw.randrange(2)
        verbs, ends = (found[group if draw.random() < 0.9 else 1 - group] for found in (verbs, ends))
        noun = draw.choice((FOODS, ROADS)[group])
        documents.append(f"{draw.choice(verbs)} the {noun} {draw.choice(ends)} .")
    path = tmp_path_factory.mktemp("planted") / "planted.txt"
    path.write_text("<|endoftext|>".join(documents))
    return path


def reader(path, keep_case=False, tokenizer=None):
    return WordReader([str(path)], None, None, keep_case, tokenizer)


@pytest.mark.parametrize("method", ["skipgram", "glove"])
def test_words_of_the_same_contexts_are_neighbors_and_the_seed_decides(planted, method):
    settings = VectorSettings(method=method, width=12, epochs=60 if method == "skipgram" else 30, seed=3)
    trained = train_vectors(reader(planted), settings)
    for group in (FOODS, ROADS):
        for word in group:
            near = [neighbor.word for neighbor in trained.table.nearest(word, 19) if neighbor.word in FOODS + ROADS]
            assert set(near[:3]) == set(group) - {word}
    short = settings.model_copy(update={"epochs": 1})
    one, again, other = (train_vectors(reader(planted), short.model_copy(update={"seed": n})).table for n in (3, 3, 4))
    assert np.array_equal(one.vectors_WE, again.vectors_WE) and not np.array_equal(one.vectors_WE, other.vectors_WE)


def test_the_vocabulary_is_in_the_order_of_frequency_without_rare_words(tmp_path):
    path = tmp_path / "text.txt"
    path.write_text("b a b a c Ä's-x ä'S-x ä's-x .")
    trained = train_vectors(reader(path), VectorSettings(method="glove", width=2, min_count=2, epochs=1))
    assert trained.table.words == ("ä's-x", "a", "b")
    assert trained.counts_V.tolist() == [3, 2, 2] and trained.text_words == 9
    with pytest.raises(UserError, match="min_count: 4: 0 of 5 words occur so often; expected at least two"):
        train_vectors(reader(path), VectorSettings(min_count=4))


def test_a_long_document_is_cut_and_no_word_is_lost(tmp_path):
    path = tmp_path / "long.txt"
    path.write_text("one Two " * MAX_SENTENCE_WORDS)
    read = WordReader([str(path)], None, None, True, None)
    trained = train_vectors(read, VectorSettings(method="glove", width=2, epochs=1))
    assert trained.table.words == ("Two", "one") and trained.counts_V.tolist() == [MAX_SENTENCE_WORDS] * 2


def test_inputs_are_read_and_told_of_as_those_of_prepare(tmp_path, caplog):
    (tmp_path / "a.txt").write_text("one two\r\n" * 4, newline="")
    (tmp_path / "b.txt").touch()
    settings = VectorSettings(method="glove", width=2, epochs=1, min_count=1)
    trained = train_vectors(WordReader([str(tmp_path)], None, None, False, None), settings)
    assert trained.text_words == 8
    assert "a.txt: 4 of 4 lines end in CRLF" in caplog.text and "1 empty document left out" in caplog.text
    with pytest.raises(UserError, match=r"field: page: .* has no fields; expected a file of rows"):
        train_vectors(WordReader([str(tmp_path)], "page", None, False, None), settings)


def test_words_of_a_tokenizer_are_its_tokens_without_white_space(planted):
    tokenizer = Tokenizer.train("bpe", [planted.read_text()], 400)
    trained = train_vectors(reader(planted, tokenizer=tokenizer), VectorSettings(method="glove", width=2, epochs=1))
    texts = {(text or "").strip() for text in tokenizer.texts()}
    assert {"bread", "truck", "eats"} <= set(trained.table.words) <= texts - {""}


def test_cooccurrences_count_by_distance_and_skip_other_words():
    rows_N, columns_N, counts_N = cooccurrences([["a", "x", "b", "a"], ["b"], ["a", "a"]], ["a", "b"], window=2)
    found = dict(zip(zip(rows_N.tolist(), columns_N.tolist(), strict=True), counts_N.tolist(), strict=True))
    assert found == {(0, 0): 2 * (1 / 2) + 2 * 1, (0, 1): 2.0, (1, 0): 2.0}


def test_cooccurrences_are_the_same_whenever_they_are_merged(monkeypatch):
    draw = Random(0)
    sentences = [[draw.choice("abcdefg") for _ in range(20)] for _ in range(30)]
    whole = cooccurrences(sentences, "abcdef", window=4)
    monkeypatch.setattr("linnet.data.word_vector_training._PAIRS_IN_MEMORY", 50)
    for one, other in zip(whole, cooccurrences(sentences, "abcdef", window=4), strict=True):
        np.testing.assert_allclose(one, other, rtol=1e-12)


@pytest.mark.parametrize("name", ["v.txt", "v.txt.gz"])
def test_written_vectors_are_read_to_the_last_bit(tmp_path, name):
    drawn_WE = np.random.default_rng(0).standard_normal((3, 5)).astype(np.float32)
    table = WordVectors(("a", "5", "ü"), drawn_WE)
    write_vectors(tmp_path / name, table)
    read = WordVectors.read(tmp_path / name)
    assert read.words == table.words and read.vectors_WE.tobytes() == drawn_WE.tobytes()
    if name.endswith(".gz"):
        assert (tmp_path / name).read_bytes()[4:8] == bytes(4), (
            "no time of writing, so that equal vectors are equal files"
        )
