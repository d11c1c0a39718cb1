"""Writes `vectors_small.txt`, `.bin`, `.glove.txt` with gensim 4.4.0, and what it reads there as `.safetensors`.

`pip install gensim==4.4.0 safetensors==0.8.0`, then `python tests/golden/writers/write_vectors.py`. The safetensors
file has what `KeyedVectors.load_word2vec_format` makes of each, the words in its header.
"""

import json
from pathlib import Path

import gensim
import numpy as np
from gensim.models import KeyedVectors
from safetensors.numpy import save_file

FOLDER = Path(__file__).parent.parent
WORDS = [
    "the",
    "The",
    "bird",
    "sang",
    "naïve",
    "東京",
    "😀",
    "don't",
    "0.5",
    "-1",
    "a_b",
    ",",
    "</s>",
    "e\u0301",
    "tree",
]
FORMS = {"txt": {}, "bin": {"binary": True}, "glove.txt": {"write_header": False}}
WIDTH = 8


def vectors() -> KeyedVectors:
    """Of all sizes that float32 has, those of which a text has exponents too."""
    drawn = np.random.default_rng(0).standard_normal((len(WORDS), WIDTH)).astype(np.float32)
    drawn[:, 0] *= np.float32(10.0) ** np.linspace(-40, 37, len(WORDS)).astype(np.float32)
    drawn[0, 1:4] = 0, -0.0, 1 / 3
    kept = KeyedVectors(WIDTH)
    kept.add_vectors(WORDS, drawn)
    return kept


def read(form: str) -> KeyedVectors:
    said = {"binary": form == "bin", "no_header": form.startswith("glove")}
    return KeyedVectors.load_word2vec_format(FOLDER / f"vectors_small.{form}", **said)


if __name__ == "__main__":
    for form, said in FORMS.items():
        vectors().save_word2vec_format(FOLDER / f"vectors_small.{form}", **said)
    found = {form: read(form) for form in FORMS}
    config = {"words": {form: kept.index_to_key for form, kept in found.items()}, "gensim": gensim.__version__}
    arrays = {form: kept.vectors for form, kept in found.items()}
    save_file(arrays, FOLDER / "vectors_small.safetensors", {"config": json.dumps(config)})
