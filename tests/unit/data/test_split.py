import random

import pytest
from hypothesis import given
from hypothesis import strategies as st

from linnet.data.split import Holdout, Survey, below, content_hash, cut_last_part
from linnet.errors import UserError

texts = st.lists(st.text(st.characters(exclude_categories=["Cs"]), min_size=1, max_size=5), min_size=1, max_size=20)
fractions = st.floats(0.01, 0.49)


def holdout(documents: list[str], fraction: float | None) -> Holdout:
    survey = Survey()
    for text in documents:
        survey.add(text)
    return survey.holdout(fraction)


def sides(documents: list[str], fraction: float | None) -> dict[str, list[str]]:
    rule = holdout(documents, fraction)
    result: dict[str, list[str]] = {"train": [], "validation": []}
    for text in documents:
        for side, part in rule.parts(text):
            result[side].append(part)
    return result


@given(documents=texts, fraction=fractions, seed=st.integers(0, 100))
def test_order_does_not_matter(documents: list[str], fraction: float, seed: int) -> None:
    shuffled = random.Random(seed).sample(documents, len(documents))
    assert holdout(documents, fraction) == holdout(shuffled, fraction)


@given(documents=texts, fraction=fractions)
def test_neither_side_is_empty_and_equal_documents_stay_together(documents: list[str], fraction: float) -> None:
    if len(set(documents)) == 1:
        return
    found = sides(documents, fraction)
    assert found["train"] and found["validation"]
    assert not set(found["train"]) & set(found["validation"])
    assert sorted(found["train"] + found["validation"]) == sorted(documents)


def test_smallest_hash_is_held_out_and_largest_never() -> None:
    two = sorted(["one", "two"], key=content_hash)
    assert sides(two, 1e-9) == {"validation": [two[0]], "train": [two[1]]}
    # Nearly all hashes are below the fraction here, the largest included.
    ten = sorted(map(str, range(10)), key=content_hash)
    largest = Holdout(1.0, content_hash(ten[0]), content_hash(ten[-1]))
    assert [side for text in ten for side, _ in largest.parts(text)] == ["validation"] * 9 + ["train"]


@pytest.mark.parametrize("fraction", [0.01, 0.05, 0.3])
def test_about_the_fraction_is_held_out(fraction: float) -> None:
    documents = [f"document {number}" for number in range(20_000)]
    assert len(sides(documents, fraction)["validation"]) == pytest.approx(20_000 * fraction, rel=0.15)


def test_default_fraction_depends_on_the_size() -> None:
    survey = Survey(documents=2, text_bytes=19_999_999)
    assert survey.holdout(None).fraction == 0.05
    survey.text_bytes += 1
    assert survey.holdout(None).fraction == 0.01
    assert survey.holdout(0.2).fraction == 0.2


@pytest.mark.parametrize("fraction", [0, 0.5, -1, 2, float("nan")])
def test_fraction_out_of_range_is_refused(fraction: float) -> None:
    with pytest.raises(UserError, match=f"--validation {fraction}: expected a fraction above 0 and below 0.5"):
        Survey().holdout(fraction)


def test_survey_counts_documents_and_bytes() -> None:
    survey = Survey()
    survey.add("é")
    survey.add("ab")
    assert (survey.documents, survey.text_bytes) == (2, 4)


def test_single_document_gives_its_last_part() -> None:
    text = "a line of words\n" * 100
    for documents in ([text], [text] * 3):
        found = sides(documents, 0.1)
        assert len(found["train"]) == len(found["validation"]) == len(documents)
        assert found["train"][0] + found["validation"][0] == text
        assert found["validation"][0] == "a line of words\n" * 10


@given(text=st.text("ab \n", min_size=2, max_size=200), fraction=fractions)
def test_cut_loses_nothing_and_leaves_both_parts(text: str, fraction: float) -> None:
    head, tail = cut_last_part(text, fraction)
    assert head and tail and head + tail == text
    assert len(tail) <= 2 * max(1, round(len(text) * fraction) + 1)


def test_cut_prefers_lines_then_words_then_characters() -> None:
    assert cut_last_part("aaaa aaaa\nbb bbbb", 0.3) == ("aaaa aaaa\n", "bb bbbb")
    assert cut_last_part("aaaa aaaaa bbbbb", 0.3) == ("aaaa aaaaa ", "bbbbb")
    assert cut_last_part("a" * 10, 0.3) == ("a" * 7, "a" * 3)


def test_one_character_cannot_be_split() -> None:
    with pytest.raises(UserError, match="one document of one character"):
        sides(["a"], None)


def test_purposes_choose_independently() -> None:
    names = [str(number) for number in range(2000)]
    held_out = [name for name in names if below(content_hash(name), 0.5)]
    both = [name for name in held_out if below(content_hash(name, b"tokenizer"), 0.5)]
    assert 400 < len(both) < 600
