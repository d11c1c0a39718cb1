"""Overlaps with evaluation documents against sets of n-grams and loops over all pairs."""

import random
import re

import pytest

from linnet.core.errors import UserError
from linnet.data.decontaminate import EvaluationIndex, OverlapSpec


def ngrams_of(text, n):
    words = re.findall(r"\w+", text.lower())
    return {tuple(words[i : i + n]) for i in range(max(1, len(words) - n + 1))} if words else set()


def reference(text, documents, spec):
    """The document of the greatest share of n-grams that the text has, the first of several."""
    best, found = 0.0, -1
    for number, document in enumerate(documents):
        grams = ngrams_of(document, spec.ngram_words)
        share = len(grams & ngrams_of(text, spec.ngram_words)) / len(grams) if grams else 0.0
        if share >= spec.share and share > best:
            best, found = share, number
    return found


@pytest.mark.parametrize("share", [0.0, 0.3, 0.5, 1.0])
@pytest.mark.parametrize("n", [1, 3, 5])
def test_matches_are_those_of_sets(n, share):
    source = random.Random(10 * n + round(10 * share))
    sentences = [" ".join(source.choices("abcdefgh", k=source.randrange(1, 12))) for _ in range(30)]
    documents = [" ".join(source.sample(sentences, 3)) for _ in range(25)] + ["", "?!", sentences[0]]
    texts = [" ".join(source.sample(sentences, source.randrange(6))) for _ in range(40)] + ["", "!", documents[3]]
    spec = OverlapSpec(ngram_words=n, share=share)
    found = EvaluationIndex(documents, spec).match(texts).tolist()
    assert found == [reference(text, documents, spec) for text in texts]


def test_a_long_text_that_quotes_a_document_overlaps_it():
    source = random.Random(0)
    words = [f"w{number}" for number in range(3000)]
    item = " ".join(source.sample(words, 40))
    text = " ".join(source.choices(words, k=5000))
    index = EvaluationIndex(["something else " * 20, item], OverlapSpec())
    assert index.match([text, f"{text} {item.upper()} {text}", text + item[: len(item) // 4]]).tolist() == [-1, 1, -1]


def test_short_documents_are_counted_and_found_as_a_whole():
    index = EvaluationIndex(["What is the capital?", "x " * 20], OverlapSpec())
    assert (index.documents, index.short) == (2, 1)
    assert index.match(["what is the capital", "Well, what is the capital?"]).tolist() == [0, -1]


def test_documents_without_words_are_refused():
    with pytest.raises(UserError, match="no words"):
        EvaluationIndex(["", "!"], OverlapSpec())


def test_an_index_that_processes_share_finds_the_same(tmp_path):
    source = random.Random(7)
    documents = [" ".join(source.choices("abcdef", k=30)) for _ in range(20)]
    texts, spec = [" ".join(source.choices("abcdef", k=60)) for _ in range(40)], OverlapSpec(ngram_words=4, share=0.2)
    index = EvaluationIndex(documents, spec)
    index.save(tmp_path / "index")
    mapped = EvaluationIndex.map(tmp_path / "index", spec)
    found = index.match(texts)
    assert mapped.match(texts).tolist() == found.tolist() and 0 < (found >= 0).sum() < 40
    assert mapped.documents == 20
