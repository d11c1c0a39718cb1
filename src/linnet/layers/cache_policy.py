"""Cache policies: what a state keeps of the past of its stream. The caller chooses one per stream, or one per layer.

Every layer supports `FULL`. A kind of layer may define policies of its own (`SublayerSpec.cache_policies`), which are
found through the registry by their names.
"""

from collections.abc import Mapping
from dataclasses import asdict, dataclass, fields
from typing import Any, ClassVar, Self, get_type_hints


@dataclass(frozen=True)
class CachePolicy:
    """A policy is a frozen dataclass of numbers with a name.

    example: its fields as a user writes them, for error messages; empty if none has to be set.
    """

    name: ClassVar[str] = ""
    example: ClassVar[str] = ""

    @property
    def label(self) -> str:
        """Its name in tables."""
        return self.name

    @property
    def series(self) -> tuple[str, str] | None:
        """The name of a series of policies that differ in one number only, and that number; None if it is in none."""
        return None

    def to_dict(self) -> dict[str, Any]:
        """Its name as `kind`, and its fields."""
        return {"kind": self.name, **asdict(self)}

    def for_length(self, tokens: int) -> Self:
        """The policy for a stream of this many tokens, with the fields that depend on the length filled in."""
        return self

    @property
    def max_length(self) -> int | None:
        """The longest stream, in tokens, that a state which began with this policy can hold; None: no limit."""
        return None

    def check_length(self, tokens: int) -> None:
        """Raise `UserError` if a stream with this policy cannot grow to this many tokens."""

    @classmethod
    def comparison(cls, tokens: int) -> list[Self]:
        """The policies that an evaluation on windows of this many tokens compares with `FULL` by default."""
        return []

    @classmethod
    def sweep(cls, tokens: int) -> list[Self]:
        """The policies that a comparison of quality and memory covers by default."""
        return cls.comparison(tokens)

    @classmethod
    def examples(cls) -> list[Self]:
        """Policies for streams of a few tokens that together cover its code; the contract tests use them all."""
        return [cls()]

    @classmethod
    def from_text(cls, values: Mapping[str, str]) -> Self:
        """The policy with fields as a user wrote them; `ValueError` for a field that is no number or out of bounds."""
        numbers: dict[str, Any] = {}
        for name, kind in cls.field_types().items():
            if name in values:
                try:
                    numbers[name] = kind(values[name])
                except ValueError:
                    expected = "a number" if kind is float else "a whole number"
                    raise ValueError(f"{name}: {values[name]!r}: expected {expected}") from None
        return cls(**numbers)

    @classmethod
    def field_types(cls) -> dict[str, type[int] | type[float]]:
        """The type of each field: whole or real numbers."""
        hints = get_type_hints(cls)
        return {field.name: float if hints[field.name] is float else int for field in fields(cls)}


@dataclass(frozen=True)
class FullCache(CachePolicy):
    """Keep every token, and what was calibrated on the first chunk."""

    name: ClassVar[str] = "full"


@dataclass(frozen=True)
class RecalibratingCache(CachePolicy):
    """Keep the inputs of a calibration instead of its result, and compute it again for every chunk."""

    name: ClassVar[str] = "recalibrate"


FULL = FullCache()
