"""Static word vectors for a tokenizer's tokens: which word of a file is which token.

Legend: `F` tokens that are found, `E` width of a vector.
"""

from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

import numpy as np
from numpy.typing import NDArray

from linnet.core.errors import UserError
from linnet.data.tokenizer import Tokenizer
from linnet.data.vectors import read_vectors


@dataclass(frozen=True)
class TokenVectors:
    """Of the tokens that a file has a word for: `tokens_F` ascending, `vectors_FE` in float32."""

    tokens_F: NDArray[np.int64]
    vectors_FE: NDArray[np.float32]


def token_vectors(path: str | Path, tokenizer: Tokenizer, width: int) -> TokenVectors:
    """The vectors of a tokenizer's tokens in a file of word vectors; `UserError` where there are none, or as from
    `read_vectors`.
    """
    spelled = {token: list(words_for(text)) for token, text in enumerate(tokenizer.texts())}
    found = read_vectors(path, {word for words in spelled.values() for word in words}, width)
    chosen = {token: next((word for word in words if word in found), None) for token, words in spelled.items()}
    known = {token: word for token, word in chosen.items() if word is not None}
    if not known:
        raise UserError(
            f"{path}: has a word for none of the tokenizer's {tokenizer.vocab_size:,} tokens; expected word vectors of"
            " the text's language, and a tokenizer with words among its tokens"
        )
    vectors_FE = np.stack([found[word] for word in known.values()])
    if not vectors_FE.any():
        raise UserError(f"{path}: all vectors of the tokens' words are zero; expected vectors with a length")
    return TokenVectors(np.array(list(known)), vectors_FE)


def words_for(text: str | None) -> Iterator[str]:
    """The words that a token's text may be in a file, the nearest first: as it stands, without the space that it
    begins with, in lower case.
    """
    if text is None:
        return
    bare = text.removeprefix(" ")
    yield from (word for word in dict.fromkeys((text, bare, bare.lower())) if word)
