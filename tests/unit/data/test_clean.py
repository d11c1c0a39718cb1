import errno
import io
import json
import multiprocessing
import os
import random
import re
import signal
import subprocess
import sys
from dataclasses import asdict

import pytest

from linnet.cli.main import main
from linnet.core import atomic
from linnet.core.errors import UserError, one_line
from linnet.data import passes
from linnet.data.clean import clean
from linnet.data.cleaning_report import CleaningReport, CleaningResult
from linnet.data.cleaning_steps import CleaningSpec, clean_rows

PROSE = """The birds of the valley sang to the trees until the evening came over the hills.
Nobody in that village could have known what winter would bring with it.
My grandmother kept a garden where beans and roses grew side by side.
Each morning she walked down to her gate, opened it, and waited for the postman.
Letters arrived seldom, yet every one was read aloud twice at supper.
When snow finally fell, our whole family gathered around an old iron stove."""
REPEATED = "\n".join([PROSE.splitlines()[0]] * 6)
MIXED = f"{PROSE}\nHome | Contact | About"
BRACKET = f"{PROSE}\nThe code is {{ here }} for all of you."
DOCUMENTS = [PROSE, REPEATED, "Too short.", MIXED, BRACKET]


def spec(*steps):
    return CleaningSpec.parse({"steps": [{"kind": step} if isinstance(step, str) else step for step in steps]}, "test")


def write(path, texts):
    path.write_text("".join(json.dumps({"text": text}) + "\n" for text in texts))
    return str(path)


def read(folder):
    parts = sorted(folder.glob("part-*.jsonl"))
    return [json.loads(line)["text"] for part in parts for line in part.read_text().splitlines()]


def test_report_counts_every_document_and_byte(tmp_path):
    steps = spec("gopher_repetition", {"kind": "gopher_quality", "enabled": False}, "c4")
    report = clean([write(tmp_path / "web.jsonl", DOCUMENTS)], tmp_path / "out", steps)
    repetition, c4 = report.steps
    assert read(tmp_path / "out") == [PROSE, PROSE]
    assert (report.read.documents, repetition.removed.documents, c4.removed.documents) == (5, 2, 1)
    assert c4.trimmed_bytes == len(MIXED) - len(PROSE)
    lost = sum(step.removed.bytes + step.trimmed_bytes for step in report.steps)
    assert report.read.bytes - lost == report.kept.bytes == 2 * len(PROSE)
    assert repetition.reasons == {"dup_line_frac": 1, "top_2_gram": 1}
    assert [example["reason"] for example in c4.examples] == ["curly_bracket"]
    assert json.loads((tmp_path / "out/report.json").read_text())["kept"]["documents"] == 2


def test_result_does_not_depend_on_processes(tmp_path):
    texts = [f"{PROSE}\nThe document has the number {number} for you." for number in range(1200)]
    source = write(tmp_path / "web.jsonl", texts)
    steps = spec("gopher_quality", "pii")
    reports = [clean([source], tmp_path / str(workers), steps, workers=workers) for workers in (1, 2)]
    assert reports[0] == reports[1]
    assert read(tmp_path / "1") == read(tmp_path / "2") == texts


def test_many_shards_hold_every_document_once(tmp_path):
    texts = [f"{PROSE}\nThe document has the number {number} for you." for number in range(20)]
    report = clean([write(tmp_path / "a.jsonl", texts)], tmp_path / "out", spec("c4"), shard_bytes=2000)
    assert len(report.files) > 3
    assert read(tmp_path / "out") == texts


def test_nothing_is_left_where_no_document_stays(tmp_path):
    with pytest.raises(UserError, match="no document stays; removed: 1 c4"):
        clean([write(tmp_path / "a.jsonl", ["Short."])], tmp_path / "out", spec("c4"))
    assert not (tmp_path / "out").exists()


def test_earlier_result_is_replaced_only_if_that_is_wanted(tmp_path, monkeypatch):
    source, steps = write(tmp_path / "a.jsonl", [PROSE]), spec("c4")
    clean([source], tmp_path / "out", steps)
    monkeypatch.chdir(tmp_path)
    with pytest.raises(UserError, match=r"^out: out: holds cleaned text already"):
        clean([source], "out", steps)
    clean([source], tmp_path / "out", steps, overwrite=True)
    (tmp_path / "out/notes.txt").write_text("mine")
    with pytest.raises(UserError, match="holds other files"):
        clean([source], tmp_path / "out", steps, overwrite=True)


def test_the_step_is_named_whose_file_is_missing(tmp_path):
    source, steps = write(tmp_path / "a.jsonl", [PROSE]), spec({"kind": "decontamination", "against": ["none.jsonl"]})
    with pytest.raises(UserError, match=r"^decontamination\.against: none\.jsonl: no such file$"):
        clean([source], tmp_path / "out", steps)


def test_all_steps_off_is_an_error(tmp_path):
    with pytest.raises(UserError, match="enabled: false"):
        clean([], tmp_path / "out", spec({"kind": "c4", "enabled": False}))


def test_full_disk_ends_the_processes_and_leaves_nothing(tmp_path, monkeypatch):
    source = write(tmp_path / "a.jsonl", [PROSE] * 1200)

    def full(*_):
        raise OSError(errno.ENOSPC, "No space left on device")

    monkeypatch.setattr(CleaningReport, "add", full)
    with pytest.raises(Exception, match="No space left") as caught:
        clean([source], tmp_path / "out", spec("pii"), workers=2)
    assert caught.tb is not None  # it keeps what was not closed
    assert not multiprocessing.active_children()
    assert [path.name for path in tmp_path.iterdir()] == ["a.jsonl"]


KILLED = """
import json, os, signal, sys
from linnet.data import clean, passes
from linnet.data.cleaning_steps import CleaningSpec
from linnet.data.text_folder import UnfinishedFolder

source, out, saves, steps = sys.argv[1], sys.argv[2], int(sys.argv[3]), json.loads(sys.argv[4])
passes.SAVE_EVERY_S, save, count = 0.0, UnfinishedFolder.save, [0]

def killed(self, sizes, state):
    count[0] += 1
    if count[0] == saves:
        with (self.path / list(sizes)[-1]).open("ab") as file:
            file.write(b"half a li")
        os.kill(os.getpid(), signal.SIGKILL)
    save(self, sizes, state)

UnfinishedFolder.save = killed
spec = CleaningSpec.parse({"steps": steps}, "test")
clean.clean([source], out, spec, workers=1, shard_bytes=200_000)
"""


def kill(source, out, saves, steps):
    """Clean in a process that is killed before it notes for the given time how far it has come."""
    plain = json.dumps(steps.model_dump(mode="json")["steps"])
    ended = subprocess.run([sys.executable, "-c", KILLED, source, str(out), str(saves), plain], check=False)
    assert ended.returncode == -signal.SIGKILL and not out.exists()


@pytest.mark.parametrize("saves", [1, 3])
def test_a_killed_call_goes_on_without_a_document_twice_or_lost(saves, tmp_path, caplog, monkeypatch):
    texts = [f"{number}\n{PROSE if number % 3 else REPEATED}" for number in range(1100)]
    source, out = write(tmp_path / "in.jsonl", texts), tmp_path / "out"
    steps = spec("gopher_repetition")
    kill(source, out, saves, steps)
    seen = []
    monkeypatch.setattr(passes, "clean_rows", lambda rows, steps: seen.append(len(rows)) or clean_rows(rows, steps))
    report = clean([source], out, steps, workers=1, shard_bytes=200_000)
    straight = clean([source], tmp_path / "straight", steps, workers=1, shard_bytes=200_000)
    assert asdict(report) == asdict(straight) and report.read.documents == 1100
    assert read(out) == read(tmp_path / "straight")
    numbers = [int(text.split("\n")[0]) for text in read(out)]
    assert numbers == [number for number in range(1100) if number % 3]
    resumed = 512 * (saves - 1)
    assert sum(seen) == 2 * 1100 - resumed
    assert (f"goes on behind {resumed:,} documents" in caplog.text) == (resumed > 0)
    assert {path.name for path in tmp_path.iterdir()} == {"in.jsonl", "out", "straight"}


def test_what_is_left_of_another_call_is_not_used(tmp_path, monkeypatch):
    source = write(tmp_path / "in.jsonl", [PROSE] * 1200)
    monkeypatch.setattr("linnet.data.passes.SAVE_EVERY_S", 0.0)
    with monkeypatch.context() as failing:
        failing.setattr("linnet.data.clean.write_json", lambda *given: (_ for _ in ()).throw(OSError(errno.EIO, "no")))
        with pytest.raises(OSError, match="no"):
            clean([source], tmp_path / "out", spec("gopher_repetition"), workers=1)
    assert (tmp_path / ".out.unfinished" / "state.json").is_file()
    report = clean([source], tmp_path / "out", spec("gopher_quality"), workers=1)
    assert report.read.documents == 1200 and report.steps[0].step == "gopher_quality"
    assert {path.name for path in tmp_path.iterdir()} == {"in.jsonl", "out"}


@pytest.mark.parametrize("inputs", ["file", "pipe"])
def test_what_is_left_of_an_earlier_content_is_not_used(inputs, tmp_path, monkeypatch):
    """The content has the size that it had when the call was broken off."""
    source, out, steps = tmp_path / "in.jsonl", tmp_path / "out", spec("pii")

    def given(texts):
        write(source, texts)
        monkeypatch.setattr("sys.stdin", io.TextIOWrapper(io.BytesIO("\n".join(texts).encode())))
        return [str(source)] if inputs == "file" else ["-"]

    with monkeypatch.context() as failing:
        failing.setattr("linnet.data.clean.write_json", lambda *given: (_ for _ in ()).throw(OSError(errno.EIO, "no")))
        with pytest.raises(OSError, match="no"):
            clean(given([f"Old {PROSE}"]), out, steps, workers=1)
    clean(given([f"New {PROSE}"]), out, steps, workers=1)
    assert read(out) == [f"New {PROSE}"]


def test_a_disk_that_fails_when_all_is_done_costs_no_work(tmp_path, monkeypatch, caplog):
    """The file system may report only then that there was no room; what it has is written on no more."""
    source, out, steps = write(tmp_path / "in.jsonl", [PROSE] * 600), tmp_path / "out", spec("gopher_repetition")
    flush, seen = atomic._flush, []

    def fail(path):
        if path.name.startswith("part-"):
            raise OSError(errno.ENOSPC, "No space left on device", str(path))
        flush(path)

    monkeypatch.setattr(passes, "clean_rows", lambda rows, steps: seen.append(len(rows)) or clean_rows(rows, steps))
    with monkeypatch.context() as failing:
        failing.setattr(atomic, "_flush", fail)
        with pytest.raises(OSError, match="No space left"):
            clean([source], out, steps, workers=1)
    assert not out.exists() and sum(seen) == 600
    clean([source], out, steps, workers=1)
    assert read(out) == [PROSE] * 600 and sum(seen) == 600
    assert "goes on behind 600 documents" in caplog.text
    assert {path.name for path in tmp_path.iterdir()} == {"in.jsonl", "out"}


def test_a_call_that_was_killed_when_the_result_had_its_name_writes_on_no_file_of_it(tmp_path, monkeypatch):
    """Then the files have both names, so that what is cut off of one is cut off of the result."""
    source, out, steps = write(tmp_path / "in.jsonl", [PROSE] * 600), tmp_path / "out", spec("gopher_repetition")
    with monkeypatch.context() as killed:
        killed.setattr("linnet.data.text_folder.UnfinishedFolder.remove", lambda self: None)
        clean([source], out, steps, workers=1)
    open_texts, links = passes.Passes._open_texts, [(out / "part-00000.jsonl").stat().st_nlink]

    def opened(self, stack):
        links.append((out / "part-00000.jsonl").stat().st_nlink)
        return open_texts(self, stack)

    monkeypatch.setattr(passes.Passes, "_open_texts", opened)
    clean([source], out, steps, workers=1, overwrite=True)
    assert links == [2, 1] and read(out) == [PROSE] * 600


def test_what_was_left_out_is_told_by_a_call_that_goes_on_with_a_later_pass(tmp_path, caplog):
    source, out = write(tmp_path / "in.jsonl", [PROSE, REPEATED]), tmp_path / "out"
    with (tmp_path / "in.jsonl").open("a") as file:
        file.write("no JSON\n")
    steps = spec({"kind": "url", "block_words": ["casino"]}, "exact_duplicates")
    with pytest.MonkeyPatch.context() as second_pass:
        second_pass.setattr(passes, "read_rows", lambda *given: (_ for _ in ()).throw(KeyboardInterrupt))
        with pytest.raises(KeyboardInterrupt):
            clean([source], out, steps, skip_invalid=True)
    clean([source], out, steps, skip_invalid=True)
    assert "1 invalid document left out, the first in" in caplog.text
    assert "2 of 2 documents have no address, so the step url lets them pass" in caplog.text


def test_what_the_reading_met_is_told_where_no_document_stays(tmp_path, caplog):
    (tmp_path / "a.txt").write_text(f"{REPEATED}\n\n{REPEATED}")
    with pytest.raises(UserError, match="no document stays"):
        clean([str(tmp_path / "a.txt")], tmp_path / "out", spec("gopher_repetition"), separator="##")
    assert f"the separator '##' divides nothing in {tmp_path}/a.txt" in caplog.text


def words(source, count):
    return [f"w{source.randrange(10**6)}" for _ in range(count)]


def test_filters_and_comparisons_in_one_call(tmp_path):
    """Documents of planted copies, whose last lines the filter before the comparison cuts off."""
    source = random.Random(0)
    item, *texts = (" ".join(words(source, 60)) + "." for _ in range(9))
    near, quoting = f"{texts[0][:-1]} again.", f"{texts[1]} {item}"
    documents = [*texts, f"{texts[2]}\nHome | About", near, REPEATED, quoting, f"{texts[0][::-1]} jo@linnet.dev."]
    test = write(tmp_path / "test.jsonl", [item])
    steps = spec(
        "gopher_repetition",
        {"kind": "c4", "min_num_sentences": -1},
        {"kind": "decontamination", "against": [test]},
        "exact_duplicates",
        "near_duplicates",
        "pii",
    )
    report = clean([write(tmp_path / "web.jsonl", documents)], tmp_path / "out", steps)
    assert read(tmp_path / "out") == [*texts, f"{texts[0][::-1]} email@example.com."]
    removed = {step.step: step.removed.documents for step in report.steps}
    assert removed == {
        "gopher_repetition": 1,
        "c4": 0,
        "decontamination": 1,
        "exact_duplicates": 1,
        "near_duplicates": 1,
        "pii": 0,
    }
    assert [step.read.documents for step in report.steps] == [13, 12, 12, 11, 10, 9]
    lost = sum(step.removed.bytes + step.trimmed_bytes for step in report.steps)
    assert report.read.bytes - lost == report.kept.bytes
    shown = {step.step: step.examples for step in report.steps if step.examples}
    assert shown["near_duplicates"] == [
        {"reason": "near (0.98)", "text": one_line(near, 200), "stays": one_line(texts[0], 200)}
    ]
    assert shown["decontamination"][0]["reason"] == "evaluation_overlap (1.00)"
    assert shown["exact_duplicates"][0]["stays"] == one_line(texts[2], 200)
    assert "stays in its place" in CleaningResult(report).tables()[-1].columns


def test_comparisons_before_filters_read_the_inputs_twice(tmp_path):
    texts = [f"{PROSE} {number}" for number in (1, 1, 2)]
    source = write(tmp_path / "web.jsonl", [*texts, "Too short."])
    report = clean([source], tmp_path / "out", spec("exact_duplicates", "gopher_quality", "exact_duplicates"))
    assert read(tmp_path / "out") == [texts[0], texts[2]]
    assert [step.removed.documents for step in report.steps] == [1, 1, 0]
    assert report.read.documents == 4


@pytest.mark.parametrize(("saves", "resumed"), [(2, 512), (12, 512)])
def test_a_call_killed_among_comparisons_goes_on(saves, resumed, tmp_path, caplog):
    """Of the passes it is killed in the first, and in the last, where the text of the first is read."""
    source = random.Random(1)
    texts = [f"{number} {' '.join(words(source, 30))}" for number in range(1020)]
    path = write(tmp_path / "in.jsonl", [*texts, *texts[:600]])
    steps, out = spec("pii", "exact_duplicates", "pii", "near_duplicates"), tmp_path / "out"
    kill(path, out, saves, steps)
    report = clean([path], out, steps, workers=1, shard_bytes=200_000)
    assert f"goes on behind {resumed:,} documents" in caplog.text
    straight = clean([path], tmp_path / "straight", steps, workers=1, shard_bytes=200_000)
    assert asdict(report) == asdict(straight) and report.steps[1].removed.documents == 600
    assert read(out) == texts
    assert {path.name for path in tmp_path.iterdir()} == {"in.jsonl", "out", "straight"}


def test_a_worker_that_dies_is_named_with_the_file_and_nothing_stays(tmp_path, monkeypatch, capfd):
    """As the system ends one where memory runs out."""
    first, second = write(tmp_path / "a.jsonl", [PROSE]), write(tmp_path / "b.jsonl", [PROSE] * 40)
    monkeypatch.setattr("linnet.data.workers._BATCH_TEXTS", 1)
    monkeypatch.setattr("linnet.data.passes.SAVE_EVERY_S", float("inf"))  # else there is something to go on with
    count = passes.Passes._count

    def count_and_kill(self, one, outcomes):
        if not self.job.batches:
            os.kill(multiprocessing.active_children()[0].pid, signal.SIGKILL)
        count(self, one, outcomes)

    monkeypatch.setattr(passes.Passes, "_count", count_and_kill)
    assert main(["data", "clean", first, second, "--out", str(tmp_path / "out"), "--workers", "2"]) == 1
    said = capfd.readouterr().err
    lost = r"worker process \d+ was ended by SIGKILL from outside; fewer --workers need less memory"
    assert re.fullmatch(rf"error: {tmp_path}/out: {second}: {lost}\n", said)
    assert {path.name for path in tmp_path.iterdir()} == {"a.jsonl", "b.jsonl"}
    assert not multiprocessing.active_children()


def test_a_step_that_finds_nothing_and_one_given_twice_are_both_applied_and_reported(tmp_path):
    short, long = {"min_doc_words": 4, "max_doc_words": 1000}, {"min_doc_words": 4, "max_doc_words": 60}
    quality = {"kind": "gopher_quality", "min_stop_words": None}
    steps = spec({**quality, **short}, "pii", {**quality, **long})
    texts = ["Too short.", PROSE, PROSE.split("\n")[0], ""]
    (tmp_path / "none.jsonl").touch()
    write(tmp_path / "web.jsonl", texts)
    report = clean([str(tmp_path)], tmp_path / "out", steps)
    assert [(step.step, step.read.documents, step.removed.documents) for step in report.steps] == [
        ("gopher_quality", 3, 1),
        ("pii", 2, 0),
        ("gopher_quality", 2, 1),
    ]
    assert [list(step.reasons) for step in report.steps] == [["gopher_short_doc"], [], ["gopher_long_doc"]]
    assert read(tmp_path / "out") == [PROSE.split("\n")[0]]
