"""Token files become the data folder that their text would become."""

import json
from pathlib import Path

import numpy as np
import pytest

from linnet.core.errors import UserError
from linnet.data.mixed_batches import source_parts
from linnet.data.mixture import MixtureSpec
from linnet.data.prepare import prepare
from linnet.data.prepare_tokens import has_token_files, prepare_token_files
from linnet.data.token_data import TokenData
from linnet.data.token_files import write_datatrove

TEXTS = [f"Document {number} has {'many ' * (number % 7)}words, été." for number in range(60)]


@pytest.fixture(scope="module")
def text_data(tmp_path_factory: pytest.TempPathFactory) -> TokenData:
    folder = tmp_path_factory.mktemp("text")
    (folder / "all.txt").write_text("<|endoftext|>".join(TEXTS))
    prepare([str(folder / "all.txt")], folder / "data", "bpe", 300, validation=0.1)
    return TokenData.open(folder / "data")


def documents(data: TokenData, split: str) -> list[str]:
    sequence = data.split(split)
    bounds = sequence.document_bounds
    tokens = [sequence.read(s + 1, n - 1) for s, n in zip(bounds[:-1].tolist(), np.diff(bounds).tolist(), strict=True)]
    return [data.tokenizer.decode(part.tolist()) for part in tokens]


def written(text_data: TokenData, path: Path, texts: list[str]) -> str:
    """A file of nanoGPT with these texts."""
    tokenizer = text_data.tokenizer
    tokens = [token for text in texts for token in [*tokenizer.encode(text), tokenizer.end_id]]
    path.write_bytes(np.array(tokens, "<u2").tobytes())
    return str(path)


def test_token_files_have_the_documents_and_bytes_of_their_text(text_data: TokenData, tmp_path: Path) -> None:
    first, second = (written(text_data, tmp_path / f"{n}.bin", part) for n, part in enumerate((TEXTS[:20], TEXTS[20:])))
    tokenizer = str(text_data.folder / "tokenizer.json")
    manifest = prepare_token_files([first, second], tmp_path / "data", tokenizer, validation=0.2, shard_tokens=200)
    data = TokenData.open(tmp_path / "data")
    train, held_out = documents(data, "train"), documents(data, "validation")
    assert sorted(train + held_out) == sorted(TEXTS) and train == [text for text in TEXTS if text in train]
    for split, texts in (("train", train), ("validation", held_out)):
        info = manifest.splits[split]
        assert info.bytes == sum(len(text.encode()) for text in texts)
        assert info.documents == len(texts)
        owners = data.sources(split)
        assert owners.tolist() == [int(TEXTS.index(text) >= 20) for text in texts]
    total = sum(info.bytes for info in manifest.splits.values())
    assert manifest.splits["validation"].bytes / total == pytest.approx(0.2, abs=0.02)
    assert len(manifest.splits["train"].shards) > 1
    assert list(manifest.settings["token_files"].values()) == ["nanogpt", "nanogpt"]


def test_the_split_does_not_depend_on_the_order_of_files_or_their_format(text_data: TokenData, tmp_path: Path) -> None:
    tokenizer = str(text_data.folder)
    names = [written(text_data, tmp_path / f"{n}.bin", TEXTS[n::2]) for n in range(2)]
    write_datatrove(text_data, tmp_path / "ds")
    inputs = [names, names[::-1], [str(tmp_path / "ds" / f"{split}.ds") for split in ("train", "validation")]]
    found = []
    for number, each in enumerate(inputs):
        prepare_token_files(each, tmp_path / f"data{number}", tokenizer, validation=0.1)
        found.append(documents(TokenData.open(tmp_path / f"data{number}"), "validation"))
    assert found[0] == found[1] == found[2]


def test_a_file_that_is_one_document_is_cut(text_data: TokenData, tmp_path: Path, caplog) -> None:
    path = tmp_path / "one.bin"
    path.write_bytes(np.array(text_data.tokenizer.encode("abcdefghij" * 40), "<u2").tobytes())
    prepare_token_files([str(path)], tmp_path / "data", str(text_data.folder), validation=0.1)
    data = TokenData.open(tmp_path / "data")
    assert documents(data, "train")[0] + documents(data, "validation")[0] == "abcdefghij" * 40
    assert f"{path} has no index and no end token <|end|> within" in caplog.text


def test_inputs_that_do_not_fit_are_refused_and_nothing_is_written(text_data: TokenData, tmp_path: Path) -> None:
    path, tokenizer = written(text_data, tmp_path / "a.bin", TEXTS), str(text_data.folder)
    (tmp_path / "ends.bin").write_bytes(np.array([text_data.tokenizer.end_id] * 3, "<u2").tobytes())
    for inputs, kind, message in (
        ([path, "b.txt"], tokenizer, "b.txt: beside token files"),
        ([path], "bpe", "tokenizer: bpe: expected the path of the tokenizer.json that the token files were made with"),
        ([str(tmp_path / "ends.bin")], tokenizer, "no tokens but end tokens"),
    ):
        with pytest.raises(UserError) as raised:
            prepare_token_files(inputs, tmp_path / "data", kind)
        assert message in str(raised.value)
        assert not (tmp_path / "data").exists()


def test_sources_of_a_mixture_may_be_token_files_beside_text(text_data: TokenData, tmp_path: Path) -> None:
    """The documents are those of a mixture of texts, each of its source, and the tokens those of their text."""
    parts = {"files": TEXTS[:20], "rows": TEXTS[20:40], "folder": TEXTS[40:]}
    written(text_data, tmp_path / "files.bin", parts["files"])
    (tmp_path / "rows.jsonl").write_text("".join(json.dumps({"page": text}) + "\n" for text in parts["rows"]))
    (tmp_path / "folder").mkdir()
    (tmp_path / "no_rows.jsonl").touch()
    for number in range(2):
        written(text_data, tmp_path / "folder" / f"{number}.bin", parts["folder"][number::2])
    sources = {
        "files": {"inputs": str(tmp_path / "files.bin"), "weight": 1},
        "rows": {"inputs": str(tmp_path / "*s.jsonl"), "field": "page", "weight": 2},
        "folder": {"inputs": str(tmp_path / "folder"), "weight": 1},
    }
    mixture = MixtureSpec.parse({"sources": sources}, "test")
    assert has_token_files(mixture)
    manifest = prepare_token_files([], tmp_path / "data", str(text_data.folder), validation=0.2, mixture=mixture)
    data = TokenData.open(tmp_path / "data")
    assert data.source_names == list(parts)
    found = {name: list[str]() for name in parts}
    for split in ("train", "validation"):
        for owner, text in zip(data.sources(split).tolist(), documents(data, split), strict=True):
            found[data.source_names[owner]].append(text)
    assert {name: sorted(texts) for name, texts in found.items()} == {name: sorted(t) for name, t in parts.items()}
    assert sum(info.bytes for info in manifest.splits.values()) == sum(len(text.encode()) for text in TEXTS)
    assert list(manifest.settings["token_files"].values()) == ["nanogpt", "text", "text", "nanogpt", "nanogpt"]
    assert [part.name for part in source_parts(data, mixture)] == list(parts)


@pytest.mark.parametrize(
    ("source", "message"),
    [
        ({}, "mixture.sources.two.inputs: expected files, folders or patterns of text, or token files"),
        ({"inputs": ["a.bin", "b.txt"]}, "mixture.sources.two: b.txt: beside token files"),
        ({"inputs": "a.bin", "field": "page"}, "mixture.sources.two: field: 'page': token files have none"),
        ({"inputs": "a.bin"}, "mixture: a.bin is of one and of two; expected one source"),
    ],
    ids=["nothing", "text-beside", "field", "twice"],
)
def test_sources_that_do_not_fit_are_named(
    text_data: TokenData, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, source: dict, message: str
) -> None:
    monkeypatch.chdir(tmp_path)
    written(text_data, Path("a.bin"), TEXTS)
    mixture = MixtureSpec.parse({"sources": {"one": {"inputs": "a.bin"}, "two": source}}, "test")
    with pytest.raises(UserError) as raised:
        prepare_token_files([], "data", str(text_data.folder), mixture=mixture)
    assert message in str(raised.value) and not Path("data").exists()
