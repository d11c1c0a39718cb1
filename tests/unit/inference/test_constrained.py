"""A text under a constraint is valid by construction, whatever the tokenizer and whatever is chosen."""

import json
import random
import re
import sys
from typing import Any

import pytest
import tokenizers
from hypothesis import example, given, settings
from hypothesis import strategies as st
from tokenizers import decoders, models, normalizers

from linnet.core.errors import UserError
from linnet.data.tokenizer import Tokenizer
from linnet.inference.constrained import Grammar, constraint_of

pytest.importorskip("llguidance")
jsonschema = pytest.importorskip("jsonschema")


def metaspace(text_pieces: list[str], has_bytes: bool = True, name: str = "</s>") -> Tokenizer:
    """A tokenizer like Llama 2's: a space before each text, which is dropped again, and pieces for single bytes."""
    pieces = ["<unk>", name, *(f"<0x{byte:02X}>" for byte in range(256 * has_bytes)), *text_pieces]
    model = models.BPE({piece: place for place, piece in enumerate(pieces)}, [], unk_token="<unk>", byte_fallback=True)
    library = tokenizers.Tokenizer(model)
    library.normalizer = normalizers.Sequence([normalizers.Prepend("▁"), normalizers.Replace(" ", "▁")])
    steps = [decoders.Replace("▁", " "), decoders.ByteFallback(), decoders.Fuse(), decoders.Strip(" ", 1, 0)]
    library.decoder = decoders.Sequence(steps)
    library.add_special_tokens(["<unk>", name])
    return Tokenizer(json.loads(library.to_str()), "metaspace")


TEXTS = [
    '{"name": "Ana", "ages": [1, 20, 300], "ok": true}',
    "the cat sat on the mat é 😀",
    '[null, false]\n  {"a": 1}',
] * 3
TOKENIZERS = {
    kind: Tokenizer.train(kind, TEXTS, 300 if kind in ("bpe", "unigram") else None) for kind in ("bytes", "char")
}
TOKENIZERS |= {kind: Tokenizer.train(kind, TEXTS, 300) for kind in ("bpe", "unigram")}
TOKENIZERS["metaspace"] = metaspace(["▁", "▁▁", "a", "▁a", '▁{"', '"', '":', "▁the", "cat", "é", "▁\n▁"])
EVERY = pytest.mark.parametrize("kind", TOKENIZERS)


def walk(tokenizer: Tokenizer, seed: int, behind: str | None = None, max_tokens: int = 300, **constraint: Any):
    """The text of tokens that are drawn from the permitted ones, all alike, and whether it was ended; else None."""
    draw = random.Random(seed)
    prompt = [] if behind is None else tokenizer.encode(behind)
    given = constraint_of(**constraint)
    assert given is not None
    grammar, tokens = Grammar(tokenizer, given, prompt), list[int]()
    while len(tokens) < max_tokens and not grammar.is_finished:
        permitted = grammar.mask_V().nonzero()[:, 0].tolist()
        ends = set(permitted) & set(tokenizer.end_ids)
        assert bool(ends) == grammar.is_complete
        token = draw.choice(sorted(ends)) if ends and draw.random() < 0.3 else draw.choice(permitted)
        grammar.accept(token)
        if token not in tokenizer.end_ids:
            tokens.append(token)
    return tokenizer.decode(tokens, prompt), grammar.is_finished


SCALARS = st.one_of(
    st.just({"type": "null"}),
    st.just({"type": "boolean"}),
    st.builds(
        lambda low, span: {"type": "integer", "minimum": low, "maximum": low + span},
        st.integers(-50, 50),
        st.integers(0, 99),
    ),
    st.just({"type": "number", "minimum": 0, "maximum": 1}),
    st.builds(
        lambda low, span: {"type": "string", "minLength": low, "maxLength": low + span},
        st.integers(0, 2),
        st.integers(0, 3),
    ),
    st.sampled_from([{"type": "string", "pattern": "^[a-zé]{1,3}$"}, {"type": "string", "format": "date"}]),
    st.lists(st.one_of(st.none(), st.booleans(), st.integers(-9, 9), st.text(max_size=3)), min_size=1, max_size=3).map(
        lambda values: {"enum": values}
    ),
)


def _array(items: dict[str, Any], low: int, span: int) -> dict[str, Any]:
    return {"type": "array", "items": items, "minItems": low, "maxItems": low + span}


def _object(properties: dict[str, Any], optional: set[str]) -> dict[str, Any]:
    required = [name for name in properties if name not in optional]
    return {"type": "object", "properties": properties, "required": required, "additionalProperties": False}


NAMES = st.text(st.characters(exclude_categories=["Cs"]), max_size=3)
SCHEMAS = st.recursive(
    SCALARS,
    lambda inner: st.one_of(
        st.builds(_array, inner, st.integers(0, 1), st.integers(0, 2)),
        st.builds(_object, st.dictionaries(NAMES, inner, max_size=3), st.sets(NAMES, max_size=2)),
        st.builds(lambda one, other: {"anyOf": [one, other]}, inner, inner),
    ),
    max_leaves=4,
)


@EVERY
@settings(max_examples=10, deadline=None)
@given(schema=SCHEMAS, seed=st.integers(0, 999))
@example(schema={"type": "array", "maxItems": 0}, seed=0)
@example(schema={"type": "object", "properties": {"é😀": {"enum": ['"\\\n\x00']}}, "required": ["é😀"]}, seed=0)
def test_a_finished_text_is_json_of_the_schema(kind: str, schema: dict[str, Any], seed: int):
    text, is_finished = walk(TOKENIZERS[kind], seed, json_schema=schema)
    if is_finished:
        jsonschema.validate(json.loads(text), schema)
        assert not re.search(r"\s{23}", re.sub(r'"([^"\\]|\\.)*"', "", text))


def test_most_of_the_texts_do_finish():
    schema = _object({"a": _array({"type": "integer"}, 0, 2), "b": {"type": "string", "maxLength": 3}}, set())
    assert all(walk(TOKENIZERS["bytes"], seed, json_schema=schema)[1] for seed in range(20))


def test_whitespace_is_bounded():
    grammar = Grammar(TOKENIZERS["bytes"], constraint_of(json_schema={"type": "array"}))
    for byte in b"[\n" + b" " * 20:
        grammar.accept(byte)
    assert not grammar.mask_V()[list(b" \n\t")].any()
    own = {"type": "array", "x-guidance": {"whitespace_pattern": " +", "lenient": True}}
    grammar = Grammar(TOKENIZERS["bytes"], constraint_of(json_schema=own))  # a schema does not lift the bound
    for byte in b"[ ":
        grammar.accept(byte)
    assert not grammar.mask_V()[ord(" ")]


EXPRESSIONS = st.recursive(
    st.sampled_from(["a", "[b-d]", "é", "[^x]", "[0-9]", "/", r"\\", " ", "\n", "."]),
    lambda inner: st.one_of(
        st.lists(inner, min_size=1, max_size=3).map("".join),
        st.builds("(?:{}|{})".format, inner, inner),
        st.builds("(?:{}){}".format, inner, st.sampled_from(["?", "{0,2}", "{2}"])),
    ),
    max_leaves=5,
)


@EVERY
@settings(max_examples=10, deadline=None)
@given(expression=EXPRESSIONS, seed=st.integers(0, 999), behind=st.sampled_from([None, "", "the cat"]))
@example(expression=" a", seed=0, behind=None)
@example(expression="  ?", seed=1, behind=None)
def test_a_finished_text_matches_the_expression(kind: str, expression: str, seed: int, behind: str | None):
    text, is_finished = walk(TOKENIZERS[kind], seed, behind, regex=expression)
    assert is_finished
    assert re.fullmatch(expression, text), text


@EVERY
@settings(max_examples=10, deadline=None)
@given(choices=st.lists(NAMES.filter(bool), min_size=1, max_size=4), seed=st.integers(0, 999))
@example(choices=["a", "ab", "abc"], seed=0)
@example(choices=[' "', "\\n", "/*"], seed=1)
def test_a_finished_text_is_one_of_the_choices(kind: str, choices: list[str], seed: int):
    text, is_finished = walk(TOKENIZERS[kind], seed, choices=choices)
    assert is_finished
    assert text in choices


def test_every_choice_can_be_had_and_every_spelling_of_it():
    """Not only the tokens that the tokenizer itself would choose: the model decides."""
    tokenizer = TOKENIZERS["bpe"]
    assert {walk(tokenizer, seed, choices=["the cat", "the"])[0] for seed in range(40)} == {"the cat", "the"}
    permitted = Grammar(tokenizer, constraint_of(choices=["the cat"])).mask_V().nonzero()[:, 0].tolist()
    assert {b"t", b"the"} <= {tokenizer.pieces.table[token] for token in permitted}


def test_a_grammar_of_rules():
    lark = 'start: item ("," item)*\nitem: "x" | "(" start ")"'
    texts = {walk(TOKENIZERS["bytes"], seed, max_tokens=40, grammar=lark) for seed in range(10)}
    assert all(set(text) <= set("x(),") and text.count("(") == text.count(")") for text, done in texts if done)
    assert any("(" in text for text, done in texts if done)


def test_the_first_token_of_a_text_may_stand_for_other_bytes():
    tokenizer = TOKENIZERS["metaspace"]
    spaced, plain, space = (tokenizer.definition["model"]["vocab"][piece] for piece in ("▁a", "a", "▁"))

    def permitted(behind: list[int], regex: str) -> list[bool]:
        return Grammar(tokenizer, constraint_of(regex=regex), behind).mask_V()[[spaced, plain, space]].tolist()

    assert permitted([], "a") == [True, True, False]
    assert permitted([plain], "a") == [False, True, False]
    assert permitted([plain], " a") == [True, False, True]
    assert permitted([plain, tokenizer.end_id], "a") == [True, True, False]


def test_a_token_that_prints_nothing_may_lead_to_a_space():
    tokenizer = metaspace(["▁", "▁a"], has_bytes=False)
    space, spaced = (tokenizer.definition["model"]["vocab"][piece] for piece in ("▁", "▁a"))
    grammar = Grammar(tokenizer, constraint_of(regex=" a"))
    twin = grammar.fork()
    assert grammar.mask_V().nonzero()[:, 0].tolist() == [space]
    for token in (space, spaced):
        grammar.accept(token)
    assert grammar.is_finished
    assert twin.mask_V().nonzero()[:, 0].tolist() == [space], "a fork has a beginning of its own"


def test_the_token_of_unknown_text_is_never_permitted():
    definition = dict(TOKENIZERS["metaspace"].definition)
    definition["added_tokens"] = [token for token in definition["added_tokens"] if token["content"] != "<unk>"]
    tokenizer = Tokenizer(definition, "test")
    assert tokenizer.pieces.table[0] == b"<unk>"
    assert not Grammar(tokenizer, constraint_of(regex="<unk>")).mask_V()[0]


def test_the_end_is_permitted_only_where_the_text_is_complete_and_then_forced():
    tokenizer = metaspace(["a", "b"], name="</s>")
    grammar = Grammar(tokenizer, constraint_of(regex="ab?"))
    first, second = (tokenizer.definition["model"]["vocab"][piece] for piece in "ab")
    assert not grammar.mask_V()[tokenizer.end_id]
    grammar.accept(first)
    assert (grammar.is_complete, grammar.is_finished) == (True, False)
    assert grammar.mask_V()[tokenizer.end_id]
    ended = grammar.fork()
    ended.accept(tokenizer.end_id)
    assert ended.is_finished
    assert not grammar.is_finished
    grammar.accept(second)
    assert grammar.is_finished
    assert grammar.mask_V().nonzero()[:, 0].tolist() == [tokenizer.end_id] == ended.mask_V().nonzero()[:, 0].tolist()


def test_a_fork_goes_its_own_way():
    grammar = Grammar(TOKENIZERS["bytes"], constraint_of(choices=["ab", "ac"]))
    grammar.accept(ord("a"))
    twin = grammar.fork()
    twin.accept(ord("b"))
    assert twin.is_finished
    grammar.accept(ord("c"))
    assert grammar.is_finished


def test_a_token_that_is_not_permitted_is_not_accepted():
    with pytest.raises(AssertionError, match="token 98 is not permitted"):
        Grammar(TOKENIZERS["bytes"], constraint_of(regex="a")).accept(ord("b"))


def test_a_text_that_the_tokens_cannot_spell_is_reported():
    tokenizer = metaspace(["a"], has_bytes=False)
    grammar = Grammar(tokenizer, constraint_of(regex="ab"))
    grammar.accept(2)
    with pytest.raises(UserError, match=r"^regex: the text so far cannot be completed: no token of the tokenizer has"):
        grammar.mask_V()


def test_a_tokenizer_whose_tokens_stand_for_no_fixed_bytes_is_refused():
    library = tokenizers.BertWordPieceTokenizer()
    library.train_from_iterator(["ab ab"], show_progress=False, special_tokens=["[UNK]", "[END]"])
    with pytest.raises(UserError, match=r"^bert: decoder: WordPiece: expected ByteLevel; or"):
        Tokenizer(json.loads(library.to_str()), "bert")


@pytest.mark.parametrize(
    ("constraint", "message"),
    [
        ({"regex": "//(b"}, "regex: unclosed group, at character 3 of the expression"),
        ({"regex": "a{3,2}"}, "regex: invalid repetition count range, the start must be <= the end, at character 2 of"),
        ({"regex": r"\bfoo"}, "regex: lookarounds not supported yet"),
        ({"regex": "\\"}, "regex: an escape is incomplete"),
        ({"regex": "\ud800"}, "regex: not Unicode text"),
        ({"regex": 3}, "regex: 3: expected a text"),
        ({"json_schema": "[1"}, "json_schema: not JSON"),
        ({"json_schema": {"a": {1}}}, "json_schema: not JSON"),
        ({"json_schema": '"x"'}, "json_schema: schema must be an object or boolean"),
        ({"json_schema": False}, "json_schema: Unsatisfiable schema"),
        ({"json_schema": {"type": "strng"}}, "json_schema: Invalid type: strng"),
        (
            {"json_schema": {"properties": {"a": {"type": "array", "items": {"anyOf": [{}, {"not": {}}]}}}}},
            'json_schema: at /properties/a/items/anyOf/1: Unimplemented keys: ["not"]',
        ),
        (
            {"json_schema": {"$defs": {"x": {}}, "items": {"anyOf": [{"$ref": "#/$defs/x"}, {"not": {}}]}}},
            'json_schema: at /items/anyOf/1: Unimplemented keys: ["not"]',
        ),
        (
            {"json_schema": {"$ref": "#/$defs/a", "$defs": {"a": {"items": {"uniqueItems": True}}}}},
            'json_schema: at /$defs/a/items: Unimplemented keys: ["uniqueItems"]',
        ),
        (
            {"json_schema": {"items": {"type": "string", "pattern": "x(?=y)"}}},
            "json_schema: at /items: look-around, including look-ahead and look-behind, is not supported, at",
        ),
        ({"choices": "a"}, "choices: a: expected a list of texts that are not empty"),
        ({"choices": []}, "choices: []: expected a list"),
        ({"choices": ["a", ""]}, "choices: ['a', '']: expected a list"),
        ({"grammar": "start: foo"}, 'grammar: at 1(8): unknown name: "foo"'),
        ({"regex": "a", "choices": ["a"]}, "regex and choices: expected one constraint"),
    ],
)
def test_a_constraint_that_cannot_be_is_one_line_with_the_place(constraint: dict[str, Any], message: str):
    with pytest.raises(UserError) as caught:
        Grammar(TOKENIZERS["bytes"], constraint_of(**constraint))
    assert str(caught.value).startswith(message)
    assert "\n" not in str(caught.value)


def test_no_constraint():
    assert constraint_of() is None
    assert constraint_of(json_schema=True) is not None


def test_a_missing_library_is_named(monkeypatch: pytest.MonkeyPatch):
    monkeypatch.setitem(sys.modules, "llguidance", None)
    with pytest.raises(UserError, match=r"^regex: needs llguidance: pip install 'linnet\[constrained\]'$"):
        Grammar(TOKENIZERS["bytes"], constraint_of(regex="a"))


def test_tables_are_made_once_per_tokenizer(monkeypatch: pytest.MonkeyPatch):
    tokenizer = Tokenizer.train("bytes", [])
    Grammar(tokenizer, constraint_of(regex="a"))
    monkeypatch.setattr("linnet.inference.constrained.GrammarVocabulary", None)
    Grammar(tokenizer.parsing_special(), constraint_of(regex="b"))
