import errno
import json
import multiprocessing
import signal
import subprocess
import sys
from dataclasses import asdict

import pytest

from linnet.core.errors import UserError
from linnet.data.clean import CleaningReport, CleaningSpec, clean, clean_texts

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


@pytest.mark.parametrize(
    ("step", "reasons"),
    [
        ("gopher_repetition", [None, "dup_line_frac", "top_2_gram", None, None]),
        ("gopher_quality", [None, None, "gopher_short_doc", None, None]),
        ("c4", [None, None, "too_few_sentences", None, "curly_bracket"]),
        ("fineweb_quality", [None, "char_dup_ratio", "short_line_ratio", None, None]),
        ("pii", [None] * 5),
    ],
)
def test_reasons_of_each_step(step, reasons):
    assert [outcome.reason for outcome in clean_texts(DOCUMENTS, spec(step))] == reasons


def test_lines_of_c4_equal_those_of_datatrove():
    filters = pytest.importorskip("datatrove.pipeline.filters")
    from datatrove.data import Document

    texts, options = [PROSE, REPEATED, MIXED, BRACKET], {"min_num_sentences": -1}  # it would need spaCy for sentences
    theirs = []
    for text in texts:
        document = Document(text=text, id="")
        result = filters.C4QualityFilter(**options).filter(document)
        theirs.append((document.text, None if result is True else result[1]))
    assert [(o.text, o.reason) for o in clean_texts(texts, spec({"kind": "c4", **options}))] == theirs
    assert theirs[2] == (PROSE, None) and theirs[3][1] == "curly_bracket"


def test_addresses_are_replaced_alike_in_every_document():
    found = clean_texts(["Write to jo@linnet.dev today."] * 3, spec("pii"))
    assert len({outcome.text for outcome in found}) == 1
    assert "jo@" not in found[0].text


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


@pytest.mark.parametrize(
    ("step", "message"),
    [
        ({"kind": "c5"}, "'c5': must be one of 'gopher_repetition'"),
        ({"kind": "c4", "sentences": 2}, "sentences: unknown key"),
        ({"kind": "gopher_quality", "min_doc_words": 0}, "min_doc_words: 0"),
    ],
    ids=["kind", "key", "value"],
)
def test_mistakes_in_the_steps_are_named(step, message):
    with pytest.raises(UserError, match=message):
        spec(step)


def test_earlier_result_is_replaced_only_if_that_is_wanted(tmp_path):
    source, steps = write(tmp_path / "a.jsonl", [PROSE]), spec("c4")
    clean([source], tmp_path / "out", steps)
    with pytest.raises(UserError, match="holds cleaned text already"):
        clean([source], tmp_path / "out", steps)
    clean([source], tmp_path / "out", steps, overwrite=True)
    (tmp_path / "out/notes.txt").write_text("mine")
    with pytest.raises(UserError, match="holds other files"):
        clean([source], tmp_path / "out", steps, overwrite=True)


def test_all_steps_off_is_an_error(tmp_path):
    with pytest.raises(UserError, match="enabled: false"):
        clean([], tmp_path / "out", spec({"kind": "c4", "enabled": False}))


def test_full_disk_ends_the_processes_and_leaves_nothing(tmp_path, monkeypatch):
    source = write(tmp_path / "a.jsonl", [PROSE] * 1200)

    def full(self, cleaned):
        raise OSError(errno.ENOSPC, "No space left on device")

    monkeypatch.setattr(CleaningReport, "add", full)
    with pytest.raises(Exception, match="No space left") as caught:
        clean([source], tmp_path / "out", spec("pii"), workers=2)
    assert caught.tb is not None  # it keeps what was not closed
    assert not multiprocessing.active_children()
    assert [path.name for path in tmp_path.iterdir()] == ["a.jsonl"]


def test_the_default_is_that_of_fineweb(tmp_path):
    """Its C4 step keeps lines without a mark at their end."""
    kinds = [step.kind for step in CleaningSpec().steps]
    assert kinds == ["gopher_repetition", "gopher_quality", "c4", "fineweb_quality", "pii"]
    outcomes = clean_texts([MIXED, REPEATED], CleaningSpec())
    assert outcomes[0].text == MIXED and outcomes[0].reason is None
    assert outcomes[1].reason is not None


KILLED = """
import json, os, signal, sys
from linnet.data import clean
from linnet.data.text_folder import UnfinishedFolder

source, out, saves = sys.argv[1], sys.argv[2], int(sys.argv[3])
clean.SAVE_EVERY_S, save, count = 0.0, UnfinishedFolder.save, [0]

def killed(self, writer, state):
    count[0] += 1
    if count[0] == saves:
        writer._shard.write(b"half a li")
        writer._shard.flush()
        os.kill(os.getpid(), signal.SIGKILL)
    save(self, writer, state)

UnfinishedFolder.save = killed
spec = clean.CleaningSpec.parse({"steps": [{"kind": "gopher_repetition"}]}, "test")
clean.clean([source], out, spec, workers=1, shard_bytes=200_000)
"""


@pytest.mark.parametrize("saves", [1, 3])
def test_a_killed_call_goes_on_without_a_document_twice_or_lost(saves, tmp_path, caplog, monkeypatch):
    texts = [f"{number}\n{PROSE if number % 3 else REPEATED}" for number in range(2000)]
    source, out = write(tmp_path / "in.jsonl", texts), tmp_path / "out"
    steps = spec("gopher_repetition")
    ended = subprocess.run([sys.executable, "-c", KILLED, source, str(out), str(saves)], check=False)
    assert ended.returncode == -signal.SIGKILL and not out.exists()
    seen = []
    module = sys.modules["linnet.data.clean"]
    monkeypatch.setattr(module, "clean_texts", lambda texts, spec: seen.append(len(texts)) or clean_texts(texts, spec))
    report = clean([source], out, steps, workers=1, shard_bytes=200_000)
    straight = clean([source], tmp_path / "straight", steps, workers=1, shard_bytes=200_000)
    assert asdict(report) == asdict(straight) and report.read.documents == 2000
    assert read(out) == read(tmp_path / "straight")
    numbers = [int(text.split("\n")[0]) for text in read(out)]
    assert numbers == [number for number in range(2000) if number % 3]
    resumed = 512 * (saves - 1)
    assert sum(seen) == 2 * 2000 - resumed
    assert (f"goes on behind {resumed:,} documents" in caplog.text) == (resumed > 0)
    assert {path.name for path in tmp_path.iterdir()} == {"in.jsonl", "out", "straight"}


def test_what_is_left_of_another_call_is_not_used(tmp_path, monkeypatch):
    source = write(tmp_path / "in.jsonl", [PROSE] * 1200)
    monkeypatch.setattr("linnet.data.clean.SAVE_EVERY_S", 0.0)
    with monkeypatch.context() as failing:
        failing.setattr("linnet.data.clean.write_json", lambda *given: (_ for _ in ()).throw(OSError(errno.EIO, "no")))
        with pytest.raises(OSError, match="no"):
            clean([source], tmp_path / "out", spec("gopher_repetition"), workers=1)
    assert (tmp_path / ".out.unfinished" / "state.json").is_file()
    report = clean([source], tmp_path / "out", spec("gopher_quality"), workers=1)
    assert report.read.documents == 1200 and report.steps[0].step == "gopher_quality"
    assert {path.name for path in tmp_path.iterdir()} == {"in.jsonl", "out"}
