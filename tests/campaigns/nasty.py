"""Values that nobody should type, and changes that turn a valid document into one that nobody should write."""

import random
from typing import Any

import yaml

VALUES: list[Any] = [
    "", " ", "0", "-1", "1", "2", "-0", "0.5", "1e-400", "1e308", "1e400", "nan", "inf", "-inf", "null", "true",
    "false", "[]", "{}", "[1, 2]", "{a: 1}", "[[[1]]]", "1" + 30 * "0", 400 * "9", "200000", "1e9", "1e12",
    "4294967296", "9223372036854775808", "18446744073709551616", "0x10", "1_000", "1k", "1M", "1T", "1e18G", "5ms",
    "é", "\u202eabc", "\x1b[31mred\x1b[0m", "a\nb", "a\tb", "-", "--", "~", "/", ".", "..", "/dev/null", "*", "%s%n",
    "${HOME}", "'", '"', "`", "!!python/object/apply:os.system [ls]", "&a [*a]", "*a", 5000 * "k", 3000 * "[",
    3000 * "{a: ", "no", "2026-01-01", "12:30", "1,2,3", "64,", ",", "=", "a=b", "a.b=c", "🙂", "\x00", "\ufeff",
    "None", "-9223372036854775809", "3.0000000000000001", "1e5", "65536", "1000000",
]  # fmt: skip
"""As words of a command line."""

PLAIN: list[Any] = [
    None, True, False, 0, -1, 1, 0.5, -0.0, 1e308, float("nan"), float("inf"), float("-inf"), 10**30, 2**63, 2**64,
    10**400, "", " ", "x", "1e400", [], {}, [1], [[]], {"a": 1}, {"kind": "attention"}, "\x1b[31m", "é\n", 5000 * "k",
    10**7, 10**9, 10**12, 65536, "null", [None], -(10**9),
]  # fmt: skip
"""As values of documents."""


def changed(document: Any, chance: random.Random) -> Any:
    """The document with one to three places changed."""
    for _ in range(chance.choice([1, 1, 1, 2, 3])):
        document = _changed_once(document, chance)
    return document


def _changed_once(document: Any, chance: random.Random) -> Any:
    places = list(_places(document))
    if not places:
        return chance.choice(PLAIN)
    holder, key = chance.choice(places)
    way = chance.randrange(8)
    if way <= 3:
        holder[key] = chance.choice(PLAIN)
    elif way == 4:
        del holder[key]
    elif way == 5:
        holder[key] = [holder[key]] * chance.choice([1, 2, 50])
    elif way == 6 and isinstance(holder, dict):
        holder[chance.choice([f"{key}x", "kind", "", 7, None])] = holder[key]
    else:
        holder[key] = _scaled(holder[key], chance)
    return document


def _scaled(value: Any, chance: random.Random) -> Any:
    if isinstance(value, bool) or not isinstance(value, int | float):
        return {"a": value}
    return chance.choice([-value, value * 1000, value + 1, value / 3, value * 10**6, 0])


def _places(document: Any) -> Any:
    pairs = (
        document.items() if isinstance(document, dict) else enumerate(document if isinstance(document, list) else ())
    )
    for key, inner in list(pairs):
        yield document, key
        yield from _places(inner)


def mutated(name: str, content: bytes, chance: random.Random) -> bytes:
    """Another content for a file that a user wrote."""
    if name.endswith((".yaml", ".yml")) and chance.random() < 0.7:
        return yaml.safe_dump(changed(yaml.safe_load(content), chance), sort_keys=False).encode()
    if name.endswith(".csv"):
        return _cells(content, chance)
    return _bytes(content, chance)


def _cells(content: bytes, chance: random.Random) -> bytes:
    lines = [line.split(",") for line in content.decode().splitlines()]
    for _ in range(chance.choice([1, 1, 3, 20])):
        line = chance.choice(lines[:1] if chance.random() < 0.2 else lines)
        way = chance.randrange(6)
        if way <= 2 and line:
            line[chance.randrange(len(line))] = str(chance.choice(VALUES)).replace("\0", "")[:6000]
        elif way == 3 and line:
            del line[chance.randrange(len(line))]
        elif way == 4:
            lines.append(list(line))
        elif len(lines) > 1:
            lines.remove(line)
    return "\n".join(",".join(line) for line in lines).encode()


def _bytes(content: bytes, chance: random.Random) -> bytes:
    """Pieces doubled, removed, put in."""
    changed = bytearray(content[:200_000])
    for _ in range(chance.choice([1, 2, 5, 20])):
        at = chance.randrange(len(changed) + 1)
        end = min(len(changed), at + chance.choice([1, 2, 10, 100]))
        way = chance.randrange(3)
        if way == 0:
            del changed[at:end]
        elif way == 1:
            changed[at:at] = changed[at:end]
        else:
            changed[at:at] = str(chance.choice(VALUES)).encode()
    return bytes(changed)
