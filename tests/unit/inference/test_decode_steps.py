"""One token at a time in few operations gives what the decoder's own pass gives, and advances the state alike."""

from copy import deepcopy
from typing import Any

import pytest
import torch
from small_models import small_spec
from torch import Tensor

from linnet.inference.cache_policy import CachePolicies, cache_policy_state
from linnet.inference.decode_steps import DecodeSteps
from linnet.inference.readers import CachedReader
from linnet.inference.weights import convert_weights
from linnet.layers.cache_policy import FULL
from linnet.layers.contract import MixerSpec
from linnet.layers.mixers.attention import AttentionSpec, RotarySpec
from linnet.layers.mixers.plga import PlgaSpec
from linnet.layers.mixers.plga.module import DensitySpec
from linnet.layers.mixers.rwkv7 import Rwkv7Spec
from linnet.layers.mixers.ted import BankCache, EvictionCache, TedSpec
from linnet.model.decoder import Decoder
from linnet.model.state import DecoderState
from linnet.nn import packed_linear as maps

CONTEXTS: dict[str, CachePolicies] = {
    "full": FULL,
    "threshold": EvictionCache(0, 0.05),
    "top_k": EvictionCache(4, 0.01, 2),
    "fewest": EvictionCache(0, 1e9, 3),
    "bank": BankCache(),
}
MIXERS: list[MixerSpec] = [
    *AttentionSpec.examples(),
    AttentionSpec(heads=2, rotary=RotarySpec(pairing="adjacent", fraction=0.5), scale=0.3),
    AttentionSpec(heads=4, head_dim=3, kv_heads=2, rotary=RotarySpec(pairing="adjacent", fraction=0.7)),
    *PlgaSpec.examples(),
    *TedSpec.examples(),
    *Rwkv7Spec.examples(),
]
WITHOUT_STEPS = {id(mixer) for mixer in MIXERS if isinstance(mixer, AttentionSpec) and mixer.window is not None}
TOKENS = torch.arange(23).repeat(2)[:26]
PROMPT = 3


def decoder_with_weights(mixer: MixerSpec, std: float = 0.4, **changes: Any) -> Decoder:
    torch.manual_seed(0)
    decoder = Decoder(small_spec(mixer).replace(**changes))
    for name, parameter in decoder.named_parameters():
        if "operator" not in name:
            torch.nn.init.normal_(parameter, mean=float(parameter.dim() == 1), std=std)
    return decoder


def after_prompt(decoder: Decoder, context: CachePolicies = FULL, capacity: int = len(TOKENS)) -> DecoderState:
    state = cache_policy_state(decoder, 1, capacity, context)
    decoder.hidden(TOKENS[None, :PROMPT], state)
    return state


def choose(products: str, monkeypatch: pytest.MonkeyPatch) -> None:
    """Whose products of a row in float32 serve; compiled ones where there are any."""
    monkeypatch.setattr(maps, "SLICES_ARE_FASTER", products == "sliced")
    if products != "compiled":
        monkeypatch.setattr(maps, "library", lambda _: None)


def steps_of(decoder: Decoder, state: DecoderState) -> DecodeSteps:
    """Of a decoder that has steps on rows."""
    steps = DecodeSteps.of(decoder, state)
    assert steps is not None
    return steps


def assert_same_steps(
    decoder: Decoder, context: CachePolicies = FULL, exact: Decoder | None = None, factor: float = 4.0
) -> None:
    """Hidden vectors, logits and states of steps and of the decoder's own pass, as near as the pass is to `exact`.

    exact: the decoder without the rounding in question (default: the same weights in float64). Two forms that round
    independently differ by about the square root of 2 times the error of one of them, whatever the processor and the
    condition of the layers.
    """
    exact = deepcopy(decoder).double() if exact is None else exact
    expected, state, other = (after_prompt(decoder, context) for _ in range(3))
    precise = after_prompt(exact, context)
    steps, logits = steps_of(decoder, state), steps_of(decoder, other)
    found: dict[str, list[Tensor]] = {"hidden": [], "logits": []}
    of_pass, of_exact = deepcopy(found), deepcopy(found)
    for token in TOKENS[PROMPT:, None, None]:
        found["hidden"].append(steps.read(token).flatten())
        found["logits"].append(logits.logits(token).flatten())
        for model, its_state, outputs in ((decoder, expected, of_pass), (exact, precise, of_exact)):
            outputs["hidden"].append(model.hidden(token, its_state).flatten())
            outputs["logits"].append(model.logits(outputs["hidden"][-1].view(1, 1, -1)).flatten())
    for name, tensors in found.items():
        assert_near(torch.stack(tensors), torch.stack(of_pass[name]), torch.stack(of_exact[name]), factor)
    assert other.position == state.position == expected.position
    for ours, others, its, right in zip(state.layers, other.layers, expected.layers, precise.layers, strict=True):
        for name, tensor in its.tensors().items():
            for mine in (ours, others):
                assert_near(mine.tensors()[name], tensor, right.tensors()[name], factor)


def assert_near(found: Tensor, of_pass: Tensor, exact: Tensor, factor: float) -> None:
    """A root mean square distance of at most `factor` times that of the pass from `exact`, and a few last digits."""
    if not found.is_floating_point():
        assert torch.equal(found, of_pass)
        return
    assert found.dtype == of_pass.dtype
    found, of_pass, exact = found.double(), of_pass.double(), exact.double()
    error, size = (of_pass - exact).square().mean().sqrt(), exact.square().mean().sqrt()
    assert (found - of_pass).square().mean().sqrt() <= factor * error + 8 * torch.finfo(torch.float32).eps * size


@pytest.mark.parametrize("products", ["compiled", "plain", "sliced"])
@pytest.mark.parametrize("heads", [1, 2])
@pytest.mark.parametrize("context", CONTEXTS.values(), ids=CONTEXTS)
@torch.inference_mode()
def test_every_context_of_ted(context: CachePolicies, heads: int, products: str, monkeypatch: pytest.MonkeyPatch):
    choose(products, monkeypatch)
    assert_same_steps(decoder_with_weights(TedSpec(heads=heads, rate_bias=heads > 1, chunk=8)), context)


@pytest.mark.parametrize("heads", [1, 2])
@pytest.mark.parametrize("context", CONTEXTS.values(), ids=CONTEXTS)
@torch.inference_mode()
def test_every_context_of_ted_with_keys_and_a_convolution(context: CachePolicies, heads: int):
    decoder = decoder_with_weights(TedSpec(heads=heads, rate_bias=heads > 1, chunk=8, key_width=3, conv=3))
    assert_same_steps(decoder, context)


@pytest.mark.parametrize("products", ["compiled", "plain", "sliced"])
@pytest.mark.parametrize("mixer", [m for m in MIXERS if id(m) not in WITHOUT_STEPS], ids=str)
@torch.inference_mode()
def test_every_mixer(mixer: MixerSpec, products: str, monkeypatch: pytest.MonkeyPatch):
    choose(products, monkeypatch)
    assert_same_steps(decoder_with_weights(mixer))


LAYER, RMS = {"kind": "layer", "eps": 1e-5}, {"kind": "rms", "eps": 1e-5}
PLAIN = {"kind": "mlp", "hidden": 40, "activation": "gelu", "bias": True}
GATED = {"kind": "glu", "hidden": 24, "activation": "relu", "bias": True}
SHAPES: dict[str, dict[str, Any]] = {
    "post": {"norm": {**LAYER, "placement": "post"}, "feed_forward": PLAIN},
    "post, no feed-forward": {"norm": {**RMS, "placement": "post"}, "feed_forward": None},
    "output": {"norm": {**RMS, "placement": "output"}, "feed_forward": GATED},
    "sandwich": {"norm": {**RMS, "placement": "sandwich", "unit_offset": True}, "feed_forward": GATED},
    "sandwich, no feed-forward": {"norm": {**LAYER, "placement": "sandwich"}, "feed_forward": None},
    "pre, no feed-forward": {"norm": RMS, "feed_forward": None},
    "parallel": {"norm": LAYER, "feed_forward": GATED, "residual": "parallel"},
    "shared, narrow": {"norm": LAYER, "feed_forward": GATED, "width": 8, "repeat": 3, "share_weights": True},
}


@pytest.mark.parametrize("kind", ["attention", "plga", "ted"])
@pytest.mark.parametrize("shape", SHAPES.values(), ids=SHAPES)
@torch.inference_mode()
def test_every_shape_of_layer(shape: dict[str, Any], kind: str):
    mixer = {"attention": AttentionSpec(heads=2), "plga": PlgaSpec(heads=2, metric_hidden=8), "ted": TedSpec()}[kind]
    blocks = [{**shape, "mixer": mixer.model_dump()}] * 2
    assert_same_steps(decoder_with_weights(mixer, blocks=blocks))


@pytest.mark.parametrize(
    "changes",
    [
        {"embedding": {"skip": True, "norm": RMS}, "head": {"soft_cap": 2.0}},
        {"embedding": {"positions": "learned", "norm": LAYER}},
        {"embedding": {"scale": True, "width": 8}, "head": {"tied": True, "norm": None}},
        {"embedding": {"scale": 3.5}, "head": {"scale": 0.4}},
    ],
)
@torch.inference_mode()
def test_every_beginning_and_end(changes: dict[str, Any]):
    assert_same_steps(decoder_with_weights(AttentionSpec(heads=2), **changes))


@torch.inference_mode()
def test_weights_of_8_bits():
    decoder = decoder_with_weights(PlgaSpec(heads=2, metric_hidden=8, density=DensitySpec(scope="prefix")))
    exact = deepcopy(decoder)
    convert_weights(decoder, "int8")
    assert_same_steps(decoder, exact=exact, factor=1.0)  # inputs are rounded too: a last digit may move one


@pytest.mark.parametrize("mixer", [m for m in MIXERS if id(m) not in WITHOUT_STEPS], ids=str)
@torch.inference_mode()
def test_every_mixer_beside_weights_of_few_bits(mixer: MixerSpec):
    block = {"mixer": mixer.model_dump(), "feed_forward": {**GATED, "activation": "silu"}, "norm": RMS}
    decoder = decoder_with_weights(mixer, std=0.2, blocks=[{**block, "repeat": 2}])
    exact = deepcopy(decoder)
    convert_weights(decoder, "int8")
    assert_same_steps(decoder, exact=exact, factor=1.0)  # where the last digit of an input or a key moves


@torch.inference_mode()
def test_a_layer_that_is_not_known_runs_as_it_is_among_others():
    described = [AttentionSpec(heads=2), AttentionSpec(heads=2, window=4), TedSpec()]
    blocks = [{"mixer": mixer.model_dump()} for mixer in described]
    for skip in (False, True):
        assert_same_steps(decoder_with_weights(TedSpec(), blocks=blocks, embedding={"skip": skip}))


@torch.inference_mode()
def test_generation_takes_it_after_the_prompt_and_a_full_state_ends_it(monkeypatch: pytest.MonkeyPatch):
    decoder = decoder_with_weights(PlgaSpec(heads=2, metric_hidden=8))
    state = decoder.initial_state(1, 3)
    reader = CachedReader(decoder, state)
    taken, read = list[torch.Tensor](), DecodeSteps.logits
    monkeypatch.setattr(DecodeSteps, "logits", lambda steps, token: taken.append(token) or read(steps, token))
    reader.logits(TOKENS[None, :1])
    reader.logits(TOKENS[None, 1:3])
    assert not taken
    state.positions = (2,)
    reader.logits(TOKENS[None, 2:3])
    assert len(taken) == 1
    with pytest.raises(ValueError, match="has room for 0"):
        reader.logits(TOKENS[None, 3:4])


@torch.inference_mode()
def test_everything_else_takes_the_decoders_pass():
    ted = decoder_with_weights(TedSpec())
    assert DecodeSteps.of(ted, after_prompt(ted)) is not None
    assert DecodeSteps.of(ted, cache_policy_state(ted, 1, 8)) is None
    several = cache_policy_state(ted, 2, 8)
    ted.hidden(TOKENS[:8].view(2, 4), several)
    assert DecodeSteps.of(ted, several) is None
    wide = decoder_with_weights(TedSpec()).double()
    assert DecodeSteps.of(wide, after_prompt(wide)) is None
    with torch.autocast("cpu", torch.bfloat16):
        assert DecodeSteps.of(ted, after_prompt(ted)) is None


@pytest.mark.parametrize("feed_forward", [PLAIN, GATED], ids=["mlp", "glu"])
@pytest.mark.parametrize("norm", [LAYER, RMS], ids=["layer", "rms"])
@torch.inference_mode()
def test_bfloat16_is_as_near_to_float32_as_the_decoders_pass(norm: dict[str, Any], feed_forward: dict[str, Any]):
    mixer = AttentionSpec(heads=4, kv_heads=2, bias=True)
    blocks = [{"repeat": 2, "mixer": mixer.model_dump(), "feed_forward": feed_forward, "norm": norm}]
    precise, rounded = (decoder_with_weights(mixer, std=0.2, blocks=blocks) for _ in range(2))
    convert_weights(rounded, "bfloat16")
    exact, state, expected = after_prompt(precise), after_prompt(rounded), after_prompt(rounded)
    steps = steps_of(rounded, state)
    errors = torch.zeros(2)
    for token in TOKENS[PROMPT:, None, None]:
        of_float32 = precise.hidden(token, exact)
        found = torch.cat([steps.read(token), rounded.hidden(token, expected)])
        assert found.dtype == torch.bfloat16
        errors += (found - of_float32).square().sum((1, 2))
    assert errors[0] <= 1.2 * errors[1]
    assert state.position == expected.position


@torch.inference_mode()
def test_bfloat16_with_more_between_the_maps_takes_the_decoders_pass():
    for mixer in (AttentionSpec(heads=2, sinks=True), TedSpec()):
        decoder = decoder_with_weights(mixer).bfloat16()
        assert DecodeSteps.of(decoder, after_prompt(decoder)) is None


@torch.inference_mode()
def test_windows_and_recalibrated_operators_use_the_pass_of_the_decoder():
    windowed = decoder_with_weights(AttentionSpec(heads=2, window=4))
    assert DecodeSteps.of(windowed, after_prompt(windowed)) is None
    plga = decoder_with_weights(PlgaSpec(heads=2, metric_hidden=8))
    state = cache_policy_state(plga, 1, 8, "recalibrate")
    reader = CachedReader(plga, state)
    reader.logits(TOKENS[None, :PROMPT])
    assert DecodeSteps.of(plga, state) is None
    several = plga.initial_state(2, 8)
    plga.hidden(TOKENS[:8].view(2, 4), several)
    assert DecodeSteps.of(plga, several) is None


CROSS = {"heads": 2, "kv_heads": 1, "head_dim": 6}


@pytest.mark.parametrize("padding", [None, (2,)])
@pytest.mark.parametrize("norm", [{**LAYER, "placement": "post"}, LAYER], ids=["post", "pre"])
@torch.inference_mode()
def test_a_layer_with_an_encoder_beside_it(norm: dict[str, Any], padding: tuple[int, ...] | None):
    block = {"repeat": 2, "mixer": {"kind": "attention", "heads": 2}, "feed_forward": GATED}
    encoder = {"blocks": [block], "norm": RMS}
    blocks = [{**block, "norm": norm, "cross_attention": CROSS}]
    decoder = decoder_with_weights(AttentionSpec(heads=2), encoder=encoder, blocks=blocks)
    states = [decoder.initial_state(1, len(TOKENS)) for _ in range(2)]
    for state in states:
        memory = decoder.encode(torch.arange(7)[None], padding)
        decoder.hidden(TOKENS[None, :PROMPT], state, memory=memory)
    steps = steps_of(decoder, states[0])
    assert steps._steps[0].__qualname__.startswith("_layer_step")  # not the layer as it is
    for token in TOKENS[PROMPT:20, None, None]:
        expected = decoder.hidden(token, states[1])
        torch.testing.assert_close(steps.read(token), expected, rtol=1e-4, atol=1e-5)
