"""A search space: the fields common to all models, and the choices for each block.

In YAML, `block` is the description of a block in which any value may be a list of choices; neighboring list items are
neighbors in the search. A choice may be a mapping with choices of its own (a mixer). A block may also have `ratio`, the
feed-forward's hidden width over the block's width; `head_width`, which gives every mixer with a field `heads` the
number that fills the width unless the mixer states it; and `pattern`, which puts several parts in the place of the
block:

    pattern: [{repeat: 3, mixer: {kind: mamba}}, {mixer: {kind: attention}}]

A part has the fields of a block, which override those beside the pattern; lists in a part are choices too. The pattern
as a whole is repeated `repeat` times and never cut, so it fixes the ratio of layers of one mixer to another.
"""

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from itertools import product
from math import prod
from pathlib import Path
from typing import Any

from pydantic import PositiveInt

from linnet.core.bounds import MAX_FFN_RATIO, MAX_REPEATS, MAX_SPACE_BLOCKS, MAX_SPACE_CHOICES
from linnet.core.errors import UserError
from linnet.core.spec import Spec, override, read_assignment, read_yaml, unknown_key
from linnet.layers.registry import MIXERS, PLAIN_MIXER
from linnet.model.spec import BlockSpec, ModelSpec, check_together

SPACES = Path(__file__).parent / "spaces"
FIELDS = (*BlockSpec.model_fields, "ratio", "head_width", "pattern")
"""Fields of a block in a space."""

KeyPath = tuple[str | int, ...]
Coordinates = tuple[int, ...]
Candidate = tuple[int, ...]
"""A model of a space: the index of the block at each place."""

Plain = tuple[dict[str, Any], ...]
Unit = tuple[BlockSpec, ...]
"""The content of one place of a model: a block, or the blocks of a pattern."""


class SpaceSpec(Spec):
    """Description of a space; `model` as in a model's description, without the blocks."""

    name: str = "space"
    model: dict[str, Any]
    blocks: PositiveInt
    block: dict[str, Any]


@dataclass(frozen=True)
class Choice:
    """A place in a block's description that holds several options; numbers are `ordered`."""

    place: KeyPath
    options: int
    ordered: bool


@dataclass(frozen=True)
class Space:
    """Every block that a model of the space can have, each once.

    plain: each block's description, or those of the blocks of a pattern; units: the same, parsed. coordinates: the
    index of the option at each choice. numbers: the block for given coordinates; several coordinates can mean the same
    block, and those that make no valid block are missing. left_out: the number of invalid ones, and why the first is
    invalid. size: number of models. described: every block of all units.
    """

    spec: SpaceSpec
    choices: tuple[Choice, ...]
    plain: tuple[Plain, ...]
    units: tuple[Unit, ...]
    coordinates: tuple[Coordinates, ...]
    numbers: Mapping[Coordinates, int]
    left_out: tuple[int, str]
    size: int
    described: tuple[BlockSpec, ...]

    def describe(self, candidate: Sequence[int], name: str | None = None) -> dict[str, Any]:
        """Return the plain description of a model, ready for YAML."""
        blocks = [plain for b in candidate for plain in self.plain[b]]
        return {"name": name or self.spec.name, **self.spec.model, "blocks": blocks}

    def model(self, candidate: Sequence[int], name: str | None = None) -> ModelSpec:
        return ModelSpec.parse(self.describe(candidate, name), self.spec.name)


class UnfitBlockError(ValueError):
    """A combination of choices makes no valid block (heads that do not divide a width); args: its mixer, the reason."""


def space_names() -> list[str]:
    """Names of the built-in spaces."""
    return sorted(path.stem for path in SPACES.glob("*.yaml"))


def load_space(source: str | Path, changes: Sequence[str] = (), vocab_size: int | None = None) -> Space:
    """Load a built-in space by name, or a YAML file.

    changes: assignments `KEY=VALUE`. vocab_size: replaces the file's value for all models. `UserError` if there is no
    such space, a field is wrong, no block is valid, or there are too many.
    """
    path, own = Path(source), SPACES / f"{str(source).removesuffix('.yaml')}.yaml"
    if not path.is_file() and own.parent == SPACES and own.is_file():
        path = own
    if not path.is_file():
        raise UserError(f"{source}: no such file, and no space of that name; spaces: {', '.join(space_names())}")
    plain = read_yaml(path)
    if not isinstance(plain, dict):
        raise UserError(f"{source}: expected a mapping with model, blocks, block, found {type(plain).__name__}")
    plain, assigned = override(plain, list(changes)), [read_assignment(change)[0] for change in changes]
    spec = SpaceSpec.parse(plain, str(source), assigned)
    if vocab_size is not None:
        spec = spec.model_copy(update={"model": {**spec.model, "vocab_size": vocab_size}})
    return build_space(spec, str(source), assigned)


def build_space(spec: SpaceSpec, origin: str, assigned: Sequence[str] = ()) -> Space:
    """Parse and check every block of the space; `UserError` as in `load_space`. assigned: fields set by the user."""
    if spec.blocks > MAX_SPACE_BLOCKS:
        raise UserError(f"{origin}: blocks: {spec.blocks}: must be at most {MAX_SPACE_BLOCKS}")
    for key, value in spec.block.items():
        if key not in FIELDS:
            raise UserError(f"{origin}: block: {unknown_key(key, value, FIELDS)}")
    if "blocks" in spec.model:
        raise UserError(f"{origin}: model.blocks: is decided by blocks and block; leave it out")
    # The fields common to all models are checked with a block that is valid for every width.
    of_model = [field.removeprefix("model.") for field in assigned if field.startswith("model.")]
    plain_model = {**spec.model, "blocks": [{"mixer": PLAIN_MIXER}]}
    common = ModelSpec.parse(plain_model, f"{origin}: model", of_model, "`set` model.")

    source, spec = spec, spec.model_copy(update={"block": _with_numbered_pattern(spec.block, origin)})
    choices = tuple(_choices(spec.block, (), origin))
    count = prod(choice.options for choice in choices)
    if count > MAX_SPACE_CHOICES:
        raise UserError(f"{origin}: block: has {count:,} combinations; expected at most {MAX_SPACE_CHOICES:,}")
    found, key_of, refused = _every_block(spec, choices, common.d_model, origin)
    plain, units, coordinates = zip(*found.values(), strict=True) if found else ((), (), ())
    described = tuple(block for unit in units for block in unit)
    _check_found(spec, described, refused, origin)
    _check_together(described, common, origin)
    number_of = {key: number for number, key in enumerate(found)}
    numbers = {chosen: number_of[key] for chosen, key in key_of.items()}
    left_out = len(refused), refused[0][1] if refused else ""
    size = int(len(plain) ** spec.blocks)
    return Space(source, choices, plain, units, coordinates, numbers, left_out, size, described)


def _with_numbered_pattern(block: dict[str, Any], origin: str) -> dict[str, Any]:
    """Replace the list of a pattern's parts by a mapping: a list would mean choices."""
    if "pattern" not in block:
        return block
    parts = block["pattern"]
    if not isinstance(parts, list) or not parts or not all(isinstance(part, dict) for part in parts):
        raise UserError(
            f"{origin}: block.pattern: {parts!r}: expected a list of parts of a block, as in"
            " [{repeat: 3, mixer: {kind: mamba}}, {mixer: {kind: attention}}]"
        )
    if "share_weights" in block:
        raise UserError(f"{origin}: block.share_weights: belongs to a part of the pattern; set it there")
    for number, part in enumerate(parts):
        for key, value in part.items():
            if key in ("width", "pattern"):
                raise UserError(f"{origin}: block.pattern.{number}.{key}: belongs to the block; set it beside pattern")
            if key not in FIELDS:
                raise UserError(f"{origin}: block.pattern.{number}: {unknown_key(key, value, FIELDS)}")
    return {**block, "pattern": dict(enumerate(parts))}


def _choices(node: Any, place: KeyPath, origin: str) -> Iterator[Choice]:
    if isinstance(node, list):
        if not node:
            raise UserError(f"{origin}: block.{'.'.join(map(str, place))}: []: expected at least one choice")
        numeric = all(isinstance(option, int | float) and not isinstance(option, bool) for option in node)
        yield Choice(place, len(node), ordered=numeric)
    parts = enumerate(node) if isinstance(node, list) else node.items() if isinstance(node, dict) else ()
    for key, value in parts:
        yield from _choices(value, (*place, key), origin)


def _every_block(
    spec: SpaceSpec, choices: Sequence[Choice], d_model: int, origin: str
) -> tuple[dict[str, tuple[Plain, Unit, Coordinates]], dict[Coordinates, str], list[tuple[str, ...]]]:
    """Return distinct blocks by a key, the key for given coordinates, and the mixers of invalid blocks with reasons."""
    found: dict[str, tuple[Plain, Unit, Coordinates]] = {}
    key_of: dict[Coordinates, str] = {}
    refused: list[tuple[str, ...]] = []
    for chosen in product(*(range(choice.options) for choice in choices)):
        resolved = _resolved(spec.block, (), dict(zip((choice.place for choice in choices), chosen, strict=True)))
        parts, times = _parts_and_repeats(resolved, origin)
        try:
            plain = tuple(_completed(part, d_model, where) for where, part in parts)
            key = repr((times, plain))
            if key not in found:
                unit = tuple(_parsed(part, d_model, where) for part, (where, _) in zip(plain, parts, strict=True))
                layers = times * sum(block.repeat for block in unit)
                if layers > MAX_REPEATS:
                    problem = f"a pattern of {layers:,} layers in all; must be at most {MAX_REPEATS:,}"
                    raise UserError(f"{parts[0][0]}: {problem}")
                found[key] = plain * times, unit * times, chosen
            key_of[chosen] = key
        except UnfitBlockError as error:
            refused.append(error.args)
    return found, key_of, refused


def _resolved(node: Any, place: KeyPath, picks: Mapping[KeyPath, int]) -> Any:
    """Return the description with the picked option in the place of each list."""
    if isinstance(node, list):
        return _resolved(node[picks[place]], (*place, picks[place]), picks)
    if isinstance(node, dict):
        return {key: _resolved(value, (*place, key), picks) for key, value in node.items()}
    return node


def _parts_and_repeats(block: dict[str, Any], origin: str) -> tuple[list[tuple[str, dict[str, Any]]], int]:
    """Return the blocks of one place (several for a pattern), each with its location in the file, and the repeats."""
    if "pattern" not in block:
        return [(f"{origin}: block", block)], 1
    common = {key: value for key, value in block.items() if key not in ("pattern", "repeat")}
    times = block.get("repeat", 1)
    if not isinstance(times, int) or isinstance(times, bool) or times < 1:
        raise UserError(f"{origin}: block.repeat: {times!r}: must be a whole number greater than 0")
    parts = block["pattern"].items()
    return [(f"{origin}: block.pattern.{number}", {**common, **part}) for number, part in parts], times


def _completed(block: dict[str, Any], d_model: int, where: str) -> dict[str, Any]:
    """Replace `ratio` and `head_width` by the fields that they determine."""
    if block.get("repeat", 1) == 1:
        block.pop("share_weights", None)  # a single layer has no other to share with
    ratio, head_width = block.pop("ratio", None), block.pop("head_width", None)
    width, mixer, feed_forward = block.get("width", d_model), block.get("mixer"), block.get("feed_forward")
    if ratio is not None and isinstance(feed_forward, dict) and isinstance(width, int):
        if not isinstance(ratio, int | float) or not 0 < ratio <= MAX_FFN_RATIO:
            raise UserError(f"{where}.ratio: {ratio!r}: must be a number greater than 0, at most {MAX_FFN_RATIO:,}")
        if "hidden" in feed_forward:
            raise UserError(f"{where}.feed_forward.hidden: is decided by ratio; leave one of both out")
        block["feed_forward"] = {**feed_forward, "hidden": max(1, round(ratio * width))}
    if head_width is None or not isinstance(width, int) or not isinstance(mixer, dict):
        return block
    kind = MIXERS.get(str(mixer.get("kind")))
    if kind is not None and "heads" in kind.model_fields and "heads" not in mixer:
        if not isinstance(head_width, int) or head_width <= 0:
            raise UserError(f"{where}.head_width: {head_width!r}: must be a whole number greater than 0")
        if width % head_width:
            raise UnfitBlockError(str(mixer["kind"]), f"head_width: {head_width}: must divide the width {width}")
        block["mixer"] = {**mixer, "heads": width // head_width}
    return block


def _parsed(block: dict[str, Any], d_model: int, where: str) -> BlockSpec:
    described = BlockSpec.parse(block, where)
    if described.repeat > MAX_REPEATS:
        raise UserError(f"{where}.repeat: {described.repeat}: must be at most {MAX_REPEATS:,}")
    for name, part in (("mixer", described.mixer), ("feed_forward", described.feed_forward)):
        try:
            if part is not None:
                part.check(described.width or d_model)
        except ValueError as error:
            raise UnfitBlockError(described.mixer.kind, f"{name}.{error}") from None
    return described


def _check_found(spec: SpaceSpec, described: Sequence[BlockSpec], refused: list[tuple[str, ...]], origin: str) -> None:
    """Raise `UserError` if no block is valid, a mixer never is, or `ratio` has no feed-forward to apply to."""
    if not described:
        raise UserError(f"{origin}: block: no combination fits; the first: {refused[0][1]}")
    fitting = {block.mixer.kind for block in described}
    for kind, first in refused:
        if kind not in fitting:
            raise UserError(f"{origin}: block.mixer: {kind}: fits no block; the first: {first}")
    if "ratio" in spec.block and all(block.feed_forward is None for block in described):
        raise UserError(f"{origin}: block.ratio: no block has a feed_forward; add one, or remove ratio")


def _check_together(described: Sequence[BlockSpec], common: ModelSpec, origin: str) -> None:
    """Raise `UserError` if some blocks cannot stand in one model, or the cost of a block depends on the others."""
    try:
        check_together(described, common.d_model, common.embedding.skip)
    except ValueError as error:
        _, _, problem = str(error).partition("].")
        raise UserError(f"{origin}: block.{problem}; blocks of a space must fit each other") from None
    needed: dict[str, set[bool]] = {}
    for block in described:
        for field in block.mixer.cross_layer_values(block.width or common.d_model):
            needed.setdefault(field, set()).add(block.mixer.needs_cross_layer_gradients)
    for field, values in needed.items():
        if len(values) > 1:
            raise UserError(f"{origin}: block.mixer.{field}: learned in some choices and fixed in others; choose one")
