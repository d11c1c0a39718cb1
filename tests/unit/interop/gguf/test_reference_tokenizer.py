"""Ids by the rule in a file are the ids of the tokenizer that the file was made from, for any text."""

import json
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from small_llamas import merging_pieces

from linnet.data.tokenizer import Tokenizer
from linnet.interop.gguf.export import TEXTS
from linnet.interop.gguf.reference import GgufTokenizer
from linnet.interop.gguf.vocabulary import PRE_TOKENIZERS, FileVocabulary, vocabulary_of
from linnet.interop.parity import SAMPLES, check_same_ids
from linnet.interop.sentencepiece import tokenizer_from_sentencepiece

KINDS = ("bytes", "char", "bpe", *PRE_TOKENIZERS)
UNIGRAM = {"model_type": "unigram", "byte_fallback": False}
ANY_TEXT = st.text(st.characters(exclude_categories=["Cs", "Cn", "Co"], exclude_characters="▁"), max_size=60)
PROSE = st.text("aeinst AT19'\n .!<>b/", max_size=80)


def vocabulary(tokenizer: Tokenizer, folder: Path) -> FileVocabulary:
    tokenizer.save(folder / "tokenizer.json")
    definition: Any = json.loads((folder / "tokenizer.json").read_text())
    return vocabulary_of(tokenizer, definition, tokenizer.vocab_size, "tokenizer.json")


@pytest.fixture(scope="module")
def pairs(tokenizer_of: Callable[[str], Tokenizer], tmp_path_factory: pytest.TempPathFactory) -> Any:
    folder = tmp_path_factory.mktemp("tokenizers")
    each = {kind: tokenizer_of(kind) for kind in KINDS}
    return [(kind, one, GgufTokenizer(vocabulary(one, folder).metadata)) for kind, one in each.items()]


@given(text=ANY_TEXT | PROSE)
@settings(max_examples=150, deadline=None)
def test_the_rule_makes_the_same_ids(pairs: Any, text: str):
    for kind, ours, rule in pairs:
        assert rule.encode(text) == ours.encode(text), kind


def test_texts_of_the_gate_hold_merges_and_what_merges_leave(pairs: Any):
    for kind, ours, rule in pairs:
        tokens = check_same_ids(ours, rule.encode, "rule", kind, TEXTS)
        assert tokens < sum(len(text.encode()) for text in TEXTS) * (1.01 if kind in ("bytes", "char") else 0.8)


def test_added_tokens_behind_a_gap_have_the_ids_of_the_file(tokenizer_of: Callable[[str], Tokenizer], tmp_path: Path):
    definition = json.loads(json.dumps(tokenizer_of("qwen2").definition))
    flags = definition["added_tokens"][0] | {"special": False}
    definition["added_tokens"] += [flags | {"content": f"<{name}>", "id": 400 + name} for name in range(2)]
    tokenizer = Tokenizer(definition, "here")
    found = vocabulary(tokenizer, tmp_path)
    assert [found.tokens.index(f"<{name}>") for name in range(2)] == tokenizer.encode("<0><1>") == [400, 401]
    check_same_ids(tokenizer, GgufTokenizer(found.metadata).encode, "rule", "here", TEXTS)


def test_whole_words_without_merges_need_their_pre_tokenizer(tokenizer_of: Callable[[str], Tokenizer], tmp_path: Path):
    definition = json.loads(json.dumps(tokenizer_of("llama-bpe").definition))
    definition["model"]["merges"] = []
    tokenizer = Tokenizer(definition, "here")
    found = vocabulary(tokenizer, tmp_path)
    assert (found.pre, found.merges) == ("llama-bpe", [])
    check_same_ids(tokenizer, GgufTokenizer(found.metadata).encode, "rule", "here", TEXTS)
    assert len(tokenizer.encode(" upon")) == 1


@pytest.mark.parametrize("first", [True, False])
def test_sentencepiece_merges_by_score(tmp_path: Path, texts: list[str], first: bool):
    tokenizer = tokenizer_from_sentencepiece(merging_pieces(tmp_path, texts, add_dummy_prefix=first))
    found = vocabulary(tokenizer, tmp_path)
    assert (found.model, found.space_first) == ("llama", first)
    check_same_ids(tokenizer, GgufTokenizer(found.metadata).encode, "rule", "small.model", TEXTS)


WRITTEN = ("identity", "nmt_nfkc", "nmt_nfkc_cf")
UNIGRAMS = [
    {"normalization_rule_name": rule, "remove_extra_whitespaces": collapse, "add_dummy_prefix": first}
    for rule in WRITTEN
    for collapse, first in ((False, True), (False, False), (True, True))
]


@pytest.fixture(scope="module")
def unigrams(texts: list[str], tmp_path_factory: pytest.TempPathFactory) -> list[tuple[Tokenizer, FileVocabulary]]:
    found = []
    for fields in UNIGRAMS:
        folder = tmp_path_factory.mktemp("unigrams")
        told = [*texts, *SAMPLES, "ﬁne ①② ｶﾞ é E\u0301 ｆｕｌｌ"]
        tokenizer = tokenizer_from_sentencepiece(merging_pieces(folder, told, **UNIGRAM, **fields, vocab_size=300))
        found.append((tokenizer, vocabulary(tokenizer, folder)))
    return found


@given(text=ANY_TEXT | PROSE | st.sampled_from([*TEXTS, "ﬁne ①② ｶﾞ E\u0301 नमस्ते ｆｕｌｌ\u00a0\u3000x", ""]))
@settings(max_examples=100, deadline=None)
def test_unigrams_of_sentencepiece(unigrams: list[tuple[Tokenizer, FileVocabulary]], text: str):
    """But for texts of spaces alone, before which llama.cpp puts no other."""
    for fields, (tokenizer, found) in zip(UNIGRAMS, unigrams, strict=True):
        rule = GgufTokenizer(found.metadata)
        ours = tokenizer.encode(text)
        assert found.model == "t5" and (rule.encode(text) == ours or not tokenizer.decode(ours).strip()), fields


@pytest.mark.parametrize(
    ("fields", "said"),
    [
        ({"model_type": "unigram"}, "model.byte_fallback: true: llama.cpp's unigrams have no bytes; expected false"),
        (
            {**UNIGRAM, "remove_extra_whitespaces": True, "add_dummy_prefix": False},
            "normalizer: makes one space of several and puts none first; expected both",
        ),
        ({**UNIGRAM, "user_defined_symbols": "<b>"}, "sentencepiece:user_defined: 1 pieces: expected none"),
        ({"byte_fallback": False}, "model.byte_fallback: false: expected true"),
        ({"normalization_rule_name": "nmt_nfkc"}, "normalizer: Precompiled: llama.cpp changes no text"),
        ({"remove_extra_whitespaces": True}, "normalizer: makes one space of several"),
    ],
)
def test_sentencepiece_models_of_other_kinds(tmp_path: Path, texts: list[str], fields: dict[str, Any], said: str):
    path = merging_pieces(tmp_path, texts, **fields)
    with pytest.raises(ValueError, match=f"tokenizer.json: {said}"):
        vocabulary(tokenizer_from_sentencepiece(path), tmp_path)
