"""Constrained decoding: which tokens a JSON schema, a regular expression or a list of choices permits next.

The work is done by `llguidance` (an extra), which parses the bytes of the tokens. A text that its grammar has ended is
valid by construction, because a token is permitted only if the text with it can still be completed, and the end token
only where the text is complete. A text that `max_tokens` ends may be incomplete. Between the parts of a JSON text
stands one space, or one newline with at most `MAX_INDENT` spaces or tabs, or nothing.

Legend: `V` vocabulary of the tokenizer.
"""

import copy
import json
import re
from collections.abc import Collection, Iterator, Mapping, Sequence
from dataclasses import dataclass
from functools import lru_cache
from typing import Any, Self
from weakref import WeakKeyDictionary

import numpy as np
import torch
from torch import Tensor

from linnet.core.errors import UserError, check_kind
from linnet.data.pieces import TokenBytes
from linnet.data.tokenizer import Tokenizer

MAX_INDENT = 20
"""Of spaces or tabs behind a newline between the parts of a JSON text; llama.cpp has the same bound."""

_JSON_OPTIONS = {"whitespace_pattern": rf" |\n[ \t]{{0,{MAX_INDENT}}}", "lenient": False}

KINDS = ("json_schema", "regex", "choices", "grammar")
"""The kinds of constraints; keywords of `constraint_of` and of `LanguageModel.generate`."""


@dataclass(frozen=True)
class Constraint:
    """What a generated text must be.

    kind: one of `KINDS`. text: a JSON schema or a list of choices as JSON, a regular expression in the syntax of Rust's
    `regex` crate without look-around, or a grammar in llguidance's form of Lark.
    """

    kind: str
    text: str

    def lark(self) -> str:
        """The constraint as a Lark grammar of llguidance.

        no_forcing: every token that keeps the text valid is permitted. By default, where only one text can follow, the
        library would permit the first token of the tokenizer's own encoding of that text alone.
        """
        if self.kind == "json_schema":
            schema = json.loads(self.text)
            if isinstance(schema, bool):
                schema = {} if schema else {"enum": []}
            options = {"x-guidance": _JSON_OPTIONS} if isinstance(schema, dict) else {}
            rules = f"start: %json {json.dumps({**schema, **options} if options else schema)}"
        elif self.kind == "regex":
            rules = f"start: /{_lark_regex(self.text)}/"
        elif self.kind == "choices":
            rules = f"start: {' | '.join(map(json.dumps, json.loads(self.text)))}"
        else:
            rules = self.text
        return f'{rules}\n%llguidance {{"no_forcing": true}}'


def _lark_regex(regex: str) -> str:
    """A regular expression as it stands between slashes."""
    return re.sub(r"(?s)\\.|/|\n", lambda found: {"/": r"\/", "\n": r"\n"}.get(found[0], found[0]), regex)


def constraint_of(
    json_schema: Mapping[str, Any] | bool | str | None = None,
    regex: str | None = None,
    choices: Sequence[str] | None = None,
    grammar: str | None = None,
) -> Constraint | None:
    """The constraint that is given, or None; `UserError` for two of them, and for a value of another form.

    json_schema: as data, or as its JSON text. regex: the whole text must match it. choices: the text is one of them.
    grammar: Lark, of which the rule `start` gives the text.
    """
    given = {"json_schema": json_schema, "regex": regex, "choices": choices, "grammar": grammar}
    kinds = [kind for kind, value in given.items() if value is not None]
    if not kinds:
        return None
    if len(kinds) > 1:
        raise UserError(f"{' and '.join(kinds)}: expected one constraint")
    (kind,) = kinds
    value: Any = given[kind]
    if kind == "json_schema":
        try:
            return Constraint(kind, json.dumps(json.loads(value) if isinstance(value, str) else value))
        except (ValueError, TypeError, RecursionError) as error:
            raise UserError(f"not JSON ({error})", field=kind, accepted="a JSON schema") from None
    if kind == "choices":
        is_list = isinstance(value, Collection) and not isinstance(value, str | bytes | Mapping)
        if not is_list or not value or not all(isinstance(one, str) and one for one in value):
            raise UserError(field=kind, value=value, accepted="a list of texts that are not empty")
        return Constraint(kind, json.dumps(list(value)))
    if not isinstance(value, str):
        raise UserError(field=kind, value=value, accepted="a text")
    return Constraint(kind, value)


class GrammarVocabulary:
    """A tokenizer's tokens as llguidance reads them.

    Its ids are the token ids; then one more id for each token that stands for other bytes at the beginning of a text;
    then the 256 bytes, which only serve the parser. Tokens that print nothing, and the token of unknown text, have no
    bytes, and are never permitted.
    """

    def __init__(self, tokenizer: Tokenizer) -> None:
        from llguidance import LLTokenizer

        pieces, size = tokenizer.pieces, tokenizer.vocab_size
        never = {*tokenizer.end_ids, pieces.unknown}
        table = [b"" if token in never else piece for token, piece in enumerate(pieces.table)]
        opening = [b"" if token in never else piece for token, piece in enumerate(pieces.opening)]
        others = [token for token in range(size) if opening[token] != table[token]]
        self.size, self.end_ids = size, list(tokenizer.end_ids)
        self.silent_opening_V = np.array([bool(late and not first) for first, late in zip(opening, table, strict=True)])
        self.opening_ids_V = np.arange(size)
        self.opening_ids_V[others] = size + np.arange(len(others))
        # What llguidance asks of a tokenizer.
        self.is_tokenizer_wrapper, self.special_token_ids = True, self.end_ids
        self.eos_token_id, self.bos_token_id = tokenizer.end_id, None
        self.tokens = [*table, *(opening[token] for token in others), *(bytes([byte]) for byte in range(256))]
        wrapper: Any = self  # of the form of llguidance's own `TokenizerWrapper`
        self.library = LLTokenizer(wrapper, eos_token=tokenizer.end_id)
        self.matcher = lru_cache(maxsize=64)(self._matcher)

    def __call__(self, text: bytes | str) -> list[int]:
        """A text as the ids of its bytes; llguidance asks for tokens only where it forces them, which it does not."""
        return [len(self.tokens) - 256 + byte for byte in (text.encode() if isinstance(text, str) else text)]

    def _matcher(self, constraint: Constraint) -> Any:
        """A parser at the beginning of a text, of which each grammar takes a copy; `UserError` with the place."""
        try:
            matcher = _new_matcher(constraint, self.library)
        except UnicodeEncodeError as error:
            raise UserError(f"not Unicode text ({error})", field=constraint.kind) from None
        if matcher.is_error():
            raise UserError(_describe_error(constraint, matcher.get_error()), field=constraint.kind)
        return matcher


def _new_matcher(constraint: Constraint, library: Any) -> Any:
    from llguidance import LLMatcher, LLParserLimits

    grammar = LLMatcher.grammar_from_lark(constraint.lark())
    return LLMatcher(library, grammar, log_level=0, limits=LLParserLimits(verbose_errors=False))


_VOCABULARIES: WeakKeyDictionary[TokenBytes, GrammarVocabulary] = WeakKeyDictionary()
"""The tables of the tokenizers that are in use; those of 50,000 tokens take a tenth of a second to make."""


class Grammar:
    """The state of the parser for one stream: which tokens may come next."""

    def __init__(self, tokenizer: Tokenizer, constraint: Constraint, behind: Sequence[int] = ()) -> None:
        """behind: the tokens before the constrained text, such as its prompt, which are not part of it.

        `UserError` if `llguidance` is not installed, and for a constraint that it cannot read, with the place.
        """
        check_kind("constraint", constraint, Constraint, "a Constraint, as constraint_of(regex=...) makes it")
        try:
            import llguidance  # noqa: F401
        except ImportError:
            raise UserError("needs llguidance: pip install 'linnet[constrained]'", field=constraint.kind) from None
        if tokenizer.pieces not in _VOCABULARIES:
            _VOCABULARIES[tokenizer.pieces] = GrammarVocabulary(tokenizer)
        self.constraint = constraint
        self._vocabulary = _VOCABULARIES[tokenizer.pieces]
        self._matcher = self._vocabulary.matcher(constraint).deep_copy()
        self._reader = tokenizer.byte_reader(behind)
        self._has_ended = False
        self._mask_V: Tensor | None = None

    @property
    def is_finished(self) -> bool:
        """True if the text is complete and nothing can follow, or the end token has come."""
        return self._has_ended or bool(self._matcher.is_stopped())

    @property
    def is_complete(self) -> bool:
        """True if the text may end here."""
        return self._has_ended or bool(self._matcher.is_accepting())

    def mask_V(self) -> Tensor:
        """`[V]`, truth values: the tokens that may come next; end tokens only where the text is complete.

        Not to be changed. `UserError` if the text cannot be completed with the tokens of the tokenizer, or the parser
        gives up on a constraint that is too large.
        """
        if self._mask_V is None:
            self._mask_V = torch.from_numpy(self._permitted())
        return self._mask_V

    def accept(self, token: int) -> None:
        """Advance by a token, which the mask permits."""
        assert self.mask_V()[token], f"token {token} is not permitted"
        self._mask_V = None
        if token in self._vocabulary.end_ids:
            self._has_ended = True
            return
        token_id = self._vocabulary.opening_ids_V[token] if self._reader.is_opening else token
        if self._reader.bytes_of(token):
            self._matcher.consume_token(int(token_id))
            self._raise_error()

    def fork(self) -> Self:
        """An independent copy."""
        twin = copy.copy(self)
        twin._matcher, twin._reader = self._matcher.deep_copy(), copy.copy(self._reader)
        return twin

    def _permitted(self) -> "np.ndarray[Any, np.dtype[np.bool_]]":
        vocabulary = self._vocabulary
        permitted_V = np.zeros(vocabulary.size, dtype=bool)
        if not self.is_finished:
            packed = np.frombuffer(self._matcher.compute_bitmask(), dtype=np.uint8)
            self._raise_error()
            bits = np.unpackbits(packed, bitorder="little").astype(bool)
            if self._reader.is_opening:
                permitted_V |= bits[vocabulary.opening_ids_V]
            else:
                permitted_V |= bits[: vocabulary.size]
        permitted_V[vocabulary.end_ids] = self.is_complete
        if not permitted_V.any() and self._reader.is_opening:
            permitted_V |= vocabulary.silent_opening_V  # prints nothing, but the next token is no longer the first
        if not permitted_V.any():
            problem = "the text so far cannot be completed: no token of the tokenizer has the bytes that must follow"
            raise UserError(problem, field=self.constraint.kind)
        return permitted_V

    def _raise_error(self) -> None:
        if self._matcher.is_error():
            problem = self._matcher.get_error().splitlines()[0]
            raise UserError(f"llguidance gave up: {problem}", field=self.constraint.kind)


def _describe_error(constraint: Constraint, message: str) -> str:
    """One line that says what is wrong with a constraint, and where."""
    if constraint.kind == "grammar":
        return message.splitlines()[0]
    message = _reason(message)
    place = f"at {pointer}: " if (pointer := _schema_place(constraint, message)) else ""
    if message.endswith("lexer error"):
        return "an escape is incomplete: a backslash stands before the end of the expression or of a line"
    caret = re.search(r"(?m)^    ( *)\^+$", message)
    reason = re.search(r"(?m)^error: (.*)$", message)
    if not caret or not reason:
        return place + re.sub(r" in regex /.*$", "", message.splitlines()[0])
    before = len(caret[1])
    if constraint.kind == "regex":  # of which the library saw a form with escaped slashes
        regex = constraint.text
        before = next(size for size in range(len(regex) + 1) if len(_lark_regex(regex[:size])) >= before)
    return f"{place}{reason[1]}, at character {before + 1} of the expression"


def _reason(message: str) -> str:
    """An error of llguidance without the place in the grammar that was made for it."""
    place = r"(?s)^at \d+\(\d+\): (failed to compile JSON schema: |invalid regex .*? \(in regex\): )"
    message = re.sub(place, "", message)
    return re.split(r"\n +1 \| |<non-verbose/>", message)[0].strip()


def _schema_place(constraint: Constraint, reason: str) -> str:
    """JSON pointer of the smallest part of a schema that has the error by itself; empty for the schema as a whole."""
    if constraint.kind != "json_schema":
        return ""
    schema = json.loads(constraint.text)
    definitions = {key: schema[key] for key in ("$defs", "definitions") if isinstance(schema, dict) and key in schema}

    def search(part: Any, pointer: str) -> str:
        for step, child in _subschemas(part):
            if isinstance(child, dict):
                alone = Constraint("json_schema", json.dumps(definitions | child))
                if _reason(_new_matcher(alone, _bytes_alone()).get_error()) == reason:
                    return search(child, f"{pointer}/{step}")
        return pointer

    return search(schema, "")


@lru_cache(maxsize=1)
def _bytes_alone() -> Any:
    """A tokenizer of bytes, for parsers that only check."""
    return GrammarVocabulary(Tokenizer.train("bytes", [])).library


def _subschemas(schema: Any) -> Iterator[tuple[str, Any]]:
    """The schemas that stand directly in a schema, each with the steps of a JSON pointer to it."""
    if not isinstance(schema, dict):
        return
    for key, value in schema.items():
        if key in ("properties", "patternProperties", "$defs", "definitions") and isinstance(value, dict):
            yield from ((f"{key}/{name}", child) for name, child in value.items())
        elif key in ("anyOf", "oneOf", "allOf", "prefixItems", "items") and isinstance(value, list):
            yield from ((f"{key}/{place}", child) for place, child in enumerate(value))
        elif key in ("items", "additionalProperties", "additionalItems"):
            yield key, value
