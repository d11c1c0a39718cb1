"""A search space: what is common to all models, and the choices for each block.

In YAML, `block` is the description of a block in which any value may be a list: its choices, in the order in which
they are neighbors. A choice may be a mapping with choices of its own (a mixer). Beside a block's fields it may have
`ratio`, the feed-forward's hidden width over the block's, and `head_width`, which gives every mixer that has a field
`heads` so many as fill the width, where the mixer does not say itself, and `pattern`, which puts several parts in its
place (`design.pattern`).
"""

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from itertools import product
from math import prod
from pathlib import Path
from typing import Any

from pydantic import PositiveInt

from linnet.core.errors import UserError
from linnet.core.spec import Spec, override, read_assignment, read_yaml, unknown_key
from linnet.design.pattern import by_number, parts_of_choice
from linnet.layers.registry import MIXERS
from linnet.model.spec import BlockSpec, ModelSpec, check_together

SPACES = Path(__file__).parent / "spaces"
MOST_BLOCKS = 20_000
"""Combinations for a block: each is described and costed once."""

MOST_PLACES, MOST_REPEATS, MOST_RATIO = 64, 1000, 1000
"""Blocks of a model, layers of a block, hidden width over the block's. What is larger is a slip of the pen: it would
take all memory or hours, and the number of models would be beyond a float.
"""

FIELDS = (*BlockSpec.model_fields, "ratio", "head_width", "pattern")
"""Of a block in a space."""

KeyPath = tuple[str | int, ...]
Coordinates = tuple[int, ...]
Candidate = tuple[int, ...]
"""A model of a space: the number of the block that stands at each place."""


class SpaceSpec(Spec):
    """The description of a space: `model` as in a model's description, but for the blocks."""

    name: str = "space"
    model: dict[str, Any]
    blocks: PositiveInt
    block: dict[str, Any]


@dataclass(frozen=True)
class Choice:
    """A place in a block's description where one of several values stands; numbers are `ordered`."""

    place: KeyPath
    options: int
    ordered: bool


@dataclass(frozen=True)
class Space:
    """Every block that a model of the space can have, each once.

    plain: each block's description, or of a pattern those of its blocks; units: the same read. coordinates: the number
    of its option at each choice. numbers: the block that coordinates mean; some mean the same, and those that fit no
    width are missing.
    left_out: how many do not fit, and why the first does not.
    """

    spec: SpaceSpec
    choices: tuple[Choice, ...]
    plain: tuple[tuple[dict[str, Any], ...], ...]
    units: tuple[tuple[BlockSpec, ...], ...]
    coordinates: tuple[Coordinates, ...]
    numbers: Mapping[Coordinates, int]
    left_out: tuple[int, str]

    @property
    def size(self) -> int:
        """How many models there are."""
        return int(len(self.plain) ** self.spec.blocks)

    @property
    def described(self) -> tuple[BlockSpec, ...]:
        """Every block of all units."""
        return tuple(block for unit in self.units for block in unit)

    def describe(self, candidate: Sequence[int], name: str | None = None) -> dict[str, Any]:
        """The plain description of a model, ready for YAML."""
        return {
            "name": name or self.spec.name,
            **self.spec.model,
            "blocks": [plain for b in candidate for plain in self.plain[b]],
        }

    def model(self, candidate: Sequence[int], name: str | None = None) -> ModelSpec:
        """A model's description."""
        return ModelSpec.parse(self.describe(candidate, name), self.spec.name)


Plain = tuple[dict[str, Any], ...]
Unit = tuple[BlockSpec, ...]
"""What stands at one place of a model: a block, or those of a pattern."""


class UnfitBlockError(ValueError):
    """A combination of choices that makes no block: heads that do not divide a width. kind: of its mixer."""

    def __init__(self, kind: str, why: str) -> None:
        super().__init__(why)
        self.kind = kind


def space_names() -> list[str]:
    """The spaces that come with linnet."""
    return sorted(path.stem for path in SPACES.glob("*.yaml"))


def load_space(source: str | Path, changes: Sequence[str] = (), vocab_size: int | None = None) -> Space:
    """A space by the name of one that comes with linnet, or from a YAML file.

    changes: of the form `KEY=VALUE`. vocab_size: of all models, in the place of the file's. `UserError` where there is
    none, a field is wrong, no block fits, or there are too many.
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
    """Every block of the space, read and checked; `UserError` as in `load_space`. assigned: fields set by hand."""
    if spec.blocks > MOST_PLACES:
        raise UserError(f"{origin}: blocks: {spec.blocks}: must be at most {MOST_PLACES}")
    _check_fields(spec, origin)
    common = _common(spec, origin, assigned)
    given, spec = spec, spec.model_copy(update={"block": by_number(spec.block, FIELDS, origin)})
    choices = tuple(_choices(spec.block, (), origin))
    count = prod(choice.options for choice in choices)
    if count > MOST_BLOCKS:
        raise UserError(f"{origin}: block: has {count:,} combinations; expected at most {MOST_BLOCKS:,}")
    found, meant, refused = _every_block(spec, choices, common.d_model, origin)
    plain, units, coordinates = zip(*found.values(), strict=True) if found else ((), (), ())
    described = [block for unit in units for block in unit]
    _check_found(spec, described, refused, origin)
    _check_together(described, common, origin)
    number_of = {key: number for number, key in enumerate(found)}
    numbers = {chosen: number_of[key] for chosen, key in meant.items()}
    left_out = len(refused), refused[0][1] if refused else ""
    return Space(given, choices, plain, units, coordinates, numbers, left_out)


def _every_block(
    spec: SpaceSpec, choices: Sequence[Choice], d_model: int, origin: str
) -> tuple[dict[str, tuple[Plain, Unit, Coordinates]], dict[Coordinates, str], list[tuple[str, str]]]:
    """Each distinct block by a key, the key that coordinates mean, and the mixers that do not fit, with the reason."""
    found: dict[str, tuple[Plain, Unit, Coordinates]] = {}
    meant: dict[Coordinates, str] = {}
    refused: list[tuple[str, str]] = []
    for chosen in product(*(range(choice.options) for choice in choices)):
        resolved = _resolved(spec.block, (), dict(zip((choice.place for choice in choices), chosen, strict=True)))
        parts, times = parts_of_choice(resolved, origin)
        try:
            plain = tuple(_completed(part, d_model, where) for where, part in parts)
            key = repr((times, plain))
            if key not in found:
                unit = _unit(plain, times, d_model, [where for where, _ in parts])
                found[key] = plain * times, unit, chosen
            meant[chosen] = key
        except UnfitBlockError as error:
            refused.append((error.kind, str(error)))
    return found, meant, refused


def _unit(plain: Plain, times: int, d_model: int, wheres: Sequence[str]) -> Unit:
    """What is described, read."""
    unit = tuple(_read(block, d_model, where) for block, where in zip(plain, wheres, strict=True))
    layers = times * sum(block.repeat for block in unit)
    if layers > MOST_REPEATS:
        raise UserError(f"{wheres[0]}: a pattern of {layers:,} layers in all; must be at most {MOST_REPEATS:,}")
    return unit * times


def _check_found(spec: SpaceSpec, described: Sequence[BlockSpec], refused: list[tuple[str, str]], origin: str) -> None:
    """`UserError` where nothing fits, a mixer never does, or `ratio` is that of nothing; `refused`: kinds and why."""
    if not described:
        raise UserError(f"{origin}: block: no combination fits; the first: {refused[0][1]}")
    fitting = {block.mixer.kind for block in described}
    for kind, first in refused:
        if kind not in fitting:
            raise UserError(f"{origin}: block.mixer: {kind}: fits no block; the first: {first}")
    if "ratio" in spec.block and all(block.feed_forward is None for block in described):
        raise UserError(f"{origin}: block.ratio: is that of a feed_forward, which no block has; give one, or no ratio")


def _check_together(described: Sequence[BlockSpec], common: ModelSpec, origin: str) -> None:
    """`UserError` where some blocks cannot stand in one model with others, or what they cost depends on the others."""
    try:
        check_together(described, common.d_model, common.embedding.skip)
    except ValueError as error:
        _, _, problem = str(error).partition("].")
        raise UserError(f"{origin}: block.{problem}; blocks of a space must fit each other") from None
    needed: dict[str, set[bool]] = {}
    for block in described:
        for field in block.mixer.cross_layer_values(block.width or common.d_model):
            needed.setdefault(field, set()).add(block.mixer.needs_cross_layer_gradients)
    for field, ways in needed.items():
        if len(ways) > 1:
            raise UserError(f"{origin}: block.mixer.{field}: learned in some choices and fixed in others; choose one")


def _check_fields(spec: SpaceSpec, origin: str) -> None:
    """Of a block's fields and what stands beside them only here."""
    for key, value in spec.block.items():
        if key not in FIELDS:
            raise UserError(f"{origin}: block: {unknown_key(key, value, FIELDS)}")


def _common(spec: SpaceSpec, origin: str, assigned: Sequence[str]) -> ModelSpec:
    """What is common to all models, checked with a block that fits every width."""
    if "blocks" in spec.model:
        raise UserError(f"{origin}: model.blocks: is decided by blocks and block; leave it out")
    of_model = [field.removeprefix("model.") for field in assigned if field.startswith("model.")]
    plain = {**spec.model, "blocks": [{"mixer": {"kind": "ted"}}]}
    return ModelSpec.parse(plain, f"{origin}: model", of_model, "`set` model.")


def _choices(node: Any, place: KeyPath, origin: str) -> Iterator[Choice]:
    if isinstance(node, list):
        if not node:
            raise UserError(f"{origin}: block.{'.'.join(map(str, place))}: []: expected at least one choice")
        numeric = all(isinstance(option, int | float) and not isinstance(option, bool) for option in node)
        yield Choice(place, len(node), ordered=numeric)
    parts = enumerate(node) if isinstance(node, list) else node.items() if isinstance(node, dict) else ()
    for key, value in parts:
        yield from _choices(value, (*place, key), origin)


def _resolved(node: Any, place: KeyPath, picks: Mapping[KeyPath, int]) -> Any:
    """The description with an option in the place of each list."""
    if isinstance(node, list):
        return _resolved(node[picks[place]], (*place, picks[place]), picks)
    if isinstance(node, dict):
        return {key: _resolved(value, (*place, key), picks) for key, value in node.items()}
    return node


def _completed(block: dict[str, Any], d_model: int, where: str) -> dict[str, Any]:
    """`ratio` and `head_width` turned into the fields that they decide; a single layer shares its weights with none."""
    if block.get("repeat", 1) == 1:
        block.pop("share_weights", None)
    ratio, head_width = block.pop("ratio", None), block.pop("head_width", None)
    width, mixer, feed_forward = block.get("width", d_model), block.get("mixer"), block.get("feed_forward")
    if ratio is not None and isinstance(feed_forward, dict) and isinstance(width, int):
        if not isinstance(ratio, int | float) or not 0 < ratio <= MOST_RATIO:
            raise UserError(f"{where}.ratio: {ratio!r}: must be a number greater than 0, at most {MOST_RATIO:,}")
        if "hidden" in feed_forward:
            raise UserError(f"{where}.feed_forward.hidden: is decided by ratio; leave one of both out")
        block["feed_forward"] = {**feed_forward, "hidden": max(1, round(ratio * width))}
    if head_width is not None and isinstance(width, int) and isinstance(mixer, dict) and _lacks_heads(mixer):
        if not isinstance(head_width, int) or head_width <= 0:
            raise UserError(f"{where}.head_width: {head_width!r}: must be a whole number greater than 0")
        if width % head_width:
            raise UnfitBlockError(str(mixer["kind"]), f"head_width: {head_width}: must divide the width {width}")
        block["mixer"] = {**mixer, "heads": width // head_width}
    return block


def _lacks_heads(mixer: dict[str, Any]) -> bool:
    """Whether the mixer may have heads and does not say how many."""
    kind = MIXERS.get(str(mixer.get("kind")))
    return kind is not None and "heads" in kind.model_fields and "heads" not in mixer


def _read(block: dict[str, Any], d_model: int, where: str) -> BlockSpec:
    described = BlockSpec.parse(block, where)
    if described.repeat > MOST_REPEATS:
        raise UserError(f"{where}.repeat: {described.repeat}: must be at most {MOST_REPEATS:,}")
    for name, part in (("mixer", described.mixer), ("feed_forward", described.feed_forward)):
        try:
            if part is not None:
                part.check(described.width or d_model)
        except ValueError as error:
            raise UnfitBlockError(described.mixer.kind, f"{name}.{error}") from None
    return described
