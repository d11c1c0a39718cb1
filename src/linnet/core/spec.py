"""The base of every configuration: frozen, typed, unknown keys refused, errors in one line; and YAML."""

import copy
import re
from collections.abc import Collection, Iterator, Mapping
from pathlib import Path
from types import MappingProxyType
from typing import Annotated, Any, ClassVar, Literal, Self, get_args, get_origin

import yaml
from pydantic import BaseModel, ConfigDict, Field, ValidationError, model_validator
from pydantic_core import to_jsonable_python

from linnet.core.bounds import (
    MAX_AMOUNT,
    MAX_COUNT,
    MAX_DEPTH,
    MAX_DIGITS,
    MAX_EXTENT,
    MAX_INTEGER,
    MAX_INTEGER_BITS,
    MAX_VALUES,
    MAX_VOCABULARY,
    MAX_YAML_BYTES,
)
from linnet.core.errors import UserError, did_you_mean
from linnet.core.files import check_extent, read_text

Extent = Annotated[int, Field(gt=0, le=MAX_EXTENT)]
"""A size that is computed at once: a side of a matrix, the sequences of a batch."""

Vocabulary = Annotated[int, Field(gt=0, le=MAX_VOCABULARY)]

Count = Annotated[int, Field(gt=0, le=MAX_COUNT)]
"""A number of things that are made or trained one by one: layers, shapes, batches of a step."""

Amount = Annotated[int, Field(gt=0, le=MAX_AMOUNT)]
"""A number of tokens or steps."""

Seed = Annotated[int, Field(ge=0, lt=MAX_INTEGER + 1)]
"""A seed that every random generator accepts."""


class Spec(BaseModel):
    """A frozen configuration, the base of everything that a user describes (model, mixer, training).

    A validator over several fields raises `ValueError("field: value: what is accepted")`. other_names: what other
    programs, or people, call some of the fields, so that an error can say what is meant.
    """

    other_names: ClassVar[Mapping[str, str]] = MappingProxyType({})

    model_config = ConfigDict(frozen=True, extra="forbid", allow_inf_nan=False)

    @model_validator(mode="before")
    @classmethod
    def _no_unknown_key(cls, data: Any) -> Any:
        """Checked first, because a misspelled key is also a missing one."""
        for key in data if isinstance(data, dict) else ():
            if key not in cls.model_fields:
                kinds = {name: field.annotation for name, field in cls.model_fields.items()}
                sections = {n: kind for n, kind in kinds.items() if isinstance(kind, type) and issubclass(kind, Spec)}
                within = [f"{name}.{key}" for name, spec in sections.items() if key in spec.model_fields]
                raise ValueError(unknown_key(key, data[key], cls._keys(), within, cls.other_names))
        return data

    @classmethod
    def _keys(cls) -> Collection[str]:
        """The accepted keys: the fields, and what may stand in their place."""
        return cls.model_fields

    @model_validator(mode="before")
    @classmethod
    def _no_bool_as_number(cls, data: Any) -> Any:
        """Python counts True as 1, but `heads: yes` in a configuration is a mistake."""
        for name, field in cls.model_fields.items():
            value = data.get(name) if isinstance(data, dict) else None
            if isinstance(value, bool) and _is_number(field.annotation):
                raise ValueError(f"{name}: {_short(value)}: must be a number")
        return data

    @model_validator(mode="after")
    def _no_number_beyond_counting(self) -> Self:
        for name in type(self).model_fields:
            value = getattr(self, name)
            if isinstance(value, int) and abs(value) > MAX_INTEGER:
                raise ValueError(f"{name}: {_short(value)}: must be at most {MAX_INTEGER}")
        return self

    @classmethod
    def parse(cls, value: Any, origin: str, assigned: Collection[str] = (), assigned_by: str = "`set` ") -> Self:
        """Validate plain data; a mistake becomes one line: `origin: field: value: what is accepted`.

        assigned: fields (`blocks.0.mixer.heads`) whose values have another origin, which `assigned_by` names.
        """
        try:
            return cls.model_validate(value)
        except ValidationError as error:
            message = describe(error, value)
            indexed = (re.sub(r"\.(\d+)(?=\.|$)", r"[\1]", field) for field in assigned)
            unknown = message.partition(": unknown key")[0] if ": unknown key" in message else None
            by_hand = any(
                message.startswith((f"{field}:", f"{field}.", f"{field}[")) or field.startswith(f"{unknown}.")
                for field in indexed
            )
            raise UserError(f"{assigned_by if by_hand else f'{origin}: '}{message}") from error


def unknown_key(
    key: Any,
    value: Any,
    fields: Collection[str],
    within: Collection[str] = (),
    other_names: Mapping[str, str] = MappingProxyType({}),
) -> str:
    """The message for a key that is not among `fields`: what it means, a similar key, or the accepted ones.

    within: the paths of fields with exactly that name. other_names: fields by what else they are called.
    """
    accepted = f"accepted: {', '.join(fields)}"
    instead = did_you_mean(str(key), fields, accepted)
    if (field := other_names.get(str(key).lower())) is not None:
        instead = f"did you mean {field}? {accepted}"
    elif within:
        instead = f"did you mean {' or '.join(within)}?"
    return f"{key}: unknown key (value {_short(value)}); {instead}"


def _is_number(annotation: Any) -> bool:
    """True for an annotation of a number: `PositiveInt`, `float | None`; not for `bool | float`."""
    parts = get_args(annotation)
    return annotation in (int, float) or (bool not in parts and any(_is_number(part) for part in parts))


PLAIN_WORDS = {
    "model_type": "must be a mapping",
    "model_attributes_type": "must be a mapping",
    "dict_type": "must be a mapping",
    "list_type": "must be a list",
    "tuple_type": "must be a list",
    "too_short": "must not be empty",
    "path_type": "must be a path",
    "none_required": "must be null",
    "int_type": "must be a whole number",
    "int_parsing": "must be a whole number",
    "int_from_float": "must be a whole number",
    "float_type": "must be a valid number",
    "float_parsing": "must be a valid number",
    "bool_type": "must be true or false",
    "bool_parsing": "must be true or false",
}


def describe(error: ValidationError, data: Any) -> str:
    """The first mistake of a pydantic error about `data` in one line: field, value, what would be accepted."""
    first = error.errors(include_url=False)[0]
    kind, field, value = first["type"], field_path(first["loc"], data), first["input"]
    if kind == "missing":
        return f"{field}: missing, a value is required"
    if kind == "union_tag_not_found":
        return f"{field}.kind: missing, a value is required"
    if kind == "union_tag_invalid":
        tag, tags = first["ctx"]["tag"], first["ctx"]["expected_tags"]
        guess = did_you_mean(str(tag), tags.replace("'", "").split(", "), "")
        return f"{field}.kind: {tag!r}: must be one of {tags}{guess and f'; {guess}'}"
    message = first["msg"].removeprefix("Value error, ").removeprefix("Assertion failed, ")
    if kind == "value_error" and isinstance(value, dict):
        return f"{field}.{message}" if field else message
    message = PLAIN_WORDS.get(kind, message.replace("Input should be", "must be", 1))
    if kind == "model_type" and value is True:
        message += ", {} at the least"
    if kind == "list_type" and isinstance(value, str):
        message = f"must be a list: [{value}]"
    return f"{field}: {_short(value)}: {message}" if field else message


def first_schema_error(plain: Any, kind: type[BaseModel]) -> str | None:
    """What is wrong in the first field of plain data that is not as `kind` has it; None where all are."""
    try:
        kind.model_validate(plain, strict=True)
    except ValidationError as error:
        return describe(error, plain) or "expected a mapping"
    return None


UNION_MEMBER = re.compile(r"(str|int|float|bool|constrained-\w+|function-\w+|list|dict)(\[.*\])?")
"""What Pydantic writes into the location of a mistake for a member of a union: `str`, `list[ChatMessage]`."""


def field_path(location: tuple[int | str, ...], data: Any) -> str:
    """`("blocks", 0, "mixer", "ted", "heads")` as a person writes it: `blocks[0].mixer.heads`.

    Pydantic puts the chosen `kind` of a union, or the type of its member, into the location; these are no fields of
    `data`, so they are left out.
    """
    path = ""
    for part in location:
        if isinstance(data, dict) and part not in data and data.get("kind") == part:
            continue
        is_field = isinstance(data, dict) and part in data
        if part == "[key]":  # a key of a mapping that pydantic refuses; the message shows it as the value
            continue
        if isinstance(part, str) and not is_field and UNION_MEMBER.fullmatch(part):
            continue
        path += f"[{part}]" if isinstance(data, list) else f".{part}" if path else str(part)
        if isinstance(data, list):
            data = data[part] if isinstance(part, int) and part < len(data) else None
        else:
            data = data.get(part) if isinstance(data, dict) else None
    return path


_VALUE_ERRORS = (ValueError, OverflowError, AttributeError, LookupError, TypeError)
"""What PyYAML raises for values that are none of their kind: the 30th of February, `!!timestamp x`, `!!int ''`."""


def read_yaml(path: str | Path) -> Any:
    """Plain data from a YAML file; a malformed one is a `UserError` that names file and line."""
    return parse_yaml(read_text(path, MAX_YAML_BYTES), str(path))


def parse_yaml(text: str, path: str) -> Any:
    """Plain data from YAML; `UserError` names `path`, where it comes from, and the line."""
    try:
        plain = yaml.load(text, Loader=_UniqueKeys)
    except yaml.MarkedYAMLError as error:
        line = error.problem_mark.line + 1 if error.problem_mark else "?"
        raise UserError(f"{path}, line {line}: not valid YAML ({error.problem})") from error
    except RecursionError:
        raise UserError(f"{path}: not valid YAML (nested too deep)") from None
    except (yaml.YAMLError, *_VALUE_ERRORS) as error:
        raise UserError(f"{path}: not valid YAML ({error})") from error
    check_extent(plain, path)
    return plain


SURROGATE_PAIR = re.compile("[\ud800-\udbff][\udc00-\udfff]")


class _UniqueKeys(yaml.SafeLoader):
    """Refuses a key that is given twice, where YAML would silently keep the last, and what takes time without end."""

    def construct_scalar(self, node: Any) -> Any:
        """Numbers to the base 60 (`1:30`) take the square of their length."""
        is_number = node.tag in ("tag:yaml.org,2002:int", "tag:yaml.org,2002:float")
        if is_number and isinstance(node.value, str) and len(node.value) > MAX_DIGITS:
            problem = f"a number of {len(node.value):,} characters; expected at most {MAX_DIGITS}"
            raise yaml.constructor.ConstructorError(problem=problem, problem_mark=node.start_mark)
        value = super().construct_scalar(node)
        if isinstance(value, str):  # JSON writes one character as two escapes, which PyYAML does not join
            return SURROGATE_PAIR.sub(lambda pair: pair[0].encode("utf-16", "surrogatepass").decode("utf-16"), value)
        return value

    def flatten_mapping(self, node: yaml.MappingNode) -> None:
        """Merged keys (`<<`) of merged keys double with each."""
        super().flatten_mapping(node)
        if len(node.value) > MAX_VALUES:
            problem = f"more than {MAX_VALUES:,} merged keys"
            raise yaml.constructor.ConstructorError(problem=problem, problem_mark=node.start_mark)

    def construct_mapping(self, node: yaml.MappingNode, deep: bool = False) -> dict[Any, Any]:
        seen: set[str] = set()
        for key, _ in node.value:
            if isinstance(key, yaml.ScalarNode):
                if key.value in seen:
                    raise yaml.constructor.ConstructorError(
                        problem=f"key {key.value!r} is given twice", problem_mark=key.start_mark
                    )
                seen.add(key.value)
        return super().construct_mapping(node, deep)


def override(data: dict[str, Any], assignments: list[str]) -> dict[str, Any]:
    """Apply `section.key=value` assignments (values are YAML; `blocks.0.mixer.heads=4` reaches into lists).

    Returns a changed copy. A malformed assignment or a path through something that is no mapping is a `UserError`.
    """
    result = copy.deepcopy(data)
    for assignment in assignments:
        path, value = read_assignment(assignment)
        if path.count(".") > MAX_DEPTH:
            raise UserError(field="set", value=_short(assignment), accepted=f"at most {MAX_DEPTH} levels of fields")
        _assign(result, path.split("."), value, assignment)
    return result


def read_assignment(assignment: str) -> tuple[str, Any]:
    """The path and the value of `section.key=value`; `UserError` for a malformed one."""
    path, equals, text = assignment.partition("=")
    if not equals or not path.strip():
        raise UserError(field="set", value=assignment, accepted="section.key=value")
    try:
        value = yaml.load(text, Loader=_UniqueKeys)
    except (yaml.YAMLError, *_VALUE_ERRORS):
        raise UserError(f"{text!r} is not a valid YAML value", field="set", value=assignment) from None
    except RecursionError:
        raise UserError("nested too deep", field="set", value=_short(assignment), accepted="a YAML value") from None
    check_extent(value, f"set {_short(assignment)}")
    return path.strip(), _number(value)


def _assign(node: Any, keys: list[str], value: Any, assignment: str) -> None:
    for depth, key in enumerate(keys):
        last = depth == len(keys) - 1
        if isinstance(node, list):
            if not re.fullmatch(r"[0-9]{1,9}", key) or int(key) >= len(node):
                raise UserError(f"{_short(key)} is not an index below {len(node)}", field="set", value=assignment)
            index: Any = int(key)
        elif isinstance(node, dict):
            index = key
            if not last and node.get(key) is None:
                node[key] = {}
        else:
            raise UserError(f"{'.'.join(keys[:depth])} has no field {key!r}", field="set", value=assignment)
        if last:
            node[index] = value
        else:
            node = node[index]


def _number(value: Any) -> Any:
    """YAML 1.1 reads `1e-3` as text (it wants `1.0e-3`); a person means a number."""
    return float(value) if isinstance(value, str) and re.fullmatch(r"[-+]?[0-9]+[eE][-+]?[0-9]+", value) else value


def _short(value: Any, limit: int = 60) -> str:
    if isinstance(value, int) and value.bit_length() > MAX_INTEGER_BITS:
        return f"a number of {value.bit_length():,} bits"
    text = repr(value)
    return text if len(text) <= limit else f"{text[: limit - 1]}…"


def without_defaults(value: Any) -> Any:
    """The plain data of a configuration without the fields that equal the default of their class, at any depth.

    Two configurations of one class are equal if these are. A section that differs from its field's default stays, as an
    empty mapping where its own fields are defaults; so does the one value of a field that tells kinds apart.
    """
    if isinstance(value, Spec):
        fields = {name: (getattr(value, name), field) for name, field in type(value).model_fields.items()}
        return {
            name: without_defaults(own)
            for name, (own, field) in fields.items()
            if _names_kind(field.annotation) or own != field.get_default(call_default_factory=True)
        }
    if isinstance(value, dict):
        return {to_jsonable_python(name): without_defaults(own) for name, own in value.items()}
    return [without_defaults(own) for own in value] if isinstance(value, list | tuple) else to_jsonable_python(value)


def _names_kind(annotation: Any) -> bool:
    """True for a literal of one value, by which a union of configurations is told apart."""
    return get_origin(annotation) is Literal and len(get_args(annotation)) == 1


def field_kinds(spec: type[Spec], prefix: str = "") -> Iterator[tuple[str, Any]]:
    """Path and type of fields that are no sections themselves: `training.optimizer.lr`; of a list's, the first's."""
    for name, field in spec.model_fields.items():
        kinds = (field.annotation, *get_args(field.annotation))
        section = next((kind for kind in kinds if isinstance(kind, type) and issubclass(kind, Spec)), None)
        if section is None:
            yield prefix + name, field.annotation
        else:
            first = "0." if get_origin(field.annotation) is list else ""
            yield from field_kinds(section, f"{prefix}{name}.{first}")


def is_number_field(kind: Any) -> bool:
    """Whether one number is a value of the type: `float | None`, but no tuple of numbers, and no bool."""
    if get_origin(kind) in (tuple, list, dict):
        return False
    return kind in (int, float) or any(is_number_field(part) for part in get_args(kind))


def flatten(plain: Any, path: str = "") -> dict[str, Any]:
    """Nested data as `field.path -> value`."""
    if isinstance(plain, dict):
        pairs = [(str(key), value) for key, value in plain.items()]
    elif isinstance(plain, list):
        pairs = [(str(index), value) for index, value in enumerate(plain)]
    else:
        return {path: plain}
    return {leaf: v for key, value in pairs for leaf, v in flatten(value, f"{path}.{key}" if path else key).items()}
