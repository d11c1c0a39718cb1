"""Several models on the same documents."""

import math

import numpy as np
import pytest
import tokenizers
from measured_models import TEXTS, make_model

from linnet.core.errors import UserError
from linnet.data.prepare import prepare, prepare_texts
from linnet.data.tokenizer import Tokenizer
from linnet.evaluation.likelihood import DocumentLosses
from linnet.evaluation.results import ModelComparison, TextEvaluation
from linnet.evaluation.text import evaluate, evaluate_models


@pytest.fixture(scope="module")
def place(tmp_path_factory):
    """Two models that read bytes, one that reads pieces of words, and the text of all."""
    folder = tmp_path_factory.mktemp("comparison")
    pieces = Tokenizer.train("bpe", TEXTS * 3, 290)
    for name, kind, tokenizer in (
        ("a", "attention", Tokenizer.train("bytes", [])),
        ("b", "plga", Tokenizer.train("bytes", [])),
        ("c", "ted", pieces),
    ):
        make_model(folder / name, kind, tokenizer)
    prepare_texts(["some other text " * 9, "and more"], TEXTS, folder / "data", "bytes")
    (folder / "text.txt").write_text("<|endoftext|>".join(TEXTS))
    return folder


def _measured(nats, sources=None):
    """As if documents of 100, 200, ... bytes had been read."""
    bytes_N = 100 * np.arange(1, len(nats) + 1)
    losses = DocumentLosses(np.array(nats), bytes_N, bytes_N, 0 * bytes_N, sources)
    return TextEvaluation(losses, [], [], None, 16, 16)


def test_each_evaluation_equals_that_of_the_model_alone(place):
    """On a file each reads with its own tokenizer; a folder's tokens become text for the third."""
    alone = [evaluate(place / name, place / "text.txt", device="cpu") for name in "abc"]
    found = evaluate_models([place / name for name in "abc"], place / "text.txt", device="cpu")
    assert [one.causal for one in found.evaluations] == [one.causal for one in alone]
    assert alone[2].causal.tokens < alone[0].causal.tokens and alone[2].causal.bytes == alone[0].causal.bytes
    of_folder = evaluate_models([place / "c", place / "a"], place / "data", device="cpu")
    assert of_folder.evaluations[0].causal.nats == pytest.approx(alone[2].causal.nats, rel=1e-6)
    assert of_folder.evaluations[1].causal.nats == pytest.approx(alone[0].causal.nats, rel=1e-6)


def test_a_difference_is_that_of_the_two_models(place):
    found = evaluate_models([place / "a", place / "c"], place / "text.txt", device="cpu")
    (pair,) = found.pairs
    values = {name: one.bits_per_byte.value for name, one in zip(found.names, found.evaluations, strict=True)}
    assert pair.difference.value == pytest.approx(values[pair.second] - values[pair.first])
    assert pair.difference.value < 0, "the better model comes second"
    assert pair.difference.count == len(TEXTS)
    low, high = pair.difference.interval()
    assert low < pair.difference.value < high and pair.resampled[0] < pair.difference.value < pair.resampled[1]


def test_every_range_of_positions_has_a_place_of_its_own(place):
    found = evaluate(place / "a", place / "text.txt", device="cpu")
    (line,) = found.plots()[0].drawing.panels[0].series
    assert list(line.x) == [1.0, 2.0, 3.5, 6.5, 12.5]


def test_a_limit_holds_for_each_model_and_all_read_the_same_text(place):
    """Whichever comes first: the tokens are those of the model that makes the most."""
    found = evaluate_models([place / "c", place / "a"], place / "text.txt", limit_tokens=30, device="cpu")
    turned = evaluate_models([place / "a", place / "c"], place / "text.txt", limit_tokens=30, device="cpu")
    first, second = (one.losses.bytes_N.tolist() for one in found.evaluations)
    assert first == second and 1 <= len(first) < len(TEXTS)
    assert all(1 <= one.losses.tokens_N.sum() <= 30 for one in [*found.evaluations, *turned.evaluations])
    assert [one.causal for one in found.evaluations] == [one.causal for one in turned.evaluations][::-1]


def test_a_span_of_a_single_document_is_about_as_long_as_the_limit(place, tmp_path):
    path = tmp_path / "one.txt"
    path.write_text(" ".join(TEXTS))
    several = evaluate_models([place / "c", place / "a"], path, limit_tokens=60, device="cpu")
    for model, measured in zip("ca", several.evaluations, strict=True):
        alone = evaluate(place / model, path, limit_tokens=60, device="cpu")
        assert 30 < alone.losses.tokens_N.sum() <= 66, "about as many: the span is estimated from its characters"
        assert measured.losses.tokens_N.sum() <= 60
        assert measured.losses.bytes_N.tolist() == several.evaluations[0].losses.bytes_N.tolist()


def test_a_frozen_operator_comes_from_the_training_side_whatever_its_tokens(place, tmp_path):
    """The same documents as tokens of the model's tokenizer, and of another."""
    tokenizer = Tokenizer.train("char", ["some other text and more", *TEXTS])
    tokenizer.save(tmp_path / "tokenizer.json")
    path = tmp_path / "all.txt"
    path.write_text("<|endoftext|>".join([*TEXTS, *(f"some other text {n}" for n in range(9))]))
    prepare([str(path)], tmp_path / "bytes", "bytes", validation=0.3)
    prepare([str(path)], tmp_path / "chars", str(tmp_path / "tokenizer.json"), validation=0.3)
    of_bytes, of_chars = (
        evaluate_models([place / "b", place / "a"], tmp_path / folder, device="cpu") for folder in ("bytes", "chars")
    )
    assert of_bytes.evaluations[0].causal.nats == pytest.approx(of_chars.evaluations[0].causal.nats, rel=1e-6)
    empty = evaluate_models([place / "b", place / "a"], tmp_path / "bytes", calibrate_on="empty", device="cpu")
    assert abs(empty.evaluations[0].causal.nats / of_bytes.evaluations[0].causal.nats - 1) > 1e-6


def test_the_share_of_a_file_that_a_tokenizer_keeps_is_told(tmp_path, told):
    library = tokenizers.SentencePieceBPETokenizer()
    library.train_from_iterator(["ab ab ab ab"], special_tokens=["<unk>", "</s>"], show_progress=False)
    library.save(str(tmp_path / "tokenizer.json"))
    make_model(tmp_path, "attention", Tokenizer.load(tmp_path))
    path = tmp_path / "text.txt"
    path.write_text("ab xyz")  # two tokens of `▁ab`, `▁`, and three that are unknown
    found = evaluate(tmp_path, path, device="cpu")
    assert found.causal.bytes == 6
    share = "50.00% of the text's bytes, the rest is lost or changed; bits per byte count them all"
    assert told()[-1] == f"the model's tokens stand for {share}"


def test_the_verdict_is_that_of_the_differences():
    """The second is a hundredth of a bit better everywhere, but for chance; the third is the first, but for chance."""
    random = np.random.default_rng(0)
    nats = 100 * np.arange(1, 41) * random.normal(1.2, 0.2, 40)
    bits = math.log(2) * 100 * np.arange(1, 41)
    better, same = (nats - shift * bits + random.normal(0, 0.3, 40) for shift in (0.01, 0.0))
    found = ModelComparison.create(["a", "b", "c"], [_measured(one) for one in (nats, better, same)], 200)
    verdicts = {frozenset((pair.first, pair.second)): pair for pair in found.pairs}
    assert verdicts[frozenset("ab")].differs and verdicts[frozenset("bc")].differs
    assert verdicts[frozenset("ab")].second == "b"
    assert verdicts[frozenset("ac")].differs is False
    raw = sorted(pair.difference.p_value() for pair in found.pairs)
    holm_correction = [3 * raw[0], max(3 * raw[0], 2 * raw[1]), raw[2]]
    assert sorted(pair.p_value for pair in found.pairs) == pytest.approx(holm_correction, rel=1e-9, abs=0)
    text = "\n".join(" ".join(row) for table in found.tables() for row in table.rows)
    assert f"b minus a {verdicts[frozenset('ab')].difference.value:+.4f}" in text and "not significant" in text


def test_one_document_and_losses_that_are_no_numbers_have_no_verdict():
    for nats in ([[50.0], [60.0]], [[50.0, math.nan], [60.0, 70.0]]):
        (pair,) = ModelComparison.create(["a", "b"], [_measured(one) for one in nats], 50).pairs
        assert pair.differs is None and pair.resampled is None
        figures = ModelComparison.create(["a", "b"], [_measured(one) for one in nats], 50).to_dict()
        assert figures["pairs"][0]["p_value"] is None
    for nats, note, why in (
        ([[50.0], [60.0]], "The same document, 100 bytes; a single one", "one document"),
        ([[50.0, math.nan], [60.0, 70.0]], "The same 2 separate documents, 300 bytes", "no numbers"),
    ):
        tables = ModelComparison.create(["a", "b"], [_measured(one) for one in nats], 50).tables()
        assert tables[0].meaning.startswith(note) and tables[1].rows[0][-1] == f"unknown: {why}"


def test_what_cannot_be_compared_is_refused(place, tmp_path):
    with pytest.raises(UserError, match="models: 1: expected at least 2"):
        evaluate_models([place / "a"], place / "text.txt")
    with pytest.raises(UserError, match=r"split: validation: .*text.txt is a file of text"):
        evaluate_models([place / "a", place / "c"], place / "text.txt", split="validation")
