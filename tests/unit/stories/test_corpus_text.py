"""The language of the stories: sentences, quotations, articles, names, pronouns. Read from the text alone."""

import re
from itertools import islice

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from linnet.stories import Split, Story, stories, story
from linnet.stories.plots import PLOTS

PRONOUNS = {"she": "f", "her": "f", "he": "m", "him": "m", "his": "m"}
FAMILY = {"mom", "grandma", "dad", "grandpa"}


@pytest.fixture(scope="module")
def sample() -> list[Story]:
    validation = islice(stories(seed=12, split="validation"), 500)
    return [*islice(stories(seed=11), 1000), *validation]


def check(one: Story) -> None:
    check_form(one.text)
    check_repetition(one.text)
    check_articles(one.text)
    check_names(one)
    for paragraph in one.text.split("\n"):
        check_pronouns(one, paragraph)


def check_form(text: str) -> None:
    """Sentences, capitals, quotation marks, spaces."""
    assert re.fullmatch(r"[A-Za-z ,.!?'\"\n]+", text)
    assert "  " not in text
    assert "\n\n" not in text
    assert not re.search(r"(^| )[,.!?]|[,.!?]{2}|\s$|^\s|\s\n|\n ", text)
    for paragraph in text.split("\n"):
        assert paragraph[0].isupper() or paragraph[0] == '"'
        assert re.search(r'[.!?]"?$', paragraph)
        assert paragraph.count('"') % 2 == 0
        check_capitals(paragraph)


def check_repetition(text: str) -> None:
    sentences = re.split(r'(?<=[.!?]) (?=[A-Z"])|\n', text)
    assert len(set(sentences)) == len(sentences)


def check_capitals(paragraph: str) -> None:
    narration, quotations = parts(paragraph)
    for quotation in quotations:
        assert quotation[0].isupper()
        assert quotation[-1] in ",.!?"
        assert not re.search(r"[.!?] [a-z]", quotation)
        assert '"' not in quotation
    assert not re.search(r"[.!?] [a-z]", narration)
    for match in re.finditer(r'"[^"]*"', paragraph):
        check_quotation(paragraph[: match.start()], match[0], paragraph[match.end() :])


def check_quotation(before: str, quotation: str, after: str) -> None:
    """A quotation follows a comma or begins a sentence, and in the latter case the speaker has no capital letter."""
    begins = not before or re.search(r'[.!?]"? $', before)
    assert begins or before.endswith(", ")
    assert not before.endswith('" '), "one speaker's words run into another's"
    assert not (begins and quotation[-2] in ",!?" and re.match(r" (?:She|He|It|They|Her|His|The)\b", after))
    assert quotation[-2] != "," or begins


def parts(paragraph: str) -> tuple[str, list[str]]:
    """The narration, with each quotation replaced by a mark, and the quotations."""
    return re.sub(r'"[^"]*"', "@", paragraph), re.findall(r'"([^"]*)"', paragraph)


def check_articles(text: str) -> None:
    for article, word in re.findall(r"\b([Aa]n?) (\w+)", text):
        assert (article.lower() == "an") == (word[0] in "aeiou"), f"{article} {word}"
    assert not re.search(r"\b(?:[Aa]n?|[Tt]he|[Ss]ome) (?:an?|the|some)\b", text)
    assert not re.search(r"\b(\w{3,}) \1\b", text.replace("had had", ""))


def check_names(one: Story) -> None:
    """Every capitalized word inside a sentence is a name of the cast."""
    known = {name for who in one.cast if who.name for name in (who.name, f"{who.name}'s")} | {"I", "Sunday"}
    inside = re.findall(r"(?<=[a-z,] )[A-Z][a-z]*(?:'s)?", one.text)
    assert set(inside) <= known, set(inside) - known
    for who in one.cast:
        assert (who.name or who.species) in one.text or who.species in one.text


def check_pronouns(one: Story, paragraph: str) -> None:
    """The narrator named somebody of a pronoun's gender before it in the paragraph, and no two of them just before."""
    seen = {"f": 0, "m": 0, "n": 0}
    before: dict[str, set[str]] = {"f": set(), "m": set()}
    narration = re.sub(r'"[^"]*([.,!?])"', r"@\1", paragraph)
    for sentence in re.split(r"(?<=[.!?]) (?=[A-Z@])", narration):
        here: dict[str, set[str]] = {"f": set(), "m": set(), "n": set()}
        for word in re.findall(r"[A-Za-z]+", sentence):
            for who in one.cast:
                if word in (who.name, who.species) and (word == who.name or word in FAMILY):
                    here[who.gender].add(who.name)
                    seen[who.gender] += 1
            gender = PRONOUNS.get(word.lower())
            if gender is not None:
                assert seen[gender], f"nobody is {word} in: {sentence}"
                candidates = here[gender] or before[gender]
                assert len(candidates) <= 1, f"{word} may be any of {candidates} in: {sentence}"
        before = here


def test_the_language_of_many_stories(sample: list[Story]) -> None:
    for one in sample:
        check(one)


@given(seed=st.integers(0, 2**40), index=st.integers(0, 2**40), split=st.sampled_from(["train", "validation"]))
@settings(max_examples=50, deadline=None)
def test_the_language_of_any_story(seed: int, index: int, split: Split) -> None:
    check(story(seed, index, split))


def test_both_genders_and_both_kinds_of_hero_occur(sample: list[Story]) -> None:
    assert {one.cast[0].gender for one in sample} == {"f", "m"}
    assert 0.5 < sum(one.cast[0].is_child for one in sample) / len(sample) < 0.8
    assert {one.plot for one in sample} == {plot.name for plot in PLOTS}


def test_pronouns_are_used_and_names_too(sample: list[Story]) -> None:
    pronouns = sum(len(re.findall(r"\b(?:[Ss]he|[Hh]e|[Tt]hey)\b", one.text)) for one in sample)
    names = sum(len(re.findall(rf"\b{who.name}\b", one.text)) for one in sample for who in one.cast if who.name)
    assert 0.2 < pronouns / names < 0.6


@pytest.mark.parametrize(
    "text",
    [
        "A owl sat there.",
        "An ball was red.",
        "Lily ran.  Lily hid.",
        "lily ran.",
        "Lily ran",
        'Lily said, "Hello.',
        'Lily said, "hello."',
        '"Hello!" She said.',
        "Lily saw Otto.",
        "She ran to Lily.",
        "Lily ran. He hid.",
        "The the ball was red.",
        "Lily and Mia ran. She fell.",
        "Lily ran. Mia fell. Lily ran.",
        'Lily said, "Hello." "Hi," said Mia.',
    ],
)
def test_the_checks_find_mistakes(text: str) -> None:
    one = story(0, 0)
    girls = [next(s for s in stories() if s.cast[0].name == name).cast[0] for name in ("Lily", "Mia")]
    broken = Story(text, one.plot, one.signature, tuple(girls), one.events, 0, 0, "train")
    with pytest.raises(AssertionError):
        check(broken)


def test_the_checks_pass_good_text() -> None:
    girls = [next(s for s in stories() if s.cast[0].name == name).cast[0] for name in ("Lily", "Mia")]
    text = 'Lily saw Mia. "Is that an apple?" Lily asked. Mia said, "No. It is a pear."\nMia ran. She was happy.'
    one = story(0, 0)
    check(Story(text, one.plot, one.signature, tuple(girls), one.events, 0, 0, "train"))
