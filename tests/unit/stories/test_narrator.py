"""Who or what is named how: references to people, things and places, sentence by sentence."""

from random import Random

import pytest
from small_cast import BALL, BEN, BERRIES, LILY, MIA, MOM

from linnet.stories.narrator import Narrator
from linnet.stories.vocabulary.places import PARK


def write(*phrasings: str, always_pronoun: bool = True) -> str:
    """The text of phrasings about Lily, Ben, Mia, Mom and the things, with a pronoun wherever one is clear."""
    rng = Random(0)
    if always_pronoun:
        rng.random = lambda: 0.49  # type: ignore[method-assign]
    narrator = Narrator(rng)
    roles = {"lily": LILY, "ben": BEN, "mia": MIA, "mom": MOM, "ball": BALL, "berries": BERRIES, "park": PARK}
    for phrasing in phrasings:
        narrator.write(phrasing, {"both": (LILY, BEN), "girls": (LILY, MIA)}, roles)
    return narrator.text


@pytest.mark.parametrize(
    ("phrasings", "text"),
    [
        (["{lily} ran.", "{lily} hid."], "A little girl named Lily ran. She hid."),
        (["{lily} saw {ben.him}.", "{ben} hid."], "A little girl named Lily saw her friend Ben. He hid."),
        (["{lily.name} saw {mia.him}.", "{mia} hid."], "Lily saw her friend Mia. Mia hid."),
        (["{lily.name} saw {mom.him}.", "{lily} hid."], "Lily saw her mom. Lily hid."),
        (["{both} ran.", "{both} hid."], "A little girl named Lily and her friend Ben ran. They hid."),
        (["{both} ran.", "{ben} hid."], "A little girl named Lily and her friend Ben ran. Ben hid."),
        (["{both.title} saw {mia.him}.", "{both} hid."], "Lily and Ben saw Lily's friend Mia. Lily and Ben hid."),
        (["{lily.name} had {ball}.", "{lily} {ball.used} {ball.it}."], "Lily had a red ball. She kicked it."),
        (["{lily.name} ate {berries}.", "{berries} {berries.was} good."],
         "Lily ate some sweet berries. The berries were good."),
        (['"Hi, {ben.name}!" said {lily.np}.', "{ben} hid."], '"Hi, Ben!" said a little girl named Lily. Ben hid.'),
        (["{lily.name} went {park.to}. {lily} was {park.at}."], "Lily went to the park. She was in the park."),
        (["{lily.name} a.", "{lily} b.", "{lily} c.", "{lily} d."], "Lily a. She b. She c. Lily d."),
    ],
)  # fmt: skip
def test_references(phrasings: list[str], text: str) -> None:
    assert write(*phrasings) == text


def test_a_new_paragraph_names_everybody_anew() -> None:
    narrator = Narrator(Random(0))
    narrator.write("{lily.name} ran.", {}, {"lily": LILY})
    narrator.paragraph()
    narrator.paragraph()
    narrator.write("{lily} hid.", {}, {"lily": LILY})
    assert narrator.text == "Lily ran.\nLily hid."


def test_an_unknown_role_or_form_is_an_error() -> None:
    for phrasing in ("{nobody} ran.", "{lily.nothing} ran."):
        with pytest.raises(KeyError):
            write(phrasing)
