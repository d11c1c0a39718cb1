"""Import of tokenizers: what a file or folder holds is found by its content, and converted."""

import json
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Literal

import tokenizers

from linnet.core.errors import UserError
from linnet.core.files import open_file, read_json
from linnet.data.tokenizer import TOKENIZER, Tokenizer, ends_beside
from linnet.interop.sentencepiece import tokenizer_from_sentencepiece
from linnet.interop.tiktoken import RANK_LINE, find_encoding, read_ranks, tokenizer_from_tiktoken
from linnet.interop.tokenizer_folder import PIECES, asked_by, check_pieces, declared_tokens, read_definition, unnumbered

SourceKind = Literal["tokenizer.json", "SentencePiece model", "tiktoken ranks", "Transformers folder"]


@dataclass(frozen=True)
class ImportedTokenizer:
    """A converted tokenizer.

    kind: what the source is. file: the file of the source that holds the vocabulary. notes: what the source asks for
    and is not done, a line each.
    """

    tokenizer: Tokenizer
    kind: SourceKind
    file: Path
    notes: tuple[str, ...]


def find_source(path: str | Path) -> tuple[SourceKind, Path]:
    """What kind of tokenizer a path holds, and the file with the vocabulary; a file's content decides, not its name.

    Of a folder the first of tokenizer.json, a SentencePiece model, vocab.json beside merges.txt. `UserError` for
    others.
    """
    path = Path(path)
    if path.is_dir():
        names = (TOKENIZER, *PIECES, "vocab.json")
        found = next((path / name for name in names if (path / name).is_file()), None)
        if found is None or (found.name == "vocab.json" and not (path / "merges.txt").is_file()):
            accepted = f"{TOKENIZER}; {', '.join(PIECES)}; or vocab.json and merges.txt"
            raise UserError(f"{path}: a folder without a tokenizer", accepted=accepted)
        return "Transformers folder", found
    with open_file(path) as handle:
        head = handle.read(1 << 12)
    first = head.lstrip().split(b"\n", 1)[0].strip()
    if first.startswith(b"{"):
        return "tokenizer.json", path
    if RANK_LINE.fullmatch(first):
        return "tiktoken ranks", path
    if head.startswith(b"\n"):  # the tag of the first piece of a SentencePiece model
        return "SentencePiece model", path
    accepted = "a tokenizer.json, a SentencePiece model, ranks of tiktoken, or a folder of Transformers"
    raise UserError(f"{path}: {'no tokenizer' if head else 'an empty file'}", accepted=accepted)


def import_tokenizer(source: str | Path, pattern: str | None = None, ends: Sequence[str] = ()) -> ImportedTokenizer:
    """Convert a tokenizer of any `SourceKind`.

    pattern: of tiktoken's ranks (`tokenizer_from_tiktoken`). ends: names of the end tokens, that between documents
    first; none: as the source says. `UserError` names the file and what cannot be converted.
    """
    kind, file = find_source(source)
    if pattern is not None and kind != "tiktoken ranks":
        raise UserError(f"{source}: a {kind} says how a text is split", field="pattern", value=pattern, accepted="none")
    named: dict[int | str, str] = {name: "end" for name in ends}  # noqa: C420 (its type is that of a name alone)
    if kind == "SentencePiece model":
        return ImportedTokenizer(_of_pieces(file, named), kind, file, ())
    if kind == "tiktoken ranks":
        tokenizer = tokenizer_from_tiktoken(file, pattern, named)
        special = find_encoding(pattern, read_ranks(file), file).special
        names = f"{', '.join(list(special)[:5])}{', ...' if len(special) > 5 else ''}"
        return ImportedTokenizer(tokenizer, kind, file, (f"ranks name no special tokens; added behind them: {names}",))
    if kind == "tokenizer.json":
        return ImportedTokenizer(Tokenizer.load(file, ends), kind, file, tuple(_left_out(read_json(file))))
    return _of_folder(Path(source), file, named)


def _of_pieces(file: Path, ends: Mapping[int | str, str]) -> Tokenizer:
    tokenizer = tokenizer_from_sentencepiece(file)
    return Tokenizer.parse(dict(tokenizer.definition), file, ends) if ends else tokenizer


def _of_folder(folder: Path, file: Path, ends: Mapping[int | str, str]) -> ImportedTokenizer:
    notes = list(asked_by(folder))
    if file.name in PIECES:
        check_pieces(folder)
        tokenizer = _of_pieces(file, ends)
        pieces = {tokenizer.token_name(token) for token in range(tokenizer.vocab_size)}
        if others := [name for name in declared_tokens(folder) if name not in pieces]:
            more = f" and {len(others) - 3:,} others" if len(others) > 3 else ""
            notes.append(f"added tokens that the SentencePiece model does not have: {', '.join(others[:3])}{more}")
    else:
        definition = read_definition(folder, file)
        notes += _left_out(definition)
        tokenizer = Tokenizer.parse(definition, file, ends or ends_beside(folder))
        notes += unnumbered(folder, tokenizer)
    return ImportedTokenizer(tokenizer, "Transformers folder", file, tuple(notes))


def _left_out(definition: Any) -> Iterator[str]:
    """What a tokenizer.json asks for beside the ids of a text, and `Tokenizer` leaves out."""
    if not isinstance(definition, dict) or not isinstance(definition.get("model"), dict):
        return
    for part in ("truncation", "padding"):
        if definition.get(part):
            yield f"{part} is left out: a text has all of its tokens, and no others"
    if definition["model"].get("dropout"):
        yield "model.dropout is left out: a text has the same tokens every time"
    try:
        library = tokenizers.Tokenizer.from_str(json.dumps({**definition, "truncation": None, "padding": None}))
    except Exception:  # plain; `Tokenizer.parse` says it
        return
    around = [token for token in library.encode("").tokens if token]
    if around:
        yield f"post_processor: {' and '.join(around)} around a text: left out; the end token comes before a document"
