"""Token files of other programs, written here byte by byte or by datatrove itself."""

import struct
from pathlib import Path

import numpy as np
import pytest

from linnet.core.errors import UserError
from linnet.data.prepare import prepare_texts
from linnet.data.token_data import TokenData
from linnet.data.token_files import TokenFile, expand_token_files, is_token_file, open_token_file, write_datatrove

END = 9
DOCUMENTS = [[1, 2, 3], [4], [5, 6, 7, 8, 1], [2, 2]]
VOCAB = 300


def found(file: TokenFile, end_id: int = END) -> list[list[int]]:
    """The documents of a file."""
    return [file.tokens[start:stop].tolist() for start, stop in file.spans(end_id, VOCAB, lambda _: None)]


def joined(ends_after: bool) -> list[int]:
    """The documents with an end token after each, or before each."""
    parts = [[*document, END] if ends_after else [END, *document] for document in DOCUMENTS]
    return [token for part in parts for token in part]


def llm_c(path: Path, tokens: list[int], magic: int = 20240520, version: int = 1, dtype: str = "<u2") -> Path:
    header = np.zeros(256, "<i4")
    header[:3] = magic, version, len(tokens)
    path.write_bytes(header.tobytes() + np.array(tokens, dtype).tobytes())
    return path


def megatron(path: Path, sequences: list[list[int]], bounds: list[int], code: int = 8, dtype: str = "<u2") -> Path:
    """A .bin with its .idx."""
    lengths = np.array([len(each) for each in sequences])
    places = (np.cumsum(lengths) - lengths) * np.dtype(dtype).itemsize
    head = struct.pack("<9sQBQQ", b"MMIDIDX\0\0", 1, code, len(sequences), len(bounds))
    parts = lengths.astype("<i4"), places.astype("<i8"), np.array(bounds, "<i8")
    path.with_suffix(".idx").write_bytes(head + b"".join(part.tobytes() for part in parts))
    path.write_bytes(np.concatenate(sequences).astype(dtype).tobytes())
    return path


@pytest.mark.parametrize("after", [True, False])
@pytest.mark.parametrize("dtype", ["<u2", "<u4"])
def test_ids_without_a_header(tmp_path: Path, after: bool, dtype: str, caplog: pytest.LogCaptureFixture) -> None:
    path = tmp_path / "train.bin"
    path.write_bytes(np.array(joined(after) * 2, dtype).tobytes())
    file = open_token_file(path, VOCAB)
    assert (file.kind, found(file)) == ("nanogpt", DOCUMENTS * 2)
    assert ("every second uint16 is 0: it is read as uint32" in caplog.text) == (dtype == "<u4")


def test_a_large_vocabulary_has_wide_ids(tmp_path: Path) -> None:
    (tmp_path / "train.bin").write_bytes(np.array([70_000, END], "<u4").tobytes())
    assert open_token_file(tmp_path / "train.bin", 100_000).tokens.tolist() == [70_000, END]


@pytest.mark.parametrize(("magic", "version", "dtype"), [(20240520, 1, "<u2"), (20240801, 7, "<u4")])
def test_headers_of_llm_c(tmp_path: Path, magic: int, version: int, dtype: str) -> None:
    file = open_token_file(llm_c(tmp_path / "a.bin", joined(False), magic, version, dtype), VOCAB)
    assert (file.kind, found(file)) == ("llm.c", DOCUMENTS)


@pytest.mark.parametrize(("code", "dtype"), [(8, "<u2"), (4, "<i4"), (5, "<i8")])
def test_an_index_of_megatron_joins_sequences_to_documents(tmp_path: Path, code: int, dtype: str) -> None:
    path = megatron(tmp_path / "a.bin", [[1, 2], [3, END], [4], [5, 6]], [0, 2, 3, 4], code, dtype)
    for name in (path, path.with_suffix(".idx")):
        file = open_token_file(name, VOCAB)
        assert (file.kind, found(file)) == ("megatron", [[1, 2, 3], [4], [5, 6]])


def test_documents_do_not_depend_on_the_parts_in_which_a_file_is_read(tmp_path: Path, monkeypatch) -> None:
    path = megatron(tmp_path / "a.bin", [[*document, END] for document in DOCUMENTS], [0, 1, 2, 3, 4])
    for size in (1, 2, 3, 5, 7):
        monkeypatch.setattr("linnet.data.token_files.CHUNK_TOKENS", size)
        assert found(open_token_file(path, VOCAB)) == DOCUMENTS
        assert found(open_token_file(path, VOCAB), end_id=200) == [[*document, END] for document in DOCUMENTS]


@pytest.mark.parametrize("with_index", [True, False])
@pytest.mark.parametrize("token_size", [2, 4])
@pytest.mark.parametrize("metadata", [True, False])
def test_files_that_datatrove_wrote(tmp_path: Path, with_index: bool, token_size: int, metadata: bool) -> None:
    tokenizer = pytest.importorskip("datatrove.pipeline.tokens.tokenizer")
    file = tokenizer.TokenizedFile(
        str(tmp_path), "a.ds", save_index=with_index, token_size=token_size, save_final_metadata=metadata
    )
    for document in DOCUMENTS:
        file.write([*document, END] if not with_index else document, None)
    file.close()
    if not with_index and not metadata and token_size == 4:
        return  # nothing says the type
    read = open_token_file(tmp_path / "a.ds", VOCAB)
    assert (read.kind, found(read)) == ("datatrove", DOCUMENTS)


def test_files_that_datatrove_wrote_for_megatron(tmp_path: Path) -> None:
    tokenizer = pytest.importorskip("datatrove.pipeline.tokens.megatron_tokenizer")
    for token_size in (2, 4):
        file = tokenizer.MegatronTokenizedFile(str(tmp_path), f"a{token_size}", token_size=token_size)
        for document in DOCUMENTS:
            file.write(document)
        file.close()
        assert found(open_token_file(tmp_path / f"a{token_size}.bin", VOCAB)) == DOCUMENTS


@pytest.fixture(scope="module")
def prepared(tmp_path_factory: pytest.TempPathFactory) -> TokenData:
    folder = tmp_path_factory.mktemp("prepared") / "data"
    texts = [f"Text number {number} says {'very ' * (number % 5)}little." for number in range(40)]
    prepare_texts(texts[:35], texts[35:], folder, "bytes")
    return TokenData.open(folder)


def test_datatrove_reads_what_is_written_for_it(tmp_path: Path, prepared: TokenData) -> None:
    dataset = pytest.importorskip("datatrove.utils.dataset")
    counts = write_datatrove(prepared, tmp_path / "out")
    for split, count in counts.items():
        sequence = prepared.split(split)
        assert count == len(sequence) - 1
        path = str(tmp_path / "out" / f"{split}.ds")
        windows = dataset.DatatroveFileDataset(path, 15, token_size=2, return_positions=True)
        expected = sequence.read(1, len(windows) * 16).reshape(-1, 16)
        starts = np.repeat(sequence.document_starts, np.diff(sequence.document_bounds))
        places = np.arange(count) - np.maximum(starts, np.arange(count) // 16 * 16)  # datatrove counts from its windows
        for number in range(len(windows)):
            window = windows[number]
            assert window["input_ids"].tolist() == expected[number].tolist()
            assert window["positions"].tolist() == places[16 * number : 16 * (number + 1)].tolist()
    assert (tmp_path / "out" / "train.ds.metadata").read_text().splitlines()[:2] == [
        "tokenizer.json|2",
        str(counts["train"]),
    ]


def test_what_is_written_is_read_again(tmp_path: Path, prepared: TokenData) -> None:
    write_datatrove(prepared, tmp_path / "out")
    file, sequence = open_token_file(tmp_path / "out" / "train.ds", 257), prepared.split("train")
    bounds = sequence.document_bounds
    spans = zip(bounds[:-1].tolist(), np.diff(bounds).tolist(), strict=True)
    assert found(file, sequence.end_id) == [sequence.read(s + 1, n - 1).tolist() for s, n in spans]


def broken_index(path: Path, change: dict[int, bytes] | None = None, cut: int = 0) -> Path:
    index = path.with_suffix(".idx")
    content = bytearray(index.read_bytes())
    for place, replacement in (change or {}).items():
        content[place : place + len(replacement)] = replacement
    index.write_bytes(bytes(content[: len(content) - cut]))
    return path


def wrong_files(folder: Path) -> dict[str, Path]:
    """Files that are not what they should be, by what is said of them."""
    plain, ds = folder / "odd.bin", folder / "cut.ds"
    plain.write_bytes(b"abc")
    ds.write_bytes(np.arange(5, dtype="<u2").tobytes())
    ds.with_name("cut.ds.index").write_bytes(np.array([3, 7], "<u8").tobytes())
    named, back, empty = folder / "named.ds", folder / "back.ds", folder / "empty.bin"
    named.write_bytes(b"ab")
    named.with_name("named.ds.metadata").write_text("gpt2|3\n1\n1")
    back.write_bytes(b"abcd")
    back.with_name("back.ds.index").write_bytes(np.array([2, 1], "<u8").tobytes())
    empty.write_bytes(b"")
    header = llm_c(folder / "short.bin", [1, 2, 3])
    header.write_bytes(header.read_bytes()[:-2])
    sequences = [[1, 2], [3]]

    def index(name: str, **broken) -> Path:
        return broken_index(megatron(folder / name, sequences, [0, 1, 2]), **broken)

    data = megatron(folder / "data.bin", sequences, [0, 1, 2])
    data.write_bytes(data.read_bytes()[:-2])
    return {
        "no such file": folder / "none.bin",
        "empty; expected token ids": empty,
        "3 bytes of uint16: no multiple of 2; it is truncated": plain,
        "10 bytes; cut.ds.index says 7 tokens: one of the two is truncated": ds,
        "expected the lines TOKENIZER|2 (or 4) and the number of tokens": named,
        "the ends of documents do not ascend": back,
        "1,028 bytes; its header says 3 tokens of uint16, 1,030 bytes": header,
        "not an index of Megatron; expected MMIDIDX at its start": index("magic.bin", change={0: b"X"}),
        "version 2, type 8; expected version 1": index("version.bin", change={9: b"\2"}),
        "type 7; expected version 1 and ids of uint8, int16": index("type.bin", change={17: b"\7"}),
        "says 2 sequences and 3 bounds of documents, 82 bytes": index("index.bin", cut=1),
        "its sequences do not lie one after the other": index("order.bin", change={50: b"\2"}),
        "do not ascend from 0 to its 2 sequences": index("bounds.bin", change={66: b"\7"}),
        "2 tokens; data.idx says 3": data,
    }


def test_a_wrong_file_is_an_error_of_one_line(tmp_path: Path) -> None:
    for message, path in wrong_files(tmp_path).items():
        with pytest.raises(UserError) as raised:
            open_token_file(path, VOCAB)
        assert message in str(raised.value) and "\n" not in str(raised.value), (message, str(raised.value))
        assert path.stem in str(raised.value)


def test_ids_of_another_tokenizer_are_refused(tmp_path: Path) -> None:
    path = megatron(tmp_path / "a.bin", [[1, 2], [3, VOCAB]], [0, 1, 2])
    with pytest.raises(UserError, match=r"a\.bin: token 3 is 300, and the tokenizer has 300 tokens"):
        found(open_token_file(path, VOCAB))
    path = megatron(tmp_path / "b.bin", [[1, 2], [-3, 4]], [0, 1, 2], 4, "<i4")
    with pytest.raises(UserError, match=r"b\.bin: token 2 is -3"):
        found(open_token_file(path, VOCAB))


def test_token_files_are_known_by_their_suffix() -> None:
    assert [name for name in ("a.bin", "b.ds", "c.idx", "d.txt", "e.bin.gz") if is_token_file(name)] == [
        "a.bin",
        "b.ds",
        "c.idx",
    ]


def test_folders_of_token_files_and_patterns_stand_for_them(tmp_path: Path) -> None:
    (tmp_path / "tokens" / "more").mkdir(parents=True)
    for name in ("b.bin", "b.idx", "a.ds", "a.ds.index", "tokenizer.json", "more/c.bin"):
        (tmp_path / "tokens" / name).write_bytes(b"")
    folder = str(tmp_path / "tokens")
    files = [f"{folder}/{name}" for name in ("a.ds", "b.bin", "more/c.bin")]
    assert expand_token_files([folder, "x.bin"]) == [*files, "x.bin"]
    assert expand_token_files([f"{folder}/*.*"]) == files[:2]
    assert expand_token_files([f"{folder}/*.json", "-", "no/*.bin"]) == [f"{folder}/*.json", "-", "no/*.bin"]
    (tmp_path / "tokens" / "text.txt").write_text("text")
    assert expand_token_files([folder]) == [folder]
    (tmp_path / "tokens" / "text.txt").unlink()
    (tmp_path / "tokens" / "manifest.json").write_text("{}")  # a data folder
    assert expand_token_files([folder]) == [folder]
