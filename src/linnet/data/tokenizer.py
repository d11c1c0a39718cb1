"""The tokenizer: text to token ids and back, exactly, for any text; and the bounds of a tokenizer.json."""

import copy
import hashlib
import json
import re
from collections.abc import Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from functools import cached_property
from itertools import chain, islice
from pathlib import Path
from types import MappingProxyType
from typing import Any

import numpy as np
import tokenizers
from numpy.typing import NDArray
from tokenizers import AddedToken, Regex, pre_tokenizers

from linnet.core.bounds import MAX_VOCABULARY
from linnet.core.errors import UserError, note
from linnet.core.files import read_json, write_json
from linnet.data.pieces import ByteCounts, ByteReader, TextStream, TokenBytes
from linnet.data.sentencepiece import SentencePiece, SentencePieceDefinition
from linnet.data.tokenizer_training import (
    END,
    KINDS,
    TRAINERS,
    check_digits,
    check_vocab_size,
    cut_before_words,
    words_and_digits,
)

TOKENIZER = "tokenizer.json"
_SINGLE_BYTES = [bytes([byte]) for byte in range(256)]
_END_NAMES = (END, "<|endoftext|>", "<|end_of_text|>", "</s>", "[END]")
"""The end token of a file of which nothing says it: the first of these that it has."""

MAX_GAPS = 1 << 16
"""Ids without a token before an added token."""

_RULE, _ENDS = "post_processor", "linnet:end"
"""Where a tokenizer.json holds other end tokens: the format has no field for them, so they are a special token that the
rule of the post-processor never adds."""


_PLAIN_TOKEN = ("single_word", "lstrip", "rstrip", "normalized")


class Tokenizer:
    """A `tokenizers.Tokenizer` with end tokens, whose text functions never produce or print special tokens.

    `end_id` stands between documents; all of `end_ids`, the first of which it is, end a generated text. `kind` is
    bytes, char, bpe, unigram, or imported: a tokenizer.json from elsewhere, which may change the text (normalize it,
    put a space before it). One that was made from a SentencePiece model encodes by the `sentencepiece` package, which
    is an extra.
    """

    def __init__(self, definition: dict[str, Any], origin: str, ends: Mapping[int | str, str] = MappingProxyType({})):
        """ends: the end tokens by id or name, each with the place that says so; empty: as the definition says."""
        check_bounds(definition, origin)
        model_fields = definition["model"]
        if "dropout" in model_fields:
            model_fields = {**model_fields, "dropout": None}
        # Settings that truncate, pad or randomize the tokens of a text are left out.
        self._definition = {**definition, "truncation": None, "padding": None, "model": model_fields}
        self._origin = origin
        self.parses_special = False
        model = _sentencepiece(self._definition, origin)
        self._sentencepiece = SentencePiece(model, origin) if model else None
        with _panics_reported(origin):
            if model is None:
                self._fill_gaps()
            self.end_ids = self._find_ends(ends, None if model is None else model.end)
        self.end_id = self.end_ids[0]
        if model:
            added = [token["id"] for token in self._definition.get("added_tokens") or []]
            self._pieces = TokenBytes.from_sentencepiece(model, sum(token >= len(model.pieces) for token in added))
        else:
            with _panics_reported(origin):
                self._mark_ends()
                self._guard_special_tokens()
                self._pieces = TokenBytes.from_library(self._library, self._definition, origin)
        self.kind = _kind(self._definition, self._pieces)
        unknown = self._pieces.unknown
        if unknown is not None and unknown in self.end_ids and not set(_SINGLE_BYTES) <= set(self._pieces.table):
            problem = "is the unknown token too, so an unknown character would end a text; expected another"
            raise UserError(f"{origin}: the end token {self.describe_token(unknown)} {problem}")

    @classmethod
    def train(
        cls, kind: str, texts: Iterable[str], vocab_size: int | None = None, split_digits: str | None = None
    ) -> "Tokenizer":
        """Make a tokenizer of `kind` bytes, char, bpe or unigram.

        vocab_size: counts the 256 bytes and the end token; None: 2048 for bpe and unigram, the number needed for
        char. Texts too small to fill it give a smaller tokenizer. split_digits: of bpe and unigram, how numbers are
        split (`DIGITS`): one, three; None: runs of digits are words. The same texts, in any order, give the same
        tokenizer.
        """
        if kind not in TRAINERS:
            raise UserError(f"tokenizer: {kind!r}: expected one of {', '.join(KINDS)}")
        check_vocab_size(kind, vocab_size)
        check_digits(kind, split_digits)
        return cls(TRAINERS[kind](texts, vocab_size, split_digits), kind)

    @classmethod
    def load(cls, path: str | Path, ends: Sequence[str] = ()) -> "Tokenizer":
        """Read a tokenizer.json, or the one in a folder; `UserError` names the file and what is wrong with it.

        ends: names of the end tokens, that between documents first; none: those that the file holds, or else those of
        the files beside it (`ends_beside`).
        """
        path = Path(path)
        if path.is_dir():
            path = path / TOKENIZER
        definition = read_json(path)
        named: dict[int | str, str] = {name: "end" for name in ends}  # noqa: C420 (its type is that of a name alone)
        if not named and path.name == TOKENIZER and isinstance(definition, dict):
            with _shapes_reported(path):
                named = {} if _stored_ends(definition) else ends_beside(path.parent)
        return cls.parse(definition, path, named)

    @classmethod
    def parse(
        cls, definition: Any, path: str | Path, ends: Mapping[int | str, str] = MappingProxyType({})
    ) -> "Tokenizer":
        """Make one of the data of a tokenizer.json; `UserError` names `path` and what is wrong with it."""
        if not isinstance(definition, dict) or not isinstance(definition.get("model"), dict):
            raise UserError(f"{path}: not a tokenizer.json (no field 'model')")
        with _shapes_reported(path):
            return cls(definition, str(path), ends)

    @property
    def definition(self) -> Mapping[str, Any]:
        """What `tokenizer.json` holds; not to be changed."""
        return self._definition

    def save(self, path: str | Path) -> None:
        """Write a tokenizer.json, atomically."""
        write_json(path, self._definition)

    @property
    def split_digits(self) -> str | None:
        """How numbers are split before words (`DIGITS`); None: not at all, or in a way of an imported tokenizer."""
        before = self._definition.get("pre_tokenizer")
        return words_and_digits(before)[1] if before and self.kind != "imported" else None

    @property
    def vocab_size(self) -> int:
        """The number of token ids, the end token and unused ids included."""
        return len(self._pieces.table)

    @cached_property
    def hash(self) -> str:
        """SHA-256 of the tokenizer's data as canonical JSON, in hexadecimal."""
        canonical = json.dumps(self._definition, sort_keys=True, separators=(",", ":"))
        return hashlib.sha256(canonical.encode()).hexdigest()

    def with_special(self, names: Sequence[str], ends: Sequence[str] = ()) -> "Tokenizer":
        """The same tokenizer with special tokens of these names, behind the others where it does not have them yet.

        ends: names of special tokens that end a text too, beside the end tokens that it has.
        """
        added, plain = list(self._definition.get("added_tokens") or []), dict.fromkeys(_PLAIN_TOKEN, False)
        new = [name for name in names if name not in self.special_ids]
        for token, name in enumerate(new, self.vocab_size):
            added.append({"id": token, "content": name, **plain, "special": True})
        every_end = [*map(self.token_name, self.end_ids), *ends] if ends else []
        return Tokenizer({**self._definition, "added_tokens": added}, self._origin, dict.fromkeys(every_end, "end"))

    def added_to(self, other: "Tokenizer") -> tuple[str, ...] | None:
        """The names of the special tokens that this tokenizer has more than `other`; None if it differs otherwise.

        It may have more end tokens too.
        """
        if self.hash == other.hash:
            return ()
        added = tuple(name for name in self.special_ids if name not in other.special_ids)
        ends = tuple(map(self.token_name, self.end_ids))
        twin = other.with_special(added, ends[len(other.end_ids) :])
        return added if twin.hash == self.hash else None

    def parsing_special(self) -> "Tokenizer":
        """The same tokenizer, except that names of special tokens in a text become these tokens."""
        twin = copy.copy(self)
        twin.parses_special = True
        twin.__dict__.pop("_library", None)
        return twin

    def encode(self, text: str) -> list[int]:
        """Token ids of a text. No special token is added; the name of one in the text is ordinary text."""
        return self.encode_batch([text])[0]

    def encode_document(self, text: str) -> list[int]:
        """The end token, then the ids of a text; without it if a text begins with a special token that is parsed."""
        begins = self.parses_special and text.startswith(tuple(self.special_ids))
        return self.encode(text) if begins else [self.end_id, *self.encode(text)]

    def encode_batch(self, texts: list[str]) -> list[list[int]]:
        """`encode` for many texts at once, on all cores."""
        if self.kind == "bytes" and not self.parses_special:
            return [list(_utf8(text)) for text in texts]
        cut = [self.cut(text) for text in texts]
        if self._sentencepiece:
            if self.parses_special:
                return [self._encode_between_names(text) for text in texts]
            return self._sentencepiece.encode_batch(texts)
        parts_of_all = [part for parts in cut for part in parts]
        with _panics_reported(self._origin):
            encodings = self._library.encode_batch_fast(parts_of_all, add_special_tokens=False)
        if len(parts_of_all) == len(texts):
            return [encoding.ids for encoding in encodings]
        ids = iter([encoding.ids for encoding in encodings])
        return [list(chain.from_iterable(islice(ids, len(parts)))) for parts in cut]

    def encode_with_offsets(self, text: str) -> tuple[list[int], list[tuple[int, int]]]:
        """`encode`, and for each token the places in the text (characters) where what it stands for begins and ends.

        The tokens of one character that is split into bytes all have its places.
        """
        _utf8(text)
        if self._sentencepiece:
            return self._offsets_between_names(text, self._sentencepiece)
        with _panics_reported(self._origin):
            encoding = self._library.encode(text, add_special_tokens=False)
        return encoding.ids, encoding.offsets

    def cut(self, text: str) -> list[str]:
        """Parts of a long text that can be encoded one by one: `encode(text)` is their encodings end to end."""
        _utf8(text)
        return [text] if self.kind == "imported" or self.parses_special else cut_before_words(text)

    def decode(self, ids: Iterable[int], behind: Sequence[int] = ()) -> str:
        """The text of token ids. Special tokens print nothing; bytes that are not UTF-8 become U+FFFD.

        behind: the tokens that they follow. A tokenizer that puts a space in front of a text removes it only at the
        beginning of one.
        """
        return self._pieces.decode([int(token) for token in ids], self._since_end(behind))

    def stream(self, behind: Sequence[int] = ()) -> TextStream:
        """A decoder for tokens that come one at a time; its outputs add up to `decode` of all of them."""
        return TextStream(self._pieces, self._since_end(behind))

    @property
    def pieces(self) -> TokenBytes:
        """The bytes of every token id."""
        return self._pieces

    def byte_reader(self, behind: Sequence[int] = ()) -> ByteReader:
        """The bytes of tokens that come one at a time, behind others."""
        return ByteReader(self._pieces, self._since_end(behind))

    def _since_end(self, behind: Sequence[int]) -> Sequence[int]:
        """The tokens after the last end token."""
        ends = [place for place, token in enumerate(behind) if token in self.end_ids]
        return behind[ends[-1] + 1 :] if ends else behind

    def describe_token(self, token: int) -> str:
        """A token for people: its text in quotes, its bytes if they are not whole characters, or its name."""
        piece = self._pieces.table[token]
        if not piece:
            return self.token_name(token)
        try:
            return repr(piece.decode())
        except UnicodeDecodeError:
            return repr(piece)

    def token_name(self, token: int) -> str:
        """How the vocabulary spells a token; for special tokens, which print nothing, their name."""
        return self._library.id_to_token(token) or f"unused id {token}"

    def texts(self) -> list[str | None]:
        """The text of each token by id; None for special and unknown tokens and incomplete characters."""
        texts: list[str | None] = []
        for piece in self._pieces.table:
            try:
                texts.append(piece.decode() or None)
            except UnicodeDecodeError:
                texts.append(None)
        if self._pieces.unknown is not None:
            texts[self._pieces.unknown] = None
        return texts

    def token_bytes(self) -> NDArray[np.int64]:
        """`[V]`: the number of bytes of text that each token stands for, 0 for special tokens.

        This is within a text: `byte_counts` knows the space that a tokenizer puts in front of one. An unknown token,
        for text that is lost, counts nothing.
        """
        counts_V: NDArray[np.int64] = self.byte_counts().table_2V[0]
        return counts_V

    def byte_counts(self) -> ByteCounts[NDArray[np.int64]]:
        """The number of bytes of text that each token stands for, within a text and at its start.

        The sum over `encode_document(text)` is exactly the number of UTF-8 bytes of the text for the four kinds of
        linnet and every imported tokenizer that keeps a text. For others it is that of the text as the tokenizer
        changed it, without what is unknown. `loss_note` gives the difference.
        """
        unknown = self._pieces.unknown
        within, behind_end = (
            [0 if token == unknown else len(piece) for token, piece in enumerate(pieces)]
            for pieces in (self._pieces.table, self._pieces.opening)
        )
        return ByteCounts.create(within, behind_end, self.end_ids)

    @property
    def added_tokens(self) -> dict[str, bool]:
        """The names of tokens that were added to the vocabulary, and whether each is special."""
        return {token["content"]: token["special"] for token in self._definition.get("added_tokens") or []}

    def loss_note(self, counts_V: NDArray[np.int64], token_bytes: int, text_bytes: int) -> str | None:
        """A note if the tokens of texts do not stand for exactly their bytes; None if they do.

        counts_V: how often each token is in the encoded texts. token_bytes: the sum of `byte_counts` over them.
        """
        unknown = self._pieces.unknown
        if token_bytes == text_bytes:
            return None
        lost = 0.0 if unknown is None else counts_V[unknown] / max(1, counts_V.sum())
        why = f"{lost:.2%} of them are unknown, and count none" if lost else "the tokenizer changes the text"
        share = f"{token_bytes / text_bytes:.2%}"
        return f"the tokens stand for {share} of the text's bytes, which bits per byte are computed from: {why}"

    @cached_property
    def _library(self) -> tokenizers.Tokenizer:
        """The `tokenizers` library's reading of the data; a SentencePiece model works without it."""
        try:
            library = tokenizers.Tokenizer.from_str(json.dumps(self._definition))
        except Exception as error:  # the library raises plain Exception
            problem = f"not a tokenizer that the tokenizers library can read ({error})"
            raise UserError(f"{self._origin}: {problem}") from error
        library.encode_special_tokens = not self.parses_special
        return library

    @cached_property
    def special_ids(self) -> dict[str, int]:
        """The ids of special tokens, which no text has, by name."""
        added = self._definition.get("added_tokens") or []
        return {token["content"]: token["id"] for token in added if token["special"]}

    def _encode_between_names(self, text: str) -> list[int]:
        """Encode by SentencePiece, to which each part between two names of special tokens is a text of its own."""
        assert self._sentencepiece is not None
        by_name, parts = self.special_ids, self._between_names(text)
        ids = iter(self._sentencepiece.encode_batch([part for part in parts if part not in by_name]))
        return [token for part in parts for token in ([by_name[part]] if part in by_name else next(ids))]

    def _offsets_between_names(self, text: str, model: SentencePiece) -> tuple[list[int], list[tuple[int, int]]]:
        """As `encode_with_offsets`; each part between two names of special tokens is a text of its own."""
        ids, offsets, begin = list[int](), list[tuple[int, int]](), 0
        for part in self._between_names(text) if self.parses_special else [text]:
            if self.parses_special and part in self.special_ids:
                ids.append(self.special_ids[part])
                offsets.append((begin, begin + len(part)))
            else:
                found, places = model.encode_with_offsets(part)
                ids += found
                offsets += [(begin + start, begin + stop) for start, stop in places]
            begin += len(part)
        return ids, offsets

    def _between_names(self, text: str) -> list[str]:
        """A text, cut in front of and behind each name of a special token."""
        names = "|".join(map(re.escape, sorted(self.special_ids, key=len, reverse=True)))
        return [part for part in re.split(f"({names})", text) if part]

    def _find_ends(self, named: Mapping[int | str, str], usual: int | None) -> tuple[int, ...]:
        """Return the ids of the end tokens, and store them in the definition unless they are the usual one."""
        if usual is None:
            found = (self._library.token_to_id(name) for name in _END_NAMES)
            usual = next((token for token in found if token is not None), None)
        named = named or dict.fromkeys(_stored_ends(self._definition), f"{self._origin}: {_RULE}")
        ends = tuple(dict.fromkeys(self._end_id(end, place) for end, place in named.items()))
        ends = ends or (() if usual is None else (usual,))
        if not ends:
            accepted = f"one of {', '.join(_END_NAMES)}, a file beside it that names another, or its name as `end`"
            raise UserError(f"{self._origin}: no end token", accepted=accepted)
        rule = without_ends(self._definition.get(_RULE))
        if ends != (usual,):
            names = [self._library.id_to_token(token) for token in ends]
            rule = _with_unused(rule, {_ENDS: {"id": _ENDS, "ids": list(ends), "tokens": names}})
        if rule != self._definition.get(_RULE):
            self._definition[_RULE] = rule
        return ends

    def _end_id(self, end: int | str, place: str) -> int:
        """Return the id of a token that `place` names as an end; `UserError` if there is none, or it is text."""
        token = self._library.token_to_id(end) if isinstance(end, str) else end
        name = self._library.id_to_token(token) if token is not None and 0 <= token < MAX_VOCABULARY else None
        if token is None or name is None:
            raise UserError(f"{self._origin} has no such token", field=place, value=end)
        if token not in self._library.get_added_tokens_decoder() and name not in _END_NAMES:
            problem = f"{name!r} is text in {self._origin}"
            raise UserError(problem, field=place, value=end, accepted="an added token")
        return token

    def _fill_gaps(self) -> None:
        """Keep the ids of added tokens behind gaps, which the library would number without them.

        Such files come from tokenizers with ids of their own; those of the file are what the model was trained with.
        The ids in the gaps become special tokens that no text has.
        """
        written = sorted(self._definition.get("added_tokens") or [], key=lambda token: int(token["id"]))
        ids = {added.content: token for token, added in self._library.get_added_tokens_decoder().items()}
        behind = [token for token in written if ids.get(token["content"], token["id"]) < token["id"]]
        if not behind:
            return
        gaps = range(ids[behind[0]["content"]], behind[-1]["id"])
        known = {token["id"] for token in written} | set(self._library.get_vocab(with_added_tokens=False).values())
        unused = [token for token in gaps if token not in known]
        if len(unused) > MAX_GAPS:
            field, accepted = f"added_tokens: {behind[-1]['content']!r}", f"at most {MAX_GAPS:,} ids without a token"
            raise UserError(
                f"{self._origin}: {len(unused):,} ids before it have no token", field=field, accepted=accepted
            )
        plain = {"single_word": False, "lstrip": False, "rstrip": False, "normalized": False, "special": True}
        written += [{"id": token, "content": f"[UNUSED_{token}]", **plain} for token in unused]
        self._definition["added_tokens"] = sorted(written, key=lambda token: int(token["id"]))
        self.__dict__.pop("_library")

    def _mark_ends(self) -> None:
        """Make the library treat the end tokens as special, and number added tokens as it does."""
        library, written = self._library, self._definition.get("added_tokens") or []
        unmarked = [token for token in self.end_ids if token not in _specials(library)]
        names = [library.id_to_token(token) for token in unmarked]
        if unmarked:
            library.add_special_tokens([AddedToken(name, special=True, normalized=False) for name in names])
        ids = {added.content: token for token, added in library.get_added_tokens_decoder().items()}
        moved = [token for token in written if ids.get(token["content"], token["id"]) != token["id"]]
        for token in moved[:1]:  # an id that another token has
            problem = f"added_tokens: {token['content']!r}: id {token['id']}: it is {ids[token['content']]}"
            note(f"{self._origin}: {problem}, as the tokenizers library numbers added tokens")
        if unmarked or moved:
            self._definition["added_tokens"] = json.loads(library.to_str())["added_tokens"]

    def _guard_special_tokens(self) -> None:
        """Keep the names of special tokens, met in a text, from becoming those tokens.

        A unigram model holds them among its pieces and would pick them; splitting such a name after its first
        character keeps them apart. A split is added only if it turns the token into others: an unknown token also
        stands for the unknown characters of its own name. Repeated until nothing changes, this leaves a tokenizer
        that was saved as it is.
        """
        names = [(token, name) for token, name in _specials(self._library).items() if len(name) > 1]
        while sum(self._split_name(token, name) for token, name in names):  # all names at each pass
            self._definition["pre_tokenizer"] = json.loads(self._library.to_str())["pre_tokenizer"]

    def _split_name(self, token: int, name: str) -> bool:
        """Split a special token's name in texts if that keeps the token out of them; True if it was added."""
        library, unsplit = self._library, self._library.pre_tokenizer

        def ids() -> list[int]:
            try:
                return list(library.encode(name, add_special_tokens=False).ids)
            except Exception:  # plain, of a unigram without an unknown token: it refuses texts with such a name
                return []

        whole = ids()
        if token not in whole:
            return False
        escaped = [f"\\x{{{ord(character):x}}}" for character in name]
        split = pre_tokenizers.Split(Regex(f"{escaped[0]}(?={''.join(escaped[1:])})"), "isolated")
        library.pre_tokenizer = pre_tokenizers.Sequence([split] if unsplit is None else [unsplit, split])
        halves = ids()
        is_kept_out = len(halves) - halves.count(token) > len(whole) - whole.count(token)
        if not is_kept_out:
            library.pre_tokenizer = unsplit
        return is_kept_out


@contextmanager
def _shapes_reported(path: str | Path) -> Iterator[None]:
    """`UserError` where fields of a tokenizer.json have another shape than the library's."""
    try:
        yield
    except (LookupError, TypeError, AttributeError) as error:
        problem = f"{type(error).__name__}: {error}"
        raise UserError(f"{path}: not a tokenizer.json that can be read ({problem})") from error


@contextmanager
def _panics_reported(origin: str) -> Iterator[None]:
    """`UserError` where the library gives up on a text: an expression takes too long, or a character is unknown.

    The library's own message on the standard error comes first.
    """
    try:
        yield
    except BaseException as error:  # PanicException is none of `Exception`, and has no name to import
        if type(error) is not Exception and type(error).__name__ != "PanicException":
            raise
        raise UserError(f"{origin}: the tokenizers library gave up on a text ({error})") from None


def _sentencepiece(definition: dict[str, Any], origin: str) -> SentencePieceDefinition | None:
    """The SentencePiece model that a tokenizer.json was made from; None if it was made otherwise."""
    try:
        return SentencePieceDefinition.read(definition)
    except (LookupError, TypeError, ValueError) as error:
        problem = f"{type(error).__name__}: {error}"
        raise UserError(f"{origin}: made from a SentencePiece model, but changed since ({problem})") from None


def ends_beside(folder: Path) -> dict[int | str, str]:
    """Return what the files of a published folder say of the tokens that end a text, each with the place that says it.

    The `eos_token` of tokenizer_config.json comes first, then the `eos_token_id` of generation_config.json or, if that
    has none, of config.json. `UserError` names the file with a value that is no token.
    """
    ends: dict[int | str, str] = {}
    places = [("eos_token", ["tokenizer_config.json"]), ("eos_token_id", ["generation_config.json", "config.json"])]
    for field, names in places:
        for path in (folder / name for name in names):
            plain = read_json(path) if path.is_file() else None
            value = plain.get(field) if isinstance(plain, dict) else None
            if value is None:
                continue
            content = value.get("content") if isinstance(value, dict) else value
            for end in content if isinstance(content, list) else [content]:
                if not isinstance(end, str if field == "eos_token" else int) or isinstance(end, bool):
                    raise UserError(f"{path}: {field}: {value!r}", accepted="a token")
                ends.setdefault(end, f"{path}: {field}")
            break
    return ends


def _stored_ends(definition: Mapping[str, Any]) -> list[int]:
    """Return the ids of the end tokens that a tokenizer.json holds itself; empty if it holds none."""
    rule = definition.get(_RULE) or {}
    groups = [(step.get("special_tokens") or {}).get(_ENDS) for step in rule.get("processors") or [rule]]
    return [token for group in groups if isinstance(group, dict) for token in group["ids"]]


def _with_unused(rule: dict[str, Any] | None, group: dict[str, Any]) -> dict[str, Any]:
    """Return a post-processor with one more special token, which it never adds."""
    if rule is not None and rule["type"] == "TemplateProcessing":
        return {**rule, "special_tokens": {**rule["special_tokens"], **group}}
    first, second = ({"Sequence": {"id": sequence, "type_id": 0}} for sequence in "AB")
    added = {"type": "TemplateProcessing", "single": [first], "pair": [first, second], "special_tokens": group}
    return added if rule is None else {"type": "Sequence", "processors": [rule, added]}


def without_ends(rule: dict[str, Any] | None) -> dict[str, Any] | None:
    """Return a post-processor as it was before `Tokenizer` stored end tokens in it."""
    last = rule["processors"][-1] if rule and rule["type"] == "Sequence" and rule["processors"] else rule
    groups = (last or {}).get("special_tokens") or {}
    if rule is None or last is None or _ENDS not in groups:
        return rule
    others = {name: group for name, group in groups.items() if name != _ENDS}
    if others or last["single"] != [{"Sequence": {"id": "A", "type_id": 0}}]:
        return {**rule, "special_tokens": others}
    return None if last is rule else rule["processors"][0]


def _specials(library: tokenizers.Tokenizer) -> dict[int, str]:
    added = library.get_added_tokens_decoder()
    return {token: content.content for token, content in added.items() if content.special}


def _kind(definition: dict[str, Any], pieces: TokenBytes) -> str:
    """Which of the four kinds a tokenizer.json is; one that might not keep every text exactly is imported."""
    model, before, decoder = (definition.get(part) or {} for part in ("model", "pre_tokenizer", "decoder"))
    affixes = model.get("continuing_subword_prefix") or model.get("end_of_word_suffix")
    # Ordinary added tokens are cut out of a text before all else, and may take spaces with them.
    ordinary = any(not token["special"] for token in definition.get("added_tokens") or [])
    if definition.get("normalizer") is not None or affixes or ordinary or not set(_SINGLE_BYTES) <= set(pieces.table):
        return "imported"
    # Nothing merges, and no word of several characters is taken whole.
    is_single = model["type"] == "BPE" and not model["merges"] and not model.get("ignore_merges")
    is_single = is_single and pieces.table[:256] == _SINGLE_BYTES
    if not before:
        spells_bytes = [step["type"] for step in decoder.get("decoders") or []] == ["ByteFallback", "Fuse"]
        return "char" if is_single and model.get("byte_fallback") and spells_bytes else "imported"
    if decoder.get("type") != "ByteLevel":
        return "imported"
    if before["type"] == "ByteLevel" and not before["add_prefix_space"] and is_single:
        return "bytes"
    kind = {"BPE": "bpe", "Unigram": "unigram"}.get(model["type"], "imported")
    return kind if words_and_digits(before)[0] else "imported"


def _utf8(text: str) -> bytes:
    try:
        return text.encode()
    except UnicodeEncodeError as error:
        code = ord(text[error.start])
        raise UserError(
            f"character {error.start + 1} of the text is U+{code:04X}, half of a surrogate pair: not Unicode text"
        ) from None


MAX_NORMALIZER_DEPTH = 8
"""Normalizers within normalizers: the library takes time and stack out of proportion for each level."""

MAX_GROWTH = 256
"""Of a text, by all replacements one after the other: a space that becomes three bytes has a growth of three."""

PARTS = ("normalizer", "pre_tokenizer", "post_processor", "decoder")


def check_bounds(definition: dict[str, Any], origin: str) -> None:
    """`UserError`, which begins with `origin`, for token ids or nesting beyond what tokenizers have."""
    model, added = definition["model"], definition.get("added_tokens") or ()
    vocabulary = model.get("vocab") if isinstance(model, dict) else None
    ids = list(vocabulary.values()) if isinstance(vocabulary, dict) else []
    if isinstance(vocabulary, list) and len(vocabulary) > MAX_VOCABULARY:
        ids.append(len(vocabulary))
    ids += [token.get("id", 0) for token in added if isinstance(token, dict)]
    for token in ids:
        if not isinstance(token, int) or isinstance(token, bool) or not 0 <= token < MAX_VOCABULARY:
            raise UserError(f"{origin}: token id {str(token)[:40]}: expected 0 to {MAX_VOCABULARY - 1:,}")
    for part in PARTS:
        # Nested lists and mappings are counted without recursion, which has a limit of its own.
        deepest, growth, left = 0, 1.0, [(definition.get(part), 0)]
        while left:
            node, depth = left.pop()
            deepest = max(deepest, depth)
            if isinstance(node, dict) and isinstance(node.get("content"), str):
                growth *= max(1.0, len(node["content"].encode(errors="surrogatepass")))
            children = node.values() if isinstance(node, dict) else node if isinstance(node, list) else ()
            left.extend((child, depth + 1) for child in children if isinstance(child, dict | list))
        if deepest > 2 * MAX_NORMALIZER_DEPTH:  # a list and its items count as two levels
            raise UserError(f"{origin}: {part}: nested too deep; expected at most {MAX_NORMALIZER_DEPTH} levels")
        if growth > MAX_GROWTH:
            accepted = f"replacements that make it at most {MAX_GROWTH} times as long"
            raise UserError(f"{origin}: {part}: makes a text {growth:.3g} times as long; expected {accepted}")
