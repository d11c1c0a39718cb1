"""Referring expressions: how a slot names the character, group, item or place that fills it.

Forms of a character (`{who.form}`), of which a group has some:
  (none)  subject: "she" where only one can be meant, else the name; who is new is introduced ("her friend Ben")
  him     the same as an object;  his   the same as a possessive ("her", "Lily's")
  np      never a pronoun;  name  the bare name;  intro  "a little girl named Lily"
  title   "Lily", "Pip the rabbit";  kind  "a little girl";  species  "girl"
  own, pro   the pronoun itself, for phrasings in which it cannot be misunderstood
  was     "was" or "were"
Forms of an item: (none) "a red ball" at first, then "the ball"; a "a red ball"; full "red ball"; noun "ball";
  it (object: a pronoun where clear); obj; was; adjective; use and used (the verb that suits it, "kick", "kicked").
Forms of a place: (none) or the "the park"; at; to; noun. Texts stand as they are; other values give their attribute.
"""

from collections.abc import Callable
from random import Random

from linnet.stories.entities import PRONOUNS, Character, Characters, Item, Location
from linnet.stories.language import indefinite, listed, possessive, with_article
from linnet.stories.mentions import Mentions, number_gender

PRONOUN_SHARE = 0.75
"""How often a pronoun is used where it would be clear, for someone named in the sentence before."""
GROUP_PRONOUN_SHARE = 0.7


class Referrer:
    """Chooses referring expressions and records them in `mentions`."""

    def __init__(self, rng: Random) -> None:
        self.mentions = Mentions()
        self._rng = rng
        self._character_forms: dict[str, Callable[[Character], str]] = {
            "": self._subject,
            "him": lambda who: self._by_pronoun(who, 1) or self._noun_phrase(who),
            "his": self._possessive,
            "np": self._noun_phrase,
            "name": self._name,
            "intro": self._presented,
            "kind": lambda who: with_article(f"{who.look} {who.species}"),
            "title": self._title,
            "species": lambda who: who.species,
            "own": lambda who: self._plain_pronoun(who, 2),
            "pro": lambda who: self._plain_pronoun(who, 0),
            "was": lambda who: "was",
        }
        self._group_forms: dict[str, Callable[[Characters], str]] = {
            "": self._group,
            "title": lambda group: self._grouped(group, [self._title(member) for member in group]),
            "own": lambda group: "their",
            "pro": lambda group: "they",
            "was": lambda group: "were",
        }
        self._item_forms: dict[str, Callable[[Item], str]] = {
            "": self._item,
            "a": self._indefinite_item,
            "full": lambda item: self._noted_item(item, f"{item.adjective} {item.noun}"),
            "noun": lambda item: self._noted_item(item, item.noun),
            "it": self._item_pronoun,
            "obj": lambda item: PRONOUNS[number_gender(item)].object,
            "was": lambda item: "were" if item.thing.number == "many" else "was",
            "use": lambda item: item.thing.use.base,
            "used": lambda item: item.thing.use.past,
            "adjective": lambda item: item.adjective,
        }

    def refer(self, value: object, form: str) -> str:
        """The words for `value` in the given form; an unknown form is a mistake of a phrasing (KeyError)."""
        if isinstance(value, str):
            assert not form, f"a text has no form {form}"
            return value
        if isinstance(value, Character):
            return self._character_forms[form](value)
        if isinstance(value, tuple):
            return self._character_forms[form](value[0]) if len(value) == 1 else self._group_forms[form](value)
        if isinstance(value, Item):
            return self._item_forms[form](value)
        if isinstance(value, Location):
            return str(getattr(value, form or "the"))
        return str(getattr(value, form))

    def _subject(self, who: Character) -> str:
        return self._by_pronoun(who, 0) or self._noun_phrase(who)

    def _by_pronoun(self, who: Character, case: int) -> str:
        clear = self.mentions.is_clear(who)
        if not clear or (who not in self.mentions.current and self._rng.random() > PRONOUN_SHARE):
            return ""
        self.mentions.note_pronoun(who)
        return PRONOUNS[who.gender][case]

    def _possessive(self, who: Character) -> str:
        if self.mentions.is_clear(who):
            self.mentions.note_pronoun(who)
            return PRONOUNS[who.gender].possessive
        return possessive(self._noun_phrase(who))

    def _noun_phrase(self, who: Character) -> str:
        if who.relation == "parent":
            return self._parent(who)
        if who not in self.mentions.known:
            return self._introduction(who)
        return self._name(who) if who.name else self._described(who)

    def _described(self, who: Character) -> str:
        self.mentions.note(who)
        return f"the {who.species}"

    def _parent(self, who: Character) -> str:
        assert who.anchor is not None
        is_new = who not in self.mentions.known
        if not is_new and (self._rng.random() < 0.5 or not self.mentions.is_clear(who.anchor)):
            return self._name(who)
        phrase = f"{self._possessive(who.anchor)} {who.species}"
        self.mentions.note(who)
        return phrase

    def _name(self, who: Character) -> str:
        self.mentions.note(who)
        return who.label

    def _title(self, who: Character) -> str:
        name = self._name(who)
        return name if who.is_child else f"{name} the {who.species}"

    def _introduction(self, who: Character) -> str:
        if who.anchor is None or who.relation == "stranger":
            return self._presented(who)
        owner = self._possessive(who.anchor)
        if who.relation == "pet":
            return f"{owner} {who.species} {self._name(who)}"
        return f"{owner} friend {self._title(who)}"

    def _presented(self, who: Character) -> str:
        self.mentions.note(who)
        named = f" named {who.name}" if who.name else ""
        return with_article(f"{who.look} {who.species}{named}")

    def _plain_pronoun(self, who: Character, case: int) -> str:
        self.mentions.note_pronoun(who)
        return PRONOUNS[who.gender][case]

    def _group(self, group: Characters) -> str:
        here = group[0] in self.mentions.current
        if self.mentions.is_clear_group(group) and (here or self._rng.random() < GROUP_PRONOUN_SHARE):
            for member in group:
                self.mentions.current[member] = False
            return PRONOUNS["many"].subject
        return self._grouped(group, [self._noun_phrase(member) for member in group])

    def _grouped(self, group: Characters, names: list[str]) -> str:
        for member in group:
            self.mentions.note(member, alone=False)
        return listed(names)

    def _item(self, item: Item) -> str:
        if item not in self.mentions.known:
            return self._indefinite_item(item)
        described = self._rng.random() < 0.2 and item not in self.mentions.previous
        return self._noted_item(item, f"the {item.adjective} {item.noun}" if described else f"the {item.noun}")

    def _indefinite_item(self, item: Item) -> str:
        return self._noted_item(item, indefinite(item))

    def _noted_item(self, item: Item, phrase: str) -> str:
        self.mentions.note(item)
        return phrase

    def _item_pronoun(self, item: Item) -> str:
        if not self.mentions.is_clear(item):
            return self._item(item)
        self.mentions.note_pronoun(item)
        return PRONOUNS[number_gender(item)].object
