import gzip
import json

import pytest

from linnet.cli.main import main
from linnet.data.tokenizer import Tokenizer
from linnet.model.decoder import Decoder
from linnet.model.spec import ModelSpec
from linnet.model.store import write_model

TEXT = "the bird sang to the tree and the tree was glad of it all day long until the evening came over the hills"


@pytest.fixture
def files(tmp_path):
    lines = [TEXT, TEXT.upper(), f"{TEXT} again", "something else entirely", "Ben saw a red kite " * 5]
    (tmp_path / "web.jsonl").write_text("".join(json.dumps({"text": line}) + "\n" for line in lines))
    (tmp_path / "test.txt").write_text("Ben saw a red kite " * 5)
    return tmp_path


def run(capsys, *arguments):
    assert main(["data", "dedup", *map(str, arguments)]) == 0
    return capsys.readouterr().out


def fails(capsys, *arguments):
    assert main(["data", "dedup", *map(str, arguments)]) == 2
    lines = capsys.readouterr().err.splitlines()
    assert len(lines) == 1
    return lines[0]


@pytest.mark.parametrize(
    ("verb", "function"), [("clean", "linnet.data.clean.clean"), ("dedup", "linnet.data.deduplicate.deduplicate")]
)
def test_ctrl_c_says_that_the_command_goes_on_where_it_was(capsys, files, monkeypatch, verb, function):
    def stopped(*arguments, **options):
        raise KeyboardInterrupt

    monkeypatch.setattr(function, stopped)
    assert main(["data", verb, str(files / "web.jsonl"), "--out", str(files / "out")]) == 130
    assert capsys.readouterr().err == "interrupted; the same command continues\n"


def test_dedup_prints_counts_and_examples(capsys, files):
    printed = run(capsys, files / "web.jsonl", "--out", files / "out", "--against", files / "test.txt")
    head, _, _ = printed.partition("compared with 1 evaluation document")
    table = {line.split()[0]: line.split() for line in head.splitlines()[1:]}
    assert table["read"][1] == "5" and table["kept"][1] == "2"
    assert table["evaluation"][1:3] == ["overlap", "1"]
    assert "near, similarity 0.95" in printed and f"left out: {TEXT} again" in printed
    assert printed.count("left out: ") == 3
    assert f"written to {files / 'out'}: 1 file" in printed


def test_dedup_as_json(capsys, files):
    found = json.loads(run(capsys, files / "web.jsonl", "--out", files / "out", "--json"))
    assert found["read"]["documents"] == 5 and found["kept"]["documents"] == 3
    assert found["removed"]["exact"] == {"documents": 1, "bytes": len(TEXT)}
    assert found["files"] == ["part-00000.jsonl"]
    assert [example["reason"] for example in found["examples"]] == ["exact", "near"]
    lines = (files / "out" / "part-00000.jsonl").read_text().splitlines()
    assert json.loads(lines[0]) == {"text": TEXT, "source": str(files / "web.jsonl")}


def test_dedup_on_slurm_prints_what_it_prints_here(capsys, files, sbatch):
    options = (files / "web.jsonl", "--against", files / "test.txt", "--json", "--out")
    here = json.loads(run(capsys, *options, files / "here"))
    there = json.loads(run(capsys, *options, files / "there", "--executor", "slurm"))
    assert {**here, "out": ""} == {**there, "out": ""} and here["kept"]["documents"] == 2
    assert sbatch.read_text() == "--wait 1 jobs\n"


def test_every_setting_has_its_effect(capsys, files):
    def kept(*options):
        arguments = (files / "web.jsonl", "--out", files / "out", "--overwrite", "--json", *options)
        return json.loads(run(capsys, *arguments))["kept"]["documents"]

    against = ("--against", files / "test.txt")
    assert kept() == 3
    assert kept("--exact-only") == 4
    assert kept("--rows", 200) == 4
    assert kept("--bands", 1, "--rows", 60) == 4
    assert kept("--shingle-words", 100) == 4
    assert kept(*against) == 2
    (files / "test.txt").write_text(TEXT[40:] + " " + "and now for other words " * 4)
    assert kept(*against, "--exact-only") == 4
    assert kept(*against, "--exact-only", "--overlap", 0) == 2
    assert kept(*against, "--exact-only", "--overlap", 0.2, "--ngram-words", 4) == 2


@pytest.mark.parametrize(
    ("options", "message"),
    [
        (["--exact-only", "--bands", "3"], "--bands 3: expected no --exact-only beside it"),
        (["--overlap", "0.3"], "--overlap 0.3: expected --against beside it"),
        (["--ngram-words", "8"], "--ngram-words 8: expected --against beside it"),
        (["--field", "body"], "no field 'body'; this line has 'text'"),
        (["--bands", "0"], "--bands"),
    ],
)
def test_mistakes_are_one_line(capsys, files, options, message):
    assert message in fails(capsys, files / "web.jsonl", "--out", files / "out", *options)
    assert not (files / "out").exists()


def test_an_earlier_result_is_not_replaced_unasked(capsys, files):
    run(capsys, files / "web.jsonl", "--out", files / "out")
    line = fails(capsys, files / "web.jsonl", "--out", files / "out")
    assert "--overwrite replaces it" in line and str(files / "out") in line


@pytest.fixture(scope="module")
def talked(tmp_path_factory):
    """A folder with a model that has a chat template, and a file of conversations."""
    folder = tmp_path_factory.mktemp("talked")
    tokenizer = Tokenizer.train("bytes", [])
    block = {"repeat": 1, "mixer": {"kind": "attention", "heads": 1}, "feed_forward": {"kind": "glu", "hidden": 8}}
    description = {"vocab_size": tokenizer.vocab_size, "d_model": 8, "context_length": 64, "blocks": [block]}
    write_model(folder / "model", Decoder(ModelSpec.parse(description, "test")), tokenizer, {})
    (folder / "model" / "chat_template.jinja").write_text(
        "{% for m in messages %}<{{ m.role }}>{% if m.role == 'assistant' %}"
        "{% generation %}{{ m.content }}<|end|>{% endgeneration %}{% else %}{{ m.content }}{% endif %}{% endfor %}"
    )
    rows = [{"instruction": "Who sang?", "output": "The bird."}, {"instruction": "When?", "output": "Now."}]
    (folder / "chat.jsonl").write_text("".join(json.dumps(row) + "\n" for row in rows))
    return folder


def shown(capsys, talked, *options):
    code = main(["data", "show", str(talked / "chat.jsonl"), "--model", str(talked / "model"), *map(str, options)])
    captured = capsys.readouterr()
    return code, captured.out, captured.err


def test_show_prints_what_is_trained_on(capsys, talked):
    code, out, _ = shown(capsys, talked)
    assert code == 0 and "<user>Who sang?" in out and "<assistant>[[The bird.<|end|>]]" in out
    assert f"{talked / 'chat.jsonl'}, line 1: " in out


def test_show_of_another_conversation_as_json_and_page(capsys, talked, tmp_path):
    page = tmp_path / "page.html"
    code, out, _ = shown(capsys, talked, "--number", 2, "--out", page)
    assert code == 0 and out.endswith(f"\nwritten to {page}\n")
    code, out, _ = shown(capsys, talked, "--number", 2, "--json", "--out", page)
    found = json.loads(out)
    assert code == 0 and found["trained"] == len("Now.") + 1 and found["torn"] == 0
    assert found["tokens"][-1]["text"] == "<|end|>" and found["tokens"][-1]["role"] == "assistant"
    assert "linnet data show" in page.read_text()


@pytest.mark.parametrize(
    ("options", "expected"),
    [
        (("--number", 3), "chat.jsonl has 2 conversations"),
        (("--out", "page.txt"), "--out page.txt: expected a file whose name ends in"),
    ],
)
def test_show_refuses(capsys, talked, options, expected):
    code, _, err = shown(capsys, talked, *options)
    assert code == 2 and expected in err and err.count("\n") == 1


def test_mix_shows_the_sources_and_tells_one_without_held_out_documents(capsys, tmp_path):
    (tmp_path / "a.txt").write_text("<|endoftext|>".join(f"a bird sang {n} times" for n in range(40)))
    (tmp_path / "b.txt").write_text("b" * 3000)
    sources = {name: {"inputs": str(tmp_path / f"{name}.txt"), "weight": 1} for name in "ab"}
    mixture, data = tmp_path / "mixture.yaml", tmp_path / "data"
    mixture.write_text(json.dumps({"sources": sources}))
    assert main(["prepare", "--mixture", str(mixture), "--out", str(data), "--tokenizer", "bytes"]) == 0
    assert "note: no document of b is held out, so no evaluation" in capsys.readouterr().err
    assert main(["data", "mix", str(mixture), "--data", str(data), "--json"]) == 0
    out, err = capsys.readouterr()
    found = {one["source"]: one for one in json.loads(out)}
    assert found["a"]["held_out"] + found["a"]["documents"] == 40 and found["b"]["documents"] == 1
    assert found["a"]["given"] == pytest.approx(0.5) and 0 < found["a"]["share"] < 0.5
    assert main(["data", "mix", str(mixture), "--data", str(data)]) == 0
    out, err = capsys.readouterr()
    assert "held-out documents" in out and "note: b: no held-out documents" in err


@pytest.mark.parametrize(
    ("options", "message"),
    [
        (["--confirm"], "--confirm: is of a search; add --search"),
        (["--search"], "--out: missing; a search needs a folder for its runs"),
        (["--search", "--out", "x", "--target", "a=0"], "--target a=0: expected SOURCE=WEIGHT with a weight above 0"),
    ],
    ids=["confirm", "out", "target"],
)
def test_mistakes_of_mix_are_told_in_one_line(capsys, tmp_path, options, message):
    (tmp_path / "mixture.yaml").write_text("sources: {a: {inputs: a.txt}}")
    assert main(["data", "mix", str(tmp_path / "mixture.yaml"), "--data", str(tmp_path), *options]) == 2
    assert message in capsys.readouterr().err


def test_clean_prints_what_each_step_removed(capsys, files):
    (files / "clean.yaml").write_text("steps: [{kind: gopher_quality, min_doc_words: 5}, {kind: pii}]")
    arguments = ["data", "clean", str(files / "web.jsonl"), "--config", str(files / "clean.yaml")]
    assert main([*arguments, "--out", str(files / "clean")]) == 0
    printed = capsys.readouterr().out
    assert "something else entirely" in printed and "gopher_short_doc" in printed
    assert main([*arguments, "--out", str(files / "other"), "--json", "--page", str(files / "page")]) == 0
    captured = capsys.readouterr()
    assert f"report: {files / 'page' / 'report.html'}" in captured.err
    report = json.loads(captured.out)
    assert report["read"]["documents"] == 5
    assert [step["step"] for step in report["steps"]] == ["gopher_quality", "pii"]
    lines = (files / "clean/part-00000.jsonl").read_text().splitlines()
    assert len(lines) == report["kept"]["documents"] < 5
    assert "gopher_short_doc" in (files / "page/report.html").read_text()
    assert main([*arguments, "--out", str(files / "packed"), "--compress", "gz"]) == 0
    assert gzip.decompress((files / "packed/part-00000.jsonl.gz").read_bytes()).decode().splitlines() == lines


def test_clean_on_slurm_prints_what_it_prints_here(capsys, files, sbatch):
    arguments = ["data", "clean", str(files / "web.jsonl"), "--json"]
    (files / "clean.yaml").write_text("steps: [{kind: gopher_quality, min_doc_words: 5}]")
    arguments += ["--config", str(files / "clean.yaml"), "--out"]
    assert main([*arguments, str(files / "here")]) == 0
    here = json.loads(capsys.readouterr().out)
    assert main([*arguments, str(files / "there"), "--executor", "slurm", "--slurm-option", "--mem=2G"]) == 0
    there = json.loads(capsys.readouterr().out)
    assert {**here, "out": ""} == {**there, "out": ""}
    assert (files / "here/part-00000.jsonl").read_bytes() == (files / "there/part-00000.jsonl").read_bytes()
    assert sbatch.read_text() == "--wait 1 jobs\n"
    assert main([*arguments, str(files / "other"), "--slurm-option", "--mem=2G"]) == 2
    assert "--slurm-option --mem=2G: expected only with the slurm executor" in capsys.readouterr().err


def test_synthesise_writes_a_chat_file_and_tells_its_types(capsys, tmp_path):
    out = tmp_path / "instructions.jsonl"
    options = ["--kind", "order", "--kind", "steps", "--count", "3", "--seed", "4", "--split", "held-out-names"]
    arguments = ["data", "synthesise", *options, "--out", str(out)]
    assert main([*arguments, "--json"]) == 0
    found = json.loads(capsys.readouterr().out)
    assert (found["count"], found["examples"]) == (3, {"order": 2, "steps": 1})
    rows = [json.loads(line) for line in out.read_text().splitlines()]
    assert [(row["type"], row["split"]) for row in rows] == [
        (name, "held-out-names") for name in ("order", "steps", "order")
    ]
    assert main(arguments) == 2
    assert "exists already; --overwrite replaces it" in capsys.readouterr().err
    assert main([*arguments, "--overwrite", "--seed", "5"]) == 0
    assert "3 examples" in " ".join(capsys.readouterr().out.split())
    assert [json.loads(line) for line in out.read_text().splitlines()] != rows


def test_synthesise_names_what_is_unknown(capsys, tmp_path):
    assert main(["data", "synthesise", "--kind", "retel", "--out", str(tmp_path / "a.jsonl")]) == 2
    assert capsys.readouterr().err.strip().endswith("--kind retel: did you mean retell?")


def test_synthesise_from_seeds_tells_what_a_model_wrote_and_what_does_not_go_together(capsys, tmp_path):
    tokenizer = Tokenizer.train("bytes", [])
    blocks = [{"mixer": {"kind": "attention", "heads": 2}}]
    plain = {"vocab_size": tokenizer.vocab_size, "d_model": 8, "context_length": 128, "blocks": blocks}
    write_model(tmp_path / "model", Decoder(ModelSpec.parse(plain, "test")), tokenizer, {})
    seeds, out = tmp_path / "seeds.jsonl", tmp_path / "own.jsonl"
    seeds.write_text('{"instruction": "Who sings?", "output": "A bird."}\n' * 2)
    arguments = ["data", "synthesise", "--from", str(seeds), "--out", str(out), "--count", "1"]
    for more, expected in (
        (["--model", str(tmp_path / "model")], "of 20 tasks that the model wrote none is kept"),
        ([], "--model: missing; --from needs a model that writes"),
        (["--model", str(tmp_path / "model"), "--kind", "order"], "--kind order: is of a world"),
    ):
        assert main([*arguments, *more]) == 2
        assert expected in capsys.readouterr().err
    assert main(["data", "synthesise", "--out", str(out), "--model", "x"]) == 2
    assert "--model x: goes with --from" in capsys.readouterr().err
    assert not out.exists()
