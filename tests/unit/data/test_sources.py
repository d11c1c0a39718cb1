import bz2
import errno
import gzip
import io
import json
import lzma
import os
import sys
import tempfile
import threading
from collections.abc import Iterator
from contextlib import ExitStack
from pathlib import Path
from typing import Any

import pyarrow
import pyarrow.parquet
import pytest
from backports import zstd
from hypothesis import given
from hypothesis import strategies as st

from linnet.core.errors import UserError
from linnet.data import readers
from linnet.data.readers import split_text
from linnet.data.sources import (
    DEFAULT_SEPARATOR,
    Source,
    _copy_of,
    describe_reading,
    expand_inputs,
    open_sources,
    unescape,
)


def write(path: Path, content: str | bytes) -> Path:
    path.write_bytes(content if isinstance(content, bytes) else content.encode())
    return path


def write_parquet(path: Path, columns: dict[str, Any]) -> Path:
    pyarrow.parquet.write_table(pyarrow.table(columns), path)
    return path


def documents(path: Path | str, **options: Any) -> list[str]:
    with Source(path, **options) as source:
        return list(source.documents())


def message(path: Path | str, **options: Any) -> str:
    """The one line that reading this input ends with."""
    with pytest.raises(UserError) as caught:
        documents(path, **options)
    text = str(caught.value)
    assert "\n" not in text
    return text.removeprefix(f"{path}")


@pytest.mark.parametrize("suffix", [".txt", ".text", ".md", "", ".TXT"])
def test_text_without_separator_is_one_untouched_document(tmp_path: Path, suffix: str) -> None:
    text = "\r\n one\r\n\n two é \n"
    assert documents(write(tmp_path / f"a{suffix}", text)) == [text]


def test_end_of_text_separates_and_takes_the_newlines_beside_it(tmp_path: Path) -> None:
    text = "\n a \n<|endoftext|>\r\n\n b\n\nc<|endoftext|>\n<|endoftext|>\n d \n"
    assert documents(write(tmp_path / "a.txt", text)) == ["\n a ", " b\n\nc", " d \n"]


def test_given_separator_replaces_the_default(tmp_path: Path) -> None:
    path = write(tmp_path / "a.txt", "a<|endoftext|>\n\nb\n\n\nc\n\n")
    for separator in ("\n\n", r"\n\n"):
        assert documents(path, separator=separator) == ["a<|endoftext|>", "b", "c"]


@pytest.mark.parametrize(
    ("typed", "meant"),
    [(r"\n\n", "\n\n"), (r"\t\r\f\0", "\t\r\f\0"), (r"\x1e", "\x1e"), (r"\\n", r"\n"), (r"\q é \x1", r"\q é \x1")],
)
def test_escapes_typed_in_a_shell(typed: str, meant: str) -> None:
    assert unescape(typed) == meant


@given(
    blocks=st.lists(st.text("ab|\n\r ", max_size=6), max_size=12),
    separator=st.sampled_from(["|", "ab", "aba", "||", "\n", "\n\n"]),
)
def test_splitting_blocks_is_splitting_the_text(blocks: list[str], separator: str) -> None:
    parts = "".join(blocks).split(separator)
    expected = [
        part[len(part) - len(part.lstrip("\r\n")) if number else 0 :]
        for number, part in enumerate([*(part.rstrip("\r\n") for part in parts[:-1]), parts[-1]])
    ]
    assert list(split_text(iter(blocks), separator)) == expected


def test_text_is_read_as_a_stream(tmp_path: Path) -> None:
    path = tmp_path / "a.txt"
    with path.open("wb") as handle:
        for number in range(40):
            handle.write(b"x" * 200_000 + f"{number}<|endoftext|>".encode())
    read: list[int] = []
    with Source(path) as source:
        first = next(source.documents(read.append))
        assert len(first) == 200_001
        assert sum(read) <= 2 * readers.BLOCK_BYTES < source.size_bytes


@given(
    # Hypothesis draws constants of the code too, so it finds the separator.
    text=st.text(st.characters(exclude_categories=["Cs"]), min_size=1, max_size=50).filter(
        lambda text: DEFAULT_SEPARATOR not in "|" + text
    ),
    block=st.integers(1, 7),
)
def test_characters_across_blocks_survive(tmp_path_factory: pytest.TempPathFactory, text: str, block: int) -> None:
    path = write(tmp_path_factory.mktemp("text") / "a.txt", b"\xef\xbb\xbf" + ("|" + text).encode())
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(readers, "BLOCK_BYTES", block)
        assert documents(path) == ["|" + text]


@pytest.mark.parametrize("block", [1, 2, 3, 1 << 20])
def test_bad_byte_is_found_on_its_line(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, block: int) -> None:
    monkeypatch.setattr(readers, "BLOCK_BYTES", block)
    latin = write(tmp_path / "a.txt", "é\n\nnaï".encode() + b"\xefve\n")
    assert message(latin) == ", line 3: not UTF-8 text (byte 0xEF); save the file as UTF-8"
    cut_off = write(tmp_path / "b.txt", b"one\ntwo\xe2\x82")
    assert message(cut_off) == ", line 2: not UTF-8 text (byte 0xE2); save the file as UTF-8"


def test_json_lines(tmp_path: Path) -> None:
    rows = [{"text": "a\n\u2028b", "n": 1}, {"text": ""}, {"text": " é "}]
    lines = "\r\n".join(json.dumps(row, ensure_ascii=False) for row in rows)
    for name in ("a.jsonl", "a.ndjson"):
        assert documents(write(tmp_path / name, "\ufeff" + lines + "\n\n")) == ["a\n\u2028b", " é "]
    assert documents(write(tmp_path / "b.jsonl", '{"body": "x"}'), field="body") == ["x"]


@pytest.mark.parametrize(
    ("line", "expected"),
    [
        ('{"text": 3}', "field 'text': expected a string, found a number"),
        ('{"text": null}', "field 'text': expected a string, found null"),
        ('{"text": ["a"]}', "field 'text': expected a string, found a list"),
        ('{"text": "\\ud83d"}', "field 'text': holds half of a surrogate pair, which is not Unicode text"),
        ('{"body": "a", "id": 7}', "no field 'text'; this line has 'body', 'id'; `field` names another"),
        ("{}", "no field 'text'; this line has no fields; `field` names another"),
        ('["a"]', "expected a JSON object with a field 'text', found a list"),
        ('"a"', "expected a JSON object with a field 'text', found a string"),
        ('{"text": "a"', "not valid JSON (Expecting ',' delimiter)"),
        ("[" * 100_000, "not valid JSON (numbers or nesting beyond limits)"),
        ('{"text": "a", "n": ' + "1" * 5000 + "}", "not valid JSON (numbers or nesting beyond limits)"),
    ],
)
def test_bad_json_line_is_named(tmp_path: Path, line: str, expected: str) -> None:
    path = write(tmp_path / "a.jsonl", '{"text": "good"}\n\n' + line + "\n")
    assert message(path) == f", line 3: {expected}"


def test_json_line_that_is_not_utf8(tmp_path: Path) -> None:
    path = write(tmp_path / "a.jsonl", b'{"text": "good"}\n{"text": "\xe9"}\n')
    assert message(path) == ", line 2: not UTF-8 text (byte 0xE9); save the file as UTF-8"


def test_parquet(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(readers, "_ROWS_PER_READ", 2)
    texts = ["a\n", "", "é", "😀", "b"]
    path = write_parquet(tmp_path / "a.parquet", {"body": texts, "n": range(5)})
    assert documents(path, field="body") == ["a\n", "é", "😀", "b"]
    categories = pyarrow.array(texts).dictionary_encode()
    assert len(documents(write_parquet(tmp_path / "b.parquet", {"text": categories}))) == 4


@pytest.mark.parametrize(
    ("columns", "expected"),
    [
        ({"body": ["a"], "n": [1]}, ": no column 'text'; the file has 'body', 'n'; `field` names another"),
        ({"text": [1]}, ", row 1: column 'text': expected a string, found a number"),
        ({"text": ["a", None]}, ", row 2: column 'text': expected a string, found null"),
        ({"text": pyarrow.array([b"a", b"\xff"]).view(pyarrow.string())}, ", row 2: column 'text': not UTF-8 text"),
        ({"text": pyarrow.array([], pyarrow.string())}, ": no documents, every one is empty"),
    ],
)
def test_bad_parquet_is_named(tmp_path: Path, columns: dict[str, Any], expected: str) -> None:
    assert message(write_parquet(tmp_path / "a.parquet", columns)) == expected


def test_file_that_only_claims_to_be_parquet(tmp_path: Path) -> None:
    assert message(write(tmp_path / "a.parquet", "text")).startswith(": not a readable Parquet file (")


def test_parquet_without_pyarrow_names_the_extra(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    path = write_parquet(tmp_path / "a.parquet", {"text": ["a"]})
    monkeypatch.setitem(sys.modules, "pyarrow", None)
    assert message(path) == ": reading Parquet needs pyarrow: pip install 'linnet[parquet]'"


def test_standard_input_is_text_and_can_be_read_twice(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(sys, "stdin", io.TextIOWrapper(io.BytesIO("é<|endoftext|>\nb".encode())))
    with Source("-") as source:
        assert source.name == "<stdin>"
        assert list(source.documents()) == list(source.documents()) == ["é", "b"]


def test_empty_standard_input(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(sys, "stdin", io.TextIOWrapper(io.BytesIO(b"")))
    assert message("-") == "<stdin>: empty file, expected text"


def test_pipe_can_be_read_twice(tmp_path: Path) -> None:
    pipe = tmp_path / "pipe"
    os.mkfifo(pipe)
    writer = threading.Thread(target=pipe.write_bytes, args=(b"through a pipe",))
    writer.start()
    with Source(pipe) as source:
        assert list(source.documents()) == list(source.documents()) == ["through a pipe"]
    writer.join()


@pytest.mark.parametrize(
    ("name", "content", "expected"),
    [
        ("a.txt", "", ": empty file, expected text"),
        ("a.jsonl", "", ": empty file, expected text"),
        ("a.txt", "\ufeff", ": no documents, every one is empty"),
        ("a.txt", "<|endoftext|>\n<|endoftext|>", ": no documents, every one is empty"),
        ("a.jsonl", "\n\n", ": no documents, every one is empty"),
        (
            "a.pdf",
            "%PDF\0",
            ": unknown kind of file '.pdf'; expected text, .txt, .text, .md, .jsonl, .ndjson, .csv, .tsv, .parquet, "
            ".html, .htm, .warc, .wet, each also .gz, .zst, .bz2, .xz, or - for the standard input",
        ),
    ],
)
def test_useless_file_is_named(tmp_path: Path, name: str, content: str, expected: str) -> None:
    assert message(write(tmp_path / name, content)) == expected


def test_missing_file_and_folder_are_named(tmp_path: Path) -> None:
    assert message(tmp_path / "none.txt") == ": no such file"
    assert message(tmp_path) == f": is a directory, expected files (for example {tmp_path}/*.txt)"


def test_empty_separator_is_refused(tmp_path: Path) -> None:
    with pytest.raises(UserError, match="separator: empty"):
        documents(write(tmp_path / "a.txt", "x"), separator="")


def every_kind(folder: Path) -> Iterator[Path]:
    yield write(folder / "a.txt", "one\n" * 1000)
    yield write(folder / "a.jsonl", '{"text": "one"}\n' * 1000)
    yield write_parquet(folder / "a.parquet", {"text": ["one"] * 3000})


def test_advance_adds_up_to_the_size(tmp_path: Path) -> None:
    for path in every_kind(tmp_path):
        with Source(path) as source:
            steps: list[int] = []
            list(source.documents(steps.append))
            assert sum(steps) == source.size_bytes == path.stat().st_size


def test_a_full_disk_for_temporary_files_is_named(tmp_path, monkeypatch):
    class Full(io.BytesIO):
        def write(self, _):
            raise OSError(errno.ENOSPC, "No space left on device")

    monkeypatch.setattr(tempfile, "gettempdir", lambda: str(tmp_path))
    monkeypatch.setattr(tempfile, "TemporaryFile", lambda **_: Full())
    with pytest.raises(OSError, match=r"No space left on device .* bytes free") as full:
        _copy_of([b"text"])
    assert full.value.filename == str(tmp_path)


COMPRESS = {".gz": gzip.compress, ".bz2": bz2.compress, ".xz": lzma.compress, ".zst": zstd.compress}


@pytest.mark.parametrize("suffix", COMPRESS)
def test_compressed_files_read_as_what_they_hold(tmp_path: Path, suffix: str) -> None:
    for path in list(every_kind(tmp_path)):
        packed = write(tmp_path / f"{path.name}{suffix}", COMPRESS[suffix](path.read_bytes()))
        assert documents(packed) == documents(path)
        with Source(packed) as source:
            steps: list[int] = []
            list(source.documents(steps.append))
            assert sum(steps) == packed.stat().st_size and min(steps) >= 0


@pytest.mark.parametrize("suffix", COMPRESS)
def test_a_compressed_file_that_is_cut_off_or_damaged_is_refused(tmp_path: Path, suffix: str) -> None:
    rows = "".join(json.dumps({"text": f"{n} {n * n} {n**3}"}) + "\n" for n in range(2000))
    whole = COMPRESS[suffix](rows.encode())
    cut = write(tmp_path / f"cut.jsonl{suffix}", whole[: len(whole) * 2 // 3])
    assert message(cut, skip_invalid=True).startswith(f": not a whole {suffix} file (")
    other = write(tmp_path / f"other.jsonl{suffix}", rows)
    assert message(other, skip_invalid=True).startswith(f": not a whole {suffix} file (")
    two = write(tmp_path / f"two.jsonl{suffix}", whole + whole)
    assert len(documents(two)) == 4000


def test_a_file_that_is_named_again_is_read_once(tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
    for name in ("a.txt", "b.txt"):
        write(tmp_path / name, name)
    (tmp_path / "link.txt").symlink_to(tmp_path / "b.txt")
    named = [f"{tmp_path}/*.txt", f"{tmp_path}/../{tmp_path.name}/a.txt", str(tmp_path / "b.txt")]
    with ExitStack() as stack:
        texts = [text for source in open_sources(stack, named) for text in source.documents()]
        assert texts == ["a.txt", "b.txt"]
        assert f"3 repeated files left out, among them {tmp_path}/b.txt" in caplog.text
        assert len(open_sources(stack, named, may_repeat=True)) == 5


def test_a_separator_that_divides_nothing_is_told_of_each_text(tmp_path: Path) -> None:
    texts = {"a.txt": "one##two", "b.txt": "one", "c.txt": "one##", "d.jsonl": '{"text": "one"}', "e.txt": "two"}
    paths = [str(write(tmp_path / name, text)) for name, text in texts.items()]
    with ExitStack() as stack:
        sources = open_sources(stack, paths, separator="##")
        for source in sources:
            list(source.documents())
        assert describe_reading(sources) == [f"the separator '##' divides nothing in {paths[1]} and 1 other file"]
        unsplit = open_sources(stack, paths)
        list(unsplit[0].documents())
        assert describe_reading(unsplit) == []


def test_rows_that_are_read_as_text_are_told(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    rows = '{"text": "a bird"}\n{"text": "a tree"}\n'
    monkeypatch.setattr(sys, "stdin", io.TextIOWrapper(io.BytesIO(rows.encode())))
    paths = [write(tmp_path / name, text) for name, text in (("a.txt", rows), ("b.txt", "{\n"), ("c.jsonl", rows))]
    with ExitStack() as stack:
        sources = open_sources(stack, ["-", *map(str, paths)])
        assert [len(list(source.documents())) for source in sources] == [1, 1, 1, 2]
        (line,) = describe_reading(sources)
    assert line == (
        "<stdin> and 1 other file: JSON, read as text; rows are read from a file named .jsonl, one object a line"
    )


def test_rows_have_addresses_of_their_pages(tmp_path: Path) -> None:
    import datasets

    rows: list[dict[str, Any]] = [{"text": f"text {n}", "meta": {"at": f"http://a.org/{n}", "n": n}} for n in range(3)]
    rows[1]["meta"]["at"] = None
    lines = write(tmp_path / "a.jsonl", "".join(json.dumps(row) + "\n" for row in rows))
    columns = write_parquet(tmp_path / "a.parquet", {name: [row[name] for row in rows] for name in rows[0]})
    datasets.Dataset.from_list(rows).save_to_disk(str(tmp_path / "saved"))
    for path in (lines, columns, tmp_path / "saved"):
        for field, expected in (("meta.at", ["http://a.org/0", None, "http://a.org/2"]), ("url", [None] * 3)):
            with Source(path, url_field=field) as source:
                assert list(source.pages()) == [(f"text {n}", url) for n, url in enumerate(expected)]
                assert source.counts.located == sum(url is not None for url in expected)
                assert list(source.documents()) == ["text 0", "text 1", "text 2"]
    table = write(tmp_path / "a.csv", "meta.at,text\nhttp://a.org/0,text 0\n,text 1\nhttp://a.org/2,text 2\n")
    with Source(table, url_field="meta.at") as source:
        assert [url for _, url in source.pages()] == ["http://a.org/0", None, "http://a.org/2"]


def test_a_field_may_be_a_path(tmp_path: Path) -> None:
    rows = [{"meta": {"text": "a", "parts": [{"of.it": "b"}]}, "x.y": "c"}]
    lines = write(tmp_path / "a.jsonl", json.dumps(rows[0]))
    columns = write_parquet(tmp_path / "a.parquet", {name: [row[name] for row in rows] for name in rows[0]})
    for path in (lines, columns):
        assert [documents(path, field=field) for field in ("meta.text", "meta.parts.0.of.it", "x.y")] == [
            ["a"],
            ["b"],
            ["c"],
        ]
    assert message(lines, field="meta.body") == (
        ", line 1: no field 'meta.body'; this line has 'meta', 'x.y'; `field` names another"
    )
    assert message(columns, field="meta.body") == ", row 1: column 'meta': no field 'body'"
    assert message(lines, field="meta.parts.1.of.it").startswith(", line 1: no field")


def test_tables(tmp_path: Path) -> None:
    table = 'id,text\r\n1,"one, ""two""\nthree"\r\n\r\n2,\r\n3,é\r\n'
    assert documents(write(tmp_path / "a.csv", "\ufeff" + table)) == ['one, "two"\nthree', "é"]
    assert documents(
        write(
            tmp_path / "a.tsv",
            table.replace(",", "\t"),
        ),
        field="id",
    ) == ["1", "2", "3"]
    divided = ": no column 'text'; the file has 'id;text', divided by ';'; expected ','"
    assert message(write(tmp_path / "b.csv", "id;text\n1;a\n")) == divided
    other = ": no column 'text'; the file has 'id', 'body'; `field` names another"
    assert message(write(tmp_path / "c.csv", "id,body\n1,a\n")) == other
    uneven = write(tmp_path / "c.csv", 'id,text\n1,"a\nb"\n2,a,b\n3,c\n')
    assert message(uneven) == ", line 4: 3 columns; expected 2, as in the first line"
    assert documents(uneven, skip_invalid=True) == ["a\nb", "c"]
    assert message(write(tmp_path / "d.csv", 'id,text\n1,"a\n')).startswith(", line 2: not a valid table (")
    assert message(write(tmp_path / "e.csv", b"text\n\xe9\n")).startswith(", line 2: not UTF-8 text (byte 0xE9)")


def test_invalid_documents_are_counted_and_left_out_on_request(tmp_path: Path) -> None:
    lines = ['{"text": "a"}', "{", '{"body": "b"}', '{"text": ""}', '{"text": "c"}']
    path = write(tmp_path / "a.jsonl", "\n".join(lines))
    assert message(path) == (
        ", line 2: not valid JSON (Expecting property name enclosed in double quotes); 2 of 5 documents are invalid"
    )
    with Source(path, skip_invalid=True) as source:
        assert list(source.documents()) == ["a", "c"]
        assert describe_reading([source]) == [
            f"2 invalid documents left out, the first in {path}, line 2: not valid JSON (Expecting property name "
            "enclosed in double quotes)",
            f"1 empty document left out, the first in {path}",
        ]
    text = write(tmp_path / "a.txt", b"one<|endoftext|>tw\xff<|endoftext|>three")
    assert documents(text, skip_invalid=True) == ["one", "three"]
    assert message(write(tmp_path / "b.txt", b"\xff"), skip_invalid=True).startswith(
        ": no documents, the first of 1 in "
    )


@pytest.mark.parametrize("block", [1, 2, 3, 1 << 20])
def test_line_endings_and_byte_order_marks_are_counted(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, block: int
) -> None:
    monkeypatch.setattr(readers, "BLOCK_BYTES", max(3, block))
    windows = write(tmp_path / "a.txt", "\ufeffone\r\ntwo\nthree\r\r\n")
    plain = write(tmp_path / "b.txt", "one\n")
    with Source(windows) as first, Source(plain) as second:
        for source in (first, second):
            list(source.documents())
        assert describe_reading([second]) == []
        assert describe_reading([first, second]) == [
            f"{windows}: begins with a byte order mark, which is dropped",
            f"{windows}: 2 of 3 lines end in CRLF, which stays as it is",
        ]


@pytest.mark.parametrize("suffix", [".jsonl", ".csv", ".tsv"])
@pytest.mark.parametrize("compression", ["", ".gz"])
def test_marks_and_line_endings_of_rows_are_told(tmp_path: Path, suffix: str, compression: str) -> None:
    texts = ["one\r\ntwo\n", "three\r\n"]
    if suffix == ".jsonl":
        content = "\r\n".join(json.dumps({"text": text}) for text in texts)
    else:
        content = "\r\n".join(['"text"', *(f'"{text}"' for text in texts)])
    path = write(tmp_path / f"a{suffix}", b"\xef\xbb\xbf" + content.encode())
    if compression:
        path = write(tmp_path / f"a{suffix}.gz", gzip.compress(path.read_bytes()))
    with Source(path) as source:
        assert list(source.documents()) == texts  # neither the mark nor the ends of lines are part of the first field
        assert describe_reading([source]) == [
            f"{path}: begins with a byte order mark, which is dropped",
            f"{path}: 2 of 3 lines within texts end in CRLF, which stays as it is",
        ]


def test_a_list_of_rows_in_json_is_told_and_read_as_text(tmp_path: Path) -> None:
    path = write(tmp_path / "a.json", json.dumps([{"text": "a"}, {"text": "b"}], indent=1))
    with Source(path) as source:
        assert len(list(source.documents())) == 1
        assert describe_reading([source])[0].startswith(f"{path}: JSON, read as text; rows are read from a file named")


@pytest.mark.parametrize("suffix", [".txt", ".jsonl", ".csv"])
def test_a_file_in_utf_16_is_named(tmp_path: Path, suffix: str) -> None:
    found = message(write(tmp_path / f"a{suffix}", "text é".encode("utf-16")))
    assert found == ", line 1: not UTF-8 text (byte 0xFF); UTF-16, as its first bytes say; save the file as UTF-8"


def test_folders_and_patterns_become_their_files(tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
    for name in ("deep", ".git"):
        (tmp_path / name).mkdir()
    for name in (
        "b.txt",
        "deep/a.jsonl.gz",
        "deep/c.py",
        "deep/d.RS.zst",
        "image.png",
        ".hidden.txt",
        ".git/e.txt",
        "LICENSE",
    ):
        write(tmp_path / name, "x")
    expected = [str(tmp_path / name) for name in ("b.txt", "deep/a.jsonl.gz", "deep/c.py", "deep/d.RS.zst")]
    assert expand_inputs([str(tmp_path), "-"]) == [*expected, "-"]
    assert "2 files of other kinds are not read (1 LICENSE, 1 .png)" in caplog.text
    assert expand_inputs([f"{tmp_path}/**/*.py"]) == [str(tmp_path / "deep" / "c.py")]
    assert documents(tmp_path / "deep" / "c.py") == ["x"]
    with pytest.raises(UserError, match=r"\*.rs: no file has such a name"):
        expand_inputs([f"{tmp_path}/*.rs"])
    (tmp_path / "none").mkdir()
    with pytest.raises(UserError, match=r"a folder without text; expected files of \.txt"):
        expand_inputs([str(tmp_path / "none")])


def test_documents_of_white_space_alone_are_left_out_and_told(tmp_path: Path) -> None:
    text = write(tmp_path / "a.txt", "one<|endoftext|> \n\t<|endoftext|>two<|endoftext|>\n")
    rows = write(tmp_path / "b.jsonl", '{"text": "\\n \\u00a0"}\n{"text": " three"}\n')
    with Source(text) as first, Source(rows) as second:
        assert [*first.documents(), *second.documents()] == ["one", "two", " three"]
        told = f"2 documents of white space alone left out, the first in {text}"
        assert describe_reading([first, second]) == [told]
    assert message(write(tmp_path / "c.txt", " \n ")) == ": no documents, every one is empty or white space alone"


def test_files_of_a_folder_may_be_empty_but_not_all(tmp_path: Path) -> None:
    names = [
        write(tmp_path / name, text) for name, text in (("a.py", ""), ("b.jsonl", '{"text": ""}\n'), ("c.txt", "c"))
    ]
    with pytest.raises(UserError, match=r"a\.py: empty file"):
        documents(names[0])
    read = []
    for name in names:
        with Source(name, may_be_empty=True) as source:
            assert list(source.documents()) == ["c"] * (name.name == "c.txt")
            read.append(source)
    assert describe_reading(read) == [f"2 empty documents left out, the first in {names[0]}"]


@pytest.mark.parametrize("suffix", COMPRESS)
def test_code_may_be_compressed(tmp_path: Path, suffix: str) -> None:
    assert documents(write(tmp_path / f"a.py{suffix}", COMPRESS[suffix](b"x = 1\n"))) == ["x = 1\n"]
    assert message(write(tmp_path / f"a.bin{suffix}", COMPRESS[suffix](bytes(9)))).startswith(": unknown kind of file")


PAGE = """<html><head><title>T</title></head><body><nav><a href="/">Home</a> <a href="/x">Menu</a></nav><article><h1>The
heron</h1>{}</article><footer>Copyright, all rights reserved</footer></body></html>"""
SENTENCE = "The heron stood in the shallow water and waited a long time for the fish that never came to it."


def test_web_pages_and_archives_give_their_main_text(tmp_path: Path) -> None:
    from warcio.statusandheaders import StatusAndHeaders
    from warcio.warcwriter import WARCWriter

    page = PAGE.format("".join(f"<p>{n}: {SENTENCE}</p>" for n in range(5))).encode()
    (text,) = documents(write(tmp_path / "a.html", page))
    assert SENTENCE in text and "Menu" not in text and "Copyright" not in text
    packed = tmp_path / "a.warc.gz"
    with packed.open("wb") as handle:
        writer = WARCWriter(handle, gzip=True)
        for status, kind in (("200 OK", "text/html"), ("404 Not Found", "text/html"), ("200 OK", "image/png")):
            headers = StatusAndHeaders(status, [("Content-Type", kind)], protocol="HTTP/1.0")
            record = writer.create_warc_record("http://a.org/", "response", io.BytesIO(page), http_headers=headers)
            writer.write_record(record)
        writer.write_record(writer.create_warc_record("dns:a.org", "response", io.BytesIO(b"1.2.3.4")))
        plain = writer.create_warc_record("http://a.org/", "conversion", io.BytesIO("naïve".encode()))
        writer.write_record(plain)
    assert documents(packed) == [text, "naïve"]
    with Source(packed) as source:
        assert list(source.pages()) == [(text, "http://a.org/"), ("naïve", "http://a.org/")]
    unpacked = gzip.decompress(packed.read_bytes())
    assert message(write(tmp_path / "cut.warc", unpacked[:-8])).endswith(
        "record 5: the archive ends inside this record"
    )
    assert message(write(tmp_path / "b.warc", "no archive")).startswith(": not a readable web archive (")


def test_data_sets_of_hugging_face_are_read_from_disk(tmp_path: Path) -> None:
    import datasets

    rows = datasets.Dataset.from_dict({"text": ["a", "", "é"], "meta": [{"x": str(n)} for n in range(3)]})
    rows.save_to_disk(str(tmp_path / "one"))
    datasets.DatasetDict({"train": rows, "test": rows.select([2])}).save_to_disk(str(tmp_path / "two"))
    assert documents(tmp_path / "one") == documents(tmp_path / "two") == ["a", "é"]
    assert documents(f"hf:{tmp_path / 'two'}:test", field="meta.x") == ["2"]
    assert expand_inputs([str(tmp_path / "two")]) == [str(tmp_path / "two")]
    assert message(f"hf:{tmp_path / 'two'}:valid") == ": no split 'valid'; it has train, test"
    assert message(f"hf:{tmp_path / 'one'}", field="body").startswith(", line 1: no field 'body'")


def test_a_data_set_is_read_from_the_copy_of_an_earlier_download(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    import datasets

    lines = write(tmp_path / "rows.jsonl", '{"text": "one"}\n{"text": "two"}\n')
    builder = datasets.load_dataset_builder("json", data_files=str(lines), cache_dir=str(tmp_path / "copies"))
    builder.download_and_prepare()
    copy = Path(builder.cache_dir)  # json/default-HASH/0.0.0/HASH
    place = tmp_path / "copies" / "someone___tales" / "default" / "0.0.0"
    place.mkdir(parents=True)
    (copy / "json-train.arrow").rename(copy / "tales-train.arrow")
    copy.rename(place / copy.name)
    monkeypatch.setattr(datasets.config, "HF_DATASETS_CACHE", tmp_path / "copies")
    monkeypatch.setattr(datasets.config, "HF_HUB_OFFLINE", True)
    assert documents("hf:someone/tales") == ["one", "two"]
    found = message("hf:someone/other")
    assert found.startswith(": cannot be read (")
    for name in ("hf:", "hf:a:b:c:d"):
        assert message(name).startswith(": not the name of a data set; expected hf:NAME")


@pytest.mark.parametrize(("suffix", "module"), [(".zst", "backports"), (".html", "trafilatura"), (".warc", "warcio")])
def test_a_missing_package_names_the_extra(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, suffix: str, module: str
) -> None:
    monkeypatch.setitem(sys.modules, module, None)
    monkeypatch.setitem(sys.modules, "warcio.archiveiterator", None)
    assert message(write(tmp_path / f"a{suffix}", "x")).endswith("pip install 'linnet[data]'")
