"""SentencePiece models: what a tokenizer.json says of one, and the `sentencepiece` package that encodes with it.

The `tokenizers` library reads such a file too, and mostly to the same ids. But its `Precompiled` normalizer takes a
letter and its accents for one character, and loses some of them; its sums are not rounded to float32, which is how
SentencePiece chooses between equally good segmentations; and it has nothing like user-defined pieces.
"""

from linnet.data.sentencepiece.description import BYTES, SPACE, SentencePieceDefinition
from linnet.data.sentencepiece.model import SentencePiece, load_processor, protobuf_classes

__all__ = ["BYTES", "SPACE", "SentencePiece", "SentencePieceDefinition", "load_processor", "protobuf_classes"]
