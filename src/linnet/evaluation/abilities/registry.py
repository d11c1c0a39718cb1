"""All abilities by their `kind`, the suite that `linnet evaluate` measures, and suites from files."""

from pathlib import Path
from typing import Annotated

from pydantic import Field

from linnet.core.spec import Spec, read_yaml
from linnet.evaluation.abilities.ability import Ability
from linnet.evaluation.abilities.arithmetic import Arithmetic
from linnet.evaluation.abilities.copying import Copying, SelectiveCopying, Sorting
from linnet.evaluation.abilities.counting import Brackets, Counting
from linnet.evaluation.abilities.facts import StoryFacts
from linnet.evaluation.abilities.needle import Needle
from linnet.evaluation.abilities.recall import Induction, Recall
from linnet.evaluation.abilities.rules import Rules
from linnet.evaluation.abilities.tracking import Tracking
from linnet.evaluation.abilities.whereabouts import Whereabouts

AnyAbility = Annotated[
    Arithmetic | Brackets | Copying | Counting | StoryFacts | Induction | Needle | Recall | Rules | SelectiveCopying
    | Sorting | Tracking | Whereabouts,
    Field(discriminator="kind"),
]  # fmt: skip


class AbilitySuiteSpec(Spec):
    """A file of abilities."""

    abilities: list[AnyAbility] = Field(min_length=1)


def read_abilities(path: str | Path) -> list[Ability]:
    """The abilities of a YAML file, `abilities: [{kind: recall, pairs: 64}, ...]`; `UserError` names the field."""
    return list(AbilitySuiteSpec.parse(read_yaml(path), str(path)).abilities)


def suite() -> list[Ability]:
    """Every kind, at a size that a small model can be asked, and what makes it harder."""
    return [
        Copying(),
        *(Recall(pairs=pairs, key_symbols=max(32, pairs), value_symbols=max(32, pairs)) for pairs in (8, 32, 256)),
        *(Recall(distance=distance) for distance in (256, 1 << 14)),
        Induction(),
        SelectiveCopying(),
        Counting(),
        Sorting(),
        Brackets(),
        *(Tracking(group=group) for group in ("s3", "s5")),
        Rules(),
        *(Arithmetic(shots=shots) for shots in (0, 1, 4)),
        *(Arithmetic(shots=1, instruction=True, steps=steps) for steps in (False, True)),
        *(StoryFacts(hops=hops) for hops in (1, 2, 3)),
        *(StoryFacts(shots=shots) for shots in (1, 2, 4)),
        StoryFacts(shots=1, instruction=True),
        StoryFacts(steps=True),
        *(Whereabouts(hops=hops) for hops in (1, 2)),
        Whereabouts(steps=True),
        *(Needle(words=words) for words in (100, 1000, 10_000)),
    ]
