"""All abilities by `kind`, the default suite of `linnet evaluate --suite abilities`, and suites from YAML files."""

from collections.abc import Sequence
from pathlib import Path
from typing import Annotated

from pydantic import Field

from linnet.core.errors import UserError
from linnet.core.spec import Spec, read_yaml
from linnet.evaluation.abilities.contract import Ability
from linnet.evaluation.abilities.in_context import ShotsReport, measurement_count, shot_tasks, shots_curve
from linnet.evaluation.abilities.measure import AbilityReport, measure_all
from linnet.evaluation.abilities.symbols import (
    Brackets,
    Copying,
    Counting,
    Induction,
    Recall,
    Rules,
    SelectiveCopying,
    Sorting,
    Tracking,
)
from linnet.evaluation.abilities.texts import Arithmetic, Needle, StoryFacts, Whereabouts
from linnet.evaluation.models import ModelOptions
from linnet.present.progress import progress

ITEMS = 200
"""Items of each ability by default."""

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


def default_abilities() -> list[Ability]:
    """Every kind at a size for small models, and the harder variants."""
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


def evaluate_abilities(
    model: str | Path, files: Sequence[str | Path] = (), items: int = ITEMS, options: ModelOptions | None = None
) -> AbilityReport:
    """Measure a model folder, or a run, on the default abilities, or on those of YAML files."""
    options = options or ModelOptions()
    abilities = [ability for file in files for ability in read_abilities(file)] or default_abilities()
    results = measure_all(options.load(model), abilities, items, options.seed)
    return AbilityReport(str(model), options, items, results)


def evaluate_shots(
    model: str | Path,
    shots: Sequence[int],
    files: Sequence[str | Path] = (),
    items: int = ITEMS,
    options: ModelOptions | None = None,
) -> ShotsReport:
    """The same abilities at each of these numbers of examples; `UserError` if examples can be shown of none."""
    options = options or ModelOptions()
    abilities = [ability for file in files for ability in read_abilities(file)] or default_abilities()
    tasks = shot_tasks(abilities)
    if not tasks:
        raise UserError(f"{files[0]}: no ability with examples; expected arithmetic, facts, whereabouts or rules")
    loaded = options.load(model)
    with progress("measuring", sum(measurement_count(task, shots) for task in tasks), "measurements") as advance:
        curves = [shots_curve(loaded, task, shots, items, options.seed, advance) for task in tasks]
    return ShotsReport(str(model), options, items, shots, curves)
