import json
import re
from contextlib import contextmanager
from dataclasses import replace
from pathlib import Path

import pytest

from linnet.core.errors import UserError
from linnet.data.tokenizer import Tokenizer
from linnet.data.tokenizer_report import report_on
from linnet.evaluation.text import evaluate_folder
from linnet.experiments.tokenizer_comparison import (
    TokenizerTraining,
    VocabularyComparison,
    VocabularyCost,
    plain_decoder,
    vocabulary_cost,
)
from linnet.model.decoder import Decoder
from linnet.training.reporter import Reporter

TEXTS = [f"the {n}th bird sang to the tree and the tree was glad. " * 3 for n in range(60)]
SMALL, LARGE = (Tokenizer.train("bpe", TEXTS, size) for size in (260, 320))
SPEC = plain_decoder(16, 32)


@contextmanager
def silent(title: str):
    yield Reporter()


@pytest.mark.parametrize("tied", [True, False])
def test_costs_are_those_of_the_built_model(tied: bool):
    spec = SPEC.replace(head={"tied": tied, "norm": {"kind": "rms"}})
    report = report_on(LARGE, TEXTS)
    cost = vocabulary_cost("large", report, spec, 40_000)
    model = Decoder(spec.replace(vocab_size=320))
    assert cost.parameters == sum(parameter.numel() for parameter in model.parameters())
    assert cost.vocabulary_parameters == (1 if tied else 2) * 320 * 16
    assert cost.share == cost.vocabulary_parameters / cost.parameters
    assert cost.budget_share == cost.vocabulary_parameters / 40_000
    assert cost.context_bytes == round(32 * report.bytes / report.tokens)
    smaller = vocabulary_cost("small", report_on(SMALL, TEXTS), spec)
    per_token = cost.flops_per_byte * cost.bytes_per_token - smaller.flops_per_byte * smaller.bytes_per_token
    assert per_token == pytest.approx(2 * 16 * 60)  # the head's product
    assert smaller.budget_share is None and smaller.kept == 1


@pytest.mark.parametrize(("width", "heads", "layers"), [(8, 1, 1), (64, 1, 1), (512, 8, 8), (768, 12, 12), (520, 5, 8)])
def test_a_plain_decoder_has_heads_of_64_and_a_layer_for_each_64(width: int, heads: int, layers: int):
    (block,) = plain_decoder(width).blocks
    assert (block.repeat, block.mixer.model_dump()["heads"]) == (layers, heads)
    for wrong in (0, 12):
        with pytest.raises(UserError, match=f"width: {wrong}: expected a multiple of 8"):
            plain_decoder(wrong)


def cost(name: str, parameters: int, flops: float, bits: tuple[float, ...] = (), kept: float = 1.0) -> VocabularyCost:
    sizes = {"vocab_size": 300, "tokens": 10, "bytes_per_token": 2.0, "unknown": 0, "changed_hard_texts": 0}
    return VocabularyCost(
        tokenizer=name, kind="bpe", kept=kept, parameters=parameters, vocabulary_parameters=parameters // 2,
        budget_share=None, flops_per_byte=flops, context_bytes=64, bits_per_byte=bits, **sizes
    )  # fmt: skip


def test_it_says_which_is_cheapest_and_what_that_does_not_say():
    costs = cost("a", 1000, 50.0), cost("b", 2000, 40.0)
    lines = VocabularyComparison(SPEC, costs, max_parameters=1500).conclusion().split("\n")
    assert lines == [
        "most bytes for a FLOP: b; fewest parameters: a",
        "more parameters than 1.50 k: b",
        "bits per byte are not estimated; --flops N --out DIR measures them",
    ]
    measured = [replace(costs[0], bits_per_byte=(2.2,)), replace(costs[1], bits_per_byte=(2.0,), kept=0.5)]
    found = VocabularyComparison(SPEC, tuple(measured), flops=1e12)
    assert "fewest bits per byte after 1 T training FLOPs: b, 10.0% fewer than a" in found.conclusion()
    assert "one training of each" in found.conclusion() and "b keeps 50.00% of the bytes" in found.conclusion()
    assert json.loads(json.dumps(found.to_dict()))["tokenizers"][1]["vocabulary_share"] == 0.5


@pytest.mark.parametrize(("other", "decided"), [((2.1, 2.2), True), ((2.02, 2.2), False)])
def test_seeds_that_overlap_decide_nothing(other: tuple[float, ...], decided: bool):
    both = cost("a", 1000, 50.0, (2.0, 2.04)), cost("b", 2000, 40.0, other)
    told = VocabularyComparison(SPEC, both, flops=1e12).conclusion()
    assert ("not decided" not in told) == decided and "one training" not in told


def test_trainings_have_equal_flops_and_the_same_held_out_text(tmp_path: Path):
    """The second call finds everything done, and gives the same."""
    (tmp_path / "text.txt").write_text("<|endoftext|>".join(TEXTS))
    for name, tokenizer in (("small", SMALL), ("large", LARGE)):
        tokenizer.save(tmp_path / f"{name}.json")
    training = TokenizerTraining([str(tmp_path / "text.txt")], tmp_path / "runs", 3e7, seeds=2)
    paths = [tmp_path / "small.json", tmp_path / "large.json"]
    found = [training.measure(number, path, SPEC, silent) for number, path in enumerate(paths)]
    assert all(len(bits) == 2 and 1 < min(bits) < max(bits) < 12 for bits in found)
    folders = [tmp_path / "runs" / name for name in ("0-small", "1-large")]
    steps = [json.loads((folder / "seed-0" / "model" / "run.json").read_text())["tokens"] for folder in folders]
    assert steps[0] > steps[1]  # a token of the larger vocabulary costs more
    manifests = [json.loads((folder / "data" / "manifest.json").read_text()) for folder in folders]
    assert len({json.dumps(each["splits"]["validation"]["bytes"]) for each in manifests}) == 1
    assert evaluate_folder(folders[0] / "seed-1", folders[0] / "data").causal.bits_per_byte == found[0][1]
    weights = folders[0] / "seed-0" / "model" / "model.safetensors"
    written = weights.stat().st_mtime_ns
    assert training.measure(0, paths[0], SPEC, silent) == found[0] and weights.stat().st_mtime_ns == written


def test_too_few_flops_are_refused(tmp_path: Path):
    (tmp_path / "text.txt").write_text("<|endoftext|>".join(TEXTS))
    SMALL.save(tmp_path / "small.json")
    training = TokenizerTraining([str(tmp_path / "text.txt")], tmp_path / "runs", 1e3)
    with pytest.raises(UserError, match=re.escape("flops: 1000: expected at least ")):
        training.measure(0, tmp_path / "small.json", SPEC, silent)
