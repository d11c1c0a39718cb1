"""Training of static word vectors: skip-gram with negative samples (by gensim) and GloVe.

Legend: `V` words of the vocabulary, `E` width of a vector, `N` pairs of words that occur together.
"""

import gzip
import re
from collections import Counter
from collections.abc import Iterable, Iterator, Sequence
from contextlib import ExitStack
from pathlib import Path
from typing import Any, Literal, NamedTuple

import numpy as np
import torch
from numpy.typing import NDArray
from pydantic import Field, PositiveInt

from linnet.core.atomic import atomic_path
from linnet.core.errors import UserError, note
from linnet.core.spec import Spec
from linnet.data.nearest_words import WordVectors
from linnet.data.sources import Source, describe_reading, open_sources
from linnet.data.tokenizer import Tokenizer
from linnet.present.progress import progress

MAX_SENTENCE_WORDS = 10_000
"""Longer documents are cut; gensim would drop the rest of them without a word."""

_WORD = re.compile(r"[^\W_]+(?:['’-][^\W_]+)*|[^\w\s]|_")
"""A word with inner apostrophes and hyphens, or one mark of punctuation."""

_GLOVE_BATCH_PAIRS, _GLOVE_EPOCH_STEPS = 4096, 64
"""Pairs in a batch at most, and steps in an epoch at least, so that a small text is learned too."""
_PAIRS_IN_MEMORY = 1 << 22

Ints = NDArray[np.int64]
Floats = NDArray[np.float64]


class VectorSettings(Spec):
    """How word vectors are trained.

    window: words to either side that are context. min_count: rarer words have no vector. negatives: of skip-gram,
    random words for each true one. epochs: over the text (skip-gram) or over the pairs (GloVe). workers: of skip-gram;
    with one, the vectors are decided by text and settings, on one kind of processor.
    """

    method: Literal["skipgram", "glove"] = "skipgram"
    width: PositiveInt = 100
    window: PositiveInt = 5
    min_count: PositiveInt = 5
    negatives: PositiveInt = 5
    epochs: PositiveInt = 5
    seed: int = Field(0, ge=0, lt=1 << 32)
    workers: PositiveInt = 1


class TrainedVectors(NamedTuple):
    """The vectors, the most frequent word first; how often each word occurs (`counts_V`); all words of the text."""

    table: WordVectors
    counts_V: Ints
    text_words: int


class WordReader:
    """The words of the documents of some inputs, which can be read several times.

    Without a tokenizer, words are runs of letters and digits, and marks of punctuation; in lower case unless
    `keep_case`. With one, they are the texts of its tokens without white space around them; a token of white space, and
    one that is no text on its own, is left out.
    """

    def __init__(
        self,
        inputs: Sequence[str],
        field: str | None,
        separator: str | None,
        keep_case: bool,
        tokenizer: Tokenizer | None,
    ) -> None:
        self._inputs, self._field, self._separator = inputs, field, separator
        self._keep_case, self._tokenizer = keep_case, tokenizer
        texts = [] if tokenizer is None else tokenizer.texts()
        self._texts = [_bare(text) for text in texts]

    def sentences(self, sources: Iterable[Source]) -> Iterator[list[str]]:
        """One list of words for each document, or several for a long one."""
        for source in sources:
            for text in source.documents():
                words = self._words(text)
                for first in range(0, len(words), MAX_SENTENCE_WORDS):
                    yield words[first : first + MAX_SENTENCE_WORDS]

    def open(self, stack: ExitStack) -> list[Source]:
        """Open the inputs until the stack is closed."""
        return open_sources(stack, self._inputs, self._field, self._separator)

    def _words(self, text: str) -> list[str]:
        if self._tokenizer is None:
            return _WORD.findall(text if self._keep_case else text.lower())
        found = (self._texts[token] for token in self._tokenizer.encode(text))
        return [word for word in found if word is not None]


def _bare(text: str | None) -> str | None:
    """A token's text without white space around it; None for one that cannot stand as a word in a file of vectors."""
    parts = (text or "").split()
    return parts[0] if len(parts) == 1 and "\N{REPLACEMENT CHARACTER}" not in parts[0] else None


def train_vectors(reader: WordReader, settings: VectorSettings) -> TrainedVectors:
    """Train vectors on all documents; `UserError` if fewer than two words are frequent enough."""
    with ExitStack() as stack:
        sources = reader.open(stack)
        with progress("count words", None, "documents") as advance:
            counts = Counter[str]()
            for sentence in reader.sentences(sources):
                counts.update(sentence)
                advance(1)
        for line in describe_reading(sources):
            note(line)
        # Words of equal count stand in the order of the alphabet.
        kept = sorted(
            (word for word in counts if counts[word] >= settings.min_count), key=lambda word: (-counts[word], word)
        )
        if len(kept) < 2:
            raise UserError(
                f"{len(kept)} of {len(counts):,} words occur so often",
                field="min_count",
                value=settings.min_count,
                accepted="at least two words, from more text or with a lower count",
            )
        vocabulary = {word: counts[word] for word in kept}
        train = _skipgram if settings.method == "skipgram" else _glove
        vectors_VE = train(_Corpus(reader, sources), vocabulary, counts.total(), settings)
    return TrainedVectors(WordVectors(tuple(kept), vectors_VE), np.array(list(vocabulary.values())), counts.total())


class _Corpus:
    """The sentences of opened sources, from the start in each loop over them."""

    def __init__(self, reader: WordReader, sources: Sequence[Source]) -> None:
        self._reader, self._sources = reader, sources

    def __iter__(self) -> Iterator[list[str]]:
        return self._reader.sentences(self._sources)


def _skipgram(
    corpus: _Corpus, counts: dict[str, int], text_words: int, settings: VectorSettings
) -> NDArray[np.float32]:
    """Skip-gram with negative samples, Mikolov et al., arXiv 1310.4546, with gensim's defaults besides the settings."""
    try:
        from gensim.models import Word2Vec
        from gensim.models.callbacks import CallbackAny2Vec
    except ImportError:
        raise UserError("skip-gram needs gensim: pip install 'linnet[vectors]'; --method glove needs nothing") from None

    with progress("train", settings.epochs, "epochs") as advance:

        class Epochs(CallbackAny2Vec):  # type: ignore[misc] # gensim has no types
            def on_epoch_end(self, model: Any) -> None:
                advance(1)

        model = Word2Vec(
            sg=1,
            vector_size=settings.width,
            window=settings.window,
            negative=settings.negatives,
            min_count=settings.min_count,
            seed=settings.seed,
            workers=settings.workers,
            epochs=settings.epochs,
        )
        model.build_vocab_from_freq(counts)
        model.train(corpus, total_words=text_words, epochs=settings.epochs, callbacks=[Epochs()])
    return np.asarray(model.wv[list(counts)], dtype=np.float32)


def _glove(corpus: _Corpus, counts: dict[str, int], text_words: int, settings: VectorSettings) -> NDArray[np.float32]:
    """GloVe, Pennington et al., https://aclanthology.org/D14-1162/: weighted least squares on log co-occurrence counts.

    The constants are the paper's: weight (x / 100)^0.75 up to 1, AdaGrad with a rate of 0.05; a word's vector is the
    sum of its two. Batches of pairs take the place of single ones.
    """
    rows_N, columns_N, counts_N = cooccurrences(corpus, counts, settings.window)
    generator = torch.Generator().manual_seed(settings.seed)
    size, width = len(counts), settings.width
    sizes = [(size, width), (size, width), (size, 1), (size, 1)]
    tables = [torch.nn.Embedding(*shape, sparse=True) for shape in sizes]
    for table in tables:
        torch.nn.init.uniform_(table.weight, -0.5 / width, 0.5 / width, generator=generator)
    word_VE, context_VE, word_bias_V1, context_bias_V1 = tables
    optimizer = torch.optim.Adagrad([table.weight for table in tables], lr=0.05, initial_accumulator_value=1.0)
    pairs_N2 = torch.from_numpy(np.stack([rows_N, columns_N], 1))
    logs_N = torch.from_numpy(np.log(counts_N)).float()
    weights_N = torch.from_numpy(np.minimum(1, (counts_N / 100) ** 0.75)).float()
    shown = progress("train", settings.epochs * len(counts_N), "pairs")
    batch_pairs = min(_GLOVE_BATCH_PAIRS, -(-len(counts_N) // _GLOVE_EPOCH_STEPS))
    with shown as advance, torch.sparse.check_sparse_tensor_invariants(enable=False):  # type: ignore[no-untyped-call]
        for _ in range(settings.epochs):
            order_N = torch.randperm(len(counts_N), generator=generator)
            for first in range(0, len(counts_N), batch_pairs):
                batch_B = order_N[first : first + batch_pairs]
                row_B, column_B = pairs_N2[batch_B].unbind(1)
                products_B = (word_VE(row_B) * context_VE(column_B)).sum(1)
                errors_B = products_B + word_bias_V1(row_B)[:, 0] + context_bias_V1(column_B)[:, 0] - logs_N[batch_B]
                optimizer.zero_grad()
                (0.5 * weights_N[batch_B] * errors_B.square()).sum().backward()
                optimizer.step()
                advance(len(batch_B))
    return np.asarray((word_VE.weight + context_VE.weight).detach().numpy(), dtype=np.float32)


def cooccurrences(sentences: Iterable[Sequence[str]], words: Iterable[str], window: int) -> tuple[Ints, Ints, Floats]:
    """Pairs of words within `window` of each other in a sentence, both ways, each counted as 1 / distance.

    Returns rows, columns and counts `[N]`, in the order of rows and columns. Other words are left out before distances
    are counted, as the GloVe program does.
    """
    ids = {word: number for number, word in enumerate(words)}
    keys_N, counts_N = np.empty(0, np.int64), np.empty(0)
    waiting: list[tuple[Ints, Floats]] = []

    def merge() -> tuple[Ints, Floats]:
        joined_P, values_P = (np.concatenate(parts) for parts in zip((keys_N, counts_N), *waiting, strict=True))
        unique_N, inverse_P = np.unique(joined_P, return_inverse=True)
        return unique_N, np.bincount(inverse_P, values_P, len(unique_N)).astype(np.float64)

    held = 0
    for sentence in sentences:
        ids_T = np.array([ids[word] for word in sentence if word in ids], dtype=np.int64)
        for distance in range(1, min(window, len(ids_T) - 1) + 1):
            left_P, right_P = ids_T[:-distance], ids_T[distance:]
            keys_P = np.concatenate([left_P * len(ids) + right_P, right_P * len(ids) + left_P])
            waiting.append((keys_P, np.full(len(keys_P), 1 / distance)))
            held += len(keys_P)
        if held >= _PAIRS_IN_MEMORY:
            (keys_N, counts_N), waiting, held = merge(), [], 0
    if waiting:
        keys_N, counts_N = merge()
    if not len(keys_N):
        raise UserError("no document has two frequent words next to each other; expected longer documents")
    return keys_N // len(ids), keys_N % len(ids), counts_N


def write_vectors(path: str | Path, table: WordVectors) -> None:
    """Write word2vec's text format: `count width`, then a word and its numbers in each line; compressed for `.gz`."""
    with atomic_path(path) as temporary, temporary.open("wb") as file, ExitStack() as stack:
        out = file if not str(path).endswith(".gz") else stack.enter_context(gzip.GzipFile("", "wb", 6, file, mtime=0))
        out.write(f"{len(table.words)} {table.vectors_WE.shape[1]}\n".encode())
        for word, vector_E in zip(table.words, table.vectors_WE, strict=True):
            out.write(f"{word} {' '.join(map(str, vector_E))}\n".encode())  # as short as gives the same float32
