"""Cache policies: what a state keeps of the past of its stream. The caller chooses one per stream, or one per layer.

Every layer knows `FULL`. A kind of layer may bring policies of its own (`SublayerSpec.cache_policies`), which are found
through the registry by their names.
"""

from collections.abc import Mapping
from dataclasses import asdict, dataclass, fields
from typing import Any, ClassVar, Self, get_type_hints

from linnet.core.errors import UserError


@dataclass(frozen=True)
class CachePolicy:
    """A policy is a frozen dataclass of numbers with a name.

    example: how its fields are written, for error messages; empty if it has none that need to be set.
    """

    name: ClassVar[str] = ""
    example: ClassVar[str] = ""

    @property
    def label(self) -> str:
        """How tables call it."""
        return self.name

    @property
    def series(self) -> tuple[str, str] | None:
        """The series of policies that it belongs to, of which only one number differs, and that number; None: none."""
        return None

    def to_dict(self) -> dict[str, Any]:
        """Its name as `kind`, and its fields."""
        return {"kind": self.name, **asdict(self)}

    def for_length(self, tokens: int) -> Self:
        """The policy for a stream of this many tokens, where a field depends on that and was left open."""
        return self

    @property
    def max_length(self) -> int | None:
        """The longest stream, in tokens, that a state which began with this policy can hold; None: no limit."""
        return None

    def check_length(self, tokens: int) -> None:
        """Raise `UserError` if a stream that began with this policy cannot grow to so many tokens."""

    @classmethod
    def comparison(cls, tokens: int) -> list[Self]:
        """The policies that an evaluation on windows of this many tokens shows beside `FULL`, unless told otherwise."""
        return []

    @classmethod
    def sweep(cls, tokens: int) -> list[Self]:
        """The policies that a comparison of quality and memory tries, unless told otherwise."""
        return cls.comparison(tokens)

    @classmethod
    def from_text(cls, values: Mapping[str, str]) -> Self:
        """The policy with fields as a user wrote them; `ValueError` for what is not a number, or beyond a bound."""
        numbers: dict[str, Any] = {}
        for name, kind in cls.field_types().items():
            if name in values:
                try:
                    numbers[name] = kind(values[name])
                except ValueError:
                    wanted = "a number" if kind is float else "a whole number"
                    raise ValueError(f"{name}: {values[name]!r}: expected {wanted}") from None
        return cls(**numbers)

    @classmethod
    def field_types(cls) -> dict[str, type[int] | type[float]]:
        """The kind of number of each field."""
        hints = get_type_hints(cls)
        return {field.name: float if hints[field.name] is float else int for field in fields(cls)}


@dataclass(frozen=True)
class FullCache(CachePolicy):
    """Keep every token, and what was calibrated on the first chunk."""

    name: ClassVar[str] = "full"


@dataclass(frozen=True)
class RecalibratingCache(CachePolicy):
    """Keep what a calibration is computed from instead of its result, and compute it anew at every chunk."""

    name: ClassVar[str] = "recalibrate"


FULL = FullCache()


def parse_cache_policy(
    text: str, policies: Mapping[str, type[CachePolicy]], field: str = "cache_policy"
) -> CachePolicy:
    """A policy from text: `NAME`, `NAME:FIELD=NUMBER,...`, or, if the fields tell which one, `FIELD=NUMBER,...`.

    `UserError` names `field`, the text and what is accepted.
    """
    name, colon, rest = text.partition(":")
    if name not in policies:
        name, rest = "", text
    elif not colon:
        return policies[name]()
    parts = rest.split(",")
    values = dict(part.split("=", 1) for part in parts if part.count("=") == 1)
    candidates = [
        policy
        for key, policy in policies.items()
        if name in ("", key) and len(values) == len(parts) and values.keys() <= policy.field_types().keys()
    ]
    if len(candidates) != 1:
        raise UserError(field=field, value=text, accepted=_accepted(policies))
    try:
        return candidates[0].from_text(values)
    except ValueError as error:
        raise UserError(str(error), field=field, value=text) from None


def _accepted(policies: Mapping[str, type[CachePolicy]]) -> str:
    names = [name for name, policy in policies.items() if not policy.example]
    shown = [
        f"{', '.join(policy.field_types())}, as in {policy.example}" for policy in policies.values() if policy.example
    ]
    return ", or ".join([", ".join(names), *shown])
