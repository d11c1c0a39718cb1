import random

import pytest
from hypothesis import given
from hypothesis import strategies as st

from linnet.core.errors import UserError
from linnet.data.split import Holdout, Survey, below, check_fraction, choose_cells, content_hash, cut_last_part

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


@pytest.mark.parametrize("fraction", [0.01, 0.05, 0.3])
def test_the_share_of_bytes_is_held_out_whatever_the_sizes(fraction: float) -> None:
    drawn = random.Random(0)
    documents = [f"{number} " + "x" * int(drawn.paretovariate(1.2) * 50) for number in range(2_000)]
    found = {side: sum(map(len, texts)) for side, texts in sides(documents, fraction).items()}
    assert found["validation"] / sum(found.values()) == pytest.approx(fraction, rel=1e-3)


def test_of_few_documents_the_share_is_as_near_as_whole_ones_allow() -> None:
    for tiny in range(20):  # wherever the tiny one's hash falls
        documents = [f"tiny {tiny:02}", *(f"{number:02}" * 100 for number in range(13))]
        assert list(map(len, sides(documents, 0.05)["validation"])) == [200]


@pytest.mark.parametrize(
    ("sizes", "wanted_bytes", "chosen"),
    [
        ({1: 10, 2: 10, 3: 10, 4: 70}, 20, {1, 2}),
        ({1: 70, 2: 10, 3: 10, 4: 10}, 20, {2, 3}),  # what does not fit is passed over
        ({1: 1, 2: 70, 3: 12, 4: 30}, 20, {1, 3}),
        ({1: 1, 2: 20, 3: 79}, 20, {2}),  # alone it is nearer than beside the first
        ({1: 5, 2: 17, 3: 78}, 20, {1, 2}),
        ({1: 50, 2: 40, 3: 60}, 5, {2}),
        ({1: 50, 2: 50}, 1, {1}),
    ],
)
def test_cells_that_come_near(sizes: dict[int, int], wanted_bytes: float, chosen: set[int]) -> None:
    assert choose_cells(sizes, wanted_bytes) == chosen


@given(sizes=st.lists(st.integers(1, 1000), min_size=2, max_size=30), fraction=fractions)
def test_cells_are_some_not_all_and_no_single_one_is_nearer(sizes: list[int], fraction: float) -> None:
    numbered = dict(enumerate(sizes))
    wanted_bytes = fraction * sum(sizes)
    chosen = choose_cells(numbered, wanted_bytes)
    assert 0 < len(chosen) < len(sizes)
    missed = abs(sum(numbered[number] for number in chosen) - wanted_bytes)
    assert missed <= min(abs(size - wanted_bytes) for size in sizes)


def test_a_share_does_not_change_most_documents_when_some_are_added() -> None:
    documents = [f"document {number}" for number in range(3_000)]
    before, after = (set(sides(documents[:count], 0.1)["validation"]) for count in (2_700, 3_000))
    assert len(before & after) > 0.8 * len(before)


def test_default_fraction_depends_on_the_size() -> None:
    survey = Survey(documents=2, text_bytes=19_999_999)
    assert survey.holdout(None).fraction == 0.05
    survey.text_bytes += 1
    assert survey.holdout(None).fraction == 0.01
    assert survey.holdout(0.2).fraction == 0.2


@pytest.mark.parametrize("fraction", [0, 0.5, -1, 2, float("nan")])
def test_fraction_out_of_range_is_refused(fraction: float) -> None:
    with pytest.raises(UserError, match=f"validation: {fraction}: expected a fraction above 0 and below 0.5"):
        check_fraction(fraction)


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
