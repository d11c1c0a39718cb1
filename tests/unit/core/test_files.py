import errno
import io
import json
import os
import sys
import threading
from pathlib import Path
from typing import Any

import pytest

from linnet.core import files
from linnet.core.bounds import MAX_DEPTH, MAX_VALUES
from linnet.core.errors import UserError
from linnet.core.files import (
    check_extent,
    open_file,
    parse_json,
    read_json,
    read_text,
    read_whole,
    run_python_file,
    sha256_of,
    standard_input,
    write_json,
)
from linnet.core.spec import parse_yaml


def test_json_is_readable_and_read_back(tmp_path: Path):
    path, value = tmp_path / "run.json", {"ä": [1, 2.5, None, True], "b": {"c": "🐦"}}
    write_json(path, value)
    assert read_json(path) == json.loads(path.read_text(encoding="utf-8")) == value
    assert '"ä"' in path.read_text(encoding="utf-8")
    assert path.read_text(encoding="utf-8").endswith("}\n")


def refusal(path: Path) -> str:
    with pytest.raises(UserError) as refused:
        read_json(path)
    return str(refused.value)


def test_unreadable_files_are_refused_in_one_line(tmp_path: Path):
    path = tmp_path / "file.json"
    assert refusal(path) == f"{path}: no such file"
    assert refusal(tmp_path) == f"{tmp_path}: is a directory, expected a file"
    path.write_bytes(b"abc\xff")
    assert refusal(path) == f"{path}: not UTF-8 text (byte 3)"
    path.write_text('{"a": 1,\n "b": }')
    assert refusal(path) == f"{path}, line 2: not valid JSON (Expecting value)"


def test_a_file_without_permission_is_refused(tmp_path: Path, monkeypatch: pytest.MonkeyPatch):
    """Raised by hand: tests may run as root, whom nothing is forbidden."""

    def forbid(*_: object, **__: object) -> int:
        raise PermissionError(errno.EACCES, "Permission denied")

    monkeypatch.setattr(os, "open", forbid)
    with pytest.raises(UserError, match="no permission to read it"):
        read_text(tmp_path / "file.txt")


def test_names_and_links_that_lead_nowhere_are_refused(tmp_path: Path):
    assert refusal(tmp_path / "a\0b").endswith("embedded null byte")
    (tmp_path / "file").write_text("x")
    assert refusal(tmp_path / "file" / "inside") == f"{tmp_path / 'file' / 'inside'}: no such file"
    assert refusal(tmp_path / ("x" * 300)).endswith("File name too long")
    (tmp_path / "loop").symlink_to("loop")
    assert refusal(tmp_path / "loop") == f"{tmp_path / 'loop'}: a link that leads to itself"


def test_devices_are_refused(tmp_path: Path):
    for path in ("/dev/zero", "/dev/random"):
        assert refusal(Path(path)) == f"{path}: a device or pipe, expected a file"
    (tmp_path / "link").symlink_to("/dev/zero")
    assert refusal(tmp_path / "link") == f"{tmp_path / 'link'}: a device or pipe, expected a file"


def test_a_text_may_come_through_a_pipe(tmp_path: Path):
    path = tmp_path / "pipe"
    os.mkfifo(path)
    writer = threading.Thread(target=path.write_text, args=("é" * 100_000,))
    writer.start()
    assert read_text(path) == "é" * 100_000
    writer.join()


def test_an_idle_pipe_is_refused_after_a_while(tmp_path: Path, monkeypatch: pytest.MonkeyPatch):
    monkeypatch.setattr(files, "PIPE_WAIT_S", 0.01)
    path = tmp_path / "pipe"
    os.mkfifo(path)
    assert refusal(path) == f"{path}: a pipe into which nobody wrote for 0 s, expected a file"
    with pytest.raises(UserError, match="a device or pipe, expected a file"):
        open_file(path)


def test_a_file_is_not_read_beyond_its_bound(tmp_path: Path):
    path = tmp_path / "file.txt"
    path.write_text("x" * 100)
    assert read_text(path, most_bytes=100) == "x" * 100
    with pytest.raises(UserError, match=r"file\.txt: expected a file of at most 99 bytes"):
        read_text(path, most_bytes=99)


def test_no_more_is_read_than_the_bound_and_a_block(tmp_path: Path):
    """A file of a terabyte without content."""
    path = tmp_path / "file.json"
    with path.open("wb") as handle:
        handle.truncate(1 << 40)
    with pytest.raises(UserError, match="at most 1,000 bytes"):
        read_text(path, most_bytes=1000)


@pytest.mark.parametrize("text", ["[" * 100_000, '{"a":' * 100_000, "9" * 5000])
def test_json_beyond_limits_is_refused(text: str, tmp_path: Path):
    path = tmp_path / "file.json"
    path.write_text(text)
    assert refusal(path) == f"{path}: not valid JSON (numbers or nesting beyond limits)"


def test_names_that_are_no_utf8_are_written_as_escapes(tmp_path: Path):
    value = {"file": os.fsdecode(b"caf\xe9"), "ä": "ö"}
    write_json(tmp_path / "x.json", value)
    assert read_json(tmp_path / "x.json") == value


def nested(depth: int) -> Any:
    value: Any = 1
    for level in range(depth):
        value = [value] if level % 2 else {"a": value}
    return value


@pytest.mark.parametrize("text", ['{"a": ["x\\ud800"]}', '{"\\udfff": 1}', '"\\ude00\\ud83d"'])
def test_half_of_a_surrogate_pair_is_refused_with_the_text(text: str):
    with pytest.raises(UserError, match=r"^x\.json: '.*\\u?d.*': half of a surrogate pair, which is not Unicode text$"):
        parse_json(text, "x.json")
    with pytest.raises(UserError, match=r"^x\.yaml: .*half of a surrogate pair"):
        parse_yaml(text, "x.yaml")


def test_whole_pairs_and_bytes_of_file_names_are_text():
    for parsed in (parse_json, parse_yaml):
        assert parsed('"\\ud83d\\ude00 \\udcff"', "x") == "\U0001f600 \udcff"


def test_the_extent_of_data_is_bounded():
    check_extent(nested(MAX_DEPTH), "x")
    check_extent(list(range(MAX_VALUES)), "x")
    for value in (nested(MAX_DEPTH + 1), nested(100_000), list(range(MAX_VALUES + 1))):
        with pytest.raises(UserError, match=r"^x: nested too deep or too large; expected at most 60 levels and "):
            check_extent(value, "x")


def test_self_containing_data_is_refused():
    loop: list[Any] = []
    loop.append(loop)
    bomb: list[Any] = ["lol"] * 9
    for _ in range(20):
        bomb = [bomb] * 9
    for value in (loop, bomb):
        with pytest.raises(UserError, match="nested too deep or too large"):
            check_extent(value, "x")


def test_endless_devices_are_refused_as_standard_input(monkeypatch: pytest.MonkeyPatch):
    with Path("/dev/zero").open() as zeros, Path(os.devnull).open() as nothing:
        monkeypatch.setattr(sys, "stdin", zeros)
        with pytest.raises(UserError, match="the standard input: a device, expected a file or a pipe"):
            standard_input()
        monkeypatch.setattr(sys, "stdin", nothing)
        assert standard_input().read() == b""


def test_the_content_of_a_pipe_is_bounded():
    assert read_whole(io.BytesIO(b"1234"), "it", 4) == b"1234"
    with pytest.raises(UserError, match="it: expected a file of at most 4 bytes"):
        read_whole(io.BytesIO(b"12345"), "it", 4)


@pytest.mark.parametrize("number", [errno.EMFILE, errno.EIO, errno.ENOMEM])
def test_failures_of_the_machine_are_not_blamed_on_the_file(number: int, monkeypatch: pytest.MonkeyPatch):
    def fail(path: Any, *_: Any) -> int:
        raise OSError(number, os.strerror(number), path)

    monkeypatch.setattr(os, "open", fail)
    with pytest.raises(OSError, match="file") as caught:
        open_file("file")
    assert caught.value.errno == number


def test_too_large_files_are_not_hashed(tmp_path: Path):
    with (tmp_path / "x.safetensors").open("wb") as handle:
        handle.truncate(files.MAX_HASHED_BYTES + 1)
    with pytest.raises(UserError, match="68,719,476,737 bytes; expected at most 68,719,476,736"):
        sha256_of(tmp_path / "x.safetensors")


def test_files_and_pipes_are_read_where_the_system_has_no_poll(tmp_path: Path, monkeypatch: pytest.MonkeyPatch):
    monkeypatch.delattr(files.select, "poll")
    monkeypatch.delattr(os, "set_blocking")
    for flag in ("NO_WAIT", "CLOSE_ON_EXEC"):
        monkeypatch.setattr(files, flag, 0)
    path = tmp_path / "pipe"
    os.mkfifo(path)
    writer = threading.Thread(target=path.write_text, args=("text",))
    writer.start()
    assert read_text(path) == "text"
    writer.join()
    (tmp_path / "file").write_text("more")
    assert read_text(tmp_path / "file") == "more"


def test_the_standard_input_is_read_where_there_is_no_null_device(tmp_path: Path, monkeypatch: pytest.MonkeyPatch):
    monkeypatch.setattr(os, "devnull", str(tmp_path / "missing"))
    (tmp_path / "file").write_text("text")
    with (tmp_path / "file").open() as handle:
        monkeypatch.setattr(sys, "stdin", handle)
        assert standard_input().read() == b"text"


def test_a_python_file_may_have_data_classes_and_import_its_neighbors(tmp_path: Path, monkeypatch: pytest.MonkeyPatch):
    monkeypatch.setattr(sys, "path", list(sys.path))
    (tmp_path / "neighbor_of_a_file.py").write_text("TWO = 2\n")
    (tmp_path / "own.py").write_text(
        "from __future__ import annotations\nfrom dataclasses import dataclass\n\n\n@dataclass\nclass Number:\n"
        "    value: int\n\n\ndef double(x):\n    from neighbor_of_a_file import TWO\n\n    return Number(TWO * x)\n"
    )
    for _ in range(2):
        assert run_python_file(tmp_path / "own.py", "world")["double"](3).value == 6
    assert sys.path.count(str(tmp_path)) == 1
    for text, expected in (("1 / 0", "ZeroDivisionError: division"), ("raise SystemExit(3)", "SystemExit: 3")):
        (tmp_path / "wrong.py").write_text(text)
        with pytest.raises(UserError, match=rf"^world: .*wrong\.py: {expected}"):
            run_python_file(tmp_path / "wrong.py", "world")
