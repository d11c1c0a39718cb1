"""Of which family a description is a member, exactly: nothing that the model computes is lost."""

from collections.abc import Iterator
from typing import Any, TypeVar

from linnet.core.errors import UserError
from linnet.interop.families import FAMILIES
from linnet.interop.families.family import Family, Plain
from linnet.layers.mixers.attention import AttentionSpec
from linnet.layers.rotary import RotarySpec
from linnet.layers.rotary_scaling import NtkScaling
from linnet.model.spec import BlockSpec, ModelSpec

Difference = tuple[str, Any, Any]
"""A field, and its two values."""

_ABSENT = object()
Kind = TypeVar("Kind", bound=Family)


def member_of(spec: ModelSpec) -> Family:
    """The member of a family that computes what the description says, in all of its fields.

    What the starting values were is not compared: a trained model does not depend on it. `UserError` names the first
    field in which the model is none of the nearest family's.
    """
    plain = plain_form(spec)
    _check_attention_alone(spec)
    others: list[tuple[str, list[Difference]]] = []
    for member in filter(None, (nearest_member(kind, plain, spec) for kind in FAMILIES)):
        found = list(differences(plain, plain_form(member.model(spec.name, spec.name))))
        if not found:
            return member
        others.append((member.model_type, found))
    raise UserError(_refusal(spec, min(others, key=_distance, default=None)))


def _distance(other: tuple[str, list[Difference]]) -> tuple[int, int]:
    """How far a model is from a family: by so many fields; a field within a section that both have is nearer."""
    found = other[1]
    return len(found), -found[0][0].count(".")


def _check_attention_alone(spec: ModelSpec) -> None:
    for index, block in enumerate(spec.blocks):
        if not isinstance(block.mixer, AttentionSpec):
            raise UserError(f"{spec.name}: blocks[{index}].mixer.kind: {block.mixer.kind}: {_no_family()}")


def nearest_member(kind: type[Kind], plain: Plain, spec: ModelSpec) -> Kind | None:
    """The member of a family that is most like a description of attention, whose `plain_form` is given.

    None where heads of that width cannot be in any model of the family.
    """
    start = {"initializer_range": spec.initialization.std}
    try:
        member = kind.parse({**start, **kind.fields(plain)}, spec.name)
        member.model(spec.name, spec.name)
    except UserError:
        return None
    return member


def _refusal(spec: ModelSpec, nearest: tuple[str, list[Difference]] | None) -> str:
    if nearest is None:
        heads = plain_form(spec)["blocks"][0]["mixer"]["head_dim"]
        return f"{spec.name}: blocks[0].mixer.head_dim: {heads}, with these positions: {_no_family()}"
    family, found = nearest
    field, ours, theirs = found[0]
    return f"{spec.name}: {field}: {said(ours)}: {_no_family()}; the nearest, {family}, has {said(theirs)}"


def _no_family() -> str:
    known = ", ".join(kind.model_fields["model_type"].default for kind in FAMILIES)
    return f"makes it a model of no family of Transformers ({known})"


def said(value: Any) -> str:
    """A value as a description writes it, a section by its kind."""
    if isinstance(value, dict):
        return str(value.get("kind", "one"))
    return (
        "none" if value is None or value is _ABSENT else str(value).lower() if isinstance(value, bool) else str(value)
    )


def plain_form(spec: ModelSpec) -> dict[str, Any]:
    """What a model computes, in plain data: without names and starting values, and whatever can be said in several
    ways said in one. `blocks` have no number of repeats; `layers` is that of all.
    """
    plain = spec.model_dump(exclude={"name", "initialization"})
    return {**plain, "blocks": [_block(block, spec.d_model) for block in spec.blocks], "layers": spec.layers}


def _block(block: BlockSpec, d_model: int) -> dict[str, Any]:
    width = block.width or d_model
    plain = block.model_dump(exclude={"repeat"})
    plain["width"] = None if width == d_model else width
    plain["share_weights"] = block.share_weights and block.repeat > 1
    if isinstance(block.mixer, AttentionSpec):
        plain["mixer"] |= _attention(block.mixer, width)
    return plain


def _attention(mixer: AttentionSpec, width: int) -> dict[str, Any]:
    """The fields whose null stands for a value, and scaling by a larger base, which is a larger base."""
    heads, kv_heads, head_dim = mixer.widths(width)
    scale = None if mixer.scale == head_dim**-0.5 else mixer.scale
    rotary = None if mixer.rotary is None else _rotary(mixer.rotary, head_dim).model_dump()
    shape = {"heads": heads, "kv_heads": kv_heads, "head_dim": head_dim, "out_bias": mixer.out_has_bias}
    return {**shape, "scale": scale, "rotary": rotary}


def _rotary(rotary: RotarySpec, head_dim: int) -> RotarySpec:
    if not isinstance(rotary.scaling, NtkScaling):
        return rotary
    base = rotary.scaling.law.base(rotary.width(head_dim), rotary.base)
    return rotary.model_copy(update={"base": base, "scaling": None})


def differences(ours: Plain, theirs: Plain) -> Iterator[Difference]:
    """The fields in which two models differ; each block of ours is held to the one that theirs has."""
    for name, value in ours.items():
        if name == "blocks":
            for index, block in enumerate(value):
                yield from _differences(block, theirs[name][0], f"blocks[{index}].")
        else:
            yield from _differences({name: value}, {name: theirs[name]}, "")


def _differences(ours: Plain, theirs: Plain, prefix: str) -> Iterator[Difference]:
    for name in {**ours, **theirs}:
        mine, other, path = ours.get(name, _ABSENT), theirs.get(name, _ABSENT), f"{prefix}{name}"
        if isinstance(mine, dict) and isinstance(other, dict) and mine.get("kind") == other.get("kind"):
            yield from _differences(mine, other, f"{path}.")
        elif isinstance(mine, dict) and isinstance(other, dict):
            yield f"{path}.kind", mine, other
        elif mine != other:
            yield path, mine, other
