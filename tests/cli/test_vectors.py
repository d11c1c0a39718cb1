import json

import pytest

from linnet.cli.main import main
from linnet.data.prepare import prepare_texts

TEXTS = [
    f"the {animal} sang to the {place} and was glad . " * 3 for animal in ("bird", "cat") for place in ("sea", "hill")
]


@pytest.fixture(scope="module")
def folder(tmp_path_factory):
    folder = tmp_path_factory.mktemp("vectors")
    (folder / "text.txt").write_text("<|endoftext|>".join(TEXTS))
    train = ["vectors", "train", str(folder / "text.txt"), "--out", str(folder / "v.txt"), "--width", "16"]
    assert main(train) == 0
    return folder


def run(capsys, *arguments):
    assert main(["vectors", *map(str, arguments)]) == 0
    return capsys.readouterr().out


def fails(capsys, *arguments):
    assert main(["vectors", *map(str, arguments)]) == 2
    (line,) = capsys.readouterr().err.splitlines()
    return line


def test_training_shows_nearest_words_and_how_a_model_begins_with_them(capsys, folder, tmp_path):
    out = tmp_path / "v.txt"
    shown = run(capsys, "train", folder / "text.txt", "--out", out, "--width", 16, "--seed", 1)
    assert "nearest words" in shown and "11 words have a vector, 100.0%" in shown
    assert f"training.embedding_from={out} --set model.embedding.width=16" in shown
    figures = json.loads(
        run(capsys, "train", folder / "text.txt", "--out", out, "--width", 16, "--seed", 1, "--overwrite", "--json")
    )
    assert (figures["words"], figures["epochs"], figures["method"]) == (11, 5, "skipgram")
    assert len(figures["nearest"]) == 8 and {len(found) for found in figures["nearest"].values()} == {5}
    assert set(figures["nearest"]) <= set(" ".join(TEXTS).split())


def test_nearest_words_and_analogies_are_printed_as_table_and_json(capsys, folder):
    found = json.loads(run(capsys, "nearest", folder / "v.txt", "bird", "sea", "--count", 3, "--json"))
    assert list(found) == ["bird", "sea"] and len(found["sea"]) == 3
    table = run(capsys, "nearest", folder / "v.txt", "bird", "--count", 3)
    assert f"{found['bird'][0]['word']} {found['bird'][0]['cosine']:.2f}" in table
    found = json.loads(run(capsys, "analogy", folder / "v.txt", "bird", "cat", "sea", "--json"))
    assert len(found["nearest"]) == 5 and not {"bird", "cat", "sea"} & {one["word"] for one in found["nearest"]}
    assert "cat - bird + sea" in run(capsys, "analogy", folder / "v.txt", "bird", "cat", "sea")


def test_mistakes_are_told_in_one_line(capsys, folder, tmp_path):
    train = ["train", folder / "text.txt", "--out", folder / "v.txt"]
    assert "exists already; --overwrite replaces it" in fails(capsys, *train)
    train[-1] = tmp_path / "new.txt"
    assert "--workers 2: GloVe has one worker" in fails(capsys, *train, "--method", "glove", "--workers", 2)
    assert "--min-count 999: " in fails(capsys, *train, "--min-count", 999)
    assert not train[-1].exists()
    assert "no word 'bidr'; did you mean bird?" in fails(capsys, "nearest", folder / "v.txt", "bidr")


def test_a_model_begins_with_the_vectors(capsys, folder, tmp_path):
    prepare_texts(TEXTS * 4, TEXTS[:1], tmp_path / "data", tokenizer="bpe", vocab_size=300)
    tokenizer = tmp_path / "data" / "tokenizer.json"
    out = tmp_path / "tokens.txt"
    run(
        capsys, "train", folder / "text.txt", "--out", out, "--width", 16, "--tokenizer", tokenizer, "--method", "glove"
    )
    words = len(out.read_text().splitlines()) - 1
    small = ["embedding.width=16", "d_model=32"]
    settings = [f"model.{field}" for field in small] + [
        f"training.{field}"
        for field in ("steps=2", "batch_size=2", "context_length=16", "precision=float32", f"embedding_from={out}")
    ]
    command = ["train", "--model", "tiny-attention", "--data", str(tmp_path / "data"), "--out", str(tmp_path / "run")]
    assert main([*command, *(word for setting in settings for word in ("--set", setting))]) == 0
    capsys.readouterr()
    assert main(["runs", "show", str(tmp_path / "run"), "--json"]) == 0
    found = json.loads(capsys.readouterr().out)["embedding_from"]["tokens_found"]
    assert found >= words >= 10
