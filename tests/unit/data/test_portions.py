"""Portions of inputs: together they have every document once, in order, whatever the format."""

import csv
import gzip
import io
import json
import os
import threading
from contextlib import ExitStack

import pytest

from linnet.core.atomic import folder_lock
from linnet.core.errors import UserError
from linnet.data.portions import PARTS_OF_A_FILE, PortionFolder, PortionWork, divide
from linnet.data.sources import describe_reading, open_sources

TEXTS = [f"{number} " + "bird tree river " * (number % 50) for number in range(3000)]


def write_text(path):
    path.write_text("<|endoftext|>".join(text.strip() for text in TEXTS))


def write_lines(path):
    content = "".join(json.dumps({"text": text.strip()}) + "\n" for text in TEXTS).encode()
    path.write_bytes(gzip.compress(content) if path.suffix == ".gz" else content)


def write_table(path):
    with path.open("w", newline="") as file:
        csv.writer(file).writerows([["text"], *([text.strip()] for text in TEXTS)])


def read(portions):
    found = []
    for portion in portions:
        with ExitStack() as stack:
            found.append([text for source in portion.open(stack) for text in source.documents()])
    return found


@pytest.mark.parametrize(
    ("name", "write"),
    [("a.txt", write_text), ("a.jsonl", write_lines), ("a.jsonl.gz", write_lines), ("a.csv", write_table)],
    ids=["text", "lines", "compressed", "table"],
)
def test_parts_of_a_file_have_every_document_once(name, write, tmp_path, monkeypatch):
    monkeypatch.setattr("linnet.data.readers.BLOCK_BYTES", 1 << 14)
    write(tmp_path / name)
    with ExitStack() as stack:
        sources = open_sources(stack, [str(tmp_path / name)])
        portions = divide(sources, sources[0].size_bytes // 5)
    found = read(portions)
    assert len(found) == len(portions) == 5
    assert [text for texts in found for text in texts] == [text.strip() for text in TEXTS]
    assert name == "a.jsonl.gz" or all(found), "no part is empty"
    assert [str(portion).split(" of ")[0] for portion in portions] == [f"part {number}" for number in range(1, 6)]


def test_small_files_are_together_and_large_ones_in_few_parts(tmp_path):
    sizes = {"a": 300, "b": 300, "c": 100_000, "d": 500, "e": 600}
    for name, size in sizes.items():
        (tmp_path / f"{name}.txt").write_text(name * size)
    with ExitStack() as stack:
        portions = divide(open_sources(stack, [str(tmp_path)]), 1000)
    names = [[file.path[-5] for file in portion.files] for portion in portions]
    assert names == [["a", "b"], *[["c"]] * PARTS_OF_A_FILE, ["d"], ["e"]]
    assert read(portions)[0] == ["a" * 300, "b" * 300]


def test_the_last_part_counts_what_the_whole_file_has(tmp_path):
    (tmp_path / "a.jsonl").write_text('{"text": "a bird"}\n' * 50 + "{\n" + '{"text": ""}\n' * 3)
    with ExitStack() as stack:
        sources = open_sources(stack, [str(tmp_path / "a.jsonl")], skip_invalid=True)
        _, last = divide(sources, 500)
        opened = last.open(stack)
        assert 0 < len(list(opened[0].documents())) < 50
        assert describe_reading(opened)[0].startswith("1 invalid document left out")
        assert opened[0].counts.documents == 50 and opened[0].counts.empty == 3


def test_a_changed_file_is_refused(tmp_path):
    path = tmp_path / "a.txt"
    path.write_text("a bird")
    with ExitStack() as stack:
        portions = divide(open_sources(stack, [str(path)]))
    os.utime(path, ns=(1, 1))
    with pytest.raises(UserError, match=r"a\.txt: changed since the work on it began"):
        read(portions)


def test_the_standard_input_is_refused(monkeypatch):
    class Standard:
        buffer = io.BytesIO(b"a bird")

        def fileno(self):
            raise io.UnsupportedOperation

    monkeypatch.setattr("sys.stdin", Standard())
    with ExitStack() as stack, pytest.raises(UserError, match="<stdin>: no other process can read it; expected files"):
        divide(open_sources(stack, ["-"]))


def test_a_worker_waits_for_another_that_still_works_on_its_portion(tmp_path):
    """As a task of Slurm does whose command was killed."""
    (tmp_path / "a.txt").write_text("a bird")
    with ExitStack() as stack:
        work = PortionWork(portions=divide(open_sources(stack, [str(tmp_path / "a.txt")])), settings={})
    portions, made = PortionFolder.begin(tmp_path / "out", work), []

    def making(portions, number, sources, folder):
        made.append(list(sources[0].documents()))
        return {}

    with folder_lock(portions.place(0)):
        waiting = threading.Thread(target=portions.make, args=(0, making))
        waiting.start()
        waiting.join(0.2)
        assert waiting.is_alive() and not made
    waiting.join(30)
    assert made == [["a bird"]] and portions.is_done(0)
    portions.make(0, making)
    assert len(made) == 1
