"""A comparison: its typed description (one text, model and recipe, and runs that differ from it), and its folder."""

import json
from collections.abc import Sequence
from pathlib import Path
from typing import Any, Literal, Self

from pydantic import Field, SerializerFunctionWrapHandler, model_serializer, model_validator

from linnet.core.errors import UserError
from linnet.core.spec import Amount, Count, Seed, Spec, Vocabulary, override, read_assignment, read_yaml
from linnet.evaluation.abilities.contract import Ability, TextAbility
from linnet.evaluation.abilities.suite import AnyAbility
from linnet.experiments.side_by_side.wanted import Wanted
from linnet.model.store import RUNS, read_description
from linnet.training.spec import RunSpec, run_of

Form = Literal["answer", "steps"]
"""The answer alone, or the steps that lead to it and then the answer."""


class TextSpec(Spec):
    """The text: `stories` of the built-in corpus (`names` of each kind), `files` as `linnet prepare` takes them, or so
    many `items` of an `ability`, whose answers alone are learned and measured.

    parts: it is cut into so many, document by document in its order; each run trains on one. The held-out documents are
    the same for all.
    forms: of an ability in words, how its questions are answered; each form is a part. The questions are the same.
    """

    stories: Amount | None = None
    names: Count = 3
    files: list[str] | None = Field(None, min_length=1)
    ability: AnyAbility | None = None
    items: Amount = 20_000
    parts: Count = 1
    forms: tuple[Form, ...] = ()

    @property
    def part_count(self) -> int:
        """How many parts a run can choose among."""
        return max(self.parts, len(self.forms))

    def ability_of(self, part: int) -> Ability:
        """What a run on that part (from 1) learns; only where there is an ability."""
        assert self.ability is not None
        return (
            self.ability.model_copy(update={"steps": self.forms[part - 1] == "steps"}) if self.forms else self.ability
        )

    @model_validator(mode="after")
    def _one_source(self) -> Self:
        given = [name for name in ("stories", "files", "ability") if getattr(self, name) is not None]
        if len(given) != 1:
            raise ValueError(
                f"{given[1] if given else 'stories'}: give one of stories, files, ability; the others null"
            )
        if self.ability is not None and self.parts > 1:
            raise ValueError(f"parts: {self.parts}: expected 1 with an ability, whose items can be any number")
        if self.forms and not isinstance(self.ability, TextAbility):
            raise ValueError(f"forms: {', '.join(self.forms)}: go with an ability in words, whose steps can be written")
        if len(set(self.forms)) < len(self.forms):
            raise ValueError(f"forms: {', '.join(self.forms)}: expected each once")
        return self

    @model_serializer(mode="wrap")
    def _as_before_abilities(self, plain: SerializerFunctionWrapHandler) -> dict[str, Any]:
        """Without what says nothing: a folder that was made before there were abilities is the same comparison's."""
        found: dict[str, Any] = plain(self)
        if self.ability is None:
            del found["ability"], found["items"]
        if not self.forms:
            del found["forms"]
        return found


class TokenizerSpec(Spec):
    """The tokenizer of all runs: a kind that is trained on the whole text, or a tokenizer.json."""

    kind: str = "bpe"
    vocab_size: Vocabulary | None = None


class ComparedSpec(Spec):
    """One of the runs, in what it differs.

    part: the part of the text that it trains on. set: fields of `model` and `training` by their paths.
    calibration_of: an earlier run, whose calibration on the empty prompt (same seed) is stored in this one.
    shown: false leaves it out of table and plot: it is there for another's sake.
    """

    name: str = Field(pattern=r"^\w+([ .-]\w+)*$")
    part: Count = 1
    set: dict[str, Any] = Field(default_factory=dict)
    calibration_of: str | None = None
    shown: bool = True

    @property
    def folder(self) -> str:
        """The name without blanks, which its folders begin with."""
        return self.name.replace(" ", "-")


def _decided(run: ComparedSpec) -> dict[str, str]:
    """The fields that a run cannot set, and what decides them."""
    fields = {"training.seed": "seeds", "data": "text and part"}
    return fields if run.calibration_of is None else {**fields, "model.calibration": "calibration_of"}


class ComparisonSpec(Spec):
    """A whole comparison: every run with every seed. evaluate: what is measured beside the likelihood."""

    name: str = "comparison"
    text: TextSpec
    tokenizer: TokenizerSpec = TokenizerSpec()
    model: str | dict[str, Any]
    training: dict[str, Any] = Field(default_factory=dict)
    seeds: tuple[Seed, ...] = Field((0, 1, 2), min_length=1)
    runs: list[ComparedSpec] = Field(min_length=1)
    evaluate: Wanted | None = None

    @model_validator(mode="after")
    def _symbols_have_their_tokenizer(self) -> Self:
        ability = self.text.ability
        if ability is not None and ability.alphabet and self.tokenizer != TokenizerSpec():
            raise ValueError("tokenizer: is decided by text.ability, whose symbols are tokens; leave it out")
        return self

    @model_validator(mode="after")
    def _runs_fit(self) -> Self:
        earlier: list[str] = []
        for index, run in enumerate(self.runs):
            if run.folder in {other.folder for other in self.runs[:index]}:
                raise ValueError(f"runs[{index}].name: {run.name}: is another run's; expected a new one")
            for field in sorted(run.set.keys() & _decided(run)):
                raise ValueError(f"runs[{index}].set: {field}: is decided by {_decided(run)[field]}; leave it out")
            if run.part > self.text.part_count:
                of = "the number of text.forms" if self.text.forms else "text.parts"
                raise ValueError(f"runs[{index}].part: {run.part}: expected at most {of}, {self.text.part_count}")
            if run.calibration_of is not None and run.calibration_of not in earlier:
                known = ", ".join(earlier) or "there is none"
                where = f"runs[{index}].calibration_of: {run.calibration_of}"
                raise ValueError(f"{where}: expected an earlier run: {known}")
            earlier.append(run.name)
        if len(set(self.seeds)) < len(self.seeds):
            raise ValueError(f"seeds: {self.seeds}: expected each once")
        if not any(run.shown for run in self.runs):
            raise ValueError("runs: none is shown; expected at least one")
        return self

    @classmethod
    def load(cls, path: str | Path, assignments: Sequence[str] = ()) -> Self:
        """Read a YAML file; `UserError` names the field that is wrong, in any of its runs.

        assignments: `training.steps=200` or `model.d_model=64` for all runs, as if the file said so.
        """
        plain = read_yaml(path)
        if not isinstance(plain, dict):
            raise UserError(f"{path}: expected a mapping with text, model, runs, found {type(plain).__name__}")
        spec = cls.parse(plain, str(path))
        if assignments:
            spec = spec.changed(assignments, str(path))
        for run in spec.runs:
            try:
                spec.run_of(run, spec.seeds[0], Path("data")).resolved()
            except UserError as error:
                raise UserError(f"{path}: runs: {run.name}: {error}") from None
        return spec

    def changed(self, assignments: Sequence[str], origin: str) -> Self:
        """The same with fields of `model` and `training` set for all runs; `UserError` names the assignment at fault.

        A field that a run sets itself is refused: which of the two is meant cannot be known.
        """
        for assignment in assignments:
            self._check_is_for_all(assignment)
        first = self.runs[0]
        own = [f"{field}={json.dumps(value)}" for field, value in first.set.items()]
        common = {"model": self.model, "training": dict(self.training)}
        if isinstance(self.model, str):
            common["model"] = read_description(self.model)
        changed = run_of({**override(common, own), "data": "data"}, list(assignments), origin)
        try:
            changed.resolved()
        except UserError as error:
            raise UserError(f"{origin}: {error}") from None
        if not any(assignment.startswith("model.") for assignment in assignments):
            common["model"] = self.model
        return self.model_copy(update=override(common, list(assignments)))

    def _check_is_for_all(self, assignment: str) -> None:
        field, _ = read_assignment(assignment)
        if not field.startswith(("model.", "training.")):
            raise UserError(field="set", value=assignment, accepted="a field of all runs, model.* or training.*")
        if field == "training.seed":
            raise UserError("is decided by seeds; leave it out", field="set", value=assignment)
        for run in self.runs:
            if field == "model.calibration" and run.calibration_of is not None:
                raise UserError(f"run {run.name!r} has calibration_of; change it there", field="set", value=assignment)
            for own in run.set:
                if f"{own}.".startswith(f"{field}.") or f"{field}.".startswith(f"{own}."):
                    raise UserError(
                        f"run {run.name!r} sets {own} itself; change it there", field="set", value=assignment
                    )

    def run(self, name: str) -> ComparedSpec:
        """The run of that name."""
        return next(run for run in self.runs if run.name == name)

    def run_of(self, run: ComparedSpec, seed: int, data: Path, calibrations: Path | None = None) -> RunSpec:
        """What is trained; `calibrations` is the file that `calibration_of` stands for."""
        assignments = [f"{field}={json.dumps(value)}" for field, value in run.set.items()]
        assignments.append(f"training.seed={seed}")
        if calibrations is not None:
            assignments.append(f"model.calibration={json.dumps(str(calibrations))}")
        plain = {"model": self.model, "data": str(data), "training": dict(self.training)}
        return run_of(plain, assignments, self.name, "set: ")


FIGURES, CURVES, DESCRIPTION = "comparison.json", "curves.png", "description.json"
DATA, CALIBRATIONS = "data", "calibrations"


def run_folder(out: Path, run: ComparedSpec, seed: int) -> Path:
    """Where a run lies."""
    return out / RUNS / f"{run.folder}-seed-{seed}"


def taught_file(out: Path, teacher: ComparedSpec, seed: int) -> Path:
    """Where the calibrations lie that a run taught others."""
    return out / CALIBRATIONS / f"{teacher.folder}-seed-{seed}.safetensors"
