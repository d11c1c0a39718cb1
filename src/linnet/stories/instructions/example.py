"""One instruction with its reference answer and its checker, and what the splits keep apart.

The splits:

- `train`: settings of the training split of the stories, the first `TRAIN_NAMES` names of each kind, the templates for
  training.
- `validation`: the other settings; names and templates as in training.
- `held-out-names`: settings as in `validation`; names that no other split has.
- `held-out-templates`: settings as in `validation`; templates that no other split has.
"""

import re
from collections.abc import Sequence
from dataclasses import dataclass
from random import Random
from typing import Any, Literal, get_args

from linnet.stories.casting import ALL_NAMES
from linnet.stories.corpus import Story, story
from linnet.stories.stage import Signature, split_of
from linnet.stories.stage import Split as StorySplit
from linnet.stories.vocabulary.people import ANIMAL_NAMES, BOYS, GIRLS

InstructionSplit = Literal["train", "validation", "held-out-names", "held-out-templates"]
SPLITS: tuple[InstructionSplit, ...] = get_args(InstructionSplit)

TRAIN_NAMES = 9
"""Names of each kind (girls, boys, animals) in every split but `held-out-names`, which has the others."""

Plain = dict[str, Any]

_GENDERS = {
    **dict.fromkeys(GIRLS, "f"),
    **dict.fromkeys(BOYS, "m"),
    **dict(ANIMAL_NAMES),
}
SEEN_NAMES = (*GIRLS[:TRAIN_NAMES], *BOYS[:TRAIN_NAMES], *(name for name, _ in ANIMAL_NAMES[:TRAIN_NAMES]))
HELD_OUT_NAMES = tuple(name for name in _GENDERS if name not in SEEN_NAMES)
CHILDREN = (*GIRLS[:TRAIN_NAMES], *BOYS[:TRAIN_NAMES])
assert TRAIN_NAMES < ALL_NAMES

_NAME = re.compile(rf"\b(?:{'|'.join((*SEEN_NAMES, *map(str.upper, SEEN_NAMES)))})\b")


@dataclass(frozen=True)
class Templates:
    """Ways to ask for the same: `seen` ones, and those of the split `held-out-templates`."""

    seen: tuple[str, ...]
    held_out: tuple[str, ...]

    def of(self, split: InstructionSplit) -> tuple[str, ...]:
        """The templates of a split."""
        return self.held_out if split == "held-out-templates" else self.seen


class Draws:
    """The dice of one example: they draw the setting and the templates of its split, and note which templates."""

    def __init__(self, rng: Random, split: InstructionSplit) -> None:
        self.rng, self.split, self.templates = rng, split, list[str]()

    @property
    def story_split(self) -> StorySplit:
        """The split of the stories that the setting belongs to."""
        return "train" if self.split == "train" else "validation"

    def story(self) -> Story:
        """Draw a story of the split."""
        return story(self.rng.getrandbits(32), 0, self.story_split, TRAIN_NAMES)

    def owns(self, *signature: object) -> bool:
        """True if a setting that is no story belongs to the split."""
        return split_of(tuple(map(str, signature))) == self.story_split

    def template(self, templates: Templates) -> str:
        """Draw a template of the split, and note it."""
        chosen = self.rng.choice(templates.of(self.split))
        self.templates.append(chosen)
        return chosen


@dataclass(frozen=True)
class InstructionExample:
    """Messages that end with the reference answer, which passes the checker.

    rejected: an answer that does not pass. chance: the probability that a guess among the answers that the text offers
    is right; 0 where there is no such list. signature: the setting, which no two of `train` and the rest share.
    tool_rounds: how often the calls of an answer are run before the checker judges.
    """

    type: str
    messages: tuple[Plain, ...]
    checker: Plain
    rejected: str
    chance: float
    signature: Signature
    tool_rounds: int = 0

    def to_dict(self, draws: Draws) -> Plain:
        """The row of a file: messages, checker and the rest; of `held-out-names` with other names."""
        row: Plain = {
            "messages": list(self.messages),
            "checker": self.checker,
            "type": self.type,
            "rejected": self.rejected,
            "chance": self.chance,
            "split": draws.split,
            "signature": list(self.signature),
            "templates": draws.templates,
            **({"tool_rounds": self.tool_rounds} if self.tool_rounds else {}),
        }
        return _renamed(row, draws.rng) if draws.split == "held-out-names" else row


def asked(question: str, answer: str) -> tuple[Plain, ...]:
    """A question of the user and an answer."""
    return {"role": "user", "content": question}, {"role": "assistant", "content": answer}


def all_of(*checkers: Plain) -> Plain:
    """A checker of all of these."""
    return checkers[0] if len(checkers) == 1 else {"kind": "all", "checkers": list(checkers)}


def mentions(right: Sequence[str], wrong: Sequence[str] = (), at_most: int | None = None) -> Plain:
    """A checker: the right words occur and the wrong ones do not, in at most so many words."""
    lacks = [{"kind": "lacks", "words": list(wrong)}] if wrong else []
    length = [{"kind": "length", "unit": "words", "at_most": at_most}] if at_most else []
    return all_of({"kind": "contains", "words": list(right)}, *lacks, *length)


def _renamed(row: Plain, rng: Random) -> Plain:
    """The row with held-out names in place of all names, of the same gender."""
    found = list(dict.fromkeys(name.capitalize() for text in _texts(row) for name in _NAME.findall(text)))
    pools = {gender: [name for name in HELD_OUT_NAMES if _GENDERS[name] == gender] for gender in ("f", "m")}
    for pool in pools.values():
        rng.shuffle(pool)
    new = {name: pools[_GENDERS[name]].pop() for name in found}

    def name_for(match: re.Match[str]) -> str:
        name = new[match[0].capitalize()]
        return name.upper() if match[0].isupper() else name

    def renamed(value: Any) -> Any:
        if isinstance(value, str):
            return _NAME.sub(name_for, value)
        if isinstance(value, list):
            return [renamed(item) for item in value]
        return {renamed(key): renamed(item) for key, item in value.items()} if isinstance(value, dict) else value

    changed = renamed(row)
    assert isinstance(changed, dict)
    return changed


def _texts(value: Any) -> list[str]:
    """All texts of plain data, in order."""
    if isinstance(value, str):
        return [value]
    parts: list[Any] = [*value.keys(), *value.values()] if isinstance(value, dict) else []
    parts = value if isinstance(value, list) else parts
    return [text for part in parts for text in _texts(part)]
