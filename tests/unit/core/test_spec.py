"""What is found in the type of a description."""

from pathlib import Path
from typing import Annotated, Any, Literal

import pytest
from hypothesis import given
from hypothesis import strategies as st
from pydantic import Field, PositiveFloat, PositiveInt, ValidationError

from linnet.core import files
from linnet.core.bounds import MAX_INTEGER
from linnet.core.errors import UserError
from linnet.core.spec import (
    Amount,
    Count,
    Extent,
    Seed,
    Spec,
    Vocabulary,
    field_kinds,
    is_number_field,
    override,
    parse_yaml,
    read_yaml,
    without_defaults,
)


class Leaf(Spec):
    kind: Literal["leaf"] = "leaf"
    size: PositiveInt = 1


class Twig(Spec):
    kind: Literal["twig"] = "twig"
    leaves: list[Leaf] = Field(default=[])


class Tree(Spec):
    name: str = "tree"
    height: PositiveFloat
    evergreen: bool = False
    rings: PositiveInt | None = None
    parts: list[Annotated[Leaf | Twig, Field(discriminator="kind")]] = Field(default=[])
    by_name: dict[str, Leaf] = Field(default={})
    by_season: dict[Literal["summer", "winter"], int] = Field(default={})


def refusal(data: Any) -> str:
    with pytest.raises(UserError) as refused:
        Tree.parse(data, "tree.yaml")
    return str(refused.value)


def test_a_description_is_frozen():
    with pytest.raises(ValidationError, match="frozen"):
        Tree(height=1).name = "bush"  # type: ignore[misc]


TALL = {"height": 1}


@pytest.mark.parametrize(
    ("data", "expected"),
    [
        ({}, "height: missing, a value is required"),
        ({**TALL, "color": "red"}, "color: unknown key (value 'red')"),
        ({"height": "tall"}, "height: 'tall': must be a valid number"),
        ({"height": float("nan")}, "height: nan: must be a finite number"),
        ({"height": True}, "height: True: must be a number"),
        ({**TALL, "rings": True}, "rings: True: must be a number"),
        ({**TALL, "parts": {}}, "parts: {}: must be a list"),
        (
            {**TALL, "parts": [{"kind": "leaf"}, {"kind": "root"}]},
            "parts[1].kind: 'root': must be one of 'leaf', 'twig'",
        ),
        ({**TALL, "parts": [{"kind": "leef"}]}, "must be one of 'leaf', 'twig'; did you mean leaf?"),
        ({**TALL, "parts": [{"kind": "twig", "leaves": [{"size": 0}]}]}, "parts[0].leaves[0].size: 0: must be greater"),
        ({**TALL, "parts": [{"size": 3}]}, "parts[0].kind: missing, a value is required"),
        ({**TALL, "by_name": {"leaf": {"kind": "leaf", "size": -1}}}, "by_name.leaf.size: -1: must be greater than 0"),
        ({**TALL, "by_name": {"x": {"kind": "leaf", "leaf": 3}}}, "by_name.x.leaf: unknown key (value 3)"),
        ({**TALL, "by_season": {"winter:1": 2}}, "by_season.winter:1: 'winter:1': must be 'summer' or 'winter'"),
        ("oak", "tree.yaml: must be a mapping"),
    ],
)
def test_a_mistake_is_one_line_with_origin_field_and_value(data: Any, expected: str):
    line = refusal(data)
    assert line.startswith("tree.yaml: ")
    assert expected in line


def test_a_long_value_is_cut_short():
    assert refusal({"height": "x" * 1000}).startswith("tree.yaml: height: 'xxx")
    assert len(refusal({"height": "x" * 1000})) < 200


def test_booleans_are_not_numbers():
    assert Tree.parse({"height": 1, "evergreen": True}, "tree.yaml").evergreen


def test_small_numbers_are_read_as_people_write_them(tmp_path: Path):
    """YAML 1.1 takes `1e-5` for a text."""
    (tmp_path / "tree.yaml").write_text("height: 1e-5")
    assert Tree.parse(read_yaml(tmp_path / "tree.yaml"), "tree.yaml").height == 1e-5


def test_yaml_may_merge_but_not_repeat(tmp_path: Path):
    path = tmp_path / "tree.yaml"
    path.write_text("base: &base {a: 1, b: 2}\nother: {<<: *base, b: 3}\n")
    assert read_yaml(path)["other"] == {"a": 1, "b": 3}
    path.write_text("a: 1\nother:\n  b: 2\n  b: 3\n")
    with pytest.raises(UserError, match=r"tree\.yaml, line 4: not valid YAML \(key 'b' is given twice\)"):
        read_yaml(path)


BASE: dict[str, Any] = {"model": {"width": 4, "blocks": [{"heads": 2}, {"heads": 3}]}, "seed": 0}


@pytest.mark.parametrize(
    ("assignment", "expected"),
    [
        ("seed=7", {**BASE, "seed": 7}),
        ("seed = 7", {**BASE, "seed": 7}),
        ("model.width=8", {**BASE, "model": {**BASE["model"], "width": 8}}),
        ("model.blocks.1.heads=5", {**BASE, "model": {"width": 4, "blocks": [{"heads": 2}, {"heads": 5}]}}),
        ("optimizer.lr=1e-3", {**BASE, "optimizer": {"lr": 0.001}}),
        ("optimizer.betas=[0.9, 0.95]", {**BASE, "optimizer": {"betas": [0.9, 0.95]}}),
        ("name=a=b", {**BASE, "name": "a=b"}),
        ("name=infinity", {**BASE, "name": "infinity"}),
        ("name=", {**BASE, "name": None}),
        ("seed=null", {**BASE, "seed": None}),
    ],
)
def test_an_assignment_changes_one_field_of_a_copy(assignment: str, expected: dict[str, Any]):
    before = repr(BASE)
    assert override(BASE, [assignment]) == expected
    assert repr(BASE) == before


def test_later_assignments_win():
    assert override(BASE, ["seed=1", "seed=2"])["seed"] == 2


@pytest.mark.parametrize(
    ("assignment", "expected"),
    [
        ("seed", "set: seed: expected section.key=value"),
        ("=3", "set: =3: expected section.key=value"),
        ("seed=[1", "set: seed=[1: '[1' is not a valid YAML value"),
        ("day=2020-02-30", "set: day=2020-02-30: '2020-02-30' is not a valid YAML value"),
        ("seed.x=1", "set: seed.x=1: seed has no field 'x'"),
        ("model.blocks.2.heads=1", "set: model.blocks.2.heads=1: '2' is not an index below 2"),
        ("model.blocks.first.heads=1", "set: model.blocks.first.heads=1: 'first' is not an index below 2"),
        ("model.blocks.².heads=1", "set: model.blocks.².heads=1: '²' is not an index below 2"),
    ],
)
def test_a_wrong_assignment_is_refused_as_typed(assignment: str, expected: str):
    with pytest.raises(UserError) as refused:
        override(BASE, [assignment])
    assert str(refused.value) == expected


@given(st.text(max_size=20), st.text(max_size=20))
def test_assignments_raise_only_user_errors(path: str, value: str):
    try:
        changed = override(BASE, [f"{path}={value}"])
    except UserError:
        return
    assert isinstance(changed, dict)


class Inner(Spec):
    steps: int = 1


class Outer(Spec):
    training: Inner = Inner()


def test_a_key_of_a_section_is_reported_with_the_section():
    with pytest.raises(UserError, match=r"steps: unknown key \(value 20\); did you mean training.steps\?"):
        Outer.parse({"steps": 20}, "run.yaml")


class Bounded(Spec):
    extent: Extent = 1
    vocabulary: Vocabulary = 1
    count: Count = 1
    amount: Amount = 1
    seed: Seed = 0
    whole: int = 0


MOST = {
    "extent": 1 << 16,
    "vocabulary": 1 << 22,
    "count": 1 << 12,
    "amount": 1 << 48,
    "whole": MAX_INTEGER,
}


@pytest.mark.parametrize("field", MOST)
def test_every_amount_has_a_bound(field: str):
    assert getattr(Bounded.parse({field: MOST[field]}, "x"), field) == MOST[field]
    with pytest.raises(UserError, match=rf"^x: {field}: .*must be"):
        Bounded.parse({field: MOST[field] + 1}, "x")


def test_seeds_are_those_that_generators_take():
    for seed in (0, MAX_INTEGER):
        assert Bounded.parse({"seed": seed}, "x").seed == seed
    for seed in (-1, 1 << 63):
        with pytest.raises(UserError, match=r"^x: seed: "):
            Bounded.parse({"seed": seed}, "x")


FAR_OUT = [-(2**64), 2**64, 10**400, 16**10_000, -(16**10_000), float("inf"), float("nan")]


@pytest.mark.parametrize("field", Bounded.model_fields)
@pytest.mark.parametrize("value", FAR_OUT, ids=range(len(FAR_OUT)))
def test_very_large_numbers_are_shortened(field: str, value: float):
    with pytest.raises(UserError) as refused:
        Bounded.parse({field: value}, "x")
    assert str(refused.value).startswith(f"x: {field}: ") and len(str(refused.value)) < 200


HOSTILE = {
    "brackets": "[" * 3000,
    "braces": "{a: " * 3000,
    "dashes": "- " * 3000,
    "closed brackets": "[" * 100 + "]" * 100,
    "loop": "&a [*a]",
    "many": "[" + "1, " * 200_100 + "]",
    "timestamp": "!!timestamp x",
    "truth": "!!bool x",
    "whole": "!!int ''",
    "digits": "9" * 5000,
    "date": "2020-02-30",
    "python": "!!python/object/apply:os.system [x]",
    "mapping as key": "{? {a: b} : c}",
    "control": "\x01",
}
LAUGHS = ["a0: &a0 [x, x]", *(f"a{n}: &a{n} [*a{n - 1}, *a{n - 1}]" for n in range(1, 30))]


@pytest.mark.parametrize(
    "text",
    [
        *(
            pytest.param(text, id=name, marks=pytest.mark.slow if name == "many" else ())
            for name, text in HOSTILE.items()
        ),
        pytest.param("\n".join(LAUGHS), id="aliases"),
    ],
)
def test_a_hostile_file_is_one_line(text: str, tmp_path: Path):
    (tmp_path / "x.yaml").write_text(text)
    with pytest.raises(UserError, match=r"x\.yaml(, line \d+)?: ") as refused:
        read_yaml(tmp_path / "x.yaml")
    assert "\n" not in str(refused.value)


@pytest.mark.parametrize("text", (HOSTILE | {"many": "[" + "1, " * 2100 + "]"}).values(), ids=HOSTILE)
def test_a_hostile_assignment_is_one_line(text: str, monkeypatch: pytest.MonkeyPatch):
    monkeypatch.setattr(files, "MAX_VALUES", 2000)  # a file is read up to the true bound, which takes seconds
    with pytest.raises(UserError, match=r"^set") as refused:
        override(BASE, [f"seed={text}"])
    assert "\n" not in str(refused.value)


def test_an_assignment_is_not_nested_without_end():
    with pytest.raises(UserError, match=r"^set"):
        Tree.parse(override({}, ["a." * 100_000 + "b=1"]), "x")


def test_a_description_is_not_larger_than_any(tmp_path: Path):
    (tmp_path / "x.yaml").write_text("# remark\n" * 200_000)
    with pytest.raises(UserError, match=r"x\.yaml: expected a file of at most 1,048,576 bytes"):
        read_yaml(tmp_path / "x.yaml")


def test_keys_that_are_merged_again_and_again_have_an_end():
    levels = [f"a{n}: &a{n} {{<<: [*a{n - 1}, *a{n - 1}]}}" for n in range(1, 40)]
    with pytest.raises(UserError, match=r"line 19: not valid YAML \(more than 200,000 merged keys"):
        parse_yaml("\n".join(["a0: &a0 {x: 1}", *levels]), "file")


def test_merged_keys_are_read():
    assert parse_yaml("a: &a {x: 1, y: 2}\nb: {<<: *a, y: 3}", "file")["b"] == {"x": 1, "y": 3}


@pytest.mark.parametrize("text", ["1" + ":1" * 200_000, "1" + ":1" * 200_000 + ".5"])
def test_a_number_has_an_end(text: str):
    with pytest.raises(UserError, match=r"a number of 400,\d+ characters; expected at most 400"):
        parse_yaml(f"a: {text}", "file")
    with pytest.raises(UserError, match="not a valid YAML value"):
        override({}, [f"a={text}"])


def test_a_key_given_twice_is_refused_where_a_value_is_assigned():
    with pytest.raises(UserError, match="not a valid YAML value"):
        override({}, ["a={b: 1, b: 2}"])


class Leaf(Spec):
    lr: PositiveFloat | None = None
    betas: tuple[float, float] = (0.9, 0.95)
    share: Annotated[float, Field(ge=0)] = 0.5


class Nested(Spec):
    size: Count = 1
    fast: bool = False
    way: Literal["a", "b"] = "a"
    inner: Leaf | None = None
    inners: list[Leaf] = Field(default_factory=list)
    name: str = ""


def test_fields_are_found_in_sections_that_may_be_missing_and_in_lists():
    inner = ["lr", "betas", "share"]
    found = [path for path, _ in field_kinds(Nested, "x.")]
    within = [*(f"x.inner.{name}" for name in inner), *(f"x.inners.0.{name}" for name in inner)]
    assert found == ["x.size", "x.fast", "x.way", *within, "x.name"]


def test_a_number_may_be_bounded_or_missing_but_is_no_bool_and_no_pair():
    numeric = [path for path, kind in field_kinds(Nested) if is_number_field(kind) and not path.startswith("inners")]
    assert numeric == ["size", "inner.lr", "inner.share"]


def test_what_equals_its_default_is_left_out_at_any_depth_and_nothing_else():
    class Part(Spec):
        kind: Literal["part"] = "part"
        on: bool = True
        sizes: tuple[int, ...] = (1, 2)

    class Whole(Spec):
        first: Part = Part()
        second: Part | None = None
        parts: list[Part] = Field(default_factory=list)
        named: dict[str, Part] = Field(default_factory=dict)
        folder: Path | None = Path("here")

    assert without_defaults(Whole()) == without_defaults(Whole(first=Part(sizes=[1, 2]))) == {}
    assert without_defaults(Whole(second=Part())) == {"second": {"kind": "part"}}
    found = without_defaults(Whole(first=Part(on=False), parts=[Part(sizes=[])], named={"a": Part()}, folder=None))
    assert found == {
        "first": {"kind": "part", "on": False},
        "parts": [{"kind": "part", "sizes": []}],
        "named": {"a": {"kind": "part"}},
        "folder": None,
    }
    assert without_defaults(Whole(folder="there")) == {"folder": "there"}
