import gzip
import json
import os
import re
import signal
import subprocess
import sys
import time
from pathlib import Path

import pytest
import yaml

from linnet.cli.main import load_verb, main
from linnet.cli.options import FieldSource, as_assignments
from linnet.core.spec import field_kinds
from linnet.data.prepare import prepare_texts
from linnet.training.spec import TrainingSpec
from several import SLOWED

pytestmark = pytest.mark.usefixtures("warm_python")

MIXERS = {
    "attention": {"kind": "attention", "heads": 2},
    "ted": {"kind": "ted"},
    "plga": {"kind": "plga", "heads": 2, "metric_hidden": 8, "residual_units": 1},
}
MEASURED = {"tokens_per_s", "share_of_peak", "waiting_share", "memory_bytes", "eta_s", "checksum"}


@pytest.fixture(scope="module")
def data(tmp_path_factory):
    folder = tmp_path_factory.mktemp("train") / "data"
    train = [f"the bird {n} sang to the tree {n % 7} and the tree was glad. " * 3 for n in range(40)]
    prepare_texts(train, [f"the tree {n} was glad of the bird. " for n in range(9)], folder, tokenizer="bytes")
    return folder


@pytest.fixture
def command(tmp_path, data):
    """`command(out, mixer, *assignments)`: the arguments of a run of a moment."""

    def make(out, mixer="attention", *assignments):
        model = {
            "vocab_size": 257,
            "d_model": 16,
            "context_length": 16,
            "blocks": [{"repeat": 2, "mixer": MIXERS[mixer], "feed_forward": {"kind": "glu", "hidden": 24}}],
            "head": {"norm": {"kind": "rms"}},
        }
        training = {
            "batch_size": 2,
            "steps": 8,
            "threads": 1,
            "evaluate": {"every": 4, "tokens": 64},
            "log": {"every": 2},
        }
        config = tmp_path / f"{mixer}.yaml"
        config.write_text(yaml.safe_dump({"model": model, "data": str(data), "training": training}))
        changes = [part for assignment in assignments for part in ("--set", assignment)]
        return ["train", "--config", str(config), "--out", str(out), *changes]

    return make


def _metrics(out):
    lines = [json.loads(text) for text in (out / "metrics.jsonl").read_text().splitlines()]
    return [{key: value for key, value in line.items() if key not in MEASURED} for line in lines]


def _ends(out):
    return (out / "model" / "model.safetensors").read_bytes(), _metrics(out)


def _steps_logged(out):
    path = out / "metrics.jsonl"
    return path.read_bytes().count(b"\n") if path.exists() else 0


def _run_and_signal(arguments, out, number, lines):
    """Run the command as a process of its own; when it has written so many lines of figures, signal it three times."""
    steps = 2 * (lines - _steps_logged(out))  # a line every second step
    command = [sys.executable, SLOWED, str(steps), "0.05", *arguments]
    process = subprocess.Popen(command, stderr=subprocess.PIPE, text=True)
    while _steps_logged(out) < lines:
        assert process.poll() is None, process.stderr.read()
        time.sleep(0.005)
    for _ in range(3):
        process.send_signal(number)
        time.sleep(0.01)
    told = process.communicate(timeout=60)[1]
    return process.returncode, told


@pytest.mark.parametrize(
    ("mixer", "number"),
    [
        ("attention", signal.SIGINT),
        pytest.param("ted", signal.SIGTERM, marks=pytest.mark.slow),
        ("plga", signal.SIGKILL),
    ],
)
def test_a_killed_process_and_the_same_command_end_where_an_uninterrupted_run_ends(tmp_path, command, mixer, number):
    long = ("training.steps=70", "training.checkpoint.every=12", "training.evaluate.every=26")
    assert main(command(tmp_path / "straight", mixer, *long)) == 0
    out = tmp_path / "killed"
    code, told = _run_and_signal(command(out, mixer, *long), out, number, lines=10)
    assert code == (-signal.SIGKILL if number == signal.SIGKILL else 128 + number)
    saved = max(int(path.name.removeprefix("step-")) for path in (out / "checkpoints").iterdir())
    assert 12 <= saved < 70
    if number != signal.SIGKILL:
        assert f"stopped at step {saved} of 70; saved; the same command continues" in told
    assert main(command(out, mixer, *long)) == 0
    assert _ends(out) == _ends(tmp_path / "straight")
    assert [line["step"] for line in _metrics(out)] == list(range(2, 71, 2))


def test_the_folder_alone_goes_on_and_is_extended_through_kills(tmp_path, command, capsys):
    long = ("training.steps=30", "training.checkpoint.every=10", "training.evaluate.every=20")
    for name in ("killed", "straight"):
        assert main(command(tmp_path / name, "ted", *long)) == 0
    longer = ["train", "--out", str(tmp_path / "straight"), "--set", "training.steps=70"]
    assert main(longer) == 0
    capsys.readouterr()
    out = tmp_path / "killed"
    code, _ = _run_and_signal([*longer[:2], str(out), *longer[3:]], out, signal.SIGKILL, lines=22)
    assert code == -signal.SIGKILL
    assert main(["train", "--out", str(out)]) == 0
    assert "resuming from step" in capsys.readouterr().err
    assert _ends(out) == _ends(tmp_path / "straight")


def test_a_run_that_begins_with_word_vectors_goes_on_without_their_file(tmp_path, command, capsys):
    """The file that word2vec's own program writes, compressed."""
    numbers = range(1, 17)
    lines = [" ".join([letter, *(str(ord(letter) % k) for k in numbers)]) + " \n" for letter in "etaoins"]
    vectors = tmp_path / "vectors.txt.gz"
    vectors.write_bytes(gzip.compress("".join(["7 16\n", *lines]).encode()))
    long = ("training.steps=60", "training.checkpoint.every=10", f"training.embedding_from={vectors}")
    assert main(command(tmp_path / "straight", "ted", *long)) == 0
    told = f"{vectors}: a word vector for 14 of 257 tokens (5.4%)"
    assert told in capsys.readouterr().err
    out = tmp_path / "killed"
    code, _ = _run_and_signal(command(out, "ted", *long), out, signal.SIGKILL, lines=10)
    assert code == -signal.SIGKILL
    vectors.unlink()
    assert main(["train", "--out", str(out)]) == 0
    assert _ends(out) == _ends(tmp_path / "straight")
    capsys.readouterr()
    assert main(["runs", "show", str(out)]) == 0
    assert f"of {vectors}, for 14 of 257 tokens" in " ".join(capsys.readouterr().out.split())
    assert main(["runs", "show", str(out), "--json"]) == 0
    assert json.loads(capsys.readouterr().out)["embedding_from"]["tokens_found"] == 14
    message = _fails(capsys, command(tmp_path / "new", "ted", *long))
    assert message == f"error: {vectors}: no such file\n"


def test_figures_on_stdout_progress_on_stderr(tmp_path, command, capsys):
    assert main([*command(tmp_path / "run", "plga"), "--json"]) == 0
    out, err = capsys.readouterr()
    found = json.loads(out)
    assert (found["finished"], found["step"], found["model"]) == (True, 8, str(tmp_path / "run" / "model"))
    lines = [line for line in err.splitlines() if line.startswith("step ")]
    assert [line.split()[1] for line in lines] == ["2/8", "4/8", "6/8", "8/8"]
    for part in ("loss ", "bits/byte", "tokens/s", "of peak", "ETA 0 s", "leak "):
        assert part in lines[-1]
    assert re.search(r"\d [MG]B", lines[-1])


def test_the_table_at_the_end(tmp_path, command, capsys):
    assert main(command(tmp_path / "run", "plga")) == 0
    out = capsys.readouterr().out
    for part in ("8 of 8", "validation", "whole sequence", "leak", "accuracy", "best", "the weights of step 8"):
        assert part in out


def test_the_same_command_on_a_finished_run(tmp_path, command, capsys):
    assert main([*command(tmp_path / "run"), "--json"]) == 0
    first = json.loads(capsys.readouterr().out)
    assert main([*command(tmp_path / "run"), "--json"]) == 0
    out, err = capsys.readouterr()
    assert json.loads(out) == first
    assert err.strip() == f"{tmp_path / 'run'}: finished at step 8, nothing to do"


def test_an_interrupted_run_exits_as_a_shell_says_it_and_goes_on(tmp_path, command, capsys, monkeypatch):
    from linnet.training.reporter import LogReporter

    def interrupt(self, line):
        os.kill(os.getpid(), signal.SIGINT)

    with monkeypatch.context() as patched:
        patched.setattr(LogReporter, "line", interrupt)
        assert main([*command(tmp_path / "run"), "--json"]) == 130
    out, err = capsys.readouterr()
    assert json.loads(out)["finished"] is False
    assert err.splitlines()[-1] == "stopped at step 2 of 8; saved; the same command continues"
    assert main(command(tmp_path / "run")) == 0


def test_a_loss_that_is_not_finite_is_one_line(tmp_path, command, capsys):
    broken = ("training.optimizer.lr=1e38", "training.schedule.warmup_steps=0")
    assert main(command(tmp_path / "run", "attention", *broken)) == 1
    out, err = capsys.readouterr()
    last = err.splitlines()[-1]
    assert out == "" and last.startswith("error: not finite, stopped at step ")
    for part in ("loss nan", "learning rate ", "gradient norm ", "last good checkpoint: none yet"):
        assert part in last


def _fails(capsys, arguments):
    assert main(arguments) == 2
    out, err = capsys.readouterr()
    assert out == "" and err.startswith("error: ") and err.count("\n") == 1
    return err


def test_mistakes_are_one_line(tmp_path, command, capsys):
    run = tmp_path / "run"
    assert "training.steps: 0" in _fails(capsys, command(run, "ted", "training.steps=0"))
    assert "model: missing" in _fails(capsys, ["train", "--data", str(tmp_path), "--out", str(run)])
    assert "data: missing" in _fails(capsys, ["train", "--model", "ted-tinystories", "--out", str(run)])
    (tmp_path / "chat.jsonl").write_text('{"instruction": "Who sings?", "output": "The bird."}\n')
    for kind in ("--chat", "--preferences", "--prompts"):
        told = _fails(capsys, ["train", kind, str(tmp_path / "chat.jsonl"), "--steps", "9", "--out", str(run)])
        assert "expected --from beside it: a model" in told, kind
    for model, meant in (("tiny-tde", "did you mean tiny-ted?"), ("nothing-of-the-kind", "presets: ")):
        assert meant in _fails(capsys, ["train", "--model", model, "--data", "x", "--out", str(run)])
    (tmp_path / "typo.yaml").write_text("modle: tiny-ted\ndata: d\n")
    typo = _fails(capsys, ["train", "--config", str(tmp_path / "typo.yaml"), "--out", str(run)])
    assert f"{tmp_path / 'typo.yaml'}: modle: unknown key (value 'tiny-ted'); did you mean model?" in typo
    (tmp_path / "half.yaml").write_text("model: tiny-ted\n")
    half = _fails(capsys, ["train", "--config", str(tmp_path / "half.yaml"), "--out", str(run)])
    assert f"data: missing; give --data, or a section 'data' in {tmp_path / 'half.yaml'}" in half
    twice = _fails(capsys, command(run, "ted", "training.tokens=9"))
    assert "give one of the two (--set training.steps=null clears that one" in twice
    nowhere = ["train", "--model", "ted-tinystories", "--data", str(tmp_path), "--out", str(run)]
    assert "not a data folder" in _fails(capsys, nowhere)
    assert not run.exists()
    long = command(run, "ted", "model.context_length=100000")
    assert "100000 needs at least 100001" in _fails(capsys, long)


@pytest.mark.parametrize(
    ("typed", "message"),
    [
        (["--steps", "0"], "--steps: 0: must be greater than 0"),
        (["--lr=x"], "--lr: 'x': must be a valid number"),
        (["--batch-size"], "--batch-size: a value is missing; expected whole number above 0 to 65,536"),
        (["--context-length", "9"], "several sections have this field; expected --model.context-length or --training."),
        (["--every", "2"], "--every: several sections have this field; expected --training.evaluate.every or"),
        (["--muon.iterations", "99"], "--muon.iterations: 99: must be less than or equal to 10"),
        (["--model.blocks.0.mixer.heads", "x"], "heads: 'x': must be a whole number"),
        (["--training.nothing", "2"], "training.nothing: unknown key"),
        (["--vocab-size", "300"], "No such option: --vocab-size"),
        (["--nonsense"], "No such option: --nonsense"),
    ],
)
def test_an_error_of_a_field_names_its_option(typed: list[str], message: str, tmp_path: Path, capsys):
    assert message in _fails(capsys, ["train", "--model", "tiny-ted", "--data", "x", "--out", str(tmp_path), *typed])


def test_every_field_is_an_option(tmp_path, command, capsys):
    typed = ["--compile", "--clip.at", "0.5", "--seed=3", "--evaluate.every", "4", "--set", "training.log.every=2"]
    source = FieldSource("linnet.training.spec:RunSpec")
    found = as_assignments(load_verb("train"), source, ["--model", "--lr", *typed, "--", "--steps", "2"])
    assert found == [
        *("--model", "--lr", "--set", "training.compile=true", "--set", "training.clip.at=0.5"),
        *("--set", "training.seed=3", "--set", "training.evaluate.every=4", "--set", "training.log.every=2"),
        *("--", "--steps", "2"),
    ]
    assert main([*command(tmp_path / "run"), "--seed", "3", "--clip.by", "value"]) == 0
    capsys.readouterr()
    plain = yaml.safe_load((tmp_path / "run" / "config.yaml").read_text())
    assert (plain["training"]["seed"], plain["training"]["clip"]["by"]) == (3, "value")


def test_all_fields_are_listed_with_their_values(capsys):
    assert main(["train", "--fields"]) == 0
    listed = capsys.readouterr().out
    for path, _ in field_kinds(TrainingSpec):
        assert f"--training.{path.replace('_', '-')} " in listed
    assert "adamw | muon" in listed and "whole number from 1 to 10" in listed


def test_another_configuration_in_the_same_folder(tmp_path, command, capsys):
    assert main(command(tmp_path / "run")) == 0
    capsys.readouterr()
    message = _fails(capsys, command(tmp_path / "run", "attention", "training.optimizer.lr=0.5"))
    assert "training.optimizer.lr: 0.001, not 0.5" in message and "choose another --out" in message
    for field, said in (("training.steps=7", "steps: 8, not 7"), ("model.d_model=32", "model.d_model: 16, not 32")):
        assert said in _fails(capsys, ["train", "--out", str(tmp_path / "run"), "--set", field])


def test_the_resolved_configuration_trains_the_same_model(tmp_path, command):
    assert main(command(tmp_path / "one", "ted", "training.tokens=256", "training.steps=null")) == 0
    config = str(tmp_path / "one" / "config.yaml")
    assert main(["train", "--config", config, "--out", str(tmp_path / "two")]) == 0
    assert _ends(tmp_path / "one") == _ends(tmp_path / "two")
    assert yaml.safe_load((tmp_path / "one" / "config.yaml").read_text())["training"]["steps"] == 8


def test_a_start_that_is_refused_leaves_no_run_behind(data, tmp_path, capsys):
    """The corrected command may use the same folder."""
    out = tmp_path / "run"
    refused = [
        "train",
        "--model",
        "tiny-ted",
        "--data",
        str(data),
        "--out",
        str(out),
        "--set",
        "training.context_length=8",
    ]
    assert main([*refused, "--set", "training.penalties={dag: {}}"]) == 2
    err = capsys.readouterr().err
    assert "training.penalties.dag" in err and err.count("\n") == 1, "the vocabulary is told once the run begins"
    assert not (out / "config.yaml").exists()


def test_a_model_folder_as_model_is_a_description_and_as_from_its_weights(tmp_path, command, data, capsys):
    assert main(command(tmp_path / "first")) == 0
    first, short = str(tmp_path / "first"), ["--set", "training.steps=1", "--set", "training.batch_size=1"]
    capsys.readouterr()
    assert main(["train", "--model", first, "--data", str(data), "--out", str(tmp_path / "drawn"), *short]) == 0
    note = f"note: --model {first}: its description alone, with fresh weights; --from {first} begins with its own"
    assert note in capsys.readouterr().err
    assert main(["train", "--from", first, "--data", str(data), "--out", str(tmp_path / "on"), *short]) == 0
    assert "its description alone" not in capsys.readouterr().err
    made = json.loads((tmp_path / "on" / "model" / "run.json").read_text())
    assert made["started_from"]["model"] == first


def test_what_is_no_start_is_told_as_a_model_folder(tmp_path, data, capsys):
    message = _fails(capsys, ["train", "--from", "runs/nope", "--data", str(data), "--out", str(tmp_path / "run")])
    assert message == "error: runs/nope: no such folder; expected a model folder or the folder of a training run\n"


def test_a_run_without_a_start_does_not_go_on_from_one(tmp_path, command, data, capsys):
    assert main(command(tmp_path / "run")) == 0
    capsys.readouterr()
    message = _fails(capsys, [*command(tmp_path / "run"), "--from", str(tmp_path / "run")])
    assert f"holds a run without --from, not with '{tmp_path / 'run'}'; choose another --out" in message


def test_a_run_of_which_little_is_recorded_still_has_a_table(tmp_path, capsys):
    prepare_texts(["the bird sang to the tree. " * 9] * 20, ["the tree was glad. "] * 6, tmp_path / "data", "bytes")
    small = ["model.d_model=16", "training.steps=2", "training.context_length=16", "training.evaluate.tokens=64"]
    words = ["train", "--model", "tiny-ted", "--data", str(tmp_path / "data"), "--out", str(tmp_path / "run")]
    words += [part for change in small for part in ("--set", change)]
    assert main(words) == 0
    whole = capsys.readouterr().out
    (tmp_path / "run" / "model" / "manifest.json").unlink()
    record = tmp_path / "run" / "model" / "run.json"
    summary = json.loads(record.read_text())
    for field in ("tokens", "tokens_per_s", "memory_bytes", "best"):
        del summary[field]
    del summary["validation"]["accuracy"]
    record.write_text(json.dumps(summary))
    assert main(words) == 0
    rows = [
        line for line in whole.splitlines() if line.split()[0] not in ("tokens", "speed", "memory", "best", "accuracy")
    ]
    assert [line.split() for line in capsys.readouterr().out.splitlines()] == [row.split() for row in rows]


def test_the_table_says_how_many_parameters_are_trained_beside_others():
    from linnet.cli.train import _rows

    found = _rows({"parameters": 675_712, "lora": {"rank": 4, "parameters": 16_384}})
    assert found == [("parameters", "675,712"), ("trained", "16,384 parameters (training.lora, rank 4)")]
    assert _rows({"parameters": 675_712, "lora": None}) == found[:1]


def test_the_table_of_a_run_on_pairs_or_prompts_says_what_these_say():
    from linnet.cli.train import _rows

    pairs = {"pairs": 7, "preference_loss": 0.5, "accuracy": 0.75, "margin": 0.25}
    text = {"validation": {"bits_per_byte": 2.0, "accuracy": 0.5}}
    best = {"best": {"step": 1, "bits_per_byte": 1.0, "checkpoint": "checkpoints/step-00000001"}}
    assert _rows({**text, **best, "preferences": pairs}) == [
        ("held-out pairs", "75.0% of 7 with the chosen answer ahead, margin +0.250, loss 0.5000"),
        ("chosen answers", "2.0000 bits/byte, causal"),
    ]
    prompts = {"before": {"prompts": 3, "answers": 8, "reward": 0.25}, "after": None}
    assert [name for name, _ in _rows({**text, **best, "rollouts": prompts})] == [
        "held-out prompts before",
        "prompts as text",
    ]
    assert [name for name, _ in _rows({**text, **best, "preferences": None})] == ["validation", "accuracy", "best"]
