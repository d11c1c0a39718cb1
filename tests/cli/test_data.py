import json

import pytest

from linnet.cli.main import main

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


def test_dedup_prints_counts_and_examples(capsys, files):
    printed = run(capsys, files / "web.jsonl", "--out", files / "out", "--against", files / "test.txt")
    head, _, _ = printed.partition("compared with 1 evaluation documents")
    table = {line.split()[0]: line.split() for line in head.splitlines()[1:]}
    assert table["read"][1] == "5" and table["kept"][1] == "2"
    assert table["evaluation"][1:3] == ["overlap", "1"]
    assert "near, similarity 0.95" in printed and f"left out: {TEXT} again" in printed
    assert printed.count("left out: ") == 3
    assert f"written to {files / 'out'}: 1 files" in printed


def test_dedup_as_json(capsys, files):
    found = json.loads(run(capsys, files / "web.jsonl", "--out", files / "out", "--json"))
    assert found["read"]["documents"] == 5 and found["kept"]["documents"] == 3
    assert found["removed"]["exact"] == {"documents": 1, "bytes": len(TEXT)}
    assert found["files"] == ["part-00000.jsonl"]
    assert [example["reason"] for example in found["examples"]] == ["exact", "near"]
    lines = (files / "out" / "part-00000.jsonl").read_text().splitlines()
    assert json.loads(lines[0]) == {"text": TEXT, "source": str(files / "web.jsonl")}


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
