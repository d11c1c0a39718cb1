"""Who was mentioned just now, and whether a pronoun can mean only one of them."""

from linnet.stories.entities import Character, Characters, Item

Entity = Character | Item
MAX_PRONOUN_RUN = 2
"""After so many sentences that only say "she", the name comes again."""


def number_gender(entity: Entity) -> str:
    """The row of `PRONOUNS` for an entity."""
    if isinstance(entity, Character):
        return entity.gender
    return "many" if entity.thing.number == "many" else "n"


class Mentions:
    """The entities of this sentence and of the one before: True where mentioned alone, False as one of a group."""

    def __init__(self) -> None:
        self.known: set[Entity] = set()
        self.current: dict[Entity, bool] = {}
        self.previous: dict[Entity, bool] = {}
        self._run: dict[Entity, int] = {}

    def next_sentence(self) -> None:
        """What was mentioned in this sentence is now what was mentioned just before."""
        self.previous, self.current = self.current, {}

    def next_paragraph(self) -> None:
        """Nobody counts as mentioned, so that everybody is named anew."""
        self.previous, self.current = {}, {}
        self._run.clear()

    def note(self, entity: Entity, alone: bool = True) -> None:
        """The entity is mentioned here by a noun or name."""
        self.known.add(entity)
        self.current[entity] = alone
        self._run[entity] = 0

    def note_spoken(self, entity: Entity) -> None:
        """The entity was just named in speech, not by the narrator: that alone cannot give a pronoun its meaning."""
        self.current[entity] = False

    def note_pronoun(self, entity: Entity) -> None:
        """The entity is mentioned here by a pronoun."""
        if entity not in self.current:
            self.current[entity] = True
            self._run[entity] = self._run.get(entity, 0) + 1

    def is_clear(self, entity: Entity) -> bool:
        """Whether a pronoun here can mean only `entity`: it was just mentioned, and nobody else of its gender was."""
        if entity in self.current:
            return self.current[entity] and self._is_alone_in(entity, self.current)
        if not self.previous.get(entity) or self._run.get(entity, 0) >= MAX_PRONOUN_RUN:
            return False
        return self._is_alone_in(entity, self.previous) and self._is_alone_in(entity, self.current)

    def is_clear_group(self, group: Characters) -> bool:
        """Whether "they" can mean only this group."""
        if any(number_gender(other) == "many" for other in (*self.previous, *self.current)):
            return False
        scope = self.current if group[0] in self.current else self.previous
        others = [other for other in scope if isinstance(other, Character) and other not in group]
        return not others and all(member in scope for member in group)

    def _is_alone_in(self, entity: Entity, scope: dict[Entity, bool]) -> bool:
        kind = number_gender(entity)
        return all(other is entity or number_gender(other) != kind or other == entity for other in scope)
