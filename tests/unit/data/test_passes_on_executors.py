"""A first pass by workers of Slurm (a stub) and Ray gives the bytes that one process writes, kills or not."""

import errno
import importlib
import json
import os
import random
import signal
import subprocess
import sys
import time
from pathlib import Path

import pytest

from linnet.core.errors import UserError
from linnet.core.executors import SlurmTasks
from linnet.data import passes
from linnet.data.clean import clean
from linnet.data.cleaning_steps import CleaningSpec
from linnet.data.deduplicate import deduplicate

SENTENCE = "The birds of the valley sang to the trees until the evening came over the hills."
STEPS = [{"kind": "gopher_repetition"}, {"kind": "pii"}]
SPEC = CleaningSpec.parse({"steps": STEPS}, "test")
SIZES = {"shard_bytes": 30_000, "portion_bytes": 100_000}


class ThisProcess:
    """An executor without processes."""

    def run(self, tasks):
        run_worker = importlib.import_module(tasks.module).run_worker
        for index in range(len(tasks.titles)):
            code, reason = run_worker(str(tasks.folder), index)
            if code:
                tasks.refuse(index, reason)
            tasks.finished(index)


def text_of(number):
    """Every third text repeats its line, and is removed."""
    kept = f"{number}\n{SENTENCE}\nWrite to number{number}@linnet.dev about the document."
    return kept if number % 3 else f"{number}\n" + f"{SENTENCE}\n" * 6


def write(path, numbers):
    path.write_text("".join(json.dumps({"text": text_of(number)}) + "\n" for number in numbers))
    return str(path)


@pytest.fixture
def inputs(tmp_path):
    """A large file, which is divided, and small ones."""
    files = {"a": range(800), "b": range(800, 810), "c": range(810, 900)}
    return [write(tmp_path / f"{name}.jsonl", numbers) for name, numbers in files.items()]


def content(folder):
    return {path.name: path.read_bytes() for path in sorted(folder.iterdir())}


@pytest.fixture
def straight(inputs, tmp_path):
    clean(inputs, tmp_path / "straight", SPEC, workers=1, shard_bytes=SIZES["shard_bytes"])
    return content(tmp_path / "straight")


def numbers_in(found):
    parts = [part for name, part in found.items() if name != "report.json"]
    return [int(json.loads(line)["text"].split("\n")[0]) for part in parts for line in part.splitlines()]


def test_slurm_makes_the_files_that_one_process_makes(inputs, straight, tmp_path, sbatch, monkeypatch):
    out = tmp_path / "out"
    monkeypatch.setenv("SBATCH_LOST", "1")
    with pytest.raises(UserError, match=r"^part 2 of 2 of .*a\.jsonl: not finished"):
        clean(inputs, out, SPEC, executor=SlurmTasks(2), **SIZES)
    assert not out.exists()
    monkeypatch.setenv("SBATCH_LOST", "")
    report = clean(inputs, out, SPEC, executor=SlurmTasks(2), **SIZES)
    assert content(out) == straight and report.read.documents == 900
    assert numbers_in(straight) == [number for number in range(900) if number % 3]
    assert sbatch.read_text().splitlines() == ["--wait 3 jobs", "--wait 1 jobs"], "what was done is not done again"
    assert not list(tmp_path.glob(".out*"))


KILLED = """
import os, signal, sys
from linnet.data import passes, workers
from linnet.data.text_folder import UnfinishedFolder

passes.SAVE_EVERY_S, workers._BATCH_TEXTS, count = 0.0, 100, [0]
save, moved = UnfinishedFolder.save, UnfinishedFolder.place_in

def killed(self, sizes, state):
    count[0] += 1
    if count[0] == 2:
        name = max(sizes, key=lambda name: name.startswith("text-0/") * int(name[-7]))
        with (self.path / name).open("ab") as file:
            file.write(b"half a li")
        os.kill(os.getpid(), signal.SIGKILL)
    save(self, sizes, state)

def killed_at_the_end(self, folder, files):
    moved(self, folder, files[:1])
    os.kill(os.getpid(), signal.SIGKILL)

if sys.argv[1] == "within":
    UnfinishedFolder.save = killed
else:
    UnfinishedFolder.place_in = killed_at_the_end
passes.run_worker(sys.argv[2], 1)
"""


@pytest.mark.parametrize("moment", ["within", "at the end"])
def test_a_killed_worker_loses_no_document_and_repeats_none(moment, inputs, straight, tmp_path, monkeypatch, caplog):
    """The first worker is that of this call, the second one is killed, and the call with it."""
    out, run_worker = tmp_path / "out", passes.run_worker
    monkeypatch.setattr("linnet.data.workers._BATCH_TEXTS", 100)

    def killed(folder, index):
        if index == 0:
            return run_worker(folder, index)
        ended = subprocess.run([sys.executable, "-c", KILLED, moment, folder], check=False)
        assert ended.returncode == -signal.SIGKILL
        raise KeyboardInterrupt

    with monkeypatch.context() as first_call:
        first_call.setattr(passes, "run_worker", killed)
        with pytest.raises(KeyboardInterrupt):
            clean(inputs, out, SPEC, executor=ThisProcess(), **SIZES)
    assert not out.exists()
    clean(inputs, out, SPEC, executor=ThisProcess(), **SIZES)
    assert content(out) == straight
    assert "1 of 3 portions were done by an earlier call" in caplog.text
    assert sorted(path.name for path in tmp_path.glob("*out*")) == ["out"]


def test_a_full_disk_names_the_process_and_the_file_and_is_gone_on_from(inputs, straight, tmp_path, monkeypatch):
    out, write = tmp_path / "out", passes.TextFolderWriter.write

    def full(self, row):
        if self._folder.parent.name.startswith(".00001"):
            raise OSError(errno.ENOSPC, "No space left on device", str(self._folder / "part-00000.jsonl"))
        write(self, row)

    with monkeypatch.context() as first_call:
        first_call.setattr(passes.TextFolderWriter, "write", full)
        with pytest.raises(UserError) as refused:
            clean(inputs, out, SPEC, executor=ThisProcess(), **SIZES)
    message = str(refused.value)
    assert "part 2 of 2 of " in message and "a.jsonl: not done: [Errno 28] No space left on device" in message
    assert f"(process {os.getpid()} on " in message and "\n" not in message
    assert not out.exists()
    clean(inputs, out, SPEC, executor=ThisProcess(), **SIZES)
    assert content(out) == straight


@pytest.mark.parametrize("damage", ["cut off", "changed", "missing"])
def test_damaged_files_of_a_worker_are_not_taken_but_made_again(damage, inputs, straight, tmp_path, caplog):
    out = tmp_path / "out"

    class Damaging(ThisProcess):
        def run(self, tasks):
            super().run(tasks)
            file = tasks.folder / "00001" / "part-00000.jsonl"
            whole = file.read_bytes()
            if damage == "missing":
                file.unlink()
            else:
                file.write_bytes(whole[:-30] if damage == "cut off" else whole[:-30] + b"x" + whole[-29:])

    with pytest.raises(UserError, match="00001"):
        clean(inputs, out, SPEC, executor=Damaging(), **SIZES)
    assert not out.exists()
    clean(inputs, out, SPEC, executor=ThisProcess(), **SIZES)
    assert content(out) == straight
    assert "made again" in caplog.text


def test_portions_of_other_inputs_are_not_taken(inputs, tmp_path):
    out = tmp_path / "out"

    class Failing(ThisProcess):
        def run(self, tasks):
            super().run(tasks)
            tasks.refuse(0, "at the end")

    with pytest.raises(UserError, match="at the end"):
        clean(inputs, out, SPEC, executor=Failing(), **SIZES)
    write(tmp_path / "a.jsonl", range(2000, 2800))
    clean(inputs, out, SPEC, executor=ThisProcess(), **SIZES)
    assert numbers_in(content(out)) == [n for n in (*range(2000, 2800), *range(800, 900)) if n % 3]


def test_a_line_that_is_no_document_is_named_and_may_be_left_out(inputs, tmp_path, caplog):
    with (tmp_path / "a.jsonl").open("a") as file:
        file.write("no JSON\n")
    with pytest.raises(UserError, match=r"a\.jsonl, line 801: not valid JSON"):
        clean(inputs, tmp_path / "out", SPEC, executor=ThisProcess(), **SIZES)
    report = clean(inputs, tmp_path / "out", SPEC, skip_invalid=True, executor=ThisProcess(), **SIZES)
    assert report.read.documents == 900
    assert "1 invalid document left out, the first in" in caplog.text


def test_languages_are_counted_over_all_portions(inputs, tmp_path, monkeypatch):
    language = {"kind": "language", "keep": ["even", "odd"]}
    spec = CleaningSpec.parse({"steps": [language]}, "test")

    def judge(text):
        return ("odd" if int(text.split("\n")[0]) % 2 else "even"), True

    monkeypatch.setattr("linnet.data.cleaning_steps.judge_language", lambda step: judge)
    report = clean(inputs, tmp_path / "out", spec, executor=ThisProcess(), **SIZES)
    assert report.steps[0].labels == {"even": 450, "odd": 450}


def test_nothing_is_left_where_no_document_stays(tmp_path):
    source = write(tmp_path / "in.jsonl", [0, 3, 6])
    with pytest.raises(UserError, match="no document stays; removed: 3 gopher_repetition"):
        clean([source], tmp_path / "out", SPEC, executor=ThisProcess())
    assert [path.name for path in tmp_path.iterdir()] == ["in.jsonl"]


@pytest.fixture
def copies(tmp_path):
    """Files with exact copies and near-duplicates across portions, and one to compare with; the numbers that stay."""
    source = random.Random(3)
    own = [
        " ".join(source.choices(["bird", "tree", "river", "song", "nest", "moon", "hill", "star"], k=40))
        for _ in range(900)
    ]
    texts = [*own[:600], *(own[number].upper() for number in range(0, 600, 2)), *own[600:]]
    texts += [f"{own[number]} again" for number in range(600, 900, 3)]
    half = len(texts) // 2
    for name, part in (("a", texts[:half]), ("b", texts[half:]), ("test", own[850:])):
        (tmp_path / f"{name}.jsonl").write_text("".join(json.dumps({"text": text}) + "\n" for text in part))
    return [str(tmp_path / f"{name}.jsonl") for name in ("a", "b", "test")], own[:850]


def texts_in(found):
    parts = [part for name, part in found.items() if name != "report.json"]
    return [json.loads(line)["text"] for part in parts for line in part.splitlines()]


def test_deduplication_in_portions_is_that_of_one_process(copies, tmp_path):
    (*inputs, test), stay = copies
    deduplicate(inputs, tmp_path / "straight", against=[test], workers=1, shard_bytes=30_000)
    deduplicate(inputs, tmp_path / "out", against=[test], executor=ThisProcess(), **SIZES)
    assert content(tmp_path / "out") == content(tmp_path / "straight")
    assert texts_in(content(tmp_path / "out")) == stay
    assert not list(tmp_path.glob(".*"))


def test_filters_around_a_comparison_in_portions_are_those_of_one_process(inputs, tmp_path):
    """The later passes are those of this process; killed after the first, the call goes on with the second."""
    again = write(tmp_path / "d.jsonl", range(100, 200))
    plain = [STEPS[0], {"kind": "exact_duplicates"}, STEPS[1]]
    spec, out = CleaningSpec.parse({"steps": plain}, "test"), tmp_path / "out"
    clean([*inputs, again], tmp_path / "straight", spec, workers=1, shard_bytes=SIZES["shard_bytes"])
    with pytest.MonkeyPatch.context() as second_pass:
        second_pass.setattr(passes, "read_rows", lambda *given: (_ for _ in ()).throw(KeyboardInterrupt))
        with pytest.raises(KeyboardInterrupt):
            clean([*inputs, again], out, spec, executor=ThisProcess(), **SIZES)
    assert not (tmp_path / ".out.unfinished" / "portions").exists(), "they are joined"
    clean([*inputs, again], out, spec, executor=None, shard_bytes=SIZES["shard_bytes"])
    assert content(out) == content(tmp_path / "straight")
    assert numbers_in(content(out)) == [number for number in range(900) if number % 3]


def test_a_signature_file_that_was_cut_off_is_not_compared(copies, tmp_path):
    inputs, out = copies[0][:2], tmp_path / "out"

    class Truncating(ThisProcess):
        def run(self, tasks):
            super().run(tasks)
            file = tasks.folder / "00000" / "signatures-0"
            os.truncate(file, file.stat().st_size - 136)

    with pytest.raises(UserError, match=r"00000/signatures-0: [\d]+ bytes, manifest\.json says"):
        deduplicate(inputs, out, executor=Truncating(), **SIZES)
    assert not out.exists()
    deduplicate(inputs, out, executor=ThisProcess(), **SIZES)
    assert texts_in(content(out))[:850] == copies[1]


def test_a_portion_of_which_nothing_stays_is_one_without_text_and_records(tmp_path):
    removed, other = write(tmp_path / "a.jsonl", range(0, 600, 3)), write(tmp_path / "b.jsonl", range(20))
    spec = CleaningSpec.parse({"steps": [STEPS[0], {"kind": "exact_duplicates"}]}, "test")
    sizes = {"portion_bytes": Path(removed).stat().st_size}
    report = clean([removed, other], tmp_path / "out", spec, executor=ThisProcess(), **sizes)
    clean([removed, other], tmp_path / "straight", spec, workers=1)
    assert content(tmp_path / "out") == content(tmp_path / "straight")
    assert (report.read.documents, report.kept.documents, report.steps[1].read.documents) == (220, 13, 13)


def test_an_error_before_any_portion_is_done_leaves_nothing(tmp_path):
    (tmp_path / "in.jsonl").write_text("no JSON\n")
    with pytest.raises(UserError, match=r"in\.jsonl: not done: .*in\.jsonl, line 1: not valid JSON"):
        deduplicate([str(tmp_path / "in.jsonl")], tmp_path / "out", executor=ThisProcess())
    assert [path.name for path in tmp_path.iterdir()] == ["in.jsonl"]


PROGRAM = """
import sys
from linnet.core.executors import RayTasks
from linnet.data.clean import clean
from linnet.data.cleaning_steps import CleaningSpec

spec = CleaningSpec.parse({"steps": [{"kind": "gopher_repetition"}, {"kind": "pii"}]}, "test")
clean(sys.argv[2:], sys.argv[1], spec, executor=RayTasks(2), portion_bytes=300_000)
"""


@pytest.mark.slow
def test_ray_killed_and_resumed_makes_the_files_that_one_process_makes(tmp_path):
    """First a worker is killed, then the program with all processes of Ray."""
    pytest.importorskip("ray")
    inputs = [write(tmp_path / "a.jsonl", range(30_000)), write(tmp_path / "b.jsonl", range(30_000, 36_000))]
    clean(inputs, tmp_path / "straight", SPEC, workers=1)
    out, portions = tmp_path / "out", tmp_path / ".out.unfinished" / "portions"
    command = [sys.executable, "-c", PROGRAM, str(out), *inputs]

    def done():
        return len(list(portions.glob("*/manifest.json")))

    process = subprocess.Popen(command, stderr=subprocess.PIPE, text=True, start_new_session=True)
    killed, end_s = None, time.monotonic() + 240
    while done() < 6:
        assert process.poll() is None and time.monotonic() < end_s, process.stderr.read()
        found = subprocess.run(["ps", "-eo", "pid,args"], capture_output=True, text=True, check=True).stdout
        workers = [int(line.split()[0]) for line in found.splitlines() if "ray::run_worker" in line]
        if killed is None and done() and workers:
            killed = workers[0]
            os.kill(killed, signal.SIGKILL)
        time.sleep(0.02)
    assert killed is not None
    os.killpg(process.pid, signal.SIGKILL)
    process.communicate(timeout=60)
    assert not out.exists() and done() < 17
    ended = subprocess.run(command, capture_output=True, text=True, timeout=300, check=False)
    assert ended.returncode == 0, ended.stderr
    assert "portions were done by an earlier call" in ended.stderr
    assert content(out) == content(tmp_path / "straight")
    assert numbers_in(content(out)) == [number for number in range(36_000) if number % 3]
