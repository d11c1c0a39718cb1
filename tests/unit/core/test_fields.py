"""What is found in the type of a description."""

from typing import Annotated, Literal

from pydantic import Field, PositiveFloat

from linnet.core.fields import field_kinds, is_number_field
from linnet.core.spec import Count, Spec


class Inner(Spec):
    lr: PositiveFloat | None = None
    betas: tuple[float, float] = (0.9, 0.95)
    share: Annotated[float, Field(ge=0)] = 0.5


class Outer(Spec):
    size: Count = 1
    fast: bool = False
    way: Literal["a", "b"] = "a"
    inner: Inner | None = None
    inners: list[Inner] = Field(default_factory=list)
    name: str = ""


def test_fields_are_found_in_sections_that_may_be_missing_and_in_lists():
    inner = ["lr", "betas", "share"]
    found = [path for path, _ in field_kinds(Outer, "x.")]
    within = [*(f"x.inner.{name}" for name in inner), *(f"x.inners.0.{name}" for name in inner)]
    assert found == ["x.size", "x.fast", "x.way", *within, "x.name"]


def test_a_number_may_be_bounded_or_missing_but_is_no_bool_and_no_pair():
    numeric = [path for path, kind in field_kinds(Outer) if is_number_field(kind) and not path.startswith("inners")]
    assert numeric == ["size", "inner.lr", "inner.share"]
