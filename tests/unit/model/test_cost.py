"""What a description predicts is what the built model has: parameters, FLOPs and state, exactly."""

from typing import Any

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from torch import nn
from torch.nn.attention import SDPBackend, sdpa_kernel
from torch.utils.flop_counter import FlopCounterMode

from linnet.model.cost import ModelCost, model_cost
from linnet.model.decoder import Decoder
from linnet.model.spec import ModelSpec, preset_names

PUBLISHED_PARAMETERS = {
    "pldr-v51-104m": 104_237_120,
    "pldr-v51-110m-1": 109_689_362,
    "pldr-v51-110m-2": 109_689_362,
    "pldr-v51-dag-110m": 109_689_362,
    "gpt2-124m": 124_439_808,
    "ted-tinystories": 4_748_032,
}
VOCABULARY, CONTEXT = 11, 40


def on_meta(spec: ModelSpec) -> Decoder:
    with torch.device("meta"):
        return Decoder(spec)


def count(*modules: nn.Module | None) -> int:
    return sum(p.numel() for module in modules if module is not None for p in module.parameters())


def assert_parameters_equal(cost: ModelCost, decoder: Decoder) -> None:
    assert cost.embedding.parameters == count(decoder.embedding)
    assert cost.blocks.parameters == count(decoder.blocks, decoder.project)
    assert cost.head.parameters == count(decoder.norm, decoder.head)
    assert cost.parameters == count(decoder)


@pytest.mark.parametrize("name", preset_names())
def test_a_preset_has_the_predicted_parameters(name: str):
    spec = ModelSpec.load(name)
    assert_parameters_equal(model_cost(spec), on_meta(spec))


@pytest.mark.parametrize("name", PUBLISHED_PARAMETERS)
def test_a_published_model_has_its_published_size(name: str):
    assert model_cost(ModelSpec.load(name)).parameters == PUBLISHED_PARAMETERS[name]


FIXED = {f"pldr-v51-110m-{i}": "pldr-v51g-106m-1" for i in (1, 2, 3, 4, 5)} | {"pldr-v51-104m": "pldr-v51gi-99m"}


@pytest.mark.parametrize("name", FIXED)
def test_a_fixed_operator_saves_the_parameters_that_the_paper_says(name: str):
    """arXiv 2502.13502: the metric net, shared by the heads of a layer, and five matrices a head."""
    spec, fixed = ModelSpec.load(name), ModelSpec.load(FIXED[name])
    plain = spec.blocks[0].mixer
    H, K, M = plain.heads, spec.d_model // plain.heads, plain.metric_hidden
    R, U = plain.residual_units, plain.gated_units
    net = R * (U * ((M * K + M) * 2 + (M * K + K)) + 2 * K)
    removed = spec.layers * (net + 5 * K * K * H + 2 * K)
    assert model_cost(spec).parameters - model_cost(fixed).parameters == removed
    assert round(net / K**2, 2) == {170: 129.33, 180: 136.91, 181: 137.66, 196: 149.03}[M]


@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16])
@pytest.mark.parametrize("name", preset_names())
def test_a_preset_has_the_predicted_state(name: str, dtype: torch.dtype):
    """Once it has seen a token: what a mixer freezes at the prompt is part of the state."""
    spec = ModelSpec.load(name).replace(vocab_size=VOCABULARY)
    decoder = on_meta(spec).to(dtype).to_empty(device="cpu")
    for capacity in (1, 300):
        state = decoder.initial_state(1, capacity)
        with torch.no_grad():
            decoder(torch.zeros(1, 1, dtype=torch.long), state)
        assert state.nbytes == model_cost(spec).state_bytes(capacity, dtype.itemsize)


def mixers(draw: st.DrawFn, heads: int) -> dict[str, Any]:
    kind = draw(st.sampled_from(["attention", "plga", "ted"]))
    if kind == "ted":
        return {"kind": kind, "heads": heads, "rate_bias": draw(st.booleans())}
    rotary = draw(st.sampled_from([None, {"pairing": "halves"}, {"pairing": "adjacent"}]))
    if kind == "attention":
        kv_heads = draw(st.sampled_from([None, *(n for n in range(1, heads + 1) if heads % n == 0)]))
        head_dim = draw(st.sampled_from([None, 2, 6]))
        bias = draw(st.booleans())
        return {
            "kind": kind,
            "heads": heads,
            "kv_heads": kv_heads,
            "head_dim": head_dim,
            "bias": bias,
            "rotary": rotary,
        }
    small = st.integers(1, 3)
    net = {"metric_hidden": draw(st.integers(1, 9)), "residual_units": draw(small), "gated_units": draw(small)}
    return {"kind": kind, "heads": heads, **net, "rotary": rotary}


def norms(draw: st.DrawFn) -> dict[str, Any]:
    return {"kind": draw(st.sampled_from(["rms", "layer"]))}


@st.composite
def descriptions(draw: st.DrawFn) -> ModelSpec:
    blocks = []
    for _ in range(draw(st.integers(1, 3))):
        heads = draw(st.integers(1, 4))
        feed_forward = {
            "kind": draw(st.sampled_from(["glu", "mlp"])),
            "hidden": draw(st.integers(1, 9)),
            "bias": draw(st.booleans()),
        }
        block = {
            "repeat": draw(st.integers(1, 3)),
            "mixer": mixers(draw, heads),
            "feed_forward": draw(st.sampled_from([None, feed_forward])),
            "norm": {**norms(draw), "placement": draw(st.sampled_from(["pre", "post"]))},
            "width": draw(st.sampled_from([None, 2 * heads, 4 * heads])),
            "share_weights": draw(st.booleans()),
        }
        blocks.append(block)
    tied = draw(st.booleans())
    description = {
        "vocab_size": VOCABULARY,
        "d_model": 24,  # divisible by up to 4 heads, each of an even width
        "context_length": CONTEXT,
        "embedding": {
            "positions": draw(st.sampled_from(["none", "learned"])),
            "norm": draw(st.sampled_from([None, norms(draw)])),
        },
        "blocks": blocks,
        "head": {
            "tied": tied,
            "bias": not tied and draw(st.booleans()),
            "norm": draw(st.sampled_from([None, norms(draw)])),
        },
    }
    return ModelSpec.parse(description, "generated")


@settings(max_examples=40, deadline=None)
@given(descriptions())
def test_any_description_predicts_its_parameters(spec: ModelSpec):
    assert_parameters_equal(model_cost(spec), on_meta(spec))


@settings(max_examples=20, deadline=None)
@given(descriptions(), st.integers(1, CONTEXT), st.sampled_from([torch.float32, torch.bfloat16]))
def test_any_description_predicts_its_state(spec: ModelSpec, capacity: int, dtype: torch.dtype):
    decoder = Decoder(spec).to(dtype)
    state = decoder.initial_state(1, capacity)
    with torch.no_grad():
        decoder(torch.zeros(1, 1, dtype=torch.long), state)
    assert state.nbytes == model_cost(spec).state_bytes(capacity, dtype.itemsize)


def counted_flops(spec: ModelSpec, tokens: int) -> int:
    """What torch's counter sees of a forward pass; in its plain form, attention is matrix products too.

    With gradients: without, a single token takes `ops.linear`'s own products, which the counter does not know.
    """
    decoder = Decoder(spec)
    with sdpa_kernel(SDPBackend.MATH), FlopCounterMode(display=False) as counter:
        decoder(torch.zeros(1, tokens, dtype=torch.long))
    return int(counter.get_total_flops())


@settings(max_examples=30, deadline=None)
@given(descriptions(), st.integers(1, CONTEXT))
def test_any_description_predicts_its_flops(spec: ModelSpec, tokens: int):
    predicted = model_cost(spec).flops_per_token(tokens, with_head=True) * tokens
    assert round(predicted) == counted_flops(spec, tokens)


def test_flops_without_the_head_leave_out_its_matrix_alone():
    cost = model_cost(ModelSpec.load("llama-110m"))
    head = cost.flops_per_token(100, with_head=True) - cost.flops_per_token(100, with_head=False)
    assert head == 2 * 896 * 32000
