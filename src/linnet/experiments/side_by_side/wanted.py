"""What is to be measured of every model beside its likelihood: the section `evaluate` of a comparison's file."""

from collections.abc import Sequence
from pathlib import Path
from typing import Annotated

from pydantic import Field

from linnet.core.bounds import MAX_TASK_SHOTS
from linnet.core.errors import UserError
from linnet.core.spec import Count, Seed, Spec, read_yaml
from linnet.evaluation.abilities.contract import Ability
from linnet.evaluation.abilities.suite import default_abilities as ability_suite
from linnet.evaluation.abilities.suite import read_abilities
from linnet.evaluation.tasks.suite import Suite, load_tasks
from linnet.experiments.side_by_side.published import METRICS
from linnet.inference.sampling import LOWEST_TEMPERATURE, Sampling


class WantedTasks(Spec):
    """Multiple choice, as `linnet evaluate` asks it: a `suite` with its `files`, or a `task_file`."""

    suite: str | None = None
    files: str | None = None
    task_file: str | None = None
    shots: int | None = Field(None, ge=0, le=MAX_TASK_SHOTS)
    limit: Count | None = None

    @property
    def paths(self) -> list[str]:
        """The files and folders that are named."""
        return [path for path in (self.files, self.task_file) if path is not None]

    def load(self) -> Suite:
        """The tasks; `UserError` for files that are missing or cannot be read, and for the name of another figure."""
        found = load_tasks(self.suite, self.files, self.task_file, self.shots, self.limit)
        for name in found.names:
            if name in METRICS:
                raise UserError(f"{name}: a figure that is no task has that name; call the file of the task otherwise")
        return found


class WantedAbilities(Spec):
    """So many generated questions of each ability; those of `files`, or the suite of all."""

    items: Count = 200
    files: list[str] = Field(default_factory=list)
    seed: Seed = 0

    @property
    def paths(self) -> list[str]:
        """The files that are named."""
        return self.files

    def load(self) -> list[Ability]:
        """The abilities; `UserError` for a file that is missing or cannot be read."""
        found = [ability for file in self.files for ability in read_abilities(file)]
        return found or ability_suite()


Temperature = Annotated[float, Field(ge=0)]


class WantedSamples(Spec):
    """What every model writes behind the same prompts, so many tokens at most, drawn from the same seed."""

    prompts: list[str] = Field(default_factory=lambda: [""], min_length=1)
    tokens: Count = 100
    temperature: Temperature = 0.8
    top_p: float = Field(1.0, ge=0, le=1)
    seed: Seed = 0

    @property
    def sampling(self) -> Sampling:
        """How the tokens are chosen."""
        return Sampling(self.temperature, top_p=self.top_p, seed=self.seed)


class WantedSpeed(Spec):
    """Decoding of one stream: so many tokens in each of several runs, the models taking turns."""

    tokens: Count = 200


class Wanted(Spec):
    """What is wanted; what is left out is not measured, and has no place on the page.

    Files are looked for from the working folder, as all that a description names.
    """

    tasks: WantedTasks | None = None
    abilities: WantedAbilities | None = None
    samples: WantedSamples | None = None
    speed: WantedSpeed | None = None

    @classmethod
    def load(cls, path: str | Path) -> "Wanted":
        """From a YAML file, whose sections are these; `UserError` names the field that is wrong."""
        plain = read_yaml(path)
        if not isinstance(plain, dict):
            raise UserError(f"{path}: expected a mapping with some of {', '.join(cls.model_fields)}")
        return cls.parse(plain, str(path))

    def check(self, origin: str) -> None:
        """`UserError` with `origin` in front where a file of questions cannot be read, before anything takes time."""
        asked = {"tasks": self.tasks, "abilities": self.abilities}
        for name, section in ((name, section) for name, section in asked.items() if section is not None):
            try:
                section.load()
            except UserError as error:
                raise UserError(f"{origin}: {name}: {error}{_looked_for(section.paths)}") from None
        if self.samples is not None and 0 < self.samples.temperature < LOWEST_TEMPERATURE:
            raise UserError(f"{origin}: samples: temperature: {self.samples.temperature}: expected 0 or more than 1e-6")


def _looked_for(paths: Sequence[str]) -> str:
    """Where the first of these that is not there was looked for; nothing where that is plain, or all are there."""
    gone = [path for path in paths if not Path(path).is_absolute() and not Path(path).exists()]
    return f"; {gone[0]} is looked for in the working folder, {Path.cwd()}" if gone else ""
