"""Chooses who plays in a story."""

from functools import cache
from random import Random

from linnet.stories.entities import Character, Gender, Relation
from linnet.stories.vocabulary.people import ANIMAL_NAMES, BOYS, GIRLS, LOOKS, PARENTS, SPECIES

ALL_NAMES = len(GIRLS)
"""Names of each kind (girls, boys, animals) that there are."""
assert ALL_NAMES == len(BOYS) == len(ANIMAL_NAMES)

CHILD_SHARE = 0.65
"""How many heroes are children; the others are animals."""


def names_of(names: int = ALL_NAMES) -> tuple[str, ...]:
    """All that a hero may have, `names` of each kind."""
    return (*GIRLS[:names], *BOYS[:names], *(name for name, _ in ANIMAL_NAMES[:names]))


@cache
def _children(names: int) -> tuple[tuple[str, Gender, str], ...]:
    girls: list[tuple[str, Gender, str]] = [(name, "f", "girl") for name in GIRLS[:names]]
    return (*girls, *((name, "m", "boy") for name in BOYS[:names]))


def cast_hero(
    rng: Random, child: bool | None = None, not_species: tuple[str, ...] = (), names: int = ALL_NAMES
) -> Character:
    """The main character; `child` fixes whether it is a child or an animal. `names` of each kind may be given."""
    if child is None:
        child = rng.random() < CHILD_SHARE
    if child:
        name, gender, species = rng.choice(_children(names))
    else:
        name, gender = rng.choice(ANIMAL_NAMES[:names])
        species = rng.choice([kind for kind in SPECIES if kind not in not_species])
    return Character(name, gender, species, rng.choice(LOOKS))


def cast_friend(
    rng: Random, hero: Character, stranger: bool, not_species: tuple[str, ...], names: int = ALL_NAMES
) -> Character:
    """A second character of another name; mostly of the hero's kind and of the other gender."""
    child = hero.is_child if rng.random() < 0.8 else not hero.is_child
    while True:
        other = cast_hero(rng, child, not_species, names)
        same_gender_is_fine = rng.random() < 0.4
        if other.name != hero.name and (other.gender != hero.gender or same_gender_is_fine):
            relation: Relation = "stranger" if stranger else "friend"
            return Character(other.name, other.gender, other.species, other.look, relation, hero)


def cast_parent(rng: Random, child: Character) -> Character:
    """The mother, father, grandmother or grandfather of a character."""
    name, gender = rng.choice((*PARENTS[:2], *PARENTS))
    return Character(name, gender, name.lower(), "", "parent", child)


def cast_pet(rng: Random, owner: Character, species: str, names: int = ALL_NAMES) -> Character:
    """A named animal that belongs to `owner` and does not speak."""
    name, gender = rng.choice(ANIMAL_NAMES[:names])
    return Character(name, gender, species, rng.choice(("little", "small", "funny", "sweet")), "pet", owner)


def nameless(species: str, look: str, anchor: Character) -> Character:
    """An animal that is "the bird" and "it"."""
    return Character("", "n", species, look, "stranger", anchor)
