"""Which tokenizers the page can read: those whose ids its JavaScript gives exactly."""

from collections.abc import Iterator
from typing import Any

from linnet.core.errors import UserError
from linnet.data.sentencepiece import SentencePieceDefinition
from linnet.data.tokenizer import Tokenizer

ACCEPTED = "single characters or bytes, a byte-level BPE or unigram tokenizer, or one made from a SentencePiece model"


def check_tokenizer(tokenizer: Tokenizer, definition: dict[str, Any], origin: str) -> None:
    """`UserError` where the page could not do as Python does; definition: the data of the tokenizer.json."""
    if SentencePieceDefinition.read(definition) is not None:
        return
    for fault in _faults_of_imported(definition) if tokenizer.kind == "imported" else _faults(definition["model"]):
        raise UserError(f"{origin}: tokenizer: {fault}: the page cannot read it; expected {ACCEPTED}")


def _faults(model: dict[str, Any]) -> Iterator[str]:
    """What a byte-level BPE from elsewhere may still have."""
    for name in ("continuing_subword_prefix", "end_of_word_suffix"):
        if model.get(name):
            yield f"{name} {model[name]!r}"


def _faults_of_imported(definition: dict[str, Any]) -> Iterator[str]:
    """All but single characters, with one of them in the place of those that are not in the vocabulary."""
    model, decoder = definition["model"], definition.get("decoder") or {}
    for name in ("normalizer", "pre_tokenizer"):
        if definition.get(name) is not None:
            yield f"{name} {definition[name]['type']}"
    if model["type"] != "BPE" or model["merges"]:
        yield f"model {model['type']} whose pieces are no single characters"
    elif model.get("fuse_unk") or model.get("unk_token") is None:
        yield f"unk_token {model.get('unk_token')!r}, fuse_unk {model.get('fuse_unk')!r}"
    if decoder.get("type") != "Fuse":
        yield f"decoder {decoder.get('type')}"
