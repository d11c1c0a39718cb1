"""SentencePiece models of many kinds, trained on a few sentences, and texts that are hard for them."""

import io
import unicodedata
from typing import Any

from sentencepiece import SentencePieceTrainer

BPE = {"model_type": "bpe"}
SYMBOLS = {"user_defined_symbols": ["[SEP]", "<|x|>", "▁▁", "\n", "ab", "abc", "bc", "e\u0301", "ﬁ", "Lily"]}
OPTIONS: dict[str, dict[str, Any]] = {
    "unigram": {},
    "unigram like PLDR-LLM's": {
        "byte_fallback": True,
        "split_digits": True,
        "user_defined_symbols": ["[SEP]", "[CLS]"],
        **{"pad_id": 0, "unk_id": 1, "bos_id": 2, "eos_id": 3},
        **{"pad_piece": "[PAD]", "unk_piece": "[UNK]", "bos_piece": "[START]", "eos_piece": "[END]"},
    },
    "unigram, text as it is": {
        "byte_fallback": True,
        "normalization_rule_name": "identity",
        "add_dummy_prefix": False,
        "remove_extra_whitespaces": False,
    },
    "unigram, spaces collapsed, no prefix": {"normalization_rule_name": "identity", "add_dummy_prefix": False},
    "unigram, prefix, spaces kept": {"normalization_rule_name": "nfkc", "remove_extra_whitespaces": False},
    "unigram, case folded": {"normalization_rule_name": "nmt_nfkc_cf", "unk_surface": "<?>"},
    "unigram with symbols": {**SYMBOLS, "byte_fallback": True},
    "unigram with symbols, text as it is": {**SYMBOLS, "normalization_rule_name": "identity"},
    "unigram with pieces of spaces": {"allow_whitespace_only_pieces": True, "remove_extra_whitespaces": False},
    "unigram with a symbol of two spaces": {"user_defined_symbols": ["a  b"]},
    "unigram over words": {"split_by_whitespace": False},
    "bpe": BPE,
    "bpe with bytes": {**BPE, "byte_fallback": True, "split_digits": True, "normalization_rule_name": "identity"},
    "bpe with symbols": {**BPE, **SYMBOLS, "byte_fallback": True, "remove_extra_whitespaces": False},
    "bpe over words": {**BPE, "split_by_whitespace": False, "normalization_rule_name": "nfkc_cf"},
    "bpe with symbols, text as it is": {**BPE, **SYMBOLS, "normalization_rule_name": "identity"},
}
SENTENCES = [
    "Once upon a time there was a girl named Lily. Lily's dog said: \"don't go, Lily!\"",
    "The abc of cabs: a  b,  c... 1234567 and 89!!! -----",
    "naïve café, Việt Nam: ấ ầ ệ; 東京 は 日本 の 首都; 한국어 각; ﬁ ﬂ ① ½ ▁ [SEP] <0x41>",
]
NASTY = [
    *["", " ", "   ", "\n", "\t \r\n", "\x00", "a\x00b", "\x01", "\u200b", "\ufeffbom \ufffd \uffff", "\U0010ffff"],
    *[" leading and trailing  ", "two  spaces\n\nand\ttabs \u3000 \xa0", "▁", "▁▁a ▁▁ b▁", " ▁", "▁ a ▁"],
    *["<0x41><0x0A>", "</s><s><unk>", "[END]x[PAD][UNK]", "[SEP] y[SEP]", "x [SEP]", "[SEP", "▁[SEP]▁▁[SEP]\n"],
    *["e\u0301e\u0301\u0301 e\u0302\u0301", "a\u0323\u0302 a\u0302\u0323", "\u0301", "ﬁ\u0301", "①\u0301¨\u0301"],
    *["\u1100\u1161\u11a8\u1100\u1161", "ｶﾞ", "\u0344\u0958", "👩‍👩‍👧‍👦 🏳️‍🌈", "Å Ω ﷺ", "abcbcab Lilyabc", "fiﬁ"],
    *["!!!!!!!", "?" * 10, "a!!!!! " * 7, "..... ----- =====", "aaaaaaaaaaa", "xx" * 40, "東" * 70 + "é" * 70],
]


def trained(**options: Any) -> bytes:
    """A small SentencePiece model."""
    model = io.BytesIO()
    decomposed = [unicodedata.normalize("NFD", sentence) for sentence in SENTENCES]
    settings = {"vocab_size": 420, "hard_vocab_limit": False, "num_threads": 1, "minloglevel": 2, **options}
    SentencePieceTrainer.train(sentence_iterator=iter((SENTENCES + decomposed) * 20), model_writer=model, **settings)
    return model.getvalue()
