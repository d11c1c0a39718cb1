"""Files of documents, compressed and not, written at once and behind what an earlier writer left."""

import os
import sys

import pytest

from linnet.core.errors import UserError
from linnet.data.clean import clean
from linnet.data.cleaning_steps import CleaningSpec
from linnet.data.corpus import read_split
from linnet.data.sources import Source
from linnet.data.text_folder import TextFolderWriter, TextRow

ROWS = [
    TextRow(f"text {number} é", "web.txt", None if number % 3 else f"http://a.org/{number}") for number in range(40)
]
each_compression = pytest.mark.parametrize("compress", [None, "gz", "zst"])


def pages(folder, files):
    found = []
    for name in files:
        with Source(folder / name, url_field="url") as source:
            found.append([TextRow(text, "web.txt", url) for text, url in source.pages()])
    return found


@each_compression
def test_files_hold_every_document_in_order(tmp_path, compress):
    with TextFolderWriter(tmp_path, 500, compress=compress) as writer:
        for row in ROWS:
            writer.write(row)
    assert len(writer.files) > 3
    assert [row for rows in pages(tmp_path, writer.files) for row in rows] == ROWS
    assert writer.files[0] == {None: "part-00000.jsonl"}.get(compress, f"part-00000.jsonl.{compress}")


@each_compression
def test_a_writer_goes_on_behind_what_was_flushed(tmp_path, compress):
    """What was written after the last flush is cut off; the documents are in the same files as without a break."""
    for name in ("whole", "broken"):
        (tmp_path / name).mkdir()
    with TextFolderWriter(tmp_path / "whole", 500, compress=compress) as whole:
        for row in ROWS:
            whole.write(row)
    with TextFolderWriter(tmp_path / "broken", 500, compress=compress) as first:
        for number, row in enumerate(ROWS[:17]):
            first.write(row)
            if number in (3, 9):
                sizes, files, written = first.flushed(), list(first.files), first.written
    with TextFolderWriter(tmp_path / "broken", 500, files, sizes[files[-1]], written, compress) as second:
        for row in ROWS[10:]:
            second.write(row)
    assert sizes.keys() == set(files) and second.files == whole.files
    assert pages(tmp_path / "broken", second.files) == pages(tmp_path / "whole", whole.files)


@pytest.mark.skipif(sys.platform != "linux", reason="elsewhere file names are Unicode")
def test_documents_of_a_file_whose_name_is_not_utf8_are_written(tmp_path):
    name = os.fsencode(tmp_path) + b"/caf\xe9.jsonl"
    with open(name, "w") as file:  # noqa: PTH123 - a name in bytes
        file.write('{"text": "one"}\n{"text": "one"}\n{"text": "two é"}\n')
    steps = CleaningSpec.parse({"steps": [{"kind": "pii"}, {"kind": "exact_duplicates"}]}, "test")
    report = clean([os.fsdecode(name)], tmp_path / "out", steps)
    assert report.kept.documents == 2
    with Source(tmp_path / "out" / "part-00000.jsonl") as source:
        assert list(source.documents()) == ["one", "two é"]


@each_compression
def test_every_file_is_on_the_disk_when_its_size_is_noted(compress, tmp_path, monkeypatch):
    """A power cut must not leave a file of the noted size without its content."""
    synced, sync = set(), os.fsync
    monkeypatch.setattr(os, "fsync", lambda handle: (sync(handle), synced.add(os.fstat(handle).st_ino)))
    with TextFolderWriter(tmp_path, 500, compress=compress) as writer:
        for row in ROWS:
            writer.write(row)
        sizes = writer.flushed()
    assert len(sizes) > 3 and {(tmp_path / name).stat().st_ino for name in sizes} <= synced


def test_compressed_results_are_read_and_replaced_like_others(tmp_path):
    (tmp_path / "in.txt").write_text("|".join(row.text for row in ROWS))
    inputs, steps = [str(tmp_path / "in.txt")], CleaningSpec.parse({"steps": [{"kind": "exact_duplicates"}]}, "test")
    for compress in (None, "gz", "zst"):
        report = clean(inputs, tmp_path / "out", steps, separator="|", overwrite=True, compress=compress)
        sides, _ = read_split([str(tmp_path / "out")])
        assert sorted(sides["train"] + sides["validation"]) == sorted(row.text for row in ROWS)
        assert sorted(path.name for path in (tmp_path / "out").iterdir()) == sorted([*report.files, "report.json"])


def test_unknown_compressions_and_missing_packages_are_named(tmp_path, monkeypatch):
    steps = CleaningSpec.parse({"steps": [{"kind": "exact_duplicates"}]}, "test")
    with pytest.raises(UserError, match="compress: bz2: expected one of gz, zst"):
        clean(["a.txt"], tmp_path / "out", steps, compress="bz2")
    if sys.version_info < (3, 14):
        monkeypatch.setitem(sys.modules, "backports", None)
        with pytest.raises(UserError, match=r"compress: \.zst needs backports\.zstd: pip install 'linnet\[data\]'"):
            clean(["a.txt"], tmp_path / "out", steps, compress="zst")
