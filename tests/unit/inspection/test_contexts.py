"""Contexts compared: the windows read token by token and alone, the same numbers as evaluation's, what follows."""

import math

import pytest
import torch
from small_models import small_decoder, small_spec

from linnet.data.loader import Batch
from linnet.data.pieces import ByteCounts
from linnet.evaluation.documents import WindowBatch
from linnet.evaluation.evaluator import WindowEvaluator
from linnet.evaluation.measure import evaluate_windows
from linnet.inference.cache_policy import cache_policy_state
from linnet.inspection.contexts import (
    CachePolicyComparison,
    CachePolicyOutcome,
    LayerContext,
    compare,
    layers_plot,
    quality_plot,
    read_windows,
)
from linnet.layers.cache_policy import FULL, CachePolicy
from linnet.layers.mixers.attention import AttentionSpec
from linnet.layers.mixers.plga import PlgaSpec
from linnet.layers.mixers.ted import BankCache, EvictionCache, Ted, TedSpec
from linnet.layers.mixers.ted.policies import THRESHOLDS, TOP_K
from linnet.model.decoder import Decoder
from linnet.ops.cross_entropy import IGNORE_INDEX
from linnet.present import numbers
from linnet.present.style import png_of

TED = TedSpec(heads=2, chunk=3, tolerance=1e-9)
COMPARED = [FULL, BankCache(16), EvictionCache(4, -1.0), EvictionCache(0, 0.3), EvictionCache(5, 0.1, 2)]
LENGTHS = [[12, 7], [9, 9], [3]]


def tokens(*shape: int, seed: int = 1) -> torch.Tensor:
    return torch.randint(23, shape, generator=torch.Generator().manual_seed(seed))


def windows() -> list[tuple[torch.Tensor, torch.Tensor]]:
    """Batches of windows that begin together, with targets that do not count at their ends."""
    batches = []
    for number, lengths in enumerate(LENGTHS):
        inputs, targets = tokens(len(lengths), max(lengths), seed=number), tokens(len(lengths), max(lengths), seed=9)
        for row, length in enumerate(lengths):
            targets[row, length:] = IGNORE_INDEX
        batches.append((inputs, targets))
    return batches


def batch_of(inputs: torch.Tensor, targets: torch.Tensor) -> WindowBatch:
    return WindowBatch(inputs, targets, torch.zeros_like(targets))


def batches() -> list[WindowBatch]:
    return [batch_of(*pair) for pair in windows()]


def mixed_decoder(*others: object) -> Decoder:
    """TED in the first layer, then the others."""
    block = small_spec(TED).blocks[0].model_copy(update={"repeat": 1})
    blocks = [block, *(block.model_copy(update={"mixer": mixer}) for mixer in others)]
    torch.manual_seed(0)
    return Decoder(small_spec(TED).replace(blocks=blocks)).double()


DECODERS = {
    "ted": small_decoder(TED),
    "attention": mixed_decoder(AttentionSpec(heads=2), TED),
    "plga": mixed_decoder(PlgaSpec(heads=2, metric_hidden=12, residual_units=2)),
}
CALIBRATION = tokens(1, 10, seed=7)
every_decoder = pytest.mark.parametrize("decoder", DECODERS.values(), ids=DECODERS)


def ted_layers(decoder: Decoder) -> list[int]:
    return [layer for layer, mixer in enumerate(decoder.mixers) if isinstance(mixer, Ted)]


def test_windows_end_together():
    inputs, targets = torch.arange(8).view(2, 4), torch.tensor([[1, 2, 3, IGNORE_INDEX], [5, 6, 7, 8]])
    batch, padding_B = batch_of(inputs, targets).left_padded()
    assert batch.inputs_BT[:, 1:].tolist() == [[0, 1, 2], [5, 6, 7]]
    assert batch.targets_BT.tolist() == [[IGNORE_INDEX, 1, 2, 3], [5, 6, 7, 8]]
    assert (batch_of(inputs, targets).lengths_B.tolist(), padding_B.tolist()) == ([3, 4], [1, 0])


@torch.no_grad()
@pytest.mark.parametrize("context", COMPARED, ids=lambda policy: policy.label)
@pytest.mark.parametrize("decoder", [DECODERS["ted"], DECODERS["attention"]], ids=["ted", "attention"])
def test_a_window_is_read_as_if_alone_and_token_by_token(decoder: Decoder, context):
    found = read_windows(WindowEvaluator.create(decoder, CALIBRATION, 12, 8192), batch_of(*windows()[0]), context)
    for row, (inputs_T, targets_T) in enumerate(zip(*windows()[0], strict=True)):
        length = int((targets_T != IGNORE_INDEX).sum())
        state, nats, sizes, nbytes = cache_policy_state(decoder, 1, length, context), 0.0, [], []
        held = ted_layers(decoder)
        for step in range(length):
            logits = decoder(inputs_T[None, step : step + 1], state)[0, 0]
            nats -= float(logits.log_softmax(-1)[targets_T[step]])
            sizes.append([int(state.layers[layer].sizes(step + 1)) for layer in held])
            nbytes.append([state.layers[layer].nbytes for layer in held])
        sizes_TL = torch.tensor(sizes).double()
        assert float(found.nats_B[row]) == pytest.approx(nats)
        torch.testing.assert_close(found.mean_sizes_BL[row], sizes_TL.mean(0))
        assert found.largest_sizes_BL[row].tolist() == sizes_TL.amax(0).tolist()
        if context != FULL:  # which is allocated at once
            torch.testing.assert_close(found.nbytes_BL[row], torch.tensor(nbytes).double().mean(0))


@every_decoder
def test_all_tokens_have_the_bits_per_byte_of_evaluation(decoder: Decoder):
    token_bytes_V = torch.arange(1, 24)
    read = [Batch.from_labels(*pair) for pair in windows()]
    expected = evaluate_windows(
        decoder, read, ByteCounts.create(token_bytes_V.tolist()), decoder.spec.context_length, CALIBRATION
    ).causal
    bytes_N = torch.cat([(token_bytes_V[t.clamp(min=0)] * (t != IGNORE_INDEX)).sum(1) for _, t in windows()])
    compared = [FULL, EvictionCache(0, -1.0), EvictionCache(2, -1.0)]
    evaluator = WindowEvaluator.create(decoder, CALIBRATION, 12, 8192)
    found = compare(evaluator, batches(), bytes_N, compared, ted_layers(decoder), 12, 0.1)
    assert (found.windows, found.tokens, found.bytes) == (5, expected.tokens, expected.bytes)
    assert found.outcomes[0].bits_per_byte == pytest.approx(expected.bits_per_byte, rel=1e-9)
    assert found.outcomes[0].difference == found.outcomes[0].standard_error == found.outcomes[0].worse_percent == 0
    _, all_kept, few = found.outcomes
    assert all_kept.bits_per_byte == pytest.approx(expected.bits_per_byte, rel=1e-9)
    assert abs(few.difference) > 1e-6 and few.bits_per_byte == pytest.approx(expected.bits_per_byte + few.difference)


def test_every_token_has_the_same_weight():
    found = compare(
        WindowEvaluator.create(DECODERS["ted"], CALIBRATION, 12, 8192),
        batches(),
        torch.ones(5),
        [FULL, BankCache(16)],
        [0, 1],
        12,
        0.1,
    )
    lengths = [length for row in LENGTHS for length in row]
    expected = sum(length * (length + 1) / 2 for length in lengths) / sum(lengths)
    assert [layer.average_context for layer in found.outcomes[0].layers] == pytest.approx([expected] * 2)
    assert found.outcomes[0].average_context == pytest.approx(expected) and found.outcomes[0].largest_context == 12
    assert [layer.layer for layer in found.outcomes[0].layers] == [0, 1]
    assert found.outcomes[0].state_bytes == pytest.approx(expected * 2 * (16 + 2) * 8)
    assert found.outcomes[1].state_bytes == cache_policy_state(DECODERS["ted"], 1, 12, BankCache(16)).nbytes


def test_the_policies_that_are_compared_by_default():
    assert [policy.label for policy in BankCache.sweep(64)] == ["bank"] and BankCache.sweep(64) == [BankCache(64)]
    assert [policy.label for policy in EvictionCache.sweep(64)] == [
        *(f"top_k {k}" for k in TOP_K),
        *(f"threshold {numbers.exact(x)}" for x in THRESHOLDS),
    ]
    assert FULL.series is None and BankCache().series is None
    assert EvictionCache(1, 1e-4).label == "top_k 1, threshold 1e-4"
    assert EvictionCache(1, 1e-4).series == ("top_k 1 and threshold", "1e-4")
    assert EvictionCache(7, -1.0).series == ("top_k", "7")
    assert EvictionCache(0, -1.0).label == "no eviction" and EvictionCache(0, -1.0).series == ("threshold", "off")


def outcome(context, bits: float, state_bytes: float, error: float | None = 0.0) -> CachePolicyOutcome:
    layers = [LayerContext(1, 12.25, 30), LayerContext(3, 1234.0, 2000)]
    return CachePolicyOutcome(context, bits, bits - 2.0, error, state_bytes, layers)


ABOUT = {"model": "ted", "data": "stories", "split": "validation"}


def comparison(*others: CachePolicyOutcome, within: float = 0.1) -> CachePolicyComparison:
    return CachePolicyComparison(8, 1000, 900, 128, within, [outcome(FULL, 2.0, 102_400), *others], ABOUT)


def test_the_smallest_state_that_loses_nothing():
    tried = [
        outcome(BankCache(), 2.0, 20_480),
        outcome(EvictionCache(8, -1.0), 2.1, 5_120),
        outcome(EvictionCache(16, -1.0), 2.0019, 10_240, 0.0012),
        outcome(EvictionCache(32, -1.0), 1.999, 30_720),
    ]
    found = comparison(*tried)
    assert found.smallest is tried[2]
    assert found.conclusion() == (
        "The smallest state within 0.1 % of the full cache: top_k 16, 10 KiB on average, 10 % of 100 KiB;"
        " +0.00190 ± 0.00120 bits per byte."
    )
    assert comparison(*tried, within=0).smallest is tried[0]
    assert comparison(*tried, within=6).smallest is tried[1]
    assert "No smaller state was tried with top_k." in comparison(*tried, within=6).conclusion()
    figures = found.to_dict()
    assert figures["smallest"] == "top_k 16" and figures["contexts"][3]["top_k"] == 16
    assert figures["contexts"][3]["worse_percent"] == pytest.approx(0.095)
    assert figures["contexts"][2]["per_layer"][1] == {"layer": 3, "average_context": 1234.0, "largest_context": 2000}


def test_an_uncertain_conclusion_is_marked():
    for error in (0.0021, None):
        found = comparison(outcome(EvictionCache(8, -1.0), 2.001, 5_120, error), outcome(BankCache(), 2.0, 9_000))
        assert "Its standard error exceeds that limit: read more windows." in found.conclusion()
    sure = comparison(outcome(EvictionCache(8, -1.0), 2.001, 5_120, 0.0019), outcome(BankCache(), 2.0, 9_000))
    assert "read more" not in sure.conclusion()
    none = comparison(outcome(BankCache(), 2.1, 9_000), outcome(EvictionCache(8, -1.0), math.nan, 5_120, math.nan))
    assert none.conclusion() == "No smaller state stays within 0.1 % of the full cache: 100 KiB."
    assert none.to_dict()["contexts"][2]["bits_per_byte"] is None


def test_tables():
    quality, layers = comparison(outcome(EvictionCache(16, 0.01), 2.002, 10_240, 0.0005)).tables()
    assert quality.rows[0] == ("full", "2.0000", "0.00000", "0.00000", "0.00 %", "623.1", "2,000", "100 KiB")
    assert quality.rows[1][:5] == ("top_k 16, threshold 0.01", "2.0020", "+0.00200", "0.00050", "+0.10 %")
    assert "1,000 tokens in 8 windows of at most 128" in quality.meaning
    assert layers.columns == ("", "layer 1", "layer 3") and layers.rows[1][1:] == ("12.2", "1,234.0")
    alone, _ = comparison(outcome(BankCache(), 2.0, 1, None)).tables()
    assert alone.rows[1][3] == "one window"


def policies(top_k: list[int], thresholds: tuple[float, ...] = (-1.0,)) -> list[CachePolicy]:
    return [FULL, BankCache(), *(EvictionCache(k, x) for k in top_k for x in thresholds)]


def comparison_of(compared: list[CachePolicy], layers: int = 2, worse: float = 0.01, error: float | None = 0.001):
    outcomes = [
        CachePolicyOutcome(
            context,
            2.0 + worse * (context != FULL),
            worse * (context != FULL),
            error,
            1e5 / (1 + number),
            [LayerContext(2 * layer, 100 / (1 + number), 120) for layer in range(layers)],
        )
        for number, context in enumerate(compared)
    ]
    return CachePolicyComparison(8, 1000, 900, 128, 0.1, outcomes)


def test_quality_has_a_point_for_every_context_in_both_panels():
    found = comparison_of(policies([8, 16], (0.1,)))
    (quality, layers) = found.plots()
    assert [picture.name for picture in (quality, layers)] == ["quality_against_memory", "contexts_of_layers"]
    bits, loss = quality.drawing.panels
    sizes = sorted(one.state_bytes for one in found.outcomes)
    assert sorted(size for series in bits.series for size in series.x) == sizes
    assert {y for series in bits.series for y in series.y} == {2.0, 2.01}
    assert [rule.at for rule in (*bits.rules, *loss.rules)] == [2.0, 0.1]
    bars = [one for one in loss.series if one.low is not None]
    assert len(bars) == len(found.outcomes) - 1 and bars[0].low[0] == pytest.approx(0.45)
    assert [label for one in bits.series for label in one.labels] == ["0.1", "0.1"]


def test_each_series_has_a_panel_with_full_and_bank_in_all():
    for numbers_k, panels in (([1, 2], 2), ([1, 2, 3, 4], 4)):
        plot = layers_plot(comparison_of(policies(numbers_k, (0.1, 1.0))))
        assert len(plot.panels) == panels and plot.names == "ends"
        always = [[(one.name, one.style) for one in panel.series[:2]] for panel in plot.panels]
        assert always == [[("full", "o:"), ("bank", "o--")]] * panels


@pytest.mark.parametrize(("layers", "compared"), [(1, [FULL]), (32, policies([8])), (1, policies([8], (0.1,)))])
def test_any_number_of_settings_and_layers(compared, layers):
    for picture in comparison_of(compared, layers, error=None).plots():
        assert png_of(picture.drawing.figure()).startswith(b"\x89PNG") and picture.caption


@pytest.mark.parametrize(("worse", "shown"), [(0.01, 0.5), (-0.5, 1e-3), (math.nan, math.nan)])
def test_losses_that_are_worse_better_or_not_a_number_are_drawn(worse: float, shown: float):
    plot = quality_plot(comparison_of(policies([8, 16]), worse=worse))
    line = next(one for one in plot.panels[1].series if one.labels)
    assert list(line.y) == pytest.approx([shown] * 2, nan_ok=True)
    assert png_of(plot.figure()).startswith(b"\x89PNG")
