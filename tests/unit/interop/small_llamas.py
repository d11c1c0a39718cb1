"""Descriptions of small models in all the shapes that llama.cpp's llama and qwen3 have."""

from pathlib import Path
from typing import Any

import pytest

YARN = {"scaling": {"kind": "yarn", "factor": 4, "trained": 64, "attention_factor": 1.3}}
LLAMA3 = {"kind": "llama3", "factor": 8.0, "trained": 64, "fast": 4.0, "slow": 1.0}
SHAPES: dict[str, dict[str, Any]] = {
    "tied": {},
    "untied, more tokens than the tokenizer": {"head": {"tied": False}, "vocab_size": 320},
    "groups of heads of a width": {"mixer": {"kv_heads": 2, "head_dim": 6}, "kind": "char"},
    "adjacent pairs, a larger base": {"mixer": {"rotary": {"pairing": "adjacent", "base": 5e4}}, "kind": "bytes"},
    "biases, as Qwen 2": {"mixer": {"bias": True, "out_bias": False}},
    "all biases, linear": {
        "mixer": {"bias": True, "rotary": {"scaling": {"kind": "linear", "factor": 4}}},
        "feed_forward": {"bias": True},
    },
    "ntk": {"mixer": {"rotary": {"scaling": {"kind": "ntk", "factor": 4}}}},
    "yarn": {"mixer": {"rotary": YARN}},
    "llama3": {"mixer": {"head_dim": 32, "rotary": {"base": 5e5, "scaling": LLAMA3}}},
    "qwen3": {"mixer": {"query_key_norm": {}, "kv_heads": 1, "bias": True, "out_bias": False}},
    "qwen3, adjacent pairs": {"mixer": {"query_key_norm": {}, "rotary": {"pairing": "adjacent"}}},
}
"""What `plain_model` makes of the fields of mixer, feed-forward, head and model, and the kind of the tokenizer."""


def plain_model(vocab_size: int, mixer: Any, feed_forward: Any, head: Any) -> dict[str, Any]:
    block = {
        "repeat": 2,
        "mixer": {"kind": "attention", "heads": 4, **mixer},
        "feed_forward": {"kind": "glu", "hidden": 64, **feed_forward},
    }
    shape = {"name": "small", "vocab_size": vocab_size, "d_model": 32, "context_length": 512}
    return {**shape, "blocks": [block], "head": {"norm": {}, **head}}


def merging_pieces(folder: Path, texts: list[str], **fields: Any) -> Path:
    """A SentencePiece model that merges, keeps the text as it is, and spells by bytes what it lacks."""
    sentencepiece = pytest.importorskip("sentencepiece")
    kept = {"byte_fallback": True, "normalization_rule_name": "identity", "remove_extra_whitespaces": False}
    plain = {"model_type": "bpe", "vocab_size": 420, "minloglevel": 2, **kept, **fields}
    prefix = str(folder / "small")
    sentencepiece.SentencePieceTrainer.train(sentence_iterator=iter(texts), model_prefix=prefix, **plain)
    return folder / "small.model"
