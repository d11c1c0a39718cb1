"""What a protocol asks for. It names no model and no folder of questions: those are whoever's who repeats it."""

from pathlib import Path
from typing import Any, Self

from pydantic import Field, model_validator

from linnet.core.errors import UserError, did_you_mean
from linnet.core.spec import Count, Seed, Spec, read_yaml
from linnet.evaluation.tasks.suite import suite_spec
from linnet.layers.registry import inspections


class ScoresSpec(Spec):
    """Scores of a suite, models as rows.

    columns: of each heading its task, or average, of the suite. calibrations: what replaces the models' own, as
    further rows: `identity`, `random` (from `seed`), or a file. without_kv_cache: another row
    in which every choice is read with its whole context, no state being shared.
    """

    suite: str
    columns: dict[str, str] = Field(min_length=1)
    calibrations: list[str] = Field(default_factory=list)
    seed: Seed = 0
    without_kv_cache: bool = False

    def check(self) -> None:
        """`UserError` for a suite, or a task of it, that there is not."""
        suite = suite_spec(self.suite)
        known = [*(task.name for task in suite.tasks), *suite.averages]
        for heading, task in self.columns.items():
            if task not in known:
                accepted = f"expected one of {', '.join(known)}"
                said = "; ".join(part for part in (did_you_mean(task, known, ""), accepted) if part)
                raise UserError(said, field=f"columns.{heading}", value=task)


class OtherModel(Spec):
    """A model that Transformers runs: of a `config`, `model_type` in it, with random weights; or of a `folder`."""

    name: str = Field(min_length=1)
    config: dict[str, Any] | None = None
    folder: str | None = None

    @model_validator(mode="after")
    def _one_origin(self) -> Self:
        if (self.config is None) == (self.folder is None):
            raise ValueError("expected one of config, folder")
        if self.config is not None and not isinstance(self.config.get("model_type"), str):
            raise ValueError("config.model_type: missing; expected a kind of model that Transformers has, as gpt_neo")
        return self


class TimesSpec(Spec):
    """The time of so many `tokens` behind random ones, with each setting of the caches, and that of other models."""

    prompt_tokens: Count = 12
    tokens: Count = 100
    runs: Count = 5
    seed: Seed = 0
    against: list[OtherModel] = Field(default_factory=list)

    @model_validator(mode="after")
    def _names_differ(self) -> Self:
        names = [other.name for other in self.against]
        if len(set(names)) < len(names):
            raise ValueError(f"against: {', '.join(names)}: expected each name once")
        return self


class Protocol(Spec):
    """Sections that are left out are not measured. source: the paper, as one cites it.

    inspections: the options of each inspection that a kind of layer brings (`linnet inspect NAME`), by its name, of
    those that need no data; models without such layers are left out.
    """

    title: str = Field(min_length=1)
    source: str
    scores: ScoresSpec | None = None
    inspections: dict[str, dict[str, Any]] = Field(default_factory=dict)
    times: TimesSpec | None = None

    @model_validator(mode="after")
    def _asks_something(self) -> Self:
        if self.scores is None and not self.inspections and self.times is None:
            raise ValueError("nothing to measure; expected at least one of scores, inspections, times")
        return self

    @classmethod
    def load(cls, path: str | Path) -> Self:
        """From a YAML file; `UserError` names the field that is wrong."""
        plain = read_yaml(path)
        if not isinstance(plain, dict):
            raise UserError(f"{path}: expected a mapping with some of {', '.join(cls.model_fields)}")
        found = cls.parse(plain, str(path))
        found.check_inspections(str(path))
        if found.scores is not None:
            try:
                found.scores.check()
            except UserError as error:
                raise UserError(f"{path}: scores.{error}") from None
        return found

    def check_inspections(self, origin: str) -> None:
        """`UserError` for an inspection that there is not, or that asks for something else."""
        known = {name: one for name, one in inspections().items() if one.data != "required"}
        for name, options in self.inspections.items():
            if name not in known:
                raise UserError(f"{origin}: inspections.{name}: expected one of {', '.join(known)}")
            known[name].options.parse(options, f"{origin}: inspections.{name}")
