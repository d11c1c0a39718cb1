"""The description of a mixture (mixture.yaml): how much of each named source a run reads, and when."""

import os
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Annotated, Any, ClassVar, Literal, Self, TypeVar

from pydantic import BeforeValidator, Field, NonNegativeFloat, PositiveFloat, field_validator, model_validator

from linnet.core.errors import UserError, did_you_mean
from linnet.core.spec import Amount, Spec, read_yaml

T = TypeVar("T")

MIXTURE_SUFFIXES = (".yaml", ".yml")
"""How the name of a file ends that may describe a mixture, in lower case."""

PUBLISHED: dict[str, dict[str, float]] = {
    "palm": {"webpages": 0.31, "books": 0.14, "conversation": 0.50, "code": 0.05},
    "llama": {"webpages": 0.865, "books": 0.045, "conversation": 0.02, "code": 0.045, "science": 0.025},
    "gpt3": {"webpages": 0.85, "books": 0.16},
}
"""Shares of published models by kind of text.

`palm`: arXiv 2204.02311, table 2, with Wikipedia among the web pages and news among the books. `llama`: arXiv
2302.13971, table 1, with Wikipedia among the web pages and Stack Exchange as conversation. `gpt3`: arXiv 2005.14165,
table 2.2, whose shares are rounded.
"""


class SourceSpec(Spec):
    """One named source.

    inputs, field, separator: what `prepare` reads, as its arguments of these names. weight: its share, relative to the
    other weights. epochs: instead, how often it is read in the time in which another source with `epochs: 1` is read
    once. max_epochs: it is read at most so often, the rest of its share goes to the others; null: as the mixture says.
    """

    other_names: ClassVar[Mapping[str, str]] = {
        **dict.fromkeys(("file", "files", "path", "paths", "input", "folder", "data", "dataset", "glob"), "inputs"),
        **dict.fromkeys(("column", "key", "text_field", "text_column"), "field"),
        **dict.fromkeys(("delimiter", "document_separator"), "separator"),
        **dict.fromkeys(("share", "ratio", "proportion", "probability", "fraction"), "weight"),
        **dict.fromkeys(("repeat", "repeats", "passes"), "epochs"),
    }

    inputs: tuple[str, ...] = ()
    field: str | None = None
    separator: str | None = None
    weight: NonNegativeFloat | None = None
    epochs: NonNegativeFloat | None = None
    max_epochs: PositiveFloat | None = None

    @field_validator("inputs", mode="before")
    @classmethod
    def _one_or_several(cls, inputs: Any) -> Any:
        return [inputs] if isinstance(inputs, str) else inputs

    @model_validator(mode="after")
    def _one_share(self) -> Self:
        if self.weight is not None and self.epochs is not None:
            raise ValueError(f"weight: {self.weight} and epochs: {self.epochs}: give one of the two")
        return self


class CurriculumStage(Spec):
    """After so many steps, other weights; sources that are left out are not read."""

    after_step: Amount
    weights: dict[str, NonNegativeFloat]


class MixtureSpec(Spec):
    """The sources of a training text, and the share of each (mixture.yaml).

    by: weights are shares of the bytes of text, or of the tokens. preset: the weights of a published model
    (`PUBLISHED`), for sources of its names. max_epochs: of every source that gives none of its own; null: no bound.
    curriculum: other weights later in the run; before the first stage the sources' own weights apply.
    """

    other_names: ClassVar[Mapping[str, str]] = {
        **dict.fromkeys(("source", "files", "inputs", "data", "datasets", "corpora"), "sources"),
        **dict.fromkeys(("stages", "schedule"), "curriculum"),
    }

    preset: Literal["palm", "llama", "gpt3"] | None = None
    by: Literal["bytes", "tokens"] = "bytes"
    sources: Annotated[dict[str, SourceSpec], Field(min_length=1)]
    max_epochs: PositiveFloat | None = None
    curriculum: tuple[CurriculumStage, ...] = ()

    @model_validator(mode="after")
    def _fields_fit(self) -> Self:
        for kind in ("weight", "epochs"):
            given = [name for name, source in self.sources.items() if getattr(source, kind) is not None]
            if given and self.preset is not None:
                raise ValueError(f"sources.{given[0]}.{kind}: cannot be combined with preset: {self.preset}")
            if given and len(given) < len(self.sources):
                missing = next(name for name in self.sources if name not in given)
                raise ValueError(f"sources.{missing}: no {kind}; {given[0]} has one, so every source needs one")
        steps = [stage.after_step for stage in self.curriculum]
        if steps != sorted(set(steps)):
            raise ValueError(f"curriculum: after_step {', '.join(map(str, steps))}: must ascend")
        self._check_weights()
        return self

    def _check_weights(self) -> None:
        places = {f"curriculum[{number}].weights": stage.weights for number, stage in enumerate(self.curriculum)}
        for place, weights in places.items():
            for name in weights:
                if name not in self.sources:
                    known = f"the mixture has {', '.join(self.sources)}"
                    raise ValueError(f"{place}.{name}: no such source; {did_you_mean(name, self.sources, known)}")
        if self.preset is not None:
            of_preset = PUBLISHED[self.preset]
            for name in self.sources:
                if name not in of_preset:
                    raise ValueError(f"sources.{name}: not in preset: {self.preset}, which has {', '.join(of_preset)}")
        own = self.own_weights
        for place, weights in {"sources": own or {"": 1.0}, **places}.items():
            if sum(weights.values()) <= 0:
                raise ValueError(f"{place}: every weight is 0; expected at least one above 0")

    @property
    def own_weights(self) -> dict[str, float] | None:
        """The weight of each source before any curriculum; None if sources have `epochs`, or nothing, instead."""
        if self.preset is not None:
            return {name: PUBLISHED[self.preset][name] for name in self.sources}
        weights = {name: source.weight for name, source in self.sources.items() if source.weight is not None}
        return weights or None


def open_each_source(
    mixture: MixtureSpec, kinds: str, read: Callable[[SourceSpec], list[T]], file_of: Callable[[T], str]
) -> tuple[list[T], list[str]]:
    """What `read` opens of each source, one source after the other, and the name of the source of each.

    kinds: what messages say that inputs are. file_of: the file of what was opened. `UserError` names the source that is
    wrong, and a file of two sources, however each names it.
    """
    opened, names = list[T](), list[str]()
    for name, spec in mixture.sources.items():
        place = f"mixture.sources.{name}"
        if not spec.inputs:
            raise UserError(field=f"{place}.inputs", accepted=kinds)
        try:
            found = read(spec)
        except UserError as error:
            raise UserError(f"{place}: {error}") from None
        opened += found
        names += [name] * len(found)
    owners: dict[str, str] = {}
    for file, name in zip(map(file_of, opened), names, strict=True):
        owner = owners.setdefault(os.path.realpath(file), name)
        if owner != name:
            raise UserError(f"mixture: {file} is of {owner} and of {name}; expected one source")
    return opened, names


def read_mixture(value: Any) -> Any:
    """Plain data of a mixture; a path is read as YAML."""
    return read_yaml(value) if isinstance(value, str | Path) else value


MixtureField = Annotated[MixtureSpec, BeforeValidator(read_mixture)]
"""A mixture, or the path of a file with one."""
