"""Conversion of tiktoken's ranks (lines of a token in base64 and its id) to tokenizers that produce the same ids.

A file of ranks does not say how a text is split before its parts are merged, nor what its special tokens are: both come
from the name of a known encoding, or the expression is given.
"""

import base64
import binascii
import json
import re
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import tokenizers
from tokenizers import AddedToken, Regex, decoders, models, pre_tokenizers

from linnet.core.bounds import MAX_VOCABULARY
from linnet.core.errors import UserError
from linnet.core.files import read_bytes
from linnet.data.pieces import BYTE_LEVEL
from linnet.data.tokenizer import Tokenizer

END = "<|endoftext|>"

RANK_LINE = re.compile(rb"([A-Za-z0-9+/]+={0,2}) (\d+)")
"""A line of a file of ranks: a token in base64, and its id."""

_CHARACTERS = {byte: character for character, byte in BYTE_LEVEL.items()}

# tiktoken writes the same rules with possessive quantifiers and `$`, which Oniguruma reads as the end of a line.
_GPT2 = r"'s|'t|'re|'ve|'m|'ll|'d| ?\p{L}+| ?\p{N}+| ?[^\s\p{L}\p{N}]+|\s+(?!\S)|\s+"
_REST = r"| ?[^\s\p{L}\p{N}]+[\r\n]*|\s*[\r\n]+|\s+(?!\S)|\s+"
_CL100K = r"(?i:'s|'t|'re|'ve|'m|'ll|'d)|[^\r\n\p{L}\p{N}]?\p{L}+|\p{N}{1,3}" + _REST
_UPPER, _LOWER = r"[\p{Lu}\p{Lt}\p{Lm}\p{Lo}\p{M}]", r"[\p{Ll}\p{Lm}\p{Lo}\p{M}]"
_O200K = (
    rf"[^\r\n\p{{L}}\p{{N}}]?{_UPPER}*{_LOWER}+(?i:'s|'t|'re|'ve|'m|'ll|'d)?"
    rf"|[^\r\n\p{{L}}\p{{N}}]?{_UPPER}+{_LOWER}*(?i:'s|'t|'re|'ve|'m|'ll|'d)?"
    r"|\p{N}{1,3}| ?[^\s\p{L}\p{N}]+[\r\n/]*|\s*[\r\n]+|\s+(?!\S)|\s+"
)
_FIM = ("<|fim_prefix|>", "<|fim_middle|>", "<|fim_suffix|>")
_LLAMA3 = (
    *("<|begin_of_text|>", "<|end_of_text|>"),
    *(f"<|reserved_special_token_{number}|>" for number in range(4)),
    *("<|start_header_id|>", "<|end_header_id|>", "<|reserved_special_token_4|>", "<|eot_id|>"),
    *(f"<|reserved_special_token_{number}|>" for number in range(5, 251)),
)


@dataclass(frozen=True)
class Encoding:
    """What a file of ranks does not say.

    pattern: the expression that splits a text. ranks: the number of tokens in the encoding's own file; only with it do
    the ids of the special tokens fit. special: ids of special tokens. end: the name of the end token.
    """

    pattern: str
    ranks: int | None = None
    special: Mapping[str, int] = field(default_factory=dict)
    end: str = END


ENCODINGS = {
    "gpt2": Encoding(_GPT2, 50_256, {END: 50_256}),
    "p50k": Encoding(_GPT2, 50_280, {END: 50_256}),
    "cl100k": Encoding(
        _CL100K,
        100_256,
        {END: 100_257, **dict(zip(_FIM, range(100_258, 100_261), strict=True)), "<|endofprompt|>": 100_276},
    ),
    "o200k": Encoding(_O200K, 199_998, {END: 199_999, "<|endofprompt|>": 200_018}),
    "llama3": Encoding(
        _CL100K, 128_000, {name: 128_000 + number for number, name in enumerate(_LLAMA3)}, "<|end_of_text|>"
    ),
}
"""Encodings by name: of OpenAI's models, and Llama 3."""


def find_encoding(pattern: str | None, ranks: Mapping[bytes, int], path: str | Path) -> Encoding:
    """The encoding of a name or of an expression, with special tokens that fit the ranks.

    Ranks that are not those of the named encoding, by their number, get one special token behind them, the end token.
    `UserError` for a missing or unknown name.
    """
    accepted = f"{', '.join(ENCODINGS)}, or the regular expression that splits its texts"
    if pattern is None:
        raise UserError(f"{path}: ranks of tiktoken do not say how a text is split", field="pattern", accepted=accepted)
    known = ENCODINGS.get(pattern)
    if known is None and re.fullmatch(r"\w+", pattern):
        raise UserError(field="pattern", value=pattern, accepted=accepted)
    if known is not None and known.ranks == len(ranks):
        return known
    return Encoding(known.pattern if known else pattern, special={END: max(ranks.values()) + 1})


def read_ranks(path: str | Path) -> dict[bytes, int]:
    """The id of each token, by its bytes; `UserError` names the file and a line that is none, or an id given twice."""
    ranks: dict[bytes, int] = {}
    owners: dict[int, int] = {}
    for number, line in enumerate(read_bytes(path).splitlines(), 1):
        if not line.strip():
            continue
        place, found = f"{path}, line {number}", RANK_LINE.fullmatch(line.strip())
        try:
            token = base64.b64decode(found[1], validate=True) if found else b""
        except binascii.Error:
            token = b""
        if found is None or not token:
            raise UserError(f"{place}: expected a token in base64, a space, and its id")
        rank = int(found[2][:20])
        if rank >= MAX_VOCABULARY:
            raise UserError(f"{place}: id {rank}: expected 0 to {MAX_VOCABULARY - 1:,}")
        if token in ranks or rank in owners:
            other = f"id {rank} is that of line {owners[rank]} too" if rank in owners else f"{token!r} has an id before"
            raise UserError(f"{place}: {other}; expected each once")
        ranks[token], owners[rank] = rank, number
    missing = [byte for byte in range(256) if bytes([byte]) not in ranks]
    if missing:
        raise UserError(f"{path}: no token for byte {missing[0]}, of {len(missing)} missing; expected all 256 bytes")
    return ranks


def tokenizer_from_tiktoken(
    path: str | Path, pattern: str | None, ends: Mapping[int | str, str] | None = None
) -> Tokenizer:
    """Convert ranks to a tokenizer with the ids of `tiktoken.Encoding.encode_ordinary`.

    pattern: a name of `ENCODINGS`, or an expression. ends: the end tokens; None: that of the encoding. A word that is a
    token is that token, whether or not merging its bytes leads there, as in tiktoken.
    """
    ranks = read_ranks(path)
    encoding = find_encoding(pattern, ranks, path)
    # Ids between those of the ranks belong to the vocabulary: the library numbers added tokens behind it.
    inside = {name: token for name, token in encoding.special.items() if token < max(ranks.values())}
    vocabulary = {_spelled(token): rank for token, rank in ranks.items()} | inside
    model = models.BPE(vocab=vocabulary, merges=list(_merges(ranks)), ignore_merges=True)
    library = tokenizers.Tokenizer(model)
    try:
        split = pre_tokenizers.Split(Regex(encoding.pattern), "isolated")
    except Exception as error:  # the library raises plain Exception
        raise UserError(f"not a regular expression ({error})", field="pattern", value=pattern) from None
    byte_level = pre_tokenizers.ByteLevel(add_prefix_space=False, use_regex=False)
    library.pre_tokenizer = pre_tokenizers.Sequence([split, byte_level])
    library.decoder = decoders.ByteLevel()
    specials = sorted(encoding.special, key=lambda name: encoding.special[name])
    library.add_special_tokens([AddedToken(name, special=True, normalized=False) for name in specials])
    definition: dict[str, Any] = json.loads(library.to_str())
    for token in definition["added_tokens"]:  # the library numbers them without the gaps between them
        token["id"] = encoding.special[token["content"]]
    return Tokenizer.parse(definition, path, ends or {encoding.end: f"{path}"})


def _merges(ranks: Mapping[bytes, int]) -> Iterator[tuple[str, str]]:
    """All pairs of tokens that make a token, in the order of its id: tiktoken merges whatever gives the lowest id."""
    for token in sorted(ranks, key=lambda each: ranks[each]):
        cuts = ((token[:cut], token[cut:]) for cut in range(1, len(token)))
        pairs = [pair for pair in cuts if pair[0] in ranks and pair[1] in ranks]
        for left, right in sorted(pairs, key=lambda pair: (ranks[pair[0]], ranks[pair[1]])):
            yield _spelled(left), _spelled(right)


def _spelled(token: bytes) -> str:
    return "".join(_CHARACTERS[byte] for byte in token)
