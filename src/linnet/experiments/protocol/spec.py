"""What a protocol asks for. It names no model and no folder of questions: those are whoever's who repeats it."""

from pathlib import Path
from typing import Self

from pydantic import Field, model_validator

from linnet.core.errors import UserError
from linnet.core.guess import meant
from linnet.core.spec import Count, Seed, Spec, read_yaml
from linnet.evaluation.tasks.suite import suite_spec


class ScoresSpec(Spec):
    """Scores of a suite, models as rows.

    columns: of each heading its task, or average, of the suite. operators: what is put in the place of the operators of
    models that have some, as further rows: `identity`, `random` (from `seed`), or a file. without_kv_cache: another row
    in which every choice is read with its whole context, no state being shared.
    """

    suite: str
    columns: dict[str, str] = Field(min_length=1)
    operators: list[str] = Field(default_factory=list)
    seed: Seed = 0
    without_kv_cache: bool = False

    def check(self) -> None:
        """`UserError` for a suite, or a task of it, that there is not."""
        suite = suite_spec(self.suite)
        known = [*(task.name for task in suite.tasks), *suite.averages]
        for heading, task in self.columns.items():
            if task not in known:
                accepted = f"expected one of {', '.join(known)}"
                said = "; ".join(part for part in (meant(task, known, ""), accepted) if part)
                raise UserError(said, field=f"columns.{heading}", value=task)


class DeducedSpec(Spec):
    """Deductive outputs of models that deduce operators, with and without caches, after so many tokens."""

    prompt: str = ""
    tokens: Count = 100


class Protocol(Spec):
    """Sections that are left out are not measured. source: the paper, as one cites it."""

    title: str = Field(min_length=1)
    source: str
    scores: ScoresSpec | None = None
    deduced: DeducedSpec | None = None

    @model_validator(mode="after")
    def _asks_something(self) -> Self:
        if self.scores is None and self.deduced is None:
            raise ValueError("nothing to measure; expected at least one of scores, deduced")
        return self

    @classmethod
    def load(cls, path: str | Path) -> Self:
        """From a YAML file; `UserError` names the field that is wrong."""
        plain = read_yaml(path)
        if not isinstance(plain, dict):
            raise UserError(f"{path}: expected a mapping with some of {', '.join(cls.model_fields)}")
        found = cls.parse(plain, str(path))
        if found.scores is not None:
            try:
                found.scores.check()
            except UserError as error:
                raise UserError(f"{path}: scores.{error}") from None
        return found
