"""Conversion of tokenizers to llama.cpp's vocabularies: tokens with types, merges or scores, and a pre-tokenizer.

llama.cpp's `gpt2` merges byte-level pieces by rank within words that a named pre-tokenizer splits. Its `llama` merges
characters by the score of the result over the whole text, with a mark in the place of spaces, and spells unknown text
as bytes. Its `t5` takes the pieces with the largest sum of scores, and has one token for everything unknown.
"""

from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass, field
from typing import Any

from linnet.core.errors import UserError, note
from linnet.data.pieces import BYTE_LEVEL
from linnet.data.sentencepiece import BYTES, SPACE, SentencePieceDefinition
from linnet.data.tokenizer import Tokenizer
from linnet.interop.gguf.architecture import Metadata

NORMAL, UNKNOWN, CONTROL, USER_DEFINED, UNUSED, BYTE = range(1, 7)
"""Types of tokens in the format."""

_GPT2 = r"'s|'t|'re|'ve|'m|'ll|'d| ?\p{L}+| ?\p{N}+| ?[^\s\p{L}\p{N}]+|\s+(?!\S)|\s+"
_DIGIT = r"\p{N}"
_ENDINGS = r"(?i:'s|'t|'re|'ve|'m|'ll|'d)|[^\r\n\p{L}\p{N}]?\p{L}+"
_REST = r" ?[^\s\p{L}\p{N}]+[\r\n]*|\s*[\r\n]+|\s+(?!\S)|\s+"
_LLAMA3, _QWEN2 = rf"{_ENDINGS}|\p{{N}}{{1,3}}|{_REST}", rf"{_ENDINGS}|\p{{N}}|{_REST}"

Cuts = tuple[str, ...]
"""Expressions that split a text one after the other; matches and the text between them become pieces."""

PRE_TOKENIZERS: dict[str, tuple[Cuts, bool]] = {
    "gpt-2": ((_GPT2,), False),
    "smollm": ((_DIGIT, _GPT2), False),
    "llama-bpe": ((_LLAMA3,), True),
    "smaug-bpe": ((_LLAMA3,), False),
    "qwen2": ((_QWEN2,), False),
}
"""Pre-tokenizers of llama.cpp: how each splits, and whether a whole word that is a token is used without merging."""

# llama.cpp requires a list of merges, and the format has no empty list. No merge produces the halves of this pair.
_NEVER = "ĀĀ ĀĀ"


@dataclass(frozen=True)
class FileVocabulary:
    """The vocabulary of a file.

    model: `gpt2`, `llama` or `t5`; pre: name of the pre-tokenizer; kinds, scores: of the tokens; unigrams: metadata
    that only `t5` has.
    """

    model: str
    pre: str
    tokens: list[str]
    kinds: list[int]
    end: int
    merges: list[str] | None = None
    scores: list[float] | None = None
    space_first: bool = False
    unigrams: Metadata = field(default_factory=dict)

    @property
    def metadata(self) -> Metadata:
        """Metadata by key; a text begins with the end token, as in linnet."""
        fields = {
            "model": self.model,
            "pre": self.pre,
            "tokens": self.tokens,
            "token_type": self.kinds,
            "bos_token_id": self.end,
            "eos_token_id": self.end,
            "add_bos_token": True,
            "add_eos_token": False,
            "add_space_prefix": self.space_first,
        }
        fields |= {} if self.merges is None else {"merges": self.merges or [_NEVER]}
        fields |= {} if self.scores is None else {"scores": self.scores}
        fields |= self.unigrams
        return {f"tokenizer.ggml.{key}": value for key, value in fields.items()}


def vocabulary_of(tokenizer: Tokenizer, definition: Mapping[str, Any], size: int, origin: str) -> FileVocabulary:
    """Convert a tokenizer for a model with `size` tokens; `UserError` if llama.cpp has no equivalent.

    definition: its tokenizer.json. Whether both produce the same ids is checked on texts (`export`).
    """
    described = SentencePieceDefinition.read(definition)
    if described is not None:
        added = [token for token in definition.get("added_tokens") or [] if token["id"] >= len(described.pieces)]
        return _of_sentencepiece(described, [token["content"] for token in added], size, origin)
    if definition["model"]["type"] != "BPE":
        kind = "unigram" if tokenizer.kind == "unigram" else definition["model"]["type"]
        raise UserError(f"{origin}: model.type: {kind}: llama.cpp has none over bytes; expected bytes, char or bpe")
    if tokenizer.kind == "char":  # nothing merges; spaces are written with a mark
        vocab = definition["model"]["vocab"]
        if SPACE in vocab:
            problem = f"has {SPACE!r}, which llama.cpp takes for a space; expected it not to"
            raise UserError(f"{origin}: model.vocab: {problem}")
        marked = {SPACE if name == " " else name: token for name, token in vocab.items()}
        tokens, kinds = _listed(marked, definition, tokenizer.end_id, size)
        return FileVocabulary("llama", "default", tokens, kinds, tokenizer.end_id, scores=[0.0] * size)
    return _of_byte_level(definition, tokenizer.end_id, size, origin)


def _of_byte_level(definition: Mapping[str, Any], end: int, size: int, origin: str) -> FileVocabulary:
    for fault in _byte_level_faults(definition):
        raise UserError(f"{origin}: {fault}")
    if definition.get("normalizer"):
        note(f"{origin}: normalizer: NFC: llama.cpp has none, so a text in another form has other ids there")
    model = definition["model"]
    merges = [pair if isinstance(pair, str) else " ".join(pair) for pair in model["merges"]]
    pre = _pre_tokenizer(definition, bool(model.get("ignore_merges")), bool(merges), origin)
    tokens, kinds = _listed(model["vocab"], definition, end, size)
    return FileVocabulary("gpt2", pre, tokens, kinds, end, merges)


def _byte_level_faults(definition: Mapping[str, Any]) -> Iterator[str]:
    model = definition["model"]
    for name in ("continuing_subword_prefix", "end_of_word_suffix"):
        if model.get(name):
            yield f"model.{name}: {model[name]!r}: expected none"
    missing = sorted(BYTE_LEVEL.keys() - model["vocab"].keys())
    if missing:
        yield f"model.vocab: has no {missing[0]!r}; expected every byte as GPT-2 writes it"
    normalizer = (definition.get("normalizer") or {}).get("type", "NFC")
    if normalizer != "NFC":
        yield f"normalizer: {normalizer}: llama.cpp changes no text; expected none, or NFC"
    decoder = (definition.get("decoder") or {}).get("type")
    if decoder != "ByteLevel":
        yield f"decoder: {decoder}: llama.cpp prints pieces as GPT-2 does; expected ByteLevel"
    for token in definition.get("added_tokens") or []:
        strips = [flag for flag in ("lstrip", "rstrip", "single_word") if token[flag]]
        if strips and not token["special"]:
            yield f"added_tokens: {token['content']!r}: {strips[0]}: true: expected false"


def _pre_tokenizer(definition: Mapping[str, Any], whole_words: bool, merges: bool, origin: str) -> str:
    """Return its name in llama.cpp; where nothing merges and no word is used whole, splitting has no effect."""
    cuts = cuts_of(definition.get("pre_tokenizer"), origin)
    if not merges and not whole_words:
        return "gpt-2"
    names = [name for name, rule in PRE_TOKENIZERS.items() if rule == (cuts, whole_words)]
    if not names:
        expressions = "; ".join(cuts) or "none"
        raise UserError(
            f"{origin}: pre_tokenizer: {expressions}, ignore_merges {str(whole_words).lower()}: unknown to llama.cpp;"
            f" expected that of {', '.join(PRE_TOKENIZERS)}"
        )
    return names[0]


def cuts_of(step: dict[str, Any] | None, origin: str) -> Cuts:
    """Return the expressions of a pre-tokenizer; `UserError` for another step, or one that adds a space."""
    kind = None if step is None else step["type"]
    if step is None:
        return ()
    if kind == "Sequence":
        return tuple(cut for part in step["pretokenizers"] for cut in cuts_of(part, origin))
    if kind == "ByteLevel" and not step["add_prefix_space"]:
        return (_GPT2,) if step.get("use_regex", True) else ()
    if kind == "Digits" and step["individual_digits"]:
        return (_DIGIT,)
    if kind == "Split" and "Regex" in step["pattern"] and step["behavior"] == "Isolated" and not step["invert"]:
        return (str(step["pattern"]["Regex"]),)
    raise UserError(f"{origin}: pre_tokenizer.type: {kind}: llama.cpp has no such step; expected ByteLevel, as GPT-2's")


def _sentencepiece_faults(described: SentencePieceDefinition) -> Iterator[str]:
    unused, expected = len(described.unused), "expected none"
    if described.kind == "Unigram":  # llama.cpp's `t5`
        expected = "expected none with unigrams"
        if described.byte_fallback:
            yield "model.byte_fallback: true: llama.cpp's unigrams have no bytes; expected false, or BPE"
        if described.collapse and not described.dummy_prefix:
            both = "expected both or the second alone"
            yield f"normalizer: makes one space of several and puts none first; {both}"
        if described.user_defined:
            yield f"sentencepiece:user_defined: {len(described.user_defined)} pieces: {expected}"
    else:  # llama.cpp's `llama`
        if not described.byte_fallback:
            yield "model.byte_fallback: false: expected true"
        if described.charsmap:
            changes = "llama.cpp changes no text; expected a model without rules (identity)"
            yield f"normalizer: Precompiled: {changes}"
        if described.collapse:
            yield "normalizer: makes one space of several; expected a model that keeps them"
    if unused:
        yield f"sentencepiece:unused: {unused} pieces: {expected}"


def _of_sentencepiece(described: SentencePieceDefinition, added: list[str], size: int, origin: str) -> FileVocabulary:
    """added: names of the control tokens behind the pieces."""
    for fault in _sentencepiece_faults(described):
        raise UserError(f"{origin}: {fault}")
    unigrams = described.kind == "Unigram"
    kinds = [NORMAL] * len(described.pieces)
    for token in described.reserved:
        kinds[token] = BYTE if described.is_byte(token) else CONTROL
    for token in described.user_defined:
        kinds[token] = USER_DEFINED
    kinds[described.unknown] = UNKNOWN
    tokens, kinds = _filled([*described.pieces, *added], kinds + [CONTROL] * len(added), size)
    scores = described.scores + [0.0] * (size - len(described.scores))
    of_unigrams: Metadata = {}
    if unigrams:
        # Unused tokens are control tokens, because other types would be pieces of score 0.
        kinds = [CONTROL if kind == UNUSED else kind for kind in kinds]
        of_unigrams = {"unknown_token_id": described.unknown, "remove_extra_whitespaces": described.collapse}
        of_unigrams |= {"precompiled_charsmap": described.charsmap} if described.charsmap else {}
    return FileVocabulary(
        model="t5" if unigrams else "llama",
        pre="default",
        tokens=tokens,
        kinds=kinds,
        end=described.end,
        scores=scores,
        space_first=described.dummy_prefix,
        unigrams=of_unigrams,
    )


def _listed(vocab: dict[str, int], definition: Mapping[str, Any], end: int, size: int) -> tuple[list[str], list[int]]:
    """Return tokens in the order of their ids, and their types."""
    added = definition.get("added_tokens") or []
    by_id = {token: name for name, token in vocab.items()} | {token["id"]: token["content"] for token in added}
    special = {token["id"]: CONTROL if token["special"] else USER_DEFINED for token in added} | {end: CONTROL}
    names = [by_id.get(token) for token in range(max(by_id) + 1)]
    kinds = [special.get(token, BYTE if name in BYTES else NORMAL) for token, name in enumerate(names)]
    return _filled(names, kinds, size)


def _filled(names: Iterable[str | None], kinds: list[int], size: int) -> tuple[list[str], list[int]]:
    """Fill up to the model's number of tokens, with names for ids that have none."""
    listed: list[str | None] = [*names]
    listed += [None] * (size - len(listed))
    kinds = [*kinds, *[UNUSED] * (size - len(kinds))]
    tokens = [f"[UNUSED_{token}]" if name is None else name for token, name in enumerate(listed)]
    return tokens, [UNUSED if name is None else kind for name, kind in zip(listed, kinds, strict=True)]
