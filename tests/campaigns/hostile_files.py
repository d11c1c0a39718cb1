"""Files that nobody would write by mistake, each under the name of what it attacks."""

import io
import json
import os
import pickle
import random
import socket
import struct
import zipfile
from collections.abc import Callable
from pathlib import Path

import numpy as np
import torch

DEEP = 3000
LETTERS = {"a": 0, "b": 1, "ab": 2, "</s>": 3}
BYTE_LEVEL = {"type": "ByteLevel", "add_prefix_space": False, "trim_offsets": True, "use_regex": True}

Maker = Callable[[Path], None]
"""Makes the file, or whatever stands in its place; nothing is there."""


class Touching:
    """Unpickled, it would leave a trace."""

    def __reduce__(self) -> tuple:
        return os.mkdir, ("unpickled",)


def text(content: str | bytes) -> Maker:
    return lambda path: _put(path, content)


def _put(path: Path, content: str | bytes) -> None:
    path.write_bytes(content if isinstance(content, bytes) else content.encode("utf-8", errors="surrogateescape"))


def header(plain: object, body: bytes = b"", size: int | None = None) -> bytes:
    """A safetensors file with any header."""
    told = plain if isinstance(plain, bytes) else json.dumps(plain).encode()
    return struct.pack("<Q", len(told) if size is None else size) + told + body


def tensor(shape: list[int], begin: int, end: int, dtype: str = "F32") -> dict:
    return {"dtype": dtype, "shape": shape, "data_offsets": [begin, end]}


def laughs(levels: int = 30) -> str:
    """YAML aliases that double."""
    lines = ["a0: &a0 [x, x]", *(f"a{n}: &a{n} [*a{n - 1}, *a{n - 1}]" for n in range(1, levels))]
    return "\n".join([*lines, "name: x", "blocks: *a" + str(levels - 1), "model: *a" + str(levels - 1)]) + "\n"


def array(shape: tuple[int, ...], body: bytes = b"") -> bytes:
    """An .npy whose header claims a shape."""
    stream = io.BytesIO()
    np.lib.format.write_array_header_2_0(stream, {"descr": "<f4", "fortran_order": False, "shape": shape})
    return stream.getvalue() + body


def zipped(inner: dict[str, bytes]) -> bytes:
    stream = io.BytesIO()
    with zipfile.ZipFile(stream, "w", zipfile.ZIP_DEFLATED) as archive:
        for name, content in inner.items():
            archive.writestr(name, content)
    return stream.getvalue()


def pickled() -> bytes:
    return pickle.dumps({"model_state_dict": Touching()})


def torch_pickled() -> bytes:
    stream = io.BytesIO()
    torch.save({"model_state_dict": Touching()}, stream)
    return stream.getvalue()


def vocabulary(change: Callable[[dict], None]) -> Maker:
    """A tokenizer.json with something changed; the plain one is that of a few letters."""

    def make(path: Path) -> None:
        document = {
            "version": "1.0", "truncation": None, "padding": None, "added_tokens": [_added("</s>", 3)],
            "normalizer": None, "pre_tokenizer": BYTE_LEVEL, "post_processor": None, "decoder": BYTE_LEVEL,
            "model": {"type": "BPE", "dropout": None, "unk_token": None,
                      "vocab": LETTERS.copy(), "merges": [["a", "b"]]},
        }  # fmt: skip
        change(document)
        path.write_text(json.dumps(document))

    return make


def _nested(kind: str) -> Callable[[dict], None]:
    def change(document: dict) -> None:
        inner: dict = {"type": "NFC"} if kind == "normalizer" else BYTE_LEVEL
        for _ in range(90):
            inner = {"type": "Sequence", f"{kind}s": [inner]}
        document[kind] = inner

    return change


def _added(content: str, number: int) -> dict:
    return {
        "id": number,
        "content": content,
        "single_word": False,
        "lstrip": False,
        "rstrip": False,
        "normalized": False,
        "special": True,
    }


def _replacing(document: dict) -> None:
    """Normalizers that double the text each time."""
    one = {"type": "Replace", "pattern": {"Regex": "."}, "content": "aa" * 8}
    document["normalizer"] = {"type": "Sequence", "normalizers": [one] * 12}


def _socket(path: Path) -> None:
    here = Path.cwd()
    os.chdir(path.parent)  # names of sockets are short
    try:
        with socket.socket(socket.AF_UNIX) as one:
            one.bind(path.name)
    finally:
        os.chdir(here)


def _many(path: Path) -> None:
    path.mkdir()
    for number in range(2000):
        (path / f"{number:05d}.txt").touch()


def _sparse(path: Path) -> None:
    with path.open("wb") as file:
        file.truncate(1 << 40)


def _noise(path: Path) -> None:
    path.write_bytes(random.Random(0).randbytes(100_000))


ANY: dict[str, Maker] = {
    "pipe": os.mkfifo,
    "zeros without end": lambda path: path.symlink_to("/dev/zero"),
    "full device": lambda path: path.symlink_to("/dev/full"),
    "noise without end": lambda path: path.symlink_to("/dev/urandom"),
    "terminal": lambda path: path.symlink_to("/dev/tty"),
    "socket": _socket,
    "folder": Path.mkdir,
    "folder of many": _many,
    "link to itself": lambda path: path.symlink_to(path.name),
    "a terabyte of nothing": _sparse,
    "noise": _noise,
    "nothing": text(""),
    "brackets": text("[" * DEEP),
    "closed brackets": text("[" * DEEP + "]" * DEEP),
    "braces": text('{"a":' * DEEP + "1" + "}" * DEEP),
    "million brackets": text("[" * 1_000_000),
    "escapes": text("\x1b[2J\x1b]0;owned\x07\x9b31m\n\x1b[31m{a: 1}\r\b"),
    "no UTF-8": text(b"\xff\xfe\x00name: x\n\xc3\x28"),
    "one long line": text("x" * 20_000_000),
    "digits": text("1" * 5000),
    "null": text("null"),
    "number": text("1e999"),
    "list": text("[1, 2, 3]"),
    "surrogate": text('{"a": "\\ud800", "\\ud800": 1}'),
}
YAML: dict[str, Maker] = {
    "doubling aliases": text(laughs()),
    "recursive alias": text("a: &a [*a]\nmodel: *a\nblocks: &b {c: *b}\n"),
    "recursive model": text("model: &m {blocks: [*m]}\ndata: d\ntraining: {}\n"),
    "tags": text("!!python/object/apply:os.mkdir [unpickled]\n"),
    "brackets in a field": text("name: x\nblocks: " + "[" * DEEP + "]" * DEEP),
    "many keys": text("".join(f"k{n}: 1\n" for n in range(20_000))),
    "same key": text("model: tiny-ted\nmodel: tiny-pldr\ndata: d\n"),
    "merge": text("a: &a {b: 1}\n<<: *a\nmodel: {<<: [*a, *a]}\n"),
    "documents": text("a: 1\n---\nb: 2\n"),
}
JSON: dict[str, Maker] = {
    "huge integer": text('{"step": ' + "9" * 6000 + ', "version": 1}'),
    "not a number": text('{"version": NaN, "tokens": Infinity}'),
    "escaped names": text('{"\\u001b[31m": "\\u001b]0;x\\u0007"}'),
    "brackets in a field": text('{"version": 1, "splits": ' + "[" * DEEP + "]" * DEEP + "}"),
}
JSONL: dict[str, Maker] = {
    "bracket lines": text(("[" * DEEP + "]" * DEEP + "\n") * 3),
    "text of brackets": text('{"text": ' + "[" * DEEP + "]" * DEEP + "}\n"),
    "other types": text('{"text": 7}\n{"text": null}\n[]\n7\n{"text": ["a"]}\n'),
    "escapes within": text('{"text": "\\u001b[31m \\ud800 \\u0000"}\n'),
}
TOKENIZER: dict[str, Maker] = {
    "huge id": vocabulary(lambda d: d["model"]["vocab"].update({"x": 200_000_000})),
    "huge added id": vocabulary(lambda d: d["added_tokens"].append(_added("<x>", 200_000_000))),
    "id beyond 32 bits": vocabulary(lambda d: d["model"]["vocab"].update({"x": 2**40})),
    "negative id": vocabulary(lambda d: d["model"]["vocab"].update({"x": -1})),
    "long added token": vocabulary(lambda d: d["added_tokens"].append(_added("x" * 5_000_000, 4))),
    "many added tokens": vocabulary(lambda d: d["added_tokens"].extend(_added(f"<{n}>", n + 4) for n in range(20_000))),
    "nested normalizers": vocabulary(_nested("normalizer")),
    "nested pre-tokenizers": vocabulary(_nested("pretokenizer")),
    "doubling normalizers": vocabulary(_replacing),
    "escapes in tokens": vocabulary(lambda d: d["model"]["vocab"].update({"\x1b[31m": 4, "\x9b": 5})),
    "plain": vocabulary(lambda d: None),
    "no model": vocabulary(lambda d: d.pop("model")),
    "unigram of nothing": vocabulary(lambda d: d.update(model={"type": "Unigram", "unk_id": 7, "vocab": []})),
    "expression": vocabulary(
        lambda d: d.update(normalizer={"type": "Replace", "pattern": {"Regex": "(a+)+$"}, "content": ""})
    ),
    "normalizers 3,000 deep": text(
        '{"normalizer": ' + '{"type": "Sequence", "normalizers": [' * DEEP + "]}" * DEEP + "}"
    ),
}  # fmt: skip
SAFETENSORS: dict[str, Maker] = {
    "header of 8 GB": text(header(b"{}", size=8 << 30)),
    "header of 2^63": text(header(b"{}", size=(1 << 63) + 5)),
    "overlapping": text(header({"a": tensor([4], 0, 16), "b": tensor([4], 8, 24)}, bytes(24))),
    "negative": text(header({"a": tensor([4], -8, 8)}, bytes(16))),
    "shape of a trillion": text(header({"a": tensor([10**12], 0, 16)}, bytes(16))),
    "shape that overflows": text(header({"a": tensor([2**40, 2**40], 0, 16)}, bytes(16))),
    "many sizes": text(header({"a": tensor([1] * 5000, 0, 4)}, bytes(4))),
    "unknown type": text(header({"a": tensor([4], 0, 16, "X9")}, bytes(16))),
    "brackets in the header": text(header(b"[" * DEEP)),
    "metadata": text(header({"__metadata__": {"step": "\x1b[31m", "format": 7}}, b"")),
    "empty header": text(header({})),
    "not numbers": text(header({"a": tensor([4], 0, 16)}, b"\xff" * 16)),
    "escapes in names": text(header({"\x1b[31mname\x9b": tensor([4], 0, 16)}, bytes(16))),
    "many tensors": text(header({f"t{n}": tensor([0], 0, 0) for n in range(50_000)})),
}
OBJECTS = b"\x93NUMPY\x01\x00v\x00{'descr': '|O', 'fortran_order': False, 'shape': (1,), }" + b" " * 57 + b"\n"
PACKED: dict[str, Maker] = {
    "15 GB claimed": text(zipped({"G0.npy": array((4_000_000_000,))})),
    "15 GB of zeros": text(zipped({"G0.npy": array((1 << 28,), bytes(64 << 20))})),
    "pickle": text(pickled()),
    "pickle in a zip": text(zipped({"G0.npy": OBJECTS + pickled()})),
    "torch pickle": text(torch_pickled()),
    "zip bomb": text(zipped({f"{n}.npy": bytes(100 << 20) for n in range(3)})),
    "negative shape": text(zipped({"G0.npy": array((-5,))})),
    "zip of nothing": text(zipped({})),
    "name upwards": text(zipped({"../../upwards.npy": array((1,), bytes(4))})),
    "cut zip": text(zipped({"a.npy": array((9,), bytes(36))})[:-10]),
}  # fmt: skip

BY_SUFFIX: dict[str, dict[str, Maker]] = {
    ".yaml": YAML,
    ".json": JSON,
    ".jsonl": {**JSON, **JSONL},
    ".safetensors": SAFETENSORS,
    ".npz": PACKED,
    ".pth": PACKED,
}


def makers(name: str) -> dict[str, Maker]:
    """What may stand in the place of a file."""
    own = BY_SUFFIX.get(Path(name).suffix, {})
    return {**ANY, **own, **(TOKENIZER if Path(name).name == "tokenizer.json" else {})}


NAMES = [
    "a\nb", "\x1b[31mred", "-rf", "--out", "a b", "é", "\udcff\udcfe", "\u202eevil", "'; rm x", "%s", "a" * 250, "*",
    "~", "{}", "\x9b31m", "#", "a=b", "http:", "[1]", "\u2028",
]  # fmt: skip
"""Names for files and folders."""
