"""Deduplicated files against planted copies and a loop over all pairs."""

import json
import random
import subprocess
import sys
import tracemalloc
from contextlib import ExitStack
from multiprocessing.reduction import ForkingPickler

import numpy as np
import pytest

from linnet.core.errors import UserError
from linnet.data import comparison as module
from linnet.data import passes
from linnet.data import workers as batching
from linnet.data.comparison import DeduplicationSpec, decide, describe
from linnet.data.corpus import read_split
from linnet.data.decontaminate import EvaluationIndex, OverlapSpec
from linnet.data.deduplicate import deduplicate
from linnet.data.minhash import MinHashSpec
from linnet.data.sources import Source

EXACT_ONLY = DeduplicationSpec(near=None)


def write_lines(path, texts):
    path.write_text("".join(json.dumps({"text": text}) + "\n" for text in texts), encoding="utf-8")
    return str(path)


def texts_of(folder, pattern="part-*.jsonl*"):
    with ExitStack() as stack:
        paths = sorted(folder.glob(pattern))
        return [text for path in paths for text in stack.enter_context(Source(path)).documents()]


def words(source, count):
    return [f"w{source.randrange(10**6)}" for _ in range(count)]


def planted(source, documents=60):
    """Texts with exact copies, near copies of one changed word, and the texts that should stay."""
    texts, stay = [], []
    for _ in range(documents):
        original = words(source, 120)
        stay.append(" ".join(original))
        texts.append(stay[-1])
        if source.random() < 0.5:
            texts.append("  ".join(original).upper() + "\n")
        if source.random() < 0.5:
            texts.append(" ".join([*original[:-1], "changed"]))
    return texts, stay


def test_the_first_of_each_cluster_stays(tmp_path):
    texts, stay = planted(random.Random(0))
    report = deduplicate([write_lines(tmp_path / "in.jsonl", texts)], tmp_path / "out")
    assert texts_of(tmp_path / "out") == stay
    assert report.kept.documents == len(stay)
    assert report.read.bytes == sum(len(text.encode()) for text in texts)
    assert report.removed["exact"].documents == sum(text.isupper() or "  " in text for text in texts)
    removed = sum(amount.documents for amount in report.removed.values())
    assert report.read.documents == len(texts) == len(stay) + removed
    assert json.loads((tmp_path / "out" / "report.json").read_text())["kept"] == vars(report.kept)


def test_the_input_order_decides_which_copy_stays(tmp_path):
    one, other = (" ".join([*words(random.Random(1), 100), end]) for end in ("first", "second"))
    files = [write_lines(tmp_path / name, [text]) for name, text in (("b.jsonl", one), ("a.jsonl", other))]
    for order, expected in ((files, one), (files[::-1], other)):
        deduplicate(order, tmp_path / "out", overwrite=True)
        assert texts_of(tmp_path / "out") == [expected]


def test_exact_copies_alone(tmp_path):
    texts, _ = planted(random.Random(2))
    report = deduplicate([write_lines(tmp_path / "in.jsonl", texts)], tmp_path / "out", EXACT_ONLY)
    seen: dict[str, str] = {}
    for text in texts:
        seen.setdefault("".join(text.lower().split()), text)
    assert texts_of(tmp_path / "out") == list(seen.values())
    assert not report.removed["near"].documents


def test_workers_and_files_change_nothing(tmp_path, monkeypatch):
    monkeypatch.setattr(batching, "_BATCH_TEXTS", 16)
    texts, stay = planted(random.Random(3), 200)
    whole = write_lines(tmp_path / "in.jsonl", texts)
    parts = [
        write_lines(tmp_path / f"{n}.jsonl", texts[n::1][: len(texts) // 3])
        for n in range(0, len(texts), len(texts) // 3)
    ]
    deduplicate([whole], tmp_path / "one", workers=1)
    deduplicate([whole], tmp_path / "two", workers=2)
    deduplicate(parts, tmp_path / "parts", workers=1, shard_bytes=20_000)
    assert len(list((tmp_path / "parts").glob("part-*.jsonl"))) > 3
    assert texts_of(tmp_path / "one") == texts_of(tmp_path / "parts") == stay
    for path in (tmp_path / "one").iterdir():
        assert path.read_bytes() == (tmp_path / "two" / path.name).read_bytes()


def test_evaluation_documents_are_too_much_for_the_pipe_to_a_process(tmp_path, monkeypatch):
    """What starts a process fits into the pipe to it: it may be killed before it reads that."""
    sizes, start = [], passes.map_in_order

    def measured(function, *others):
        sizes.append(len(ForkingPickler.dumps(function)))
        return start(function, *others)

    monkeypatch.setattr(passes, "map_in_order", measured)
    source = random.Random(11)
    items = [" ".join(words(source, 100)) for _ in range(100)]
    test, train = write_lines(tmp_path / "test.jsonl", items), write_lines(tmp_path / "in.jsonl", [*items[:3], "own"])
    report = deduplicate([train], tmp_path / "out", against=[test], workers=2)
    assert report.removed["evaluation_overlap"].documents == 3 and texts_of(tmp_path / "out") == ["own"]
    assert max(sizes) < 4096


def test_decisions_are_those_of_all_pairs():
    """A slow and obvious reference: every pair is compared. So many bands find all pairs that are similar enough."""
    source = random.Random(4)
    sentences = [" ".join(words(source, 8)) for _ in range(6)]
    texts = [" ".join(source.sample(sentences, 3)) for _ in range(40)]
    spec = DeduplicationSpec(near=MinHashSpec(shingle_words=3, bands=1000, rows=14))
    reasons, _ = decide(describe([*texts, "", "  ", "?", "?"], spec), 0, spec)
    shingles = [{tuple(text.split()[i : i + 3]) for i in range(22)} for text in texts]
    pairs = [
        (one, other)
        for one, a in enumerate(shingles)
        for other, b in enumerate(shingles[:one])
        if len(a & b) / len(a | b) > 0.6
    ]
    first = list(range(len(texts)))
    for _ in texts:
        for one, other in pairs:
            first[one] = first[other] = min(first[one], first[other])
    left_out = [number for number in range(len(texts)) if first[number] != number]
    assert 5 < len(left_out) < 35
    assert np.flatnonzero(reasons[:-4]).tolist() == left_out
    assert reasons[-4:].tolist() == [1, 1, 0, 2]


def test_texts_without_words_are_no_near_duplicates(tmp_path):
    texts = ["?!", "...", "  \n ", "\t", "?!", "one two", "one, two", "three"]
    report = deduplicate([write_lines(tmp_path / "in.jsonl", texts)], tmp_path / "out")
    assert texts_of(tmp_path / "out") == ["?!", "...", "one two", "three"]
    assert {reason: amount.documents for reason, amount in report.removed.items() if amount.documents} == {
        "empty": 2,
        "exact": 1,
        "near": 1,
    }


def test_copies_of_and_overlaps_with_evaluation_documents_are_left_out(tmp_path):
    source = random.Random(5)
    item, other, own = (words(source, 60) for _ in range(3))
    near = " ".join([*item[:-1], "changed"])
    quoting = " ".join(words(source, 400) + item[:50] + words(source, 400))
    mentions = " ".join(words(source, 400) + item[:20] + words(source, 400))
    texts = [" ".join(item), near, quoting, mentions, " ".join(own)]
    tests = write_lines(tmp_path / "test.jsonl", [" ".join(other), " ".join(item), " ".join(other)])
    train = write_lines(tmp_path / "in.jsonl", texts)
    report = deduplicate([train], tmp_path / "out", against=[tests])
    assert texts_of(tmp_path / "out") == [mentions, " ".join(own)]
    counts = {reason: amount.documents for reason, amount in report.removed.items()}
    assert counts == {"empty": 0, "exact": 0, "near": 0, "evaluation_copy": 0, "evaluation_overlap": 3}
    assert all(example.stays.startswith(" ".join(item[:5])) for example in report.examples)
    assert [example.similarity for example in report.examples] == [
        1.0,
        pytest.approx(47 / 48, abs=1e-3),
        pytest.approx(38 / 48, abs=1e-3),
    ]
    strict = DeduplicationSpec(overlap=OverlapSpec(ngram_words=13, share=0))
    deduplicate([train], tmp_path / "strict", strict, against=[tests])
    assert texts_of(tmp_path / "strict") == [" ".join(own)]


def test_near_duplicates_of_short_evaluation_documents_are_copies(tmp_path):
    """Too short for an n-gram of 13 words, and one word differs, so that only signatures tell."""
    spec = DeduplicationSpec(near=MinHashSpec(shingle_words=1, bands=50, rows=4))
    tests = write_lines(tmp_path / "test.jsonl", ["one two three four five six seven eight nine"])
    train = write_lines(tmp_path / "in.jsonl", ["One two three four five six seven eight ten", "something else"])
    report = deduplicate([train], tmp_path / "out", spec, against=[tests])
    assert texts_of(tmp_path / "out") == ["something else"]
    assert report.removed["evaluation_copy"].documents == 1
    assert report.examples[0].similarity == 0.8


def test_evaluation_files_are_divided_like_the_inputs(tmp_path, caplog):
    source = random.Random(10)
    items = [" ".join(words(source, 30)) for _ in range(120)]
    (tmp_path / "test.txt").write_text("\n\n".join(items))
    train = write_lines(tmp_path / "in.jsonl", [items[3], "own text"])
    test = str(tmp_path / "test.txt")
    report = deduplicate([train], tmp_path / "whole", against=[test])
    assert report.evaluation_documents == 1 and report.kept.documents == 2
    assert "test.txt is one evaluation document: a text goes if it has 0.5 of all its n-grams" in caplog.text
    report = deduplicate([train], tmp_path / "divided", against=[test], separator=r"\n\n")
    assert report.evaluation_documents == 120 and report.kept.documents == 1
    with pytest.raises(UserError, match="no files given"):
        deduplicate([], tmp_path / "none", against=[test])


def test_records_know_overlaps():
    index = EvaluationIndex(["a b c d e f g h i j k l m n"], OverlapSpec())
    assert describe(["x", "a b c d e f g h i j k l m n"], EXACT_ONLY, index)["match"].tolist() == [-1, 0]


def test_examples_name_the_document_that_stays(tmp_path):
    text = " ".join(words(random.Random(6), 100))
    copies = [text, *(f"{text} {number}" for number in range(5))]
    report = deduplicate([write_lines(tmp_path / "in.jsonl", copies)], tmp_path / "out")
    assert [example.reason for example in report.examples] == ["near"] * 3
    assert all(example.removed.endswith(f" {number}") for number, example in enumerate(report.examples))
    assert {example.similarity for example in report.examples} == {round(96 / 97, 3)}


def test_nothing_left_is_an_error_that_writes_nothing(tmp_path):
    path = write_lines(tmp_path / "in.jsonl", ["a b c", "A b  c"])
    with pytest.raises(UserError, match="no document stays; removed: 2 decontamination"):
        deduplicate([path], tmp_path / "out", against=[path])
    assert [entry.name for entry in tmp_path.iterdir()] == ["in.jsonl"]


def test_folders_with_other_files_are_not_replaced(tmp_path, monkeypatch):
    path = write_lines(tmp_path / "in.jsonl", ["a b c"])
    deduplicate([path], tmp_path / "out")
    monkeypatch.chdir(tmp_path)
    with pytest.raises(UserError, match=r"^out: out: holds deduplicated text already"):
        deduplicate([path], "out")
    (tmp_path / "out" / "mine.txt").write_text("mine")
    with pytest.raises(UserError, match="holds other files"):
        deduplicate([path], tmp_path / "out", overwrite=True)


def test_the_output_is_an_input_of_prepare(tmp_path, caplog):
    texts, stay = planted(random.Random(7))
    deduplicate([write_lines(tmp_path / "in.jsonl", texts)], tmp_path / "out")
    sides, _ = read_split([str(tmp_path / "out")])
    assert sorted(sides["train"] + sides["validation"]) == sorted(stay)
    assert not caplog.records, "the report is no file of another kind"


KILLED = """
import os, signal, sys
from linnet.data import deduplicate as module, passes
from linnet.data.text_folder import UnfinishedFolder

source, out, saves = sys.argv[1], sys.argv[2], int(sys.argv[3])
passes.SAVE_EVERY_S, save, count = 0.0, UnfinishedFolder.save, [0]

def killed(self, sizes, state):
    count[0] += 1
    if count[0] == saves:
        own = [name for name in sizes if name.partition("/")[0].endswith(str(state["number"]))]
        for name in own[-1:]:
            with (self.path / name).open("ab") as file:
                file.write(b"half a li")
        os.kill(os.getpid(), signal.SIGKILL)
    save(self, sizes, state)

def at_the_end(*_):
    os.kill(os.getpid(), signal.SIGKILL)

UnfinishedFolder.save = killed
module.write_json = at_the_end
module.deduplicate([source], out, workers=1, shard_bytes=20_000, compress=sys.argv[4] or None)
"""


@pytest.mark.parametrize(
    ("saves", "resumed", "compress"), [(3, 1024, None), (6, 2000, "zst"), (8, 512, "gz"), (99, 1500, None)]
)
def test_a_killed_run_goes_on_without_a_document_twice_or_lost(saves, resumed, compress, tmp_path, caplog):
    """It is killed in the first pass, behind it, in the second, and when the files are in their place."""
    source = random.Random(8)
    originals = [f"id{number} {' '.join(words(source, 40))}" for number in range(1500)]
    texts = [*originals[:1000], *(f"{text}!" for text in originals[500:1000]), *originals[1000:]]
    path, out = write_lines(tmp_path / "in.jsonl", texts), tmp_path / "out"
    arguments = [path, str(out), str(saves), compress or ""]
    done = subprocess.run([sys.executable, "-c", KILLED, *arguments], check=False)
    assert done.returncode == -9 and not out.exists()
    report = deduplicate([path], out, workers=1, shard_bytes=20_000, compress=compress)
    assert texts_of(out) == originals
    assert f"goes on behind {resumed:,} documents" in caplog.text
    straight = deduplicate([path], tmp_path / "straight", workers=1, shard_bytes=20_000, compress=compress)
    assert [texts_of(out, name) for name in report.files] == [
        texts_of(tmp_path / "straight", name) for name in report.files
    ]
    assert report == straight and report.removed["exact"].documents == 0 and report.removed["near"].documents == 500
    assert sorted(entry.name for entry in tmp_path.iterdir()) == ["in.jsonl", "out", "straight"]


def test_a_full_disk_ends_the_run_and_leaves_nothing(tmp_path):
    """A file may have 20 kB here, which the records need before the last document is read."""
    path = write_lines(tmp_path / "in.jsonl", [f"text {number}" for number in range(1000)])
    program = (
        "import resource, signal, sys; signal.signal(signal.SIGXFSZ, signal.SIG_IGN)\n"
        "resource.setrlimit(resource.RLIMIT_FSIZE, (20_000, 20_000))\n"
        "from linnet.cli.main import main\n"
        f"sys.exit(main(['data', 'dedup', {path!r}, '--out', {str(tmp_path / 'out')!r}]))"
    )
    done = subprocess.run([sys.executable, "-B", "-c", program], check=False, capture_output=True, text=True)
    assert done.returncode == 1 and done.stderr.count("\n") == 1 and "File too large" in done.stderr
    assert [entry.name for entry in tmp_path.iterdir()] == ["in.jsonl"]


def test_a_file_that_changes_between_the_passes_is_refused(tmp_path, monkeypatch):
    path = write_lines(tmp_path / "in.jsonl", ["a b c", "d e f"])

    def changing(*args):
        write_lines(tmp_path / "in.jsonl", ["a b c", "d e f", "g h i"])
        return decide(*args)

    monkeypatch.setattr(module, "decide", changing)
    with pytest.raises(UserError, match=r"in\.jsonl: changed while it was read"):
        deduplicate([path], tmp_path / "out")


def test_memory_does_not_grow_with_the_text(tmp_path, monkeypatch):
    monkeypatch.setattr(batching, "_BATCH_CHARACTERS", 1 << 14)
    source, peaks = random.Random(9), []
    for length in (200, 2000):
        path = write_lines(tmp_path / f"{length}.jsonl", [" ".join(words(source, length)) for _ in range(150)])
        tracemalloc.start()
        deduplicate([path], tmp_path / f"out-{length}", workers=1)
        peaks.append(tracemalloc.get_traced_memory()[1])
        tracemalloc.stop()
    text_bytes = (tmp_path / "2000.jsonl").stat().st_size
    assert text_bytes > 2_000_000
    assert peaks[1] - peaks[0] < 0.25 * text_bytes


def test_exact_copies_need_no_other_package(tmp_path, monkeypatch):
    monkeypatch.setitem(sys.modules, "xxhash", None)
    path = write_lines(tmp_path / "in.jsonl", ["a b c", "A b c", "d"])
    assert deduplicate([path], tmp_path / "out", EXACT_ONLY).kept.documents == 2
    with pytest.raises(UserError, match=r"needs xxhash: pip install 'linnet\[data\]'"):
        deduplicate([path], tmp_path / "near")
    assert not (tmp_path / "near").exists()
