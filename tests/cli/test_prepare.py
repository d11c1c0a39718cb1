import io
import json
import os
import signal
import subprocess
import sys
import time
from collections.abc import Callable
from pathlib import Path

import pytest

from linnet.cli.main import main
from linnet.core.atomic import PARTIAL, is_leftover
from linnet.core.checksum import read_checked_json
from linnet.data.chat_setup import CONTROL_TOKENS, OWN_TEMPLATE
from linnet.data.token_data import TokenData
from linnet.data.tokenizer import Tokenizer
from linnet.model.decoder import Decoder
from linnet.model.spec import ModelSpec
from linnet.model.store import write_model
from linnet.training.run import resolve_run_config
from linnet.training.sections import GrpoSpec

pytestmark = pytest.mark.usefixtures("warm_python")

SOURCE = Path(__file__).resolve().parents[2] / "src"
COMMAND = [sys.executable, "-m", "linnet", "prepare"]
ENVIRONMENT = {**os.environ, "PYTHONPATH": str(SOURCE), "COLUMNS": "120", "NO_COLOR": "1"}
Prepare = Callable[..., tuple[int, str, str]]
TEXT = "<|endoftext|>\n".join(f"The {n}th story is about a dog. é" for n in range(300))


@pytest.fixture
def prepare(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capfd: pytest.CaptureFixture[str]) -> Prepare:
    """`prepare(*arguments)` in an empty working folder: exit code, output and errors."""
    monkeypatch.chdir(tmp_path)

    def run(*arguments: str) -> tuple[int, str, str]:
        return main(["prepare", *arguments]), *capfd.readouterr()

    return run


def test_table_names_what_was_made(tmp_path: Path) -> None:
    (tmp_path / "stories.txt").write_text(TEXT)
    command = [*COMMAND, "stories.txt", "--out", "data/stories", "--vocab-size", "290"]
    done = subprocess.run(command, cwd=tmp_path, capture_output=True, env=ENVIRONMENT, timeout=120, check=False)
    assert (done.returncode, done.stderr) == (0, b"")
    lines = done.stdout.decode().splitlines()
    assert lines[0].split() == ["split", "documents", "tokens", "bytes", "bytes", "per", "token"]
    manifest = TokenData.open(tmp_path / "data/stories").manifest
    for line, (name, split) in zip(lines[1:3], manifest.splits.items(), strict=True):
        counts = [f"{count:,}" for count in (split.documents, split.tokens, split.bytes)]
        assert line.split() == [name, *counts, f"{split.bytes / split.tokens:.2f}"]
    assert lines[3:] == ["tokenizer: bpe, 290 tokens", "written to data/stories"]


def test_a_closed_standard_input_is_an_empty_one(tmp_path: Path) -> None:
    command = ["sh", "-c", '"$0" "$@" <&-', *COMMAND, "-", "--out", "data"]
    done = subprocess.run(command, cwd=tmp_path, capture_output=True, env=ENVIRONMENT, timeout=120, check=False)
    assert (done.returncode, done.stderr) == (2, b"error: <stdin>: empty file, expected text\n")


def test_standard_input_and_json(tmp_path: Path, prepare: Prepare, monkeypatch: pytest.MonkeyPatch) -> None:
    text = "one\n\ntwo é\n\nthree"
    arguments = ["-", "--document-separator", r"\n\n", "--validation", "0.2", "--tokenizer", "bytes", "--out", "data"]
    monkeypatch.setattr(sys, "stdin", io.TextIOWrapper(io.BytesIO(text.encode()), encoding="latin-1"))
    code, out, errors = prepare(*arguments, "--json")
    assert (code, errors) == (0, "")
    manifest = json.loads(out)
    assert manifest == read_checked_json(tmp_path / "data" / "manifest.json")
    assert manifest["sources"] == [{"file": "<stdin>", "documents": 3, "bytes": 14}]


@pytest.mark.parametrize("kind", ["bpe", "unigram"])
def test_small_text_and_coarse_split_are_remarked_on(tmp_path: Path, prepare: Prepare, kind: str) -> None:
    (tmp_path / "a.txt").write_text("some words here<|endoftext|>some words there")
    code, out, errors = prepare("a.txt", "--out", "data", "--tokenizer", kind)
    notes = [line for line in out.splitlines() if line.startswith("note: ")]
    assert "note: the text is too small for 2,048 tokens, the tokenizer has " in notes[0]
    assert len(notes) == 1 and code == 0
    assert errors == (
        "warning: 0.48 of the text's bytes are held out, not 0.05: its 2 documents are too few or too unequal; a"
        " --document-separator that splits them further, more documents, or another --validation helps\n"
    )


def test_a_file_that_cannot_be_on_both_sides_is_remarked_on(
    tmp_path: Path, prepare: Prepare, told: Callable[[], list[str]]
) -> None:
    (tmp_path / "a.txt").write_text("<|endoftext|>".join(f"story number {i}" for i in range(100)))
    (tmp_path / "b.txt").write_text(" = One = \n\n text \n\n = Two = \n\n text")
    prepare("a.txt", "b.txt", "--out", "data", "--tokenizer", "bytes")
    assert told() == [
        "b.txt is one document, which is trained on or held out as a whole: a text file is cut at <|endoftext|>,"
        " a .jsonl file has a document in each line; or give --document-separator"
    ]


@pytest.mark.parametrize(
    ("line", "arguments", "before", "after"),
    [
        ("a b c\n", [], "", ""),
        ("a b c\n\n", [], "", r"; blank lines are frequent in a.txt: --document-separator '\n\n'?"),
        (
            "a b c\r\n\r\n",
            ["--document-separator", r"\n\n"],
            r"the separator '\n\n' divides nothing in a.txt",
            r"; blank lines are frequent in a.txt: --document-separator '\r\n\r\n'?",
        ),
    ],
)
def test_a_text_that_nothing_divides_is_remarked_on(
    tmp_path: Path,
    prepare: Prepare,
    told: Callable[[], list[str]],
    line: str,
    arguments: list[str],
    before: str,
    after: str,
) -> None:
    (tmp_path / "a.txt").write_bytes(line.encode() * 40)
    assert prepare("a.txt", "--out", "data", "--tokenizer", "bytes", *arguments)[0] == 0
    cut = TokenData.open(tmp_path / "data").manifest.splits["train"].bytes
    what = f"a.txt is one document, cut at byte {cut:,}: it is trained on up to there, the rest is held out"
    crlf = ["a.txt: 80 of 80 lines end in CRLF, which stays as it is"] if "\r" in line else []
    assert told() == [*crlf, *filter(None, [before]), f"{what}{after}"]
    if after:
        suggested = after.rpartition(" ")[2].strip("'?")
        prepare("a.txt", "--out", "divided", "--tokenizer", "bytes", "--document-separator", suggested)
        assert len(told()) == 1 + len(crlf) + bool(before)
        assert TokenData.open(tmp_path / "divided").manifest.sources[0].documents == 40


def test_too_little_held_out_is_warned_of_and_json_stays_json(tmp_path: Path, prepare: Prepare) -> None:
    (tmp_path / "a.txt").write_text("<|endoftext|>".join(["a", "b" * 500, "c" * 500]))
    _, out, errors = prepare("a.txt", "--out", "data", "--tokenizer", "bytes", "--json")
    assert errors.startswith("warning: 0.001 of the text's bytes are held out, not 0.05: its 3 documents")
    assert json.loads(out)["splits"]["validation"]["bytes"] == 1
    code, _, errors = prepare("a.txt", "--out", "other", "--tokenizer", "bytes", "--validation", "0.48")
    assert (code, errors) == (0, "")


@pytest.mark.parametrize(
    ("name", "content", "arguments", "error"),
    [
        ("a.txt", b"", [], "a.txt: empty file, expected text"),
        ("a.txt", b"one\ntwo\n\xff\n", [], "a.txt, line 3: not UTF-8 text (byte 0xFF); save the file as UTF-8"),
        (
            "a.jsonl",
            b'{"text": "a"}\n{"t": 1}\n',
            [],
            "a.jsonl, line 2: no field 'text'; this line has 't'; --field names another",
        ),
        ("a.jsonl", b'{"text": "a"}\n{"text"\n', [], "a.jsonl, line 2: not valid JSON (Expecting ':' delimiter)"),
        ("a.txt", b"a b", ["--validation", "0.9"], "--validation 0.9: expected a fraction above 0 and below 0.5"),
        (
            "a.txt",
            b"a b",
            ["--end", "<eos>"],
            "--end <eos>: expected the path of a tokenizer.json as --tokenizer",
        ),
        ("a.txt", b"a b", ["missing.txt"], "missing.txt: no such file"),
        (
            "a.txt",
            b"a b",
            ["--tokenizer", "words"],
            "--tokenizer words: expected one of bytes, char, bpe, unigram, sentencepiece, or the path of a "
            "tokenizer.json",
        ),
        ("a.txt", b"a b", ["--out", "a.txt"], "--out a.txt: a.txt is a file; a folder is expected"),
    ],
)
def test_mistake_is_one_line_and_leaves_nothing(
    tmp_path: Path, prepare: Prepare, name: str, content: bytes, arguments: list[str], error: str
) -> None:
    (tmp_path / name).write_bytes(content)
    assert prepare(name, "--out", "deep/data", *arguments) == (2, "", f"error: {error}\n")
    assert [path.name for path in tmp_path.iterdir()] == [name]


def test_token_files_and_back(tmp_path: Path, prepare: Prepare, capfd: pytest.CaptureFixture[str]) -> None:
    (tmp_path / "a.txt").write_text(TEXT)
    assert prepare("a.txt", "--out", "text", "--vocab-size", "290", "--json")[0] == 0
    assert main(["export", "text", "--to", "datatrove", "--out", "ds"]) == 0
    text = TokenData.open(tmp_path / "text").manifest
    assert f"train.ds: {text.splits['train'].tokens - 1:,} tokens\n" in capfd.readouterr().out
    arguments = ["ds/train.ds", "ds/validation.ds", "--tokenizer", "ds", "--out", "tokens"]
    code, out, errors = prepare(*arguments, "--json")
    assert (code, errors) == (0, "")
    manifest = json.loads(out)
    for count in ("tokens", "documents", "bytes"):
        assert sum(each[count] for each in manifest["splits"].values()) == sum(
            getattr(each, count) for each in text.splits.values()
        )
    code, out, errors = prepare("ds", "--tokenizer", "ds", "--out", "folder", "--json")
    assert code == 0 and json.loads(out)["splits"] == manifest["splits"]
    code, out, errors = prepare(*arguments, "--overwrite", "--field", "body")
    assert (code, errors) == (2, "error: --field body: applies only to text, and not to token files\n")
    code = main(["export", "text", "--to", "datatrove", "--out", "ds2", "--precision", "int8"])
    assert (code, capfd.readouterr().err) == (2, "error: --precision int8: applies only to models, and not to tokens\n")
    (tmp_path / "ds/train.ds").write_bytes(b"abc")
    assert prepare(*arguments, "--overwrite")[0] == 2


def test_documents_to_fill_in_the_middle(tmp_path: Path, prepare: Prepare) -> None:
    (tmp_path / "a.txt").write_text(TEXT)
    arguments = ["a.txt", "--tokenizer", "bytes", "--out", "data", "--overwrite"]
    assert prepare(*arguments, "--fim-rate", "1", "--fim-tokens", "<P>,<S>,<M>", "--fim-seed", "3")[0] == 0
    data = TokenData.open(tmp_path / "data")
    tokens, ids = data.split("train").read(0, 1000).tolist(), data.tokenizer.special_ids
    assert all(tokens.count(ids[name]) > 3 for name in ("<P>", "<S>", "<M>"))
    for options, error in (
        (["--fim-seed", "3"], "--fim-seed 3: expected --fim-rate beside it"),
        (["--fim-rate", "2"], "--fim-rate: 2.0: must be less than or equal to 1"),
        (["--fim-rate", "1", "--fim-spm-rate", "-1"], "--fim-spm-rate: -1.0: must be"),
        (["--fim-rate", "1", "--fim-tokens", "a,b"], "--fim-tokens"),
    ):
        code, _, errors = prepare(*arguments, *options)
        assert code == 2 and errors.startswith(f"error: {error}") and errors.count("\n") == 1, errors


def test_numbers_are_split(tmp_path: Path, prepare: Prepare) -> None:
    (tmp_path / "a.txt").write_text(TEXT)
    arguments = ["a.txt", "--vocab-size", "290", "--overwrite", "--out"]
    for split, longest in ((None, 2), ("one", 1)):
        options = [] if split is None else ["--split-digits", split]
        code, out, _ = prepare(*arguments, "data", *options, "--json")
        texts = (text.strip() for text in TokenData.open(tmp_path / "data").tokenizer.texts() if text)
        assert code == 0 and json.loads(out)["settings"].get("split_digits") == split
        assert max(len(text) for text in texts if text.isdigit()) == longest
    code, _, errors = prepare(*arguments, "data", "--split-digits", "one", "--tokenizer", "bytes")
    assert code == 2 and errors.startswith("error: --split-digits one: the tokenizer bytes has digits of its own")


def test_text_is_cleaned_by_the_steps_of_a_file(tmp_path: Path, prepare: Prepare) -> None:
    (tmp_path / "a.txt").write_text(f"{TEXT}<|endoftext|>\n{TEXT}")
    (tmp_path / "clean.yaml").write_text("steps: [{kind: exact_duplicates}]")
    code, out, _ = prepare("a.txt", "--clean", "clean.yaml", "--tokenizer", "bytes", "--out", "data", "--json")
    assert code == 0
    assert json.loads(out)["sources"][0]["documents"] == 300
    (tmp_path / "m.yaml").write_text("sources: {a: {inputs: a.txt}}")
    code, _, errors = prepare("--mixture", "m.yaml", "--clean", "clean.yaml", "--out", "other")
    assert code == 2 and errors.startswith("error: --clean clean.yaml: expected inputs beside it; linnet data clean")
    code, _, errors = prepare("--chat", "a.jsonl", "--clean", "clean.yaml", "--out", "other")
    assert (code, errors) == (2, "error: --clean clean.yaml: applies only to text, and not to conversations\n")


def test_a_mixture_may_be_given_as_the_input(tmp_path: Path, prepare: Prepare) -> None:
    (tmp_path / "a.txt").write_text(TEXT)
    (tmp_path / "mixture.yaml").write_text("sources:\n  a: {inputs: a.txt}\n")
    code, out, _ = prepare("mixture.yaml", "--tokenizer", "bytes", "--out", "data", "--json")
    assert code == 0 and list(json.loads(out)["settings"]["mixture"]["sources"]) == ["a"]
    code, _, errors = prepare("a.txt", "mixture.yaml", "--out", "other")
    assert (
        code == 2 and errors == "error: mixture.yaml: describes a mixture, which cannot be read beside other inputs\n"
    )
    (tmp_path / "plain.yaml").write_text(TEXT)
    code, out, _ = prepare("plain.yaml", "--tokenizer", "bytes", "--out", "text", "--json")
    assert code == 0 and "mixture" not in json.loads(out)["settings"]


def test_an_end_of_another_name_is_given(tmp_path: Path, prepare: Prepare) -> None:
    (tmp_path / "a.txt").write_text(TEXT)
    foreign = Tokenizer.train("bytes", []).definition
    (tmp_path / "foreign.json").write_text(json.dumps(foreign).replace("<|end|>", "<eos>"))
    code, _, errors = prepare("a.txt", "--out", "data", "--tokenizer", "foreign.json")
    assert (code, "foreign.json: no end token; expected one of " in errors) == (2, True)
    assert prepare("a.txt", "--out", "data", "--tokenizer", "foreign.json", "--end", "<eos>")[0] == 0
    opened = TokenData.open(tmp_path / "data").tokenizer
    assert opened.describe_token(opened.end_id) == "<eos>" and len(opened.end_ids) == 1


def test_help_has_an_example_and_names_every_option(prepare: Prepare) -> None:
    _, short, _ = prepare("--help")
    assert "linnet prepare [OPTIONS] [INPUT]..." in short
    _, text, _ = prepare("--help-all")
    options = [
        "out",
        "mixture",
        "tokenizer",
        "end",
        "vocab-size",
        "field",
        "document-separator",
        "validation",
        "overwrite",
        "json",
    ]
    assert all(f"--{option}" in text for option in options)
    assert "Example: linnet prepare stories.txt web.jsonl --tokenizer bpe" in text


# A parent that ignores Ctrl-C (a job in the background) hands that down; this undoes it.
INTERRUPTIBLE = """
import signal, sys
signal.signal(signal.SIGINT, signal.default_int_handler)
from linnet.cli.main import main
sys.exit(main())
"""


@pytest.mark.parametrize(("number", "code"), [(signal.SIGINT, 130), (signal.SIGKILL, -9)])
def test_killed_while_writing_leaves_nothing_half_written(
    tmp_path: Path, prepare: Prepare, told: Callable[[], list[str]], number: int, code: int
) -> None:
    (tmp_path / "a.txt").write_text(TEXT * 800)
    command = [sys.executable, "-c", INTERRUPTIBLE, "prepare", "a.txt", "--tokenizer", "bytes", "--out", "data"]
    with subprocess.Popen(command, cwd=tmp_path, env=ENVIRONMENT, stderr=subprocess.PIPE) as process:
        while not list(tmp_path.glob(f".data.*{PARTIAL}/train-*.bin")):
            assert process.poll() is None
            time.sleep(0.002)
        process.send_signal(number)
        _, stderr = process.communicate(timeout=60)
    assert process.returncode == code
    left = {path for path in tmp_path.iterdir() if is_leftover(path)}
    assert {path.name for path in set(tmp_path.iterdir()) - left} == {"a.txt"}
    if number == signal.SIGINT:
        assert stderr == b"interrupted\n" and not left
    else:
        (tmp_path / "a.txt").write_text(TEXT)
        assert prepare("a.txt", "--tokenizer", "bytes", "--out", "data")[0] == 0
        assert any(note.endswith(": left by a process that was broken off, removed") for note in told())
        assert {path.name for path in tmp_path.iterdir()} == {"a.txt", "data"}


@pytest.fixture
def chat_model(tmp_path: Path) -> None:
    """A model folder with a chat template, `model`."""
    tokenizer = Tokenizer.train("bytes", [])
    block = {"repeat": 1, "mixer": {"kind": "attention", "heads": 1}, "feed_forward": {"kind": "glu", "hidden": 8}}
    description = {"vocab_size": tokenizer.vocab_size, "d_model": 8, "context_length": 64, "blocks": [block]}
    write_model(tmp_path / "model", Decoder(ModelSpec.parse(description, "test")), tokenizer, {})
    (tmp_path / "model" / "chat_template.jinja").write_text(
        "{% for m in messages %}{{ m.role }}:{% if m.role == 'assistant' %}{% generation %}{{ m.content }}<|end|>"
        "{% endgeneration %}{% else %}{{ m.content }}{% endif %}{% endfor %}"
        "{% if add_generation_prompt %}assistant:{% endif %}"
    )


@pytest.mark.usefixtures("chat_model")
def test_conversations_are_prepared_with_a_models_tokenizer_and_template(tmp_path: Path, prepare: Prepare) -> None:
    rows = [{"instruction": f"Who? {n}", "output": "Ben."} for n in range(40)]
    (tmp_path / "chat.jsonl").write_text("".join(json.dumps(row) + "\n" for row in rows))
    code, out, err = prepare("--chat", "chat.jsonl", "--model", "model", "--out", "data", "--json")
    assert (code, err) == (0, "")
    splits = json.loads(out)["splits"]
    assert {name: split["targets"] / split["documents"] for name, split in splits.items()} == {
        "train": 5.0,
        "validation": 5.0,
    }
    (tmp_path / "two.jsonl").write_text("".join(json.dumps(row) + "\n" for row in rows[:2]))
    code, _, err = prepare("--chat", "two.jsonl", "--model", "model", "--out", "two")
    assert code == 0 and err.endswith("too unequal; more documents, or another --validation helps\n")
    for words, expected in (
        (("--chat", "chat.jsonl"), "--model: expected it beside --chat"),
        (("--model", "model"), "--chat: expected it, --preferences or --prompts beside --model"),
        (("--chat", "no.jsonl", "--model", "model"), "--chat no.jsonl: no such file; expected a .jsonl file"),
        (("--chat", ".", "--model", "model"), "--chat .: is a folder; expected a .jsonl file"),
        (("--chat", "chat.jsonl", "--model", "model", "--field", "x"), "--field x: applies only to text"),
        (("x.txt", "--chat", "chat.jsonl", "--model", "model"), "applies only to text, and not to conversations"),
    ):
        code, _, err = prepare(*words, "--out", "other")
        assert code == 2 and expected in err and err.count("\n") == 1, err


@pytest.mark.usefixtures("chat_model")
def test_pairs_of_answers_are_prepared_with_a_models_tokenizer_and_template(tmp_path: Path, prepare: Prepare) -> None:
    rows = [{"prompt": f"Who? {n}", "chosen": "Ben.", "rejected": "No."} for n in range(40)]
    (tmp_path / "pairs.jsonl").write_text("".join(json.dumps(row) + "\n" for row in rows))
    code, out, err = prepare("--preferences", "pairs.jsonl", "--model", "model", "--out", "data", "--json")
    assert (code, err) == (0, "")
    manifest = json.loads(out)
    assert manifest["layout"] == "preferences"
    assert sum(split["documents"] for split in manifest["splits"].values()) == 80
    tokenizer = Tokenizer.train("bpe", ["Ben. No. Who? " * 9], vocab_size=260)
    spec, template = ModelSpec.load(tmp_path / "model"), (tmp_path / "model" / "chat_template.jinja").read_text()
    write_model(tmp_path / "other", Decoder(spec.replace(vocab_size=260)), tokenizer, {})
    (tmp_path / "other" / "chat_template.jinja").write_text(template)
    code, out, _ = prepare("--preferences", "pairs.jsonl", "--model", "other", "--out", "again")
    assert code == 0 and "tokenizer: bpe, 260 tokens\nwritten to again" in out
    code, _, err = prepare("--preferences", "pairs.jsonl", "--chat", "c.jsonl", "--model", "model", "--out", "other")
    assert code == 2 and "--preferences pairs.jsonl: cannot be combined with --chat" in err


@pytest.mark.usefixtures("chat_model")
def test_prompts_are_prepared_once_and_named_as_data(tmp_path: Path, prepare: Prepare) -> None:
    for name in ("one", "two"):
        rows = [{"prompt": f"{name} {n}?", "answer": "7"} for n in range(20)]
        (tmp_path / f"{name}.jsonl").write_text("".join(json.dumps(row) + "\n" for row in rows))
    words = ("--prompts", "one.jsonl", "--prompts", "two.jsonl", "--model", "model")
    code, out, err = prepare(*words, "--out", "data", "--json")
    assert (code, err) == (0, "") and json.loads(out)["layout"] == "prompts"
    assert sum(split["documents"] for split in json.loads(out)["splits"].values()) == 40
    run = resolve_run_config(tmp_path / "run", start_from=tmp_path / "model", data=tmp_path / "data")
    assert run.training.grpo == GrpoSpec() and run.training.preference is None
    given = resolve_run_config(
        tmp_path / "run", start_from=tmp_path / "model", data=tmp_path / "data", training={"grpo": {"group": 3}}
    )
    assert given.training.grpo == GrpoSpec(group=3)
    for options, expected in (
        (("--long-conversations", "cut"), "--long-conversations cut: expected one of refuse, drop for prompts"),
        (("--max-tokens", "8"), "--max-tokens 8: expected --long-conversations beside it"),
        (("--long-conversations", "drop"), "--max-tokens 64: expected less than the context of 64 tokens"),
        (("--chat", "one.jsonl"), "--prompts one.jsonl, two.jsonl: cannot be combined with --chat"),
    ):
        code, _, err = prepare(*words, *options, "--out", "other")
        assert code == 2 and expected in err and err.count("\n") == 1, err


@pytest.mark.usefixtures("chat_model")
def test_prompts_without_room_for_an_answer_are_refused_or_left_out(
    tmp_path: Path, prepare: Prepare, told: Callable[[], list[str]]
) -> None:
    rows = [{"prompt": "Who?" * (1 + 12 * (n == 3)) + str(n), "answer": "7"} for n in range(40)]
    (tmp_path / "prompts.jsonl").write_text("".join(json.dumps(row) + "\n" for row in rows))
    words = ("--prompts", "prompts.jsonl", "--model", "model", "--out", "data")
    code, _, err = prepare(*words, "--long-conversations", "refuse", "--max-tokens", "8")
    assert code == 2 and "1 of 40 prompts are longer than the 56 tokens that the context of 64 tokens leaves" in err
    code, out, _ = prepare(*words, "--long-conversations", "drop", "--max-tokens", "8", "--json")
    assert code == 0 and told()[0].endswith("leaves beside an answer of 8: 1 left out")
    manifest = json.loads(out)
    assert sum(split["documents"] for split in manifest["splits"].values()) == 39
    assert manifest["settings"]["context_length"] == 56
    code, out, _ = prepare(*words[:-1], "all", "--json")
    assert code == 0 and sum(split["documents"] for split in json.loads(out)["splits"].values()) == 40
    code, _, err = prepare("--chat", "prompts.jsonl", "--model", "model", "--out", "other", "--max-tokens", "8")
    assert code == 2 and "--max-tokens 8: expected --prompts beside it" in err


@pytest.mark.parametrize("kind", ["chat", "preferences", "prompts"])
def test_rows_for_a_base_model_come_with_a_template(kind: str, tmp_path: Path, prepare: Prepare, chat_model) -> None:
    (tmp_path / "model" / "chat_template.jinja").unlink()
    pair = {"chosen": "Ben.", "rejected": "No."}
    answers = {"chat": {"output": "Ben."}, "preferences": pair, "prompts": {"answer": "Ben."}}[kind]
    field = "instruction" if kind == "chat" else "prompt"
    rows = [{field: f"Who? {n}", **answers} for n in range(20)]
    (tmp_path / "rows.jsonl").write_text("".join(json.dumps(row) + "\n" for row in rows))
    code, out, err = prepare(f"--{kind}", "rows.jsonl", "--model", "model", "--out", "data", "--json")
    assert code == 0 and "3 control tokens are added" in err
    settings = json.loads(out)["settings"]
    assert settings["chat_template"] == OWN_TEMPLATE and settings["added_tokens"] == list(CONTROL_TOKENS)


@pytest.mark.usefixtures("chat_model")
def test_long_pairs_are_left_out_on_request(tmp_path: Path, prepare: Prepare) -> None:
    rows = [{"prompt": f"Who? {n}", "chosen": "Ben" * (1 + 30 * (n == 3)), "rejected": "No."} for n in range(40)]
    (tmp_path / "pairs.jsonl").write_text("".join(json.dumps(row) + "\n" for row in rows))
    words = ("--preferences", "pairs.jsonl", "--model", "model", "--long-conversations", "drop", "--out", "data")
    code, out, err = prepare(*words, "--json")
    assert code == 0 and sum(split["documents"] for split in json.loads(out)["splits"].values()) == 78, err


def test_a_sentencepiece_model_is_trained_on_the_training_side(tmp_path: Path, prepare: Prepare) -> None:
    pytest.importorskip("sentencepiece")
    (tmp_path / "stories.txt").write_text(TEXT)
    options = ["--tokenizer", "sentencepiece", "--vocab-size", "290", "--split-digits", "one", "--validation", "0.3"]
    code, out, _ = prepare("stories.txt", "--out", "data", *options, "--fim-rate", "0.5")
    assert code == 0 and "tokenizer: imported, 293 tokens" in out
    data = TokenData.open(tmp_path / "data")
    tokenizer, settings = data.tokenizer, data.manifest.settings
    assert tokenizer.token_name(tokenizer.end_id) == "[END]" and "<|fim_prefix|>" in tokenizer.special_ids
    assert (settings["tokenizer"], settings["vocab_size"], settings["split_digits"]) == ("sentencepiece", 290, "one")
    train = data.split("train")
    texts = tokenizer.decode(train.read(0, len(train)).tolist())
    assert texts.count("dog") > 150

    (tmp_path / "whole.txt").write_text("<|endoftext|>".join(["a b c" * 9, "d e f" * 9]))
    code, out, _ = prepare("whole.txt", "--out", "small", *options)
    assert code == 0 and "note: the text is too small for 290 tokens, the tokenizer has " in out


@pytest.mark.parametrize(
    ("options", "message"),
    [
        (["--vocab-size", "200"], "--vocab-size 200: expected 263 to"),
        (["--split-digits", "three"], "--split-digits three: expected one"),
        (["--end", "[END]"], "--end [END]: expected the path of a tokenizer.json"),
    ],
    ids=["few", "groups", "end"],
)
def test_what_a_sentencepiece_model_cannot_have_is_refused_before_the_text_is_read(
    prepare: Prepare, options: list[str], message: str
) -> None:
    code, _, err = prepare("missing.txt", "--out", "data", "--tokenizer", "sentencepiece", *options)
    assert code == 2 and message in err
