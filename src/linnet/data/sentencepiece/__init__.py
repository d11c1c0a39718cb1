"""SentencePiece's two algorithms, unigram and byte-pair encoding, for models that were converted to a tokenizer.json.

The `tokenizers` library reads such a file too, and mostly to the same ids. But its `Precompiled` normalizer takes a
letter and its accents for one character, and loses some of them; its sums are not rounded to float32, which is how
SentencePiece chooses between equally good segmentations; and it has nothing like user-defined pieces.
"""

from linnet.data.sentencepiece.description import ANYTHING, BYTES, Description, word_pattern
from linnet.data.sentencepiece.encoder import SentencePiece
from linnet.data.sentencepiece.normalizer import SPACE

__all__ = ["ANYTHING", "BYTES", "SPACE", "Description", "SentencePiece", "word_pattern"]
