"""Match a model description with a family exactly, so that nothing that the model computes is lost."""

from collections.abc import Iterator
from typing import Any, TypeVar

from linnet.core.errors import UserError
from linnet.interop.families import FAMILIES
from linnet.interop.families.family import Family, Plain
from linnet.layers.mixers.attention import AttentionSpec
from linnet.layers.rotary import NtkScaling
from linnet.model.spec import BlockSpec, ModelSpec

Difference = tuple[str, Any, Any]
"""A field and its two values."""

_ABSENT = object()
Kind = TypeVar("Kind", bound=Family)


def match_family(spec: ModelSpec) -> Family:
    """Return the member of a family that computes the same as the description in all of its fields.

    Starting values are not compared: a trained model does not depend on them. `UserError` names the first field in
    which the model differs from the nearest family.
    """
    kinds = [kind for kind in FAMILIES if kind.exported]
    known = ", ".join(kind.model_fields["model_type"].default for kind in kinds)
    reason = f"makes it a model of no family of Transformers ({known})"
    for index, block in enumerate(spec.blocks):
        if not isinstance(block.mixer, AttentionSpec):
            raise UserError(f"{spec.name}: blocks[{index}].mixer.kind: {block.mixer.kind}: {reason}")
    plain = plain_form(spec)
    others: list[tuple[str, list[Difference]]] = []
    for member in filter(None, (nearest_member(kind, plain, spec) for kind in kinds)):
        fields = list(differences(spec, member.model(spec.name, spec.name)))
        if not fields:
            return member
        others.append((member.model_type, fields))
    if not others:
        head_dim = plain["blocks"][0]["mixer"]["head_dim"]
        raise UserError(f"{spec.name}: blocks[0].mixer.head_dim: {head_dim}, with these positions: {reason}")
    # The distance is the number of differing fields; a field inside a section that both have is closer.
    family, fields = min(others, key=lambda other: (len(other[1]), -other[1][0][0].count(".")))
    field, ours, theirs = fields[0]
    ours, theirs = format_value(ours), format_value(theirs)
    raise UserError(f"{spec.name}: {field}: {ours}: {reason}; the nearest, {family}, has {theirs}")


def form_in_transformers(spec: ModelSpec) -> str:
    """Name the class of Transformers that a model of the description becomes."""
    try:
        return match_family(spec).architecture
    except UserError as refusal:
        return f"linnet's own class, after `import linnet.interop.transformers` ({refusal})"


def nearest_member(kind: type[Kind], plain: Plain, spec: ModelSpec) -> Kind | None:
    """Return the family's model that is closest to an attention model; `plain`: the model's `plain_form`.

    None if no model of the family can have heads of that width.
    """
    start = {"initializer_range": spec.initialization.std}
    try:
        member = kind.parse({**start, **kind.fields(plain)}, spec.name)
        member.model(spec.name, spec.name)
    except UserError:
        return None
    return member


def format_value(value: Any) -> str:
    """Format a value as a description writes it; a section by its kind."""
    if isinstance(value, dict):
        return str(value.get("kind", "one"))
    if value is None or value is _ABSENT:
        return "none"
    return str(value).lower() if isinstance(value, bool) else str(value)


def plain_form(spec: ModelSpec) -> dict[str, Any]:
    """Return what a model computes as plain data: no names or starting values, one form for equivalent settings.

    `blocks` has an entry for each layer.
    """
    plain = spec.model_dump(exclude={"name", "initialization"})
    blocks = [plain for block in spec.blocks for plain in [_block(block, spec.d_model)] * block.repeat]
    return {**plain, "blocks": blocks, "layers": spec.layers}


def _block(block: BlockSpec, d_model: int) -> dict[str, Any]:
    width = block.width or d_model
    plain = block.model_dump(exclude={"repeat"})
    plain["width"] = None if width == d_model else width
    plain["share_weights"] = block.share_weights and block.repeat > 1
    mixer = block.mixer
    if not isinstance(mixer, AttentionSpec):
        return plain
    heads, kv_heads, head_dim = mixer.widths(width)
    rotary = mixer.rotary
    if rotary is not None and isinstance(rotary.scaling, NtkScaling):  # NTK scaling is a larger base
        base = rotary.scaling.law.base(rotary.width(head_dim), rotary.base)
        rotary = rotary.model_copy(update={"base": base, "scaling": None})
    plain["mixer"] |= {
        "heads": heads,
        "kv_heads": kv_heads,
        "head_dim": head_dim,
        "out_bias": mixer.out_has_bias,
        "scale": None if mixer.scale == head_dim**-0.5 else mixer.scale,
        "rotary": None if rotary is None else rotary.model_dump(),
    }
    return plain


def differences(ours: ModelSpec, theirs: ModelSpec) -> Iterator[Difference]:
    """Yield the fields in which two models of as many layers differ, each once for a block of `ours`."""
    plain, others = plain_form(ours), plain_form(theirs)
    where = [f"blocks[{index}]." for index, block in enumerate(ours.blocks) for _ in range(block.repeat)]
    for name, value in plain.items():
        if name == "blocks":
            found = {
                path: (path, mine, other)
                for prefix, layer, other_layer in zip(where, value, others[name], strict=True)
                for path, mine, other in _differences(layer, other_layer, prefix)
            }
            yield from found.values()
        else:
            yield from _differences({name: value}, {name: others[name]}, "")


def _differences(ours: Plain, theirs: Plain, prefix: str) -> Iterator[Difference]:
    for name in {**ours, **theirs}:
        value, other, path = ours.get(name, _ABSENT), theirs.get(name, _ABSENT), f"{prefix}{name}"
        if isinstance(value, dict) and isinstance(other, dict):
            if value.get("kind") == other.get("kind"):
                yield from _differences(value, other, f"{path}.")
            else:
                yield f"{path}.kind", value, other
        elif value != other:
            yield path, value, other
