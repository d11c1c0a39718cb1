import numpy as np
import pytest

from linnet.core.errors import UserError
from linnet.data.nearest_words import WordVectors

ROWS = {
    "man": [1.0, 0.0, 0.0],
    "king": [1.0, 0.0, 3.0],
    "woman": [0.0, 2.0, 0.0],
    "queen": [0.0, 1.0, 2.0],
    "zero": [0.0, 0.0, 0.0],
}


@pytest.fixture
def table():
    return WordVectors(tuple(ROWS), np.array(list(ROWS.values()), dtype=np.float32), "v.txt")


def test_nearest_words_are_those_of_the_highest_cosine_without_the_word(table):
    found = table.nearest("king", 2)
    assert [neighbor.word for neighbor in found] == ["queen", "man"]
    assert found[0].cosine == pytest.approx(6 / (10**0.5 * 5**0.5)) and found[1].cosine == pytest.approx(1 / 10**0.5)
    assert len(table.nearest("king", 99)) == 4


def test_an_analogy_adds_the_difference_of_vectors_of_length_one(table):
    found = table.analogy("man", "king", "woman")
    assert [neighbor.word for neighbor in found] == ["queen", "zero"]
    target_E = np.array([1 / 10**0.5 - 1, 1, 3 / 10**0.5])
    expected = target_E @ [0, 1, 2] / 5**0.5 / np.linalg.norm(target_E)
    assert found[0].cosine == pytest.approx(expected, rel=1e-5)


def test_a_vector_of_zeros_is_near_to_nothing(table):
    assert {neighbor.cosine for neighbor in table.nearest("zero")} == {0.0}


def test_a_word_is_also_found_in_lower_case_and_an_unknown_one_is_told(table):
    assert table.nearest("KING") == table.nearest("king")
    with pytest.raises(UserError, match=r"v\.txt: no word 'quen'; did you mean queen\?"):
        table.nearest("quen")
    with pytest.raises(UserError, match=r"v\.txt: no word 'xyz'; expected one of its 5 words"):
        table.analogy("man", "king", "xyz")
