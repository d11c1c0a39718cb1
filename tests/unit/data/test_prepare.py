import errno
import io
import itertools
import json
import sys
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import pyarrow
import pyarrow.parquet
import pytest
import tokenizers

from linnet.core.atomic import PARTIAL
from linnet.core.checksum import write_file_checksums
from linnet.core.errors import UserError
from linnet.data import corpus, corpus_tokenizer, encoding, passes
from linnet.data import prepare as prepare_module
from linnet.data.cleaning_steps import CleaningSpec
from linnet.data.corpus import read_split
from linnet.data.prepare import prepare, prepare_texts
from linnet.data.prepare_pairs import prepare_pairs
from linnet.data.shards import Manifest, ShardWriter
from linnet.data.split import Split, content_hash
from linnet.data.token_data import TokenData
from linnet.data.tokenizer import TOKENIZER, Tokenizer
from linnet.data.tokenizer_training import KINDS

STORIES = [f"Story {n}: a dog and 1{n} cats met at the {place}.\n" for n, place in enumerate(["sea", "zoo"] * 40)]
STORIES += ["naïve café ▁ <|end|> <0x41> \x00", "東京 😀 e\u0301"]
each_kind = pytest.mark.parametrize("kind", KINDS)


def text_file(path: Path, texts: list[str]) -> str:
    path.write_bytes("<|endoftext|>\n".join(texts).encode())
    return str(path)


def json_file(path: Path, texts: list[str], field: str = "text") -> str:
    path.write_text("".join(json.dumps({field: text}) + "\n" for text in texts))
    return str(path)


def parquet_file(path: Path, texts: list[str]) -> str:
    pyarrow.parquet.write_table(pyarrow.table({"text": texts}), path)
    return str(path)


def documents(folder: Path, side: Split) -> list[str]:
    """The documents of a side as they can be recovered from its tokens, checking that ends stand where they should."""
    data = TokenData.open(folder)
    sequence = data.split(side)
    tokens = sequence.read(0, len(sequence)).tolist()
    assert tokens[0] == tokens[-1] == data.tokenizer.end_id
    groups = itertools.groupby(tokens[1:], key=lambda token: token == data.tokenizer.end_id)
    return [data.tokenizer.decode(group) for is_end, group in groups if not is_end]


def refusal(*arguments: Any, **options: Any) -> str:
    with pytest.raises(UserError) as caught:
        prepare(*arguments, **options)
    assert "\n" not in str(caught.value)
    return str(caught.value)


def visible(folder: Path) -> set[str]:
    return {path.name for path in folder.iterdir()}


@each_kind
def test_every_document_arrives_exactly(tmp_path: Path, kind: str) -> None:
    inputs = [text_file(tmp_path / "a.txt", STORIES[:30]), json_file(tmp_path / "b.jsonl", STORIES[30:60])]
    inputs.append(parquet_file(tmp_path / "c.parquet", STORIES[60:]))
    manifest = prepare(inputs, tmp_path / "data", tokenizer=kind, validation=0.2, shard_tokens=50)
    train, held_out = documents(tmp_path / "data", "train"), documents(tmp_path / "data", "validation")
    # Newlines at the end of a text document fall with the separator beside them.
    expected = [text.rstrip("\n") for text in STORIES[:29]] + STORIES[29:]
    assert sorted(train + held_out) == sorted(expected)
    assert len(held_out) >= 5 and held_out == sorted(held_out, key=content_hash)
    assert sorted(path.name for path in (tmp_path / "data").glob("train-?????.bin"))[:2] == [
        "train-00000.bin",
        "train-00001.bin",
    ]
    check_figures(manifest, {"train": train, "validation": held_out}, tmp_path / "data")


def test_documents_are_read_on_the_side_where_they_are_prepared(tmp_path: Path) -> None:
    inputs = [text_file(tmp_path / "a.txt", STORIES[:50]), parquet_file(tmp_path / "b.parquet", STORIES[50:])]
    prepare(inputs, tmp_path / "data", tokenizer="bytes")
    sides, sources = read_split(inputs)
    assert [source.documents for source in sources] == [50, len(STORIES) - 50]
    assert sides["train"] == documents(tmp_path / "data", "train")
    assert sorted(sides["validation"], key=content_hash) == documents(tmp_path / "data", "validation")
    assert len(sides["train"]) + len(sides["validation"]) == len(STORIES)


def check_figures(manifest: Manifest, sides: dict[Split, list[str]], folder: Path) -> None:
    data = TokenData.open(folder)
    assert data.manifest == manifest
    for side, texts in sides.items():
        info, sequence = manifest.splits[side], data.split(side)
        assert info.documents == len(texts)
        assert info.bytes == sum(len(text.encode()) for text in texts)
        assert info.tokens == len(sequence)
        ids_T = sequence.read(0, len(sequence))
        assert info.bytes == data.tokenizer.byte_counts().of(ids_T[1:], ids_T[:-1]).sum()
    assert sum(source.bytes for source in manifest.sources) == sum(side.bytes for side in manifest.splits.values())
    assert [source.documents for source in manifest.sources] == [30, 30, len(STORIES) - 60]


@each_kind
def test_validation_is_byte_identical_whatever_the_order_of_files(tmp_path: Path, kind: str) -> None:
    names = [json_file(tmp_path / f"{n}.jsonl", STORIES[n::3]) for n in range(3)]
    names.append(json_file(tmp_path / "again.jsonl", STORIES[:20]))
    prepare(names, tmp_path / "one", tokenizer=kind, validation=0.1)
    prepare(names[::-1], tmp_path / "two", tokenizer=kind, validation=0.1)
    for name in ("validation-00000.bin", "tokenizer.json"):
        assert (tmp_path / "one" / name).read_bytes() == (tmp_path / "two" / name).read_bytes()
    train = [sorted(documents(tmp_path / folder, "train")) for folder in ("one", "two")]
    assert train[0] == train[1]
    assert not set(train[0]) & set(documents(tmp_path / "one", "validation"))


def test_one_file_or_many_hold_out_the_same(tmp_path: Path) -> None:
    names = [json_file(tmp_path / f"{n}.jsonl", STORIES[n::3]) for n in range(3)]
    prepare(names, tmp_path / "many", tokenizer="bytes")
    prepare([json_file(tmp_path / "all.jsonl", STORIES)], tmp_path / "one", tokenizer="bytes")
    assert documents(tmp_path / "many", "validation") == documents(tmp_path / "one", "validation")


def test_single_document_holds_out_its_end(tmp_path: Path) -> None:
    text = "".join(STORIES)
    prepare([text_file(tmp_path / "a.txt", [text])], tmp_path / "data", tokenizer="bpe", validation=0.1)
    (head,), (tail,) = documents(tmp_path / "data", "train"), documents(tmp_path / "data", "validation")
    assert head + tail == text and head.endswith("\n")
    assert 0.05 < len(tail) / len(text) < 0.15


def test_long_document_begins_and_ends_once(tmp_path: Path) -> None:
    text = "word " * 30_000
    prepare([text_file(tmp_path / "a.txt", [text, "b"])], tmp_path / "data", tokenizer="bpe")
    sides = documents(tmp_path / "data", "train") + documents(tmp_path / "data", "validation")
    assert sorted(sides) == ["b", text]


def test_tokenizer_does_not_see_the_validation_side(tmp_path: Path) -> None:
    name = json_file(tmp_path / "a.jsonl", [f"{chr(0x4E00 + n)} text" for n in range(100)])
    prepare([name], tmp_path / "data", tokenizer="char", validation=0.2)
    vocabulary = TokenData.open(tmp_path / "data").tokenizer
    held_out = documents(tmp_path / "data", "validation")
    assert held_out and all(len(vocabulary.encode(text[0])) == 3 for text in held_out)
    assert all(len(vocabulary.encode(text[0])) == 1 for text in documents(tmp_path / "data", "train"))


def test_tokenizer_is_trained_on_a_sample_of_a_large_text(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    seen: list[str] = []
    original = Tokenizer.train

    def watched(kind: str, texts: Any, vocab_size: int | None, split_digits: str | None) -> Tokenizer:
        seen.extend(texts)
        return original(kind, seen, vocab_size, split_digits)

    texts = [f"{text} {n}" for n in range(20) for text in STORIES]
    size = sum(len(text.encode()) for text in texts)
    monkeypatch.setattr(corpus_tokenizer, "TOKENIZER_SAMPLE_BYTES", size // 4)
    monkeypatch.setattr(Tokenizer, "train", watched)
    prepare([json_file(tmp_path / "a.jsonl", texts)], tmp_path / "data", validation=0.4)
    # A quarter of the training side, whose hashes all lie above 0.4: the sample is chosen by other hashes.
    assert sum(len(text.encode()) for text in seen) == pytest.approx(size * 0.6 / 4, rel=0.2)


def test_progress_bars_run_to_their_ends(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    bars: dict[str, list[float]] = {}

    @contextmanager
    def recorded(description: str, total: float, unit: str) -> Iterator[Callable[[float], None]]:
        bars[description] = [total]
        yield bars[description].append

    for module in (corpus, corpus_tokenizer, encoding):
        monkeypatch.setattr(module, "progress", recorded)
    prepare([json_file(tmp_path / "a.jsonl", STORIES)], tmp_path / "data", validation=0.2)
    assert list(bars) == ["reading", "tokenizer", "encoding"]
    for total, *steps in bars.values():
        assert len(steps) >= len(STORIES) and sum(steps) == pytest.approx(total)


def test_settings_and_default_fraction_are_recorded(tmp_path: Path) -> None:
    name = json_file(tmp_path / "a.jsonl", STORIES, field="body")
    settings = prepare([name], tmp_path / "data", "bpe", 400, field="body").settings
    assert settings == {
        "tokenizer": "bpe",
        "vocab_size": 400,
        "field": "body",
        "separator": None,
        "validation": 0.05,
        "end": [],
        "skip_invalid": False,
    }


def test_documents_are_cleaned_first(tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
    name = text_file(tmp_path / "a.txt", [*STORIES[:40], *STORIES[:20]])
    steps = CleaningSpec.parse({"steps": [{"kind": "exact_duplicates"}]}, "test")
    manifest = prepare([name], tmp_path / "data", "bytes", separator="<|endoftext|>", clean=steps)
    found = [*documents(tmp_path / "data", "train"), *documents(tmp_path / "data", "validation")]
    assert sorted(found) == sorted(text.rstrip("\n") for text in STORIES[:40])
    assert [source.file for source in manifest.sources] == ["cleaned/part-00000.jsonl"]
    cleaning: Any = manifest.settings["clean"]
    assert cleaning["removed"]["exact_duplicates"]["documents"] == 20 and cleaning["inputs"] == [name]
    assert "40 of 60 documents stay after cleaning; removed: 20 exact_duplicates" in caplog.text
    assert visible(tmp_path) == {"a.txt", "data"}
    with pytest.raises(UserError, match="vocab_size: 258"):
        prepare([name], tmp_path / "other", "char", 258, clean=steps)
    assert visible(tmp_path) == {"a.txt", "data"}


def test_text_that_was_cleaned_when_a_call_was_interrupted_is_used_again(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    name = text_file(tmp_path / "a.txt", [*STORIES[:40], *STORIES[:20]])
    steps = CleaningSpec.parse({"steps": [{"kind": "exact_duplicates"}]}, "test")
    how: Any = {"tokenizer": "bytes", "separator": "<|endoftext|>", "clean": steps}
    with monkeypatch.context() as interrupted:
        interrupted.setattr(prepare_module, "write_corpus", lambda *given: (_ for _ in ()).throw(KeyboardInterrupt))
        with pytest.raises(KeyboardInterrupt):
            prepare([name], tmp_path / "data", **how)
    assert visible(tmp_path) == {"a.txt", ".data.cleaned"} and "the same command uses it again" in caplog.text
    read = count_calls(monkeypatch, passes.Passes, "run")
    manifest = prepare([name], tmp_path / "data", **how)
    assert not read and "40 documents of an earlier call, used again" in caplog.text
    assert manifest.sources[0].documents == 40 and visible(tmp_path) == {"a.txt", "data"}
    straight = prepare([name], tmp_path / "straight", **how)
    assert manifest.settings == straight.settings and len(read) == 1

    with monkeypatch.context() as interrupted:
        interrupted.setattr(prepare_module, "write_corpus", lambda *given: (_ for _ in ()).throw(KeyboardInterrupt))
        with pytest.raises(KeyboardInterrupt):
            prepare([name], tmp_path / "other", **how)
    text_file(tmp_path / "a.txt", STORIES[:30])  # other text: what was cleaned is not its
    assert prepare([name], tmp_path / "other", **how).sources[0].documents == 30 and len(read) == 3


def count_calls(monkeypatch: pytest.MonkeyPatch, owner: type, name: str) -> list[str]:
    """A list that gets the name at each call of a method."""
    original, calls = getattr(owner, name), list[str]()

    def counted(self: Any, *given: Any) -> Any:
        calls.append(name)
        return original(self, *given)

    monkeypatch.setattr(owner, name, counted)
    return calls


def test_ready_tokenizer_from_a_file_or_folder(tmp_path: Path) -> None:
    name = json_file(tmp_path / "a.jsonl", STORIES)
    first = prepare([name], tmp_path / "one", tokenizer="bpe", vocab_size=300)
    for path in (tmp_path / "one", tmp_path / "one" / "tokenizer.json"):
        again = prepare([name], tmp_path / "two", tokenizer=str(path), overwrite=True)
        assert again.tokenizer == first.tokenizer
    message = refusal([name], tmp_path / "three", tokenizer=str(tmp_path / "one"), vocab_size=500)
    assert message == f"vocab_size: 500: the tokenizer {tmp_path / 'one'} has its own; expected none"


def test_standard_input_is_read_once_and_used_thrice(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    stdin = io.TextIOWrapper(io.BytesIO("=====".join(STORIES).encode()))
    monkeypatch.setattr(sys, "stdin", stdin)
    manifest = prepare(["-"], tmp_path / "data", separator="=====")
    assert manifest.sources[0].model_dump() == {
        "file": "<stdin>",
        "documents": len(STORIES),
        "bytes": sum(len(text.rstrip("\n").encode()) for text in STORIES),
    }
    assert refusal(["-", "-"], tmp_path / "more") == "-: the standard input can be read only once"


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ({"tokenizer": "words"}, "tokenizer: words: expected one of bytes, char, bpe, unigram, or the path"),
        ({"vocab_size": 10}, "vocab_size: 10: expected more than 257"),
        ({"tokenizer": "bytes", "vocab_size": 300}, "vocab_size: 300: the bytes tokenizer always has 257"),
        ({"tokenizer": "char", "vocab_size": 258}, "vocab_size: 258: too few for the text's"),
        ({"validation": 0.5}, "validation: 0.5: expected a fraction above 0 and below 0.5"),
        ({"separator": "|"}, "separator: '|': only text files are split"),
        ({"field": "body"}, "line 1: no field 'body'; this line has 'text'"),
    ],
)
def test_impossible_options_are_one_line_and_leave_nothing(
    tmp_path: Path, options: dict[str, Any], message: str
) -> None:
    name = json_file(tmp_path / "a.jsonl", STORIES)
    assert message in refusal([name], tmp_path / "deep" / "data", **options)
    assert visible(tmp_path) == {"a.jsonl"}


def test_no_files_and_a_field_of_text(tmp_path: Path) -> None:
    assert refusal([], tmp_path / "data").startswith("no files given")
    name = text_file(tmp_path / "a.txt", ["a", "b"])
    assert refusal([name], tmp_path / "data", field="text") == (
        f"field: text: {name} has no fields; expected a file of rows (.jsonl, .csv, .parquet)"
    )


def test_error_in_the_last_of_many_files_leaves_nothing(tmp_path: Path) -> None:
    good = json_file(tmp_path / "good.jsonl", STORIES)
    bad = tmp_path / "bad.jsonl"
    bad.write_text('{"text": "a"}\n{"txt": "b"}\n')
    expected = f"{bad}, line 2: no field 'text'; this line has 'txt'; `field` names another"
    assert refusal([good, str(bad)], tmp_path / "data") == expected
    assert visible(tmp_path) == {"good.jsonl", "bad.jsonl"}


def test_other_folders_and_files_are_never_replaced(tmp_path: Path) -> None:
    name = json_file(tmp_path / "a.jsonl", STORIES)
    mine = tmp_path / "mine"
    mine.mkdir()
    (mine / "thesis.txt").write_text("years of work")
    for overwrite in (False, True):
        message = refusal([name], mine, overwrite=overwrite)
        assert message == f"out: {mine}: holds other files; expected a new folder or one with prepared data only"
        assert "is a file; expected a folder" in refusal([name], name, overwrite=overwrite)
        assert "is not a folder that can be written to" in refusal([name], f"{name}/data", overwrite=overwrite)
    assert (mine / "thesis.txt").read_text() == "years of work"


def test_prepared_data_is_replaced_only_when_asked(tmp_path: Path) -> None:
    name = json_file(tmp_path / "a.jsonl", STORIES)
    out = tmp_path / "data"
    out.mkdir()
    prepare([name], out, tokenizer="bytes", shard_tokens=100)
    before = {path.name: path.read_bytes() for path in out.iterdir()}
    assert refusal([name], out) == f"out: {out}: holds prepared data already; `overwrite` replaces it"
    assert {path.name: path.read_bytes() for path in out.iterdir()} == before
    prepare([name], out, tokenizer="char", overwrite=True)
    assert TokenData.open(out).manifest.tokenizer.kind == "char"
    assert not (out / "train-00001.bin").exists()
    (out / "notes.txt").write_text("mine")
    assert "holds other files" in refusal([name], out, overwrite=True)
    assert visible(tmp_path) == {"a.jsonl", "data"}


@pytest.mark.parametrize("error", [KeyboardInterrupt(), OSError(errno.ENOSPC, "No space left on device")])
def test_interruption_while_writing_leaves_the_old_data(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, error: BaseException
) -> None:
    name = json_file(tmp_path / "a.jsonl", STORIES)
    out = tmp_path / "data"
    prepare([name], out, tokenizer="bytes")

    def fail(self: ShardWriter, *_: Any) -> None:
        assert any(path.suffix == PARTIAL for path in tmp_path.iterdir())
        raise error

    monkeypatch.setattr(ShardWriter, "write", fail)
    for target in (out, tmp_path / "new"):
        with pytest.raises(type(error)) as caught:
            prepare([name], target, tokenizer="char", overwrite=True)
        assert getattr(caught.value, "filename", str(target)) == str(target)
    assert visible(tmp_path) == {"a.jsonl", "data"}
    assert TokenData.open(out).manifest.tokenizer.kind == "bytes"


def test_file_that_changes_while_being_read_is_noticed(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    name = json_file(tmp_path / "a.jsonl", STORIES)
    original = prepare_module.train_on_corpus

    def append_and_train(*arguments: Any) -> Tokenizer:
        with Path(name).open("a") as handle:
            handle.write('{"text": "one more"}\n')
        return original(*arguments)

    monkeypatch.setattr(prepare_module, "train_on_corpus", append_and_train)
    assert refusal([name], tmp_path / "data") == f"{name}: changed while being read"
    assert visible(tmp_path) == {"a.jsonl"}


def test_texts_with_a_given_split(tmp_path: Path) -> None:
    manifest = prepare_texts(iter(STORIES), iter(["only this", "", "and this"]), tmp_path / "data", name="stories")
    assert documents(tmp_path / "data", "train") == STORIES
    assert sorted(documents(tmp_path / "data", "validation")) == ["and this", "only this"]
    assert [source.file for source in manifest.sources] == ["stories"]
    with pytest.raises(UserError, match="texts: no validation documents"):
        prepare_texts(STORIES, [""], tmp_path / "more")
    with pytest.raises(UserError, match="`overwrite` replaces it"):
        prepare_texts(STORIES, ["a"], tmp_path / "data")


@pytest.mark.parametrize("kind", ["bytes", "bpe"])
def test_real_text_of_several_forms(real_data: Path, tmp_path: Path, kind: str) -> None:
    files = ["c4_demo.jsonl", "tinystories_valid.txt", "tinyshakespeare.txt"]
    inputs = [str(real_data / "text" / name) for name in files]
    manifest = prepare(inputs, tmp_path / "data", tokenizer=kind)
    assert manifest.sources[2].model_dump() == {"file": inputs[2], "documents": 1, "bytes": 1_115_394}
    assert manifest.sources[0].documents == 300
    assert sum(split.documents for split in manifest.splits.values()) == 302


def swapped(tokenizer: Path) -> None:
    """Let two tokens change their ids: still a tokenizer, and another one."""
    plain = json.loads(tokenizer.read_text())
    vocabulary = plain["model"]["vocab"]
    vocabulary["a"], vocabulary["b"] = vocabulary["b"], vocabulary["a"]
    tokenizer.write_text(json.dumps(plain))


@pytest.mark.parametrize("named", ["folder", "file"])
@pytest.mark.parametrize("of", ["data", "model"])
def test_a_tokenizer_that_was_changed_in_its_folder_is_refused(named: str, of: str, tmp_path: Path) -> None:
    source = text_file(tmp_path / "a.txt", STORIES)
    folder = tmp_path / of
    prepare([source], folder, tokenizer="bpe", vocab_size=300)
    if of == "model":
        for shard in folder.glob("*.bin"):
            shard.unlink()
        write_file_checksums(folder, (TOKENIZER,))
    name = str(folder if named == "folder" else folder / TOKENIZER)
    prepare([source], tmp_path / "again", tokenizer=name)
    swapped(folder / TOKENIZER)
    with pytest.raises(UserError, match=r"tokenizer\.json: .*manifest\.json"):
        prepare([source], tmp_path / "more", tokenizer=name)
    (folder / "manifest.json").unlink()
    prepare([source], tmp_path / "more", tokenizer=name)


def test_text_has_no_prefixes(tmp_path: Path):
    prepare_texts(["one"], ["two"], tmp_path / "data", "bytes")
    data = TokenData.open(tmp_path / "data")
    data.check_prefixes(None)
    with pytest.raises(UserError, match=r"model\.encoder: reads pairs of an input and a target; .* holds text"):
        data.check_prefixes("model.encoder")


def test_a_tokenizer_with_unknown_tokens_is_read_again_and_its_loss_is_told(
    tmp_path: Path, told: Callable[[], list[str]]
):
    library = tokenizers.SentencePieceBPETokenizer()
    library.train_from_iterator(["ab ab ab ab"], special_tokens=["<unk>", "</s>"], show_progress=False)
    library.save(str(tmp_path / "tokenizer.json"))
    path = text_file(tmp_path / "text.txt", ["ab abc", "ab ab ab"])
    prepare([path], tmp_path / "data", str(tmp_path / "tokenizer.json"))
    data = TokenData.open(tmp_path / "data")
    data.check_tokenizer(tmp_path / "data" / TOKENIZER)
    assert data.tokenizer.hash == Tokenizer.load(tmp_path / "tokenizer.json").hash
    # Of `▁ab ▁ab c` and `▁ab ▁ab ▁ab`, one of six tokens is unknown.
    assert data.tokenizer.token_bytes()[data.tokenizer.encode("ab abc")].tolist() == [3, 3, 0]
    assert told() == [
        "the tokens stand for 92.86% of the text's bytes, which bits per byte are computed from: 16.67% of them"
        " are unknown, and count none"
    ]


def test_the_bytes_of_a_name_do_not_count_for_an_unknown_token(tmp_path: Path, told: Callable[[], list[str]]):
    """The unknown token is known to the model alone: no added token says so."""
    model = tokenizers.models.Unigram([("<unknown>", 0.0), ("</s>", 0.0), ("a", -1.0), (" ", -1.0)], unk_id=0)
    library = tokenizers.Tokenizer(model)
    library.decoder = tokenizers.decoders.Fuse()
    library.add_special_tokens(["</s>"])
    library.save(str(tmp_path / "tokenizer.json"))
    prepare([text_file(tmp_path / "text.txt", ["a axa", "aaa a"])], tmp_path / "data", str(tmp_path))
    assert told()[-1].startswith("the tokens stand for 90.00% of the text's bytes")
    assert told()[-1].endswith("10.00% of them are unknown, and count none")


def test_of_many_files_with_one_document_each_three_are_named(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, told: Callable[[], list[str]]
):
    monkeypatch.chdir(tmp_path)
    prepare([text_file(Path(f"{name}.txt"), [f"text of {name}"]) for name in "abcde"], "data", "bytes")
    assert told()[0].startswith("a.txt, b.txt, c.txt and 2 others are each one document, which is trained on or")


@pytest.mark.parametrize("pairs", [False, True])
def test_a_space_before_each_text_counts_no_byte(pairs: bool, tmp_path: Path, told: Callable[[], list[str]]):
    library = tokenizers.SentencePieceBPETokenizer()
    library.train_from_iterator(["ab ab ab ab"], special_tokens=["<unk>", "</s>"], show_progress=False)
    library.save(str(tmp_path / "tokenizer.json"))
    if pairs:
        lines = [json.dumps({"input": text, "target": "ab"}) for text in ("ab", "b", "a")]
        (tmp_path / "pairs.jsonl").write_text("\n".join(lines))
        prepare_pairs(tmp_path / "pairs.jsonl", tmp_path / "data", str(tmp_path / "tokenizer.json"))
    else:
        prepare([text_file(tmp_path / "text.txt", ["ab ab b"])], tmp_path / "data", str(tmp_path))
    assert not [line for line in told() if "stand for" in line]
    sequence = TokenData.open(tmp_path / "data").split("train")
    ids_T = sequence.read(0, len(sequence))
    counts = TokenData.open(tmp_path / "data").tokenizer.byte_counts()
    assert counts.of(ids_T[1:], ids_T[:-1]).sum() == TokenData.open(tmp_path / "data").manifest.splits["train"].bytes
