"""Four tokenizers, each able to spell any text exactly, made with the `tokenizers` library.

Each function returns the data of a tokenizer.json. All have all 256 bytes and one special token, `<|end|>`. How runs of
digits are split is part of the data, as a step before the words.
"""

import json
import re
from collections import Counter
from collections.abc import Callable, Iterable, Iterator, Mapping
from itertools import pairwise
from typing import Any

import tokenizers
from tokenizers import AddedToken, Regex, decoders, models, pre_tokenizers, trainers

from linnet.core.errors import UserError
from linnet.data.pieces import BYTE_LEVEL
from linnet.data.sentencepiece import BYTES

END = "<|end|>"
DEFAULT_VOCAB_SIZE = 2048
MAX_TRAINED_VOCABULARY = 1 << 20
"""Tokens of a tokenizer that is trained here: the library takes memory for all that it is asked for."""

DIGITS = {
    "one": pre_tokenizers.Digits(individual_digits=True),
    "three": pre_tokenizers.Split(Regex(r"\p{N}{1,3}"), "isolated"),
}
"""How numbers are split before words are, by name: each digit alone, or groups of three from the left."""

SPLITS_DIGITS = ("bpe", "unigram")
"""The kinds with tokens of several digits, unless these are split."""

_BYTES_AND_END = 257
_CUT_CHARACTERS = 1 << 15

# What `use_regex` of the library splits at, with an optional mark after a word; for training a unigram. So with digits.
_MARK = "\x7f"
_MARKED_WORDS = r"(?:'s|'t|'re|'ve|'m|'ll|'d| ?\p{L}+| ?\p{N}+| ?[^\s\p{L}\p{N}\x7f]+)\x7f?|\s+(?!\S)|\s+|\x7f"
_MARKED_GROUPS = r"\p{N}{1,3}\x7f?"
_WORD = re.compile(r" ?[^\W\d_]+| ?\d+| ?[^\w\s]+")
_WORD_OR_GROUP = re.compile(r" ?[^\W\d_]+|\d{1,3}| ?[^\w\s]+")
_FREQUENT = 5
# The library gives the bytes that a unigram's text lacks the lowest learned score plus 0, 1, 2, ... times this,
# in an order that changes from run to run.
_UNSEEN_BYTE_STEP = 1e-4


def bytes_tokenizer(texts: Iterable[str], vocab_size: int | None, digits: str | None = None) -> dict[str, Any]:
    """One token per UTF-8 byte, its id the byte's value; nothing is learned from the texts."""
    library = tokenizers.Tokenizer(models.BPE(vocab=BYTE_LEVEL | {END: 256}, merges=[]))
    library.pre_tokenizer = pre_tokenizers.ByteLevel(add_prefix_space=False, use_regex=False)
    library.decoder = decoders.ByteLevel()
    return _with_end(library)


def char_tokenizer(texts: Iterable[str], vocab_size: int | None, digits: str | None = None) -> dict[str, Any]:
    """Every character of the texts is a token; other characters fall back to their UTF-8 bytes."""
    characters: set[str] = set()
    for text in texts:
        characters.update(text)
    size = _BYTES_AND_END + len(characters)
    if vocab_size is not None and size > vocab_size:
        raise UserError(
            f"too few for the text's {len(characters)} different characters, 256 bytes and the end token",
            field="vocab_size",
            value=vocab_size,
            accepted=f"at least {size}",
        )
    names = [*BYTES, END, *sorted(characters)]
    model = models.BPE(vocab={name: n for n, name in enumerate(names)}, merges=[], byte_fallback=True)
    library = tokenizers.Tokenizer(model)
    library.decoder = decoders.Sequence([decoders.ByteFallback(), decoders.Fuse()])
    return _with_end(library)


def bpe_tokenizer(texts: Iterable[str], vocab_size: int | None, digits: str | None = None) -> dict[str, Any]:
    """Byte-level byte-pair encoding; words are split as in GPT-2 and a pair is merged if it occurs twice."""
    trainer = trainers.BpeTrainer(
        vocab_size=vocab_size or DEFAULT_VOCAB_SIZE,
        min_frequency=2,
        initial_alphabet=sorted(BYTE_LEVEL),
        special_tokens=[END],
        show_progress=False,
    )
    library = _byte_level(models.BPE(), digits)
    library.train_from_iterator(_short(texts), trainer)
    return _with_end(library)


def unigram_tokenizer(texts: Iterable[str], vocab_size: int | None, digits: str | None = None) -> dict[str, Any]:
    """A unigram language model (Kudo, 2018) over byte-level pieces, so that it too can spell any text.

    The library looks for candidates among substrings that are followed by different characters, in a list of words
    that has each word once. A word at whose end every occurrence of it ends (`Lily`, unless there is a `Lilys`) is
    never a candidate, and the words of a text are split into pieces. So every frequent word is repeated once with a
    mark after it. The mark itself cannot become part of a piece, for the same reason.
    """
    trainer = trainers.UnigramTrainer(
        vocab_size=vocab_size or DEFAULT_VOCAB_SIZE,
        initial_alphabet=sorted(BYTE_LEVEL),
        special_tokens=[END],
        n_sub_iterations=4,
        unk_token=None,
        show_progress=False,
    )
    library = _byte_level(models.Unigram(), digits)
    words = library.pre_tokenizer
    groups = pre_tokenizers.Split(Regex(_MARKED_GROUPS), "isolated")
    marked_digits: dict[str | None, list[Any]] = {None: [], "one": [DIGITS["one"]], "three": [groups]}
    library.pre_tokenizer = pre_tokenizers.Sequence(
        [
            *marked_digits[digits],
            pre_tokenizers.Split(Regex(_MARKED_WORDS), "isolated"),
            pre_tokenizers.ByteLevel(add_prefix_space=False, use_regex=False),
        ]
    )
    library.train_from_iterator(_with_marked_words(_short(texts), _WORD if digits is None else _WORD_OR_GROUP), trainer)
    library.pre_tokenizer = words
    definition = _with_end(library)
    definition["model"]["vocab"] = _settled(definition["model"]["vocab"])
    return definition


TRAINERS: dict[str, Callable[[Iterable[str], int | None, str | None], dict[str, Any]]] = {
    "bytes": bytes_tokenizer,
    "char": char_tokenizer,
    "bpe": bpe_tokenizer,
    "unigram": unigram_tokenizer,
}
KINDS = tuple(TRAINERS)


def check_digits(kind: str, digits: str | None) -> None:
    """`UserError` if this kind does not split digits in this way; None is always fine."""
    if digits is not None and digits not in DIGITS:
        raise UserError(field="split_digits", value=digits, accepted=", ".join(DIGITS))
    if digits is not None and kind not in SPLITS_DIGITS:
        problem = f"the tokenizer {kind} has digits of its own"
        raise UserError(problem, field="split_digits", value=digits, accepted=f"{' or '.join(SPLITS_DIGITS)}, or none")


def words_and_digits(before: Mapping[str, Any]) -> tuple[bool, str | None]:
    """Whether the pre-tokenizer of a tokenizer.json makes GPT-2's words, and the name of its step for digits."""
    steps = before["pretokenizers"] if before["type"] == "Sequence" else [before]
    last = steps[-1] if steps else {"type": None}
    words = last["type"] == "ByteLevel" and not last["add_prefix_space"] and last.get("use_regex", True)
    names = {_step(rule): name for name, rule in DIGITS.items()}
    found = names.get(json.dumps(steps[0], sort_keys=True)) if len(steps) == 2 else None
    return bool(words) and (len(steps) == 1 or found is not None), found


def _step(rule: Any) -> str:
    """The data of one pre-tokenizer, as text with sorted fields."""
    library = tokenizers.Tokenizer(models.BPE())
    library.pre_tokenizer = rule
    return json.dumps(json.loads(library.to_str())["pre_tokenizer"], sort_keys=True)


def check_vocab_size(kind: str, vocab_size: int | None) -> None:
    """`UserError` if this kind cannot have so many tokens, whatever the text; None is always fine."""
    if vocab_size is None:
        return
    if kind not in KINDS:
        raise UserError(f"the tokenizer {kind} has its own", field="vocab_size", value=vocab_size, accepted="none")
    if vocab_size > MAX_TRAINED_VOCABULARY:
        raise UserError(field="vocab_size", value=vocab_size, accepted=f"at most {MAX_TRAINED_VOCABULARY:,}")
    if kind == "bytes" and vocab_size != _BYTES_AND_END:
        raise UserError(f"the bytes tokenizer always has {_BYTES_AND_END} tokens", field="vocab_size", value=vocab_size)
    if vocab_size < fewest_tokens(kind):
        raise UserError(
            field="vocab_size", value=vocab_size, accepted=f"more than {_BYTES_AND_END} (256 bytes and the end token)"
        )


def fewest_tokens(kind: str) -> int:
    """The tokens that a vocabulary of this kind has at least."""
    return _BYTES_AND_END + (kind != "bytes")


def cut_before_words(text: str) -> list[str]:
    """Parts of a long text; a cut lies before a space or newline, where the byte-level tokenizers split anyway.

    The library needs time and memory out of proportion for a text of many megabytes. A part without any such place is
    cut at its limit.
    """
    if len(text) <= _CUT_CHARACTERS:
        return [text]
    cuts = [0]
    while len(text) - cuts[-1] > _CUT_CHARACTERS:
        limit = cuts[-1] + _CUT_CHARACTERS
        # The last place where a space or newline follows a visible character.
        places = range(limit - 1, cuts[-1], -1)
        cuts.append(next((at for at in places if text[at] in " \n" and not text[at - 1].isspace()), limit))
    return [text[start:end] for start, end in pairwise([*cuts, len(text)])]


def _short(texts: Iterable[str]) -> Iterator[str]:
    return (part for text in texts for part in cut_before_words(text))


def _with_marked_words(texts: Iterable[str], word_pattern: re.Pattern[str]) -> Iterator[str]:
    words: Counter[str] = Counter()
    for text in texts:
        words.update(word_pattern.findall(text))
        yield text
    for word, count in words.items():
        if count >= _FREQUENT:
            yield word + _MARK


def _byte_level(model: Any, digits: str | None) -> tokenizers.Tokenizer:
    library = tokenizers.Tokenizer(model)
    words = pre_tokenizers.ByteLevel(add_prefix_space=False)
    library.pre_tokenizer = words if digits is None else pre_tokenizers.Sequence([DIGITS[digits], words])
    library.decoder = decoders.ByteLevel()
    return library


def _with_end(library: tokenizers.Tokenizer) -> dict[str, Any]:
    library.add_special_tokens([AddedToken(END, special=True, normalized=False)])
    definition: dict[str, Any] = json.loads(library.to_str())
    return definition


def _settled(vocabulary: list[tuple[str, float | None]]) -> list[tuple[str, float]]:
    """The same unigram vocabulary for the same text, every time.

    The library adds up its expectations in the order of a randomized hash table. Rounding takes the last digits'
    noise away, and every byte within reach of the lowest score gets exactly that score. So does the mark. Without any
    text there are no scores.
    """
    learned = {piece: score or 0.0 for piece, score in vocabulary if piece != END}
    lowest = min(learned.values())
    unseen = lowest + 256.5 * _UNSEEN_BYTE_STEP
    mark = next(piece for piece, byte in BYTE_LEVEL.items() if byte == ord(_MARK))

    def settle(piece: str, score: float) -> float:
        is_low = piece == mark or (len(piece) == 1 and score < unseen)
        return round(lowest if is_low else score, 4)

    pieces = sorted((-settle(piece, score), piece) for piece, score in learned.items())
    return [(END, 0.0), *((piece, -score) for score, piece in pieces)]
