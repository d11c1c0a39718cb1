"""The predicted parameters, FLOPs, state and memory of a description are exactly those of the built model."""

import json
import re
from typing import Any

import pytest
import torch
from hypothesis import assume, example, given, settings
from hypothesis import strategies as st
from torch import nn
from torch.nn.attention import SDPBackend, sdpa_kernel
from torch.utils.flop_counter import FlopCounterMode

from linnet.cli.main import main
from linnet.design import search
from linnet.design.space import load_space
from linnet.inference.weights import convert_weights, weights_nbytes
from linnet.model.cost import ModelCost, model_cost
from linnet.model.decoder import Decoder
from linnet.model.folder import preset_names
from linnet.model.spec import ModelSpec
from linnet.ops.linear import can_pack_bfloat16
from linnet.ops.rotary import rotary_range
from linnet.scaling.candidate import parameter_counts

PUBLISHED_PARAMETERS = {
    "pldr-v51-104m": 104_237_120,
    "pldr-v51-110m-1": 109_689_362,
    "pldr-v51-110m-2": 109_689_362,
    "pldr-v51-soc-110m-1": 109_689_362,
    "pldr-v51-soc-110m-5": 109_689_362,
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
    assert cost.blocks.parameters == count(decoder.blocks, decoder.project, decoder.head_project)
    assert cost.head.parameters == count(decoder.norm, decoder.head) + (
        0 if decoder.value is None else decoder.value.numel()
    )
    assert cost.parameters == count(decoder)


@pytest.mark.parametrize("name", preset_names())
def test_a_preset_has_the_predicted_parameters(name: str):
    spec = ModelSpec.load(name)
    assert_parameters_equal(model_cost(spec), on_meta(spec))


@pytest.mark.parametrize("name", PUBLISHED_PARAMETERS)
def test_a_published_model_has_its_published_size(name: str):
    assert model_cost(ModelSpec.load(name)).parameters == PUBLISHED_PARAMETERS[name]


MERINO = {"merino-52m": (52, "60"), "merino-61m": (61, "110"), "merino-64m": (64, "160")}
"""Parameters in millions (truncated) and FLOPs in billions (two digits), as printed in the paper."""


@pytest.mark.parametrize("name", MERINO)
def test_merino_presets_have_the_figures_of_the_paper(name: str):
    """arXiv 2403.07921, appendix: FLOPs of 1,024 tokens, scores in full, without the output head."""
    cost = model_cost(ModelSpec.load(name))
    flops = cost.flops(1024, with_head=False)
    two_digits = f"{float(f'{flops / 1e9:.2g}'):.0f}"
    assert (cost.parameters // 10**6, two_digits) == MERINO[name]
    assert cost.flops(1024, with_head=True) - flops == 2 * 1024 * 768 * 50257


def test_merino_presets_have_exact_figures():
    costs = [model_cost(ModelSpec.load(name)) for name in MERINO]
    assert [round(cost.parameters / 1e6, 1) for cost in costs] == [52.6, 61.3, 64.0]
    assert [round(cost.flops(1024, with_head=False) / 1e9, 1) for cost in costs] == [60.0, 107.3, 163.0]


FIXED = {f"pldr-v51-110m-{i}": "pldr-v51g-106m-1" for i in (1, 2, 3, 4, 5)} | {"pldr-v51-104m": "pldr-v51gi-99m"}


@pytest.mark.parametrize("name", FIXED)
def test_a_fixed_operator_saves_the_published_number_of_parameters(name: str):
    """arXiv 2502.13502: the metric net, shared by the heads of a layer, and five matrices per head."""
    spec, fixed = ModelSpec.load(name), ModelSpec.load(FIXED[name])
    plain = spec.blocks[0].mixer
    H, K, M = plain.heads, spec.d_model // plain.heads, plain.metric_hidden
    R, U = plain.residual_units, plain.gated_units
    net = R * (U * ((M * K + M) * 2 + (M * K + K)) + 2 * K)
    removed = spec.layers * (net + 5 * K * K * H + 2 * K)
    assert model_cost(spec).parameters - model_cost(fixed).parameters == removed
    assert round(net / K**2, 2) == {170: 129.33, 180: 136.91, 181: 137.66, 196: 149.03}[M]


@torch.no_grad()
@pytest.mark.parametrize("name", preset_names())
def test_a_preset_has_the_predicted_state(name: str):
    """After the first token: the calibration on the prompt is part of the state."""
    spec = ModelSpec.load(name).replace(vocab_size=VOCABULARY)
    dtype, capacity = ((torch.float32, 300), (torch.bfloat16, 1))[preset_names().index(name) % 2]
    decoder, token_11 = on_meta(spec).to(dtype).to_empty(device="cpu"), torch.zeros(1, 1, dtype=torch.long)
    state = decoder.initial_state(1, capacity)
    decoder(token_11, state, memory=None if decoder.encoder is None else decoder.encode(token_11))
    assert state.nbytes == model_cost(spec).state_bytes(capacity, dtype.itemsize, inputs=1)


def mixers(draw: st.DrawFn, heads: int) -> dict[str, Any]:
    kind = draw(st.sampled_from(["attention", "plga", "ted"]))
    if kind == "ted":
        return {"kind": kind, "heads": heads, "rate_bias": draw(st.booleans())}
    rotary = draw(st.sampled_from([None, {"pairing": "halves"}, {"pairing": "adjacent"}]))
    if kind == "attention":
        kv_heads = draw(st.sampled_from([None, *(n for n in range(1, heads + 1) if heads % n == 0)]))
        head_dim = draw(st.sampled_from([None, 2, 6]))
        bias, learned = draw(st.booleans()), draw(st.sampled_from([None, False, True]))
        window = draw(st.sampled_from([None, 1, 5, 16]))
        if learned is not None:
            kv_heads, head_dim = 1, 6  # all first values are of one shape
        return {
            "kind": kind,
            "heads": heads,
            "kv_heads": kv_heads,
            "head_dim": head_dim,
            "value_residual": None if learned is None else {"learned": learned},
            "bias": bias,
            "out_bias": draw(st.sampled_from([None, not bias])),
            "rotary": rotary,
            "window": window,
            "sink_tokens": None if window is None else draw(st.sampled_from([None, 2])),
            "query_key_norm": draw(st.sampled_from([None, {"kind": "rms"}, {"kind": "layer"}])),
            "gate": draw(st.sampled_from([None, "head", "channel"])),
            "sinks": draw(st.booleans()),
        }
    if draw(st.booleans()):
        return {"kind": kind, "heads": heads, "operator": "fixed", "rotary": rotary}
    small = st.integers(1, 3)
    net = {"metric_hidden": draw(st.integers(1, 9)), "residual_units": draw(small), "gated_units": draw(small)}
    return {"kind": kind, "heads": heads, **net, "rotary": rotary}


PLACEMENTS = ["pre", "post", "output", "sandwich"]


def norms(draw: st.DrawFn) -> dict[str, Any]:
    kind = draw(st.sampled_from(["rms", "layer"]))
    return {"kind": kind, "unit_offset": kind == "rms" and draw(st.booleans())}


@st.composite
def descriptions(draw: st.DrawFn) -> ModelSpec:
    blocks, skip = [], draw(st.booleans())
    for _ in range(draw(st.integers(1, 3))):
        heads = draw(st.integers(1, 4))
        feed_forward = {
            "kind": draw(st.sampled_from(["glu", "mlp"])),
            "hidden": draw(st.integers(1, 9)),
            "activation": draw(st.sampled_from(["silu", "gelu", "gelu_tanh", "relu", "relu_squared"])),
            "bias": draw(st.booleans()),
        }
        parallel = draw(st.booleans())
        block = {
            "repeat": draw(st.integers(1, 3)),
            "mixer": mixers(draw, heads),
            "feed_forward": draw(st.sampled_from([None, feed_forward])),
            "norm": {**norms(draw), "placement": "pre" if parallel else draw(st.sampled_from(PLACEMENTS))},
            "residual": "parallel" if parallel else "sequential",
            "width": None if skip else draw(st.sampled_from([None, 2 * heads, 4 * heads])),
            "share_weights": draw(st.booleans()),
        }
        blocks.append(block)
    tied = draw(st.booleans())
    description = {
        "vocab_size": VOCABULARY,
        "d_model": 24,  # divisible by up to 4 heads, each of an even width
        "context_length": CONTEXT,
        "embedding": {
            "width": draw(st.sampled_from([None, 7])),
            "positions": draw(st.sampled_from(["none", "learned"])),
            "norm": draw(st.sampled_from([None, norms(draw)])),
            "skip": skip,
        },
        "blocks": blocks,
        "head": {
            "tied": tied,
            "bias": not tied and draw(st.booleans()),
            "norm": draw(st.sampled_from([None, norms(draw)])),
            "soft_cap": draw(st.sampled_from([None, 3.0])),
            "value": draw(st.booleans()),
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
    """The FLOPs of a forward pass by torch's counter; in its plain form, attention is matrix products too.

    With gradients, because without them a single token uses products of `ops.linear` that are not counted.
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


def test_flops_without_the_head_leave_out_only_its_matrix():
    cost = model_cost(ModelSpec.load("llama-110m"))
    head = cost.flops_per_token(100, with_head=True) - cost.flops_per_token(100, with_head=False)
    assert head == 2 * 896 * 32000


@settings(max_examples=30, deadline=None)
@given(descriptions(), st.integers(1, CONTEXT))
def test_any_description_predicts_what_training_computes(spec: ModelSpec, tokens: int):
    """Except for recomputation that saves memory, in gated layers, attention in blocks and the metric net of PLGA."""
    gated = any(block.feed_forward is not None and block.feed_forward.kind == "glu" for block in spec.blocks)
    deduced = any(block.mixer.kind == "plga" and block.mixer.operator == "learned" for block in spec.blocks)
    attentions = [block.mixer for block in spec.blocks if block.mixer.kind == "attention"]
    blocked = any(mixer.sinks or mixer.sink_tokens for mixer in attentions)
    assume(not gated and not deduced and not blocked)
    decoder = Decoder(spec)
    with sdpa_kernel(SDPBackend.MATH), FlopCounterMode(display=False) as counter:
        decoder(torch.zeros(1, tokens, dtype=torch.long)).sum().backward()
    assert model_cost(spec).training_flops(tokens, with_head=True) == counter.get_total_flops()


def test_training_flops_are_three_times_the_forward_flops_for_every_mixer():
    for name in ("llama-110m", "pldr-v51-104m", "ted-tinystories"):
        cost = model_cost(ModelSpec.load(name))
        assert cost.training_flops(64, with_head=True) == 3 * cost.flops(64, with_head=True)


def kept_bytes(decoder: Decoder, tokens_BT: torch.Tensor) -> int:
    """The tensors that the pass up to the head keeps, except token ids, weights, and rotary tables."""
    length, device = tokens_BT.shape[1], torch.device("cpu")
    own = [*decoder.parameters(), *decoder.buffers()]
    for mixer in decoder.mixers:
        rotary = getattr(mixer, "rotary", None)
        if rotary is not None:
            own += rotary_range(0, length, rotary.width(mixer.head_dim), rotary.base, device)
    skipped = {tensor.untyped_storage().data_ptr() for tensor in own}
    kept: dict[int, torch.Tensor] = {}

    def keep(tensor: torch.Tensor) -> torch.Tensor:
        storage = tensor.untyped_storage().data_ptr()
        is_ids = tensor.dtype == torch.long and tensor.shape[-1:] != tensor.shape[-2:-1]
        if storage not in skipped and not is_ids:
            kept[storage] = tensor
        return tensor

    with torch.autograd.graph.saved_tensors_hooks(keep, lambda tensor: tensor):
        decoder.hidden(tokens_BT)
    return sum(tensor.untyped_storage().nbytes() for tensor in kept.values())


def kept_by_the_last_norm(spec: ModelSpec, read_by_head: int) -> bool:
    """True if the input of the head is the output of an `rms` norm, which keeps it."""
    last = spec.blocks[-1]
    widths = {last.width or spec.d_model, spec.d_model, read_by_head}
    if spec.head.norm is not None:
        return spec.head.norm.kind == "rms" and read_by_head == spec.d_model
    return last.norm.placement == "post" and last.norm.kind == "rms" and len(widths) == 1


FIXED_SHARES = {"kind": "attention", "heads": 1, "head_dim": 6, "rotary": None, "value_residual": {"learned": False}}
KEPT_FOR_A_LATER_LAYER = ModelSpec.parse(
    {
        "vocab_size": VOCABULARY,
        "d_model": 24,
        "context_length": CONTEXT,
        "blocks": [
            {"mixer": {**FIXED_SHARES, "query_key_norm": {"kind": "rms"}}},
            {"mixer": {**FIXED_SHARES, "value_residual": {"learned": True}}},
        ],
    },
    "first values",
)
KEPT_UNDER_TWO_NAMES = ModelSpec.parse(
    {
        "vocab_size": VOCABULARY,
        "d_model": 24,
        "context_length": CONTEXT,
        "blocks": [
            {"mixer": {"kind": "rwkv7", "heads": 2}},
            {"mixer": FIXED_SHARES},
            {"mixer": {"kind": "rwkv7", "heads": 2}},
            {"mixer": {**FIXED_SHARES, "value_residual": {"learned": True}}},
        ],
    },
    "first values of two kinds",
)

CUT_FOR_A_GATE = ModelSpec.parse(
    {
        "vocab_size": VOCABULARY,
        "d_model": 24,
        "context_length": CONTEXT,
        "blocks": [{"mixer": {"kind": "attention", "heads": 1, "window": 5, "gate": "head"}}],
    },
    "a window, a gate, one head",
)

BY_DISTANCE = [{"kind": "alibi"}, {"kind": "t5", "buckets": 6, "furthest": 9}, {"kind": "shaw", "clip": 7}]


@pytest.mark.parametrize("tokens", [5, 40, 70, 200])
@pytest.mark.parametrize("window", [None, 6, 64])
@pytest.mark.parametrize("positions", BY_DISTANCE, ids=lambda positions: positions["kind"])
def test_positions_by_distance_keep_only_their_tables(positions: dict[str, Any], window: int | None, tokens: int):
    """At any length, nothing is kept for pairs of query and key."""
    mixer = {"kind": "attention", "heads": 4, "kv_heads": 2, "window": window, "positions": positions}
    block = {"repeat": 2, "mixer": {**mixer, "query_key_norm": {}}, "norm": {"kind": "rms"}}
    plain = {"vocab_size": VOCABULARY, "d_model": 24, "context_length": CONTEXT, "blocks": [block]}
    spec = ModelSpec.parse({**plain, "head": {"tied": False}}, "by distance")
    tokens_BT = torch.randint(VOCABULARY, (3, tokens))
    predicted = model_cost(spec).training_memory(3, tokens).activations - 4 * 3 * tokens * spec.d_model
    assert predicted == pytest.approx(kept_bytes(Decoder(spec), tokens_BT), abs=8 * spec.layers)


KEPT_BY_A_POST_NORM = ModelSpec.parse(
    {
        "vocab_size": VOCABULARY,
        "d_model": 24,
        "context_length": CONTEXT,
        "blocks": [{"mixer": {"kind": "ted"}, "norm": {"kind": "rms", "placement": "post"}}],
        "head": {"tied": True, "norm": None},
    },
    "last norm",
)


@settings(max_examples=40, deadline=None)
@given(descriptions(), st.integers(2, 4), st.integers(5, CONTEXT))
@example(KEPT_BY_A_POST_NORM, 2, 5)
@example(KEPT_FOR_A_LATER_LAYER, 2, 5)
@example(KEPT_UNDER_TWO_NAMES, 2, 5)
@example(CUT_FOR_A_GATE, 2, 11)
def test_any_description_predicts_what_training_keeps(spec: ModelSpec, sequences: int, tokens: int):
    """With a single sequence, fewer tensors are copied."""
    tokens_BT = torch.randint(VOCABULARY, (sequences, tokens))
    activations = model_cost(spec).training_memory(sequences, tokens).activations
    narrow = spec.embedding.width or spec.d_model
    read_by_head = narrow if spec.head.tied else spec.d_model
    of_head = 0 if kept_by_the_last_norm(spec, read_by_head) else sequences * tokens * read_by_head
    of_head += VOCABULARY * narrow if spec.head.tied else 0
    predicted = activations - 4 * of_head
    assert predicted == pytest.approx(kept_bytes(Decoder(spec), tokens_BT), abs=8 * spec.layers)


def test_training_memory_is_weights_gradients_two_moments_and_activations():
    spec = ModelSpec.load("pldr-v51gi-99m")
    memory, parameters = model_cost(spec).training_memory(2, 512), model_cost(spec).parameters
    heads = spec.blocks[0].mixer.heads
    operators = spec.layers * heads * (spec.d_model // heads) ** 2
    assert memory.weights == 4 * (parameters + operators)
    assert (memory.gradients, memory.moments) == (4 * parameters, 8 * parameters)
    assert memory.total == memory.weights + memory.gradients + memory.moments + memory.activations


@pytest.mark.parametrize(
    "name", ["tiny-attention", "tiny-pldr", "tiny-ted", "merino-52m", "opt-350m", "pldr-v51gi-99m"]
)
def test_a_preset_has_the_predicted_bytes_of_weights(name: str):
    """The bytes of its file, with buffers; packed bfloat16 has an additional matrix for a tied head."""
    spec = ModelSpec.load(name)
    for dtype, torch_dtype in (("float32", torch.float32), ("bfloat16", torch.bfloat16)):
        stored = sum(tensor.nbytes for tensor in on_meta(spec).to(torch_dtype).state_dict().values())
        if dtype == "bfloat16" and spec.head.tied and can_pack_bfloat16(torch.device("cpu")):
            stored += 2 * spec.vocab_size * (spec.embedding.width or spec.d_model)
        assert model_cost(spec).weights_bytes(dtype) == stored


@settings(max_examples=20, deadline=None)
@given(descriptions(), st.sampled_from(["int8", "int4"]))
def test_any_description_predicts_its_bytes_of_quantized_weights(spec: ModelSpec, weights: str):
    decoder = Decoder(spec)
    convert_weights(decoder, weights)
    assert model_cost(spec).weights_bytes(weights) == weights_nbytes(decoder)


IDLE = 2 * 6 * 3 * 128 * 480
"""The inactive matrices of tiny-experts: three maps of six experts in each of two layers."""

SPACE = """
name: mixture
model: {vocab_size: 64, d_model: 32, context_length: 32}
blocks: 2
block:
  mixer: {kind: ted}
  ratio: [0.5, 1, 2]
  feed_forward: {kind: experts, experts: [1, 2, 4], top_k: [1, 2]}
"""


def vectors(model: ModelSpec) -> int:
    """Parameters that are not matrices."""
    return sum(p.numel() for name, p in Decoder(model).named_parameters() if p.dim() < 2)


def test_spec_show_prints_both(capsys: pytest.CaptureFixture[str]):
    assert main(["spec", "show", "tiny-experts", "--json"]) == 0
    parameters = json.loads(capsys.readouterr().out)["parameters"]
    assert parameters["total"] - parameters["active"] == IDLE
    assert main(["spec", "show", "tiny-experts"]) == 0
    assert re.search(f"used by one token +{parameters['active']:,}", capsys.readouterr().out)
    assert main(["spec", "show", "tiny-attention"]) == 0
    assert "used by one token" not in capsys.readouterr().out


def test_experts_cost_the_flops_of_those_that_a_token_passes():
    model = ModelSpec.load("tiny-experts")
    (block,) = model.blocks
    dense = block.model_copy(update={"feed_forward": block.feed_forward.model_copy(update={"experts": 2})})
    routers = 2 * 2 * 128 * (8 - 2)
    few = model_cost(model.replace(blocks=[dense]))
    assert model_cost(model).flops_per_token(64, True) == few.flops_per_token(64, True) + routers
    assert few.active_parameters == few.parameters


def test_the_matrices_that_a_token_is_multiplied_by():
    model = ModelSpec.load("tiny-experts")
    counts, cost = parameter_counts(model), model_cost(model)
    assert (counts.total, counts.stored) == (cost.active_parameters, cost.parameters)
    assert counts.total - counts.matrices_and_head == vectors(model)


def test_a_search_limits_active_parameters_and_skips_invalid_combinations(tmp_path):
    (tmp_path / "space.yaml").write_text(SPACE)
    space = load_space(tmp_path / "space.yaml", (), None)
    found = search.design(tmp_path / "space.yaml", max_active_parameters=20_000, method="exact")
    cost = model_cost(found.model)
    assert cost.active_parameters <= 20_000
    assert all(block.feed_forward.top_k <= block.feed_forward.experts for block in space.described)
