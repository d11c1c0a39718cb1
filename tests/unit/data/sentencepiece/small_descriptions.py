"""A unigram model and a byte-pair encoding over the same few pieces, as a tokenizer.json tells of them."""

from dataclasses import replace

from linnet.data.sentencepiece import BYTES, SentencePieceDefinition

PIECES = ["<unk>", "</s>", *BYTES, "▁", "a", "b", "▁a", "ab", "[SEP]", "abb"]
UNIGRAM = SentencePieceDefinition(
    kind="Unigram",
    pieces=PIECES,
    scores=[-99.0] * 258 + [-1.5, -2.0, -2.5, -1.0, -3.0, 0.4, -0.1],
    reserved=list(range(258)),
    user_defined=[263],
    unused=[264],
    unknown=0,
    unknown_text=" ⁇ ",
    end=1,
    byte_fallback=True,
    charsmap=None,
    dummy_prefix=True,
    collapse=True,
)
BPE = replace(UNIGRAM, kind="BPE", scores=[-9.0] * 258 + [-4.0, -3.0, -2.0, -1.0, -1.0, -5.0, 0.0])
