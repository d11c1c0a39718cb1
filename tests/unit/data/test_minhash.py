"""Signatures, bands and clusters against planted similarities, sets of shingles and loops over all pairs."""

import itertools
import math
import random
import re

import numpy as np
import pytest

from linnet.data.minhash import (
    Clusters,
    MinHashSpec,
    band_hashes,
    candidate_probability,
    content_digest,
    equal_pairs,
    hash_shingles,
    hash_words,
    minhash,
    split_words,
)

N = 5
DEFAULT = MinHashSpec()


def bands_of(texts, spec=DEFAULT):
    words, lengths = hash_words(texts)
    signatures = minhash(*hash_shingles(words, lengths, spec.shingle_words), spec.bands * spec.rows)
    return band_hashes(signatures, spec.bands, spec.rows)


def candidates(bands):
    """All pairs that agree in a band."""
    pairs = set()
    for band in range(bands.shape[1]):
        for value in np.unique(bands[:, band]):
            pairs |= set(itertools.combinations(np.flatnonzero(bands[:, band] == value).tolist(), 2))
    return pairs


def shingles_of(text):
    words = re.findall(r"\w+", text.lower())
    return {tuple(words[i : i + N]) for i in range(max(1, len(words) - N + 1))}


def jaccard(one, other):
    return len(one & other) / len(one | other)


def planted_pair(source, shared, own):
    """Two texts of words that occur once: `shared` n-grams are of both, `own` of each alone."""
    words = iter(f"w{source.getrandbits(60):x}" for _ in itertools.count())
    start = [next(words) for _ in range(shared + N - 1)]
    ends = [[next(words) for _ in range(own)] for _ in range(2)]
    return [" ".join(start + end) for end in ends]


@pytest.mark.parametrize(
    "text", ["Hello, World_1!  it's", "Straße № 5, naïve – “quotes” …", "e\u0301tude", "", "?!", "ΑΒΓ\u00a0δ"]
)
def test_words_are_those_of_the_regular_expression(text):
    import unicodedata

    words = [word.decode() for word in split_words(text)]
    assert words == re.findall(r"\w+", unicodedata.normalize("NFC", text).lower())


def test_chinese_characters_are_words():
    assert split_words("我喜欢 tea。") == [word.encode() for word in ("我", "喜", "欢", "tea")]


def test_words_have_the_same_hash_in_ascii_and_other_texts():
    words, _ = hash_words(["plain words", "plain words –"])
    assert words[:2].tolist() == words[2:].tolist()


def test_shingles_are_the_sets_of_word_ngrams():
    texts = ["a b c d e f g a b c d e", "", "a b", "one two three four five", "?", "b c d e f g a x"]
    hashes, counts = hash_shingles(*hash_words(texts), N)
    sets, place = [], 0
    for text, count in zip(texts, counts, strict=True):
        sets.append(set(hashes[place : place + count].tolist()))
        expected = len(re.findall(r"\w+", text))
        assert count == (0 if expected == 0 else max(1, expected - N + 1))
        place += count
    assert place == len(hashes)
    for one, other in itertools.combinations([i for i, text in enumerate(texts) if sets[i]], 2):
        assert jaccard(sets[one], sets[other]) == jaccard(shingles_of(texts[one]), shingles_of(texts[other]))


@pytest.mark.parametrize("similarity", [0.5, 0.6, 0.7, 0.8, 0.9])
def test_candidates_follow_the_s_curve(similarity):
    source, pairs, union = random.Random(similarity), 600, 60
    shared = round(similarity * union)
    texts = [text for _ in range(pairs) for text in planted_pair(source, shared, (union - shared) // 2)]
    exact = jaccard(shingles_of(texts[0]), shingles_of(texts[1]))
    assert exact == pytest.approx(similarity)
    found = candidates(bands_of(texts))
    assert all(one % 2 == 0 and other == one + 1 for one, other in found), (
        "texts without a common word are never candidates"
    )
    expected = candidate_probability(exact, DEFAULT.bands, DEFAULT.rows)
    assert abs(len(found) - pairs * expected) <= 3.3 * math.sqrt(pairs * expected * (1 - expected)) + 1


def test_recall_and_precision_are_those_that_theory_predicts():
    source, texts, truth, expected = random.Random(1), [], set(), []
    for number in range(800):
        shared = source.randrange(20, 61)
        texts += planted_pair(source, shared, 60 - shared)
        similarity = jaccard(*map(shingles_of, texts[-2:]))
        expected.append(candidate_probability(similarity, DEFAULT.bands, DEFAULT.rows))
        if similarity >= 0.8:
            truth.add((2 * number, 2 * number + 1))
    found = candidates(bands_of(texts))
    hits = sum(expected[one // 2] for one, _ in truth)
    hit_spread = 3.3 * math.sqrt(sum(expected[one // 2] * (1 - expected[one // 2]) for one, _ in truth))
    assert abs(len(found & truth) - hits) <= hit_spread + 1
    spread = 3.3 * math.sqrt(sum(p * (1 - p) for p in expected))
    assert abs(len(found) - sum(expected)) <= spread + 1
    assert len(found & truth) / len(truth) > 0.95


def test_bands_and_rows_are_not_swapped():
    """Texts that agree in the rows of one band and nowhere else are candidates; those that agree elsewhere are not."""
    bands, rows = 3, 2
    signatures = np.arange(1, 13, dtype=np.uint32).reshape(2, 6)
    one_band, across = signatures.copy(), signatures.copy()
    one_band[1, 2:4] = one_band[0, 2:4]
    across[1, [1, 2, 5]] = across[0, [1, 2, 5]]
    assert candidates(band_hashes(one_band, bands, rows)) == {(0, 1)}
    assert candidates(band_hashes(across, bands, rows)) == set()
    assert candidate_probability(0.7, 14, 8) > 5 * candidate_probability(0.7, 8, 14)


def test_signatures_estimate_the_similarity_of_all_pairs():
    """A slow and obvious reference: the exact similarity of all pairs of texts that share parts."""
    source = random.Random(3)
    sentences = [" ".join(source.choices("abcdefghijklmnopqrstuvwxyz", k=12)) for _ in range(12)]
    texts = [" ".join(source.sample(sentences, 6)) for _ in range(30)]
    values = 2000
    signatures = minhash(*hash_shingles(*hash_words(texts), N), values)
    for one, other in itertools.combinations(range(len(texts)), 2):
        exact = jaccard(shingles_of(texts[one]), shingles_of(texts[other]))
        estimate = np.mean(signatures[one] == signatures[other])
        assert abs(estimate - exact) <= 4.5 * math.sqrt(exact * (1 - exact) / values) + 1e-3


def test_signatures_do_not_depend_on_the_batch():
    source = random.Random(4)
    texts = [" ".join(source.choices("abcdefgh", k=source.choice([0, 3, 50, 20_000]))) for _ in range(40)]
    whole = bands_of(texts)
    assert np.array_equal(whole, np.concatenate([bands_of([text]) for text in texts]))
    assert np.array_equal(whole, np.concatenate([bands_of(texts[:7]), bands_of(texts[7:])]))


def test_signatures_are_the_same_for_ever():
    """Signature files of different machines and versions are compared with each other."""
    assert bands_of(["the quick brown fox jumps over the lazy dog"])[0, :2].tolist() == [
        4797049499188751845,
        17678326065499131885,
    ]


@pytest.mark.parametrize("width", [1, 2])
def test_equal_pairs_lead_to_the_first_row(width):
    keys = np.random.default_rng(0).integers(0, 5, (200, width)).astype(np.uint64)
    members, leaders = equal_pairs(keys if width > 1 else keys[:, 0])
    rows = [tuple(row) for row in keys.tolist()]
    assert dict(zip(members.tolist(), leaders.tolist(), strict=True)) == {
        number: rows.index(row) for number, row in enumerate(rows) if rows.index(row) < number
    }
    assert [len(part) for part in equal_pairs(keys[:0])] == [0, 0]


def test_clusters_are_connected_components_named_by_their_first():
    source = np.random.default_rng(0)
    for edges in (0, 20, 60, 200):
        left, right = source.integers(0, 100, (2, edges))
        clusters = Clusters(100)
        for part in np.array_split(np.arange(edges), 3):
            clusters.join(left[part], right[part])
        expected = list(range(100))
        for _ in range(100):
            for one, other in zip(left, right, strict=True):
                expected[one] = expected[other] = min(expected[one], expected[other])
        assert clusters.first.tolist() == expected


def f1(found, truth):
    """Of the decision which texts are removed, as text-dedup measures it: all but the first of a cluster."""
    removed, expected = ({i for i, first in enumerate(names) if first != i} for names in (found, truth))
    return 2 * len(removed & expected) / (len(removed) + len(expected))


def test_clusters_of_near_copies_have_an_f1_above_095():
    """The shape of text-dedup's benchmark: of 2,000 texts half are near copies of others, in clusters of 2 to 5."""
    source = random.Random(5)
    texts, truth = [], []
    vocabulary = [f"v{number}" for number in range(5000)]
    while len(texts) < 2000:
        words = source.choices(vocabulary, k=250)
        cluster = len(texts)
        for _ in range(source.choice([1, 1, 1, 1, 2, 3, 4, 5])):
            copy = list(words)
            for place in source.sample(range(250), source.randrange(4)):
                copy[place] = source.choice(vocabulary)
            truth.append(cluster)
            texts.append(" ".join(copy))
    bands = bands_of(texts)
    rows = np.arange(len(texts))
    clusters = Clusters(len(texts))
    for band in bands.T:
        clusters.join_equal(band, rows)
    assert f1(clusters.first.tolist(), truth) >= 0.95


def test_digest_ignores_case_and_white_space_alone():
    assert content_digest("A b\r\n c") == content_digest("a B\nc ")
    assert content_digest("e\u0301") == content_digest("\u00c9")
    assert content_digest("a b") != content_digest("a, b")
    assert len(content_digest("")) == 16
