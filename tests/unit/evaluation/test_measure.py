"""One model on a text: the figures against those that come token by token."""

import json
import math
import shutil
from dataclasses import replace

import numpy as np
import pytest
import torch
from measured_models import CONTEXT, MIXERS, TEXTS, make_model

import linnet
from linnet.core.errors import UserError
from linnet.data.prepare import prepare, prepare_texts
from linnet.data.prepare_pairs import prepare_pairs
from linnet.data.tokenizer import Tokenizer
from linnet.evaluation.models import frozen_state
from linnet.evaluation.text import evaluate, evaluate_folder, evaluate_models
from linnet.model.store import load_decoder, save_decoder


@pytest.fixture(scope="module")
def place(tmp_path_factory):
    """A model of each kind, a data folder of bytes, a mixture, and a file of text."""
    folder = tmp_path_factory.mktemp("measure")
    prepare_texts(["some other text " * 20], TEXTS, folder / "data", "bytes")
    for kind in MIXERS:
        make_model(folder / kind, kind, Tokenizer.train("bytes", []))
    (folder / "text.txt").write_text("<|endoftext|>".join(TEXTS))
    (folder / "text.jsonl").write_text("\n".join(json.dumps({"text": text}) for text in TEXTS))
    for name, texts in (("birds", TEXTS), ("numbers", [str(n**5) for n in range(20)])):
        (folder / f"{name}.jsonl").write_text("\n".join(json.dumps({"text": text}) for text in texts))
    prepare(
        [str(folder / f"{name}.jsonl") for name in ("birds", "numbers")], folder / "mixture", "bytes", validation=0.4
    )
    return folder


def _by_hand(folder, kind, stride):
    """Nats of each document: each window read alone, and of each target the logarithm of its probability."""
    decoder, tokenizer = load_decoder(folder / kind), Tokenizer.load(folder / kind)
    nats = []
    for text in TEXTS:
        tokens, of_document = [tokenizer.end_id, *tokenizer.encode(text), tokenizer.end_id], 0.0
        for place, target in enumerate(tokens[1:]):
            windows_on = max(0, math.ceil((place + 1 - CONTEXT) / stride))
            inputs = torch.tensor([tokens[windows_on * stride : place + 1]])
            state = None if decoder.causal else frozen_state(decoder, torch.tensor([[tokenizer.end_id]]), 1, CONTEXT)
            with torch.no_grad():
                of_document -= float(decoder(inputs, state)[0, -1].double().log_softmax(-1)[target])
        nats.append(of_document)
    return nats


@pytest.mark.parametrize(("kind", "stride"), [("attention", 5), ("attention", CONTEXT), ("ted", 1), ("plga", 7)])
def test_the_nats_of_a_document_are_the_sum_over_its_tokens(place, kind, stride):
    found = evaluate(place / kind, place / "text.txt", stride=stride, device="cpu")
    np.testing.assert_allclose(found.losses.nats_N, _by_hand(place, kind, stride), rtol=1e-5)
    assert found.losses.bytes_N.tolist() == [len(text.encode()) for text in TEXTS]
    assert (found.stride, found.context_length, found.bits_per_byte.count) == (stride, CONTEXT, len(TEXTS))
    bits = found.losses.nats_N / math.log(2)
    assert found.causal.bits_per_byte == pytest.approx(bits.sum() / sum(len(text.encode()) for text in TEXTS))


@pytest.mark.parametrize("limit", [None, 100])
@pytest.mark.parametrize("kind", MIXERS)
def test_a_data_folder_is_read_as_training_evaluates_it(place, kind, limit):
    """Padded otherwise, but the sums of `evaluate_folder`, the leak included, and documents that add up to them."""
    old = evaluate_folder(place / kind, place / "data", limit_tokens=limit, device="cpu")
    new = evaluate(place / kind, place / "data", limit_tokens=limit, device="cpu")
    shared = new.to_dict()
    assert {name: shared[name] for name in old.to_dict()} == pytest.approx(old.to_dict(), rel=1e-5, abs=1e-6)
    assert (new.leak is None) == (kind != "plga")
    if limit is None:
        assert sorted(new.losses.bytes_N) == sorted(len(text.encode()) for text in TEXTS)
        assert new.losses.tokens_N.tolist() == (new.losses.bytes_N + 1).tolist()


@pytest.mark.parametrize("source", ["text.txt", "data"])
def test_what_was_read_is_told(place, source):
    for stride in (None, 6):
        whole, part = (
            evaluate(place / "ted", place / source, limit_tokens=limit, stride=stride, device="cpu")
            for limit in (None, 100)
        )
        assert whole.coverage.share == 1 and "read" not in whole.to_dict()
        assert not any("of the text" in row[2] for row in whole.tables()[0].rows)
        told = part.to_dict()["read"]
        assert told["documents"] == len(TEXTS) and told["documents_read"] == part.bits_per_byte.count
        assert told["share"] == pytest.approx(part.losses.bytes_N.sum() / whole.losses.bytes_N.sum(), rel=0.2)
        assert part.tables()[0].rows[-1][:2] == ("read", f"{told['share']:.1%}")
    both = evaluate_models([place / "ted", place / "attention"], place / source, limit_tokens=100, device="cpu")
    assert "Read: " in both.tables()[0].meaning and both.to_dict()["models"][0]["read"]["documents"] == len(TEXTS)


def figures(found):
    """Without what was read, and how."""
    return replace(found, about={}).to_dict()


@pytest.mark.parametrize("kind", MIXERS)
def test_tokens_at_once_do_not_change_the_figures(place, kind):
    wide, narrow = (
        figures(evaluate(place / kind, place / "data", stride=6, tokens_at_once=tokens, device="cpu"))
        for tokens in (8192, 7)
    )
    assert narrow.pop("positions")[-1]["bits_per_byte"] == pytest.approx(wide.pop("positions")[-1]["bits_per_byte"])
    assert narrow.pop("interval") == pytest.approx(wide.pop("interval"), rel=1e-6)
    assert narrow == pytest.approx(wide, rel=1e-6, abs=1e-7)


def test_json_lines_and_text_are_the_same_documents(place):
    plain, lines = (figures(evaluate(place / "ted", place / name, device="cpu")) for name in ("text.txt", "text.jsonl"))
    assert plain == lines


def test_positions_count_the_tokens_before_and_add_up_to_the_whole(place):
    found = evaluate(place / "attention", place / "text.txt", device="cpu")
    assert [(one.begin, one.end) for one in found.positions] == [(0, 1), (1, 2), (2, 4), (4, 8), (8, 16)]
    assert sum(one.tokens for one in found.positions) == found.causal.tokens
    nats = sum(one.nats_per_token * one.tokens for one in found.positions)
    assert nats == pytest.approx(found.causal.nats)
    lengths = [len(text.encode()) + 1 for text in TEXTS]
    places = [place % CONTEXT for length in lengths for place in range(length)]  # windows that do not overlap
    assert [one.tokens for one in found.positions] == [
        sum(one.begin <= place < one.end for place in places) for one in found.positions
    ]


def test_each_source_of_a_mixture_has_its_own_loss(place):
    found = evaluate(place / "ted", place / "mixture", split="train", stride=4, device="cpu")
    birds, numbers = found.sources
    assert (birds.name.endswith("birds.jsonl"), numbers.name.endswith("numbers.jsonl")) == (True, True)
    sums = [(float(one.losses.nats_N.sum()), int(one.losses.bytes_N.sum())) for one in found.sources]
    assert sum(nats for nats, _ in sums) == pytest.approx(found.causal.nats)
    assert sum(of_text for _, of_text in sums) == found.causal.bytes
    listed = found.to_dict()["sources"]
    assert [one["bits_per_byte"] for one in listed] == pytest.approx(
        [nats / math.log(2) / of_text for nats, of_text in sums]
    )
    assert all(len(one.losses.tokens_N) == listed[number]["documents"] for number, one in enumerate(found.sources))
    assert {len(one.losses.bytes_N) for one in found.sources} != {0}
    assert max(numbers.losses.bytes_N) <= len(str(19**5)) < min(birds.losses.bytes_N)


def test_a_folder_of_one_source_reports_no_sources(place):
    assert "sources" not in evaluate(place / "ted", place / "data", device="cpu").to_dict()


def test_cache_policies_beside_the_full_cache_and_the_bank(place):
    found = evaluate(
        place / "ted", place / "text.txt", stride=8, cache_policies=["top_k=1", "full", "threshold=-1"], device="cpu"
    )
    full, bank, one, everything = found.cache_policies
    assert [kept.cache_policy.label for kept in found.cache_policies] == ["full", "bank", "top_k 1", "no eviction"]
    assert full.losses.bits_per_byte.value == pytest.approx(found.bits_per_byte.value, rel=1e-6)
    assert full.difference.value == 0 and everything.difference.value == pytest.approx(0, abs=1e-6)
    assert abs(bank.difference.value) < 1e-3 < abs(one.difference.value)
    assert one.state_bytes < full.state_bytes
    assert one.difference.value == pytest.approx(one.losses.bits_per_byte.value - full.losses.bits_per_byte.value)
    assert [listed["cache_policy"] for listed in found.to_dict()["cache_policies"]] == [
        "full",
        "bank",
        "top_k 1",
        "no eviction",
    ]


def test_cache_policies_do_not_depend_on_tokens_at_once(place):
    wide, narrow = (
        evaluate(
            place / "ted", place / "text.txt", cache_policies=["top_k=2"], tokens_at_once=tokens, device="cpu"
        ).to_dict()["cache_policies"]
        for tokens in (4096, 9)
    )
    for one, other in zip(wide, narrow, strict=True):
        assert one["bits_per_byte"] == pytest.approx(other["bits_per_byte"], rel=1e-6)
        assert one["state_bytes"] == pytest.approx(other["state_bytes"], rel=1e-9)


def test_pairs_are_documents_whose_targets_count(tmp_path):
    """A model of pairs, and a plain one on the same pairs; the sums are those of `evaluate_folder`."""
    rows = [{"input": "a" * (n % 4 + 1), "target": "b" * (n % 3 + 1)} for n in range(40)]
    (tmp_path / "pairs.jsonl").write_text("\n".join(json.dumps(row) for row in rows))
    prepare_pairs(tmp_path / "pairs.jsonl", tmp_path / "data", "bytes", validation=0.4)
    tokenizer = Tokenizer.load(tmp_path / "data")
    for name, changes in (("plain", {}), ("prefix", {"prefix": True})):
        model = make_model(tmp_path / name, "attention", tokenizer, **changes)
        old = evaluate_folder(model, tmp_path / "data", device="cpu")
        new = evaluate(model, tmp_path / "data", device="cpu")
        assert (new.causal.tokens, new.causal.bytes) == (old.causal.tokens, old.causal.bytes)
        assert new.causal.nats == pytest.approx(old.causal.nats, rel=1e-5)
        assert set(new.losses.tokens_N.tolist()) <= {2, 3, 4} and len(new.losses.tokens_N) > 5
        (context,) = [row for row in new.tables()[0].rows if row[0] == "context"]
        assert "each pair is read by itself" in context[2] and "windows" not in context[2]
    with pytest.raises(UserError, match=r"stride: 4: .*contains pairs"):
        evaluate(model, tmp_path / "data", stride=4, device="cpu")
    with pytest.raises(UserError, match="reads pairs"):
        (tmp_path / "text.txt").write_text("abc")
        evaluate(model, tmp_path / "text.txt", device="cpu")


@pytest.mark.parametrize(
    ("changes", "message"),
    [
        ({"stride": 17}, "stride: 17: expected at most the context of 16 tokens"),
        ({"stride": 0}, "stride: 0: expected at least 1"),
        ({"tokens_at_once": 0}, "tokens_at_once: 0: expected at least 1"),
        ({"split": "train"}, "split: train: .*text.txt is a file of text"),
        ({"calibrate_on": "train"}, "calibrate_on: train: .*expected empty"),
        ({"cache_policies": ["top=3"]}, "cache_policy: top=3: expected full, recalibrate, bank, or top_k"),
        ({"cache_policies": ["top_k=many"]}, "top_k: 'many': expected a whole number"),
        ({"cache_policies": ["top_k=-3"]}, "cache_policy: top_k=-3: top_k: -3: expected at least 0"),
    ],
)
def test_options_that_do_not_fit_are_refused(place, changes, message):
    with pytest.raises(UserError, match=message):
        evaluate(place / "ted", place / "text.txt", **changes)


def test_other_refusals(place, tmp_path):
    with pytest.raises(UserError, match=r"cache_policies: .*\(attention\).*expected a model with ted"):
        evaluate(place / "attention", place / "text.txt", cache_policies=[])
    with pytest.raises(UserError, match="no such file or folder"):
        evaluate(place / "ted", tmp_path / "nowhere")
    (tmp_path / "text.pdf").write_text("%PDF\0")
    with pytest.raises(UserError, match=r"unknown kind of file '\.pdf'"):
        evaluate(place / "ted", tmp_path / "text.pdf")
    with pytest.raises(UserError, match="use empty"):
        evaluate(place / "plga", place / "data", split="train")


def test_a_model_with_control_tokens_reads_a_folder_of_text_without_them(place, tmp_path):
    """So that it can be measured what a model forgot of its text."""
    grown = Tokenizer.train("bytes", []).with_special(["<|im_start|>", "<|im_end|>"], ["<|im_end|>"])
    make_model(tmp_path / "chat", "attention", grown)
    of_folder = evaluate(tmp_path / "chat", place / "data", device="cpu")
    of_text = evaluate(tmp_path / "chat", place / "text.txt", device="cpu", stride=CONTEXT)
    assert of_folder.losses.bytes_N.sum() == of_text.losses.bytes_N.sum()
    make_model(tmp_path / "other", "attention", Tokenizer.train("char", TEXTS))
    with pytest.raises(UserError, match="made with another tokenizer"):
        evaluate(tmp_path / "other", place / "data")


def test_it_is_what_python_calls_evaluate(place):
    assert linnet.evaluate is evaluate


def test_a_loss_that_is_not_a_number_is_null_in_json(place, tmp_path):
    broken = shutil.copytree(place / "ted", tmp_path / "broken")
    decoder = load_decoder(broken)
    with torch.no_grad():
        decoder.embedding.tokens.weight.fill_(math.nan)
    save_decoder(decoder, broken)
    figures = evaluate(broken, place / "text.txt", device="cpu").to_dict()
    assert figures["bits_per_byte"] is figures["standard_error"] is None
    assert figures["interval"] is None and figures["documents"] == len(TEXTS)
    json.dumps(figures, allow_nan=False)
