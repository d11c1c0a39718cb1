"""Decoders of every mixer with weights of other precisions."""

import copy
import statistics
from collections.abc import Iterable
from functools import cache
from typing import get_args

import pytest
import torch
from small_models import CASES, EXAMPLES, in_turn, small_decoder, small_spec, speaker
from torch import Tensor, nn

from linnet.core.errors import UserError
from linnet.data.tokenizer import Tokenizer
from linnet.inference.decode import decode
from linnet.inference.language_model import load
from linnet.inference.native_step import NativeStep
from linnet.inference.sampling import Sampling
from linnet.inference.weights import Precision, convert_weights, weights_nbytes
from linnet.layers.contract import MixerSpec
from linnet.layers.mixers.plga.operator import PowerLawOperator
from linnet.model.cost import model_cost
from linnet.model.decoder import Decoder
from linnet.model.store import save_decoder
from linnet.nn.packed_linear import PackedLinear
from linnet.ops import int4_linear, int8_linear
from linnet.ops.linear import can_pack_bfloat16

each_mixer = pytest.mark.parametrize("mixer", CASES)


def each_mixer_and_head(precisions: Iterable[str]) -> pytest.MarkDecorator:
    """Every mixer with every precision, and each of both with both heads, which alternate."""
    cases = []
    for index, case in enumerate(CASES):
        for number, weights in enumerate(precisions):
            tied = (index + number) % 2 == 0
            name = f"{weights}-{case.id}-{'tied' if tied else 'untied'}"
            cases.append(pytest.param(case.values[0], weights, tied, id=name, marks=case.marks))
    return pytest.mark.parametrize(("mixer", "weights", "tied"), cases)


needs_packed_bfloat16 = pytest.mark.skipif(
    not can_pack_bfloat16(torch.device("cpu")), reason="no bfloat16 products on this processor"
)


SEEDS = range(3)
"""Of models, whose errors a test takes the median of."""


@cache
def decoder_with_weights(mixer: MixerSpec, tied: bool, seed: int = 0) -> Decoder:
    """Float32; as large as `small_decoder`'s, but with an operator near the identity, which is not chaotic.

    One for all tests, which do not change it.
    """
    spec = small_spec(mixer)
    decoder = Decoder(spec.replace(head={"tied": tied, "bias": not tied, "norm": {}}))
    source = dict(small_decoder(mixer, seed).named_parameters())
    for name, parameter in decoder.named_parameters():
        if "operator" not in name and name in source:
            parameter.data.copy_(source[name].data)
    for module in decoder.modules():
        if isinstance(module, PowerLawOperator):
            module.start = "identity"
            module.reset_parameters()
    return decoder


def converted(decoder: Decoder, weights: str) -> Decoder:
    decoder = copy.deepcopy(decoder)
    convert_weights(decoder, weights)
    return decoder


@cache
def converted_once(mixer: MixerSpec, tied: bool, weights: str, seed: int = 0) -> Decoder:
    """One for all tests, which do not change it."""
    return converted(decoder_with_weights(mixer, tied, seed), weights)


def converted_models(mixer: MixerSpec, tied: bool, weights: str) -> list[Decoder]:
    return [converted_once(mixer, tied, weights, seed) for seed in SEEDS]


def with_rounded_matrices(decoder: Decoder, rounded: Decoder) -> Decoder:
    """`decoder` in float32 with the matrices that `rounded` multiplies by, and its table."""
    decoder = copy.deepcopy(decoder).requires_grad_(False)
    maps = dict(rounded.named_modules())
    for name, module in decoder.named_modules():
        if isinstance(module, nn.Linear) and isinstance(maps[name], PackedLinear):
            module.weight.copy_(maps[name].weight)
    decoder.embedding.tokens.weight.copy_(rounded.embedding.tokens.weight)
    return decoder


def error(actual: Tensor, expected: Tensor) -> float:
    """Root mean square of the error over that of what is expected."""
    return float((actual.float() - expected.float()).norm() / expected.float().norm())


def typical(errors: Iterable[float]) -> float:
    """The median over several models: the scale of a cache_policy that is nearly 0 is normed away, with much
    rounding.
    """
    return statistics.median(errors)


def models(mixer: MixerSpec, tied: bool) -> list[Decoder]:
    return [decoder_with_weights(mixer, tied, seed) for seed in SEEDS]


def tokens(length: int = 12) -> Tensor:
    return torch.randint(23, (2, length), generator=torch.Generator().manual_seed(0))


DIFFERENCES = {"int8": (1e-3, 0.1), "int4": (0.02, 1.5)}
"""Of the model before rounding, at least and at most."""


@torch.no_grad()
@each_mixer_and_head(DIFFERENCES)
def test_it_is_the_model_with_rounded_matrices(mixer: MixerSpec, weights: str, tied: bool):
    least, most = DIFFERENCES[weights]
    own, other = [], []
    for decoder, rounded in zip(models(mixer, tied), converted_models(mixer, tied, weights), strict=True):
        expected = with_rounded_matrices(decoder, rounded)(tokens())
        own.append(error(rounded(tokens()), expected))
        other.append(error(decoder(tokens()), expected))
    assert typical(own) < typical(other) / 10
    assert least < typical(other) < most


@torch.no_grad()
@pytest.mark.parametrize(("mixer", "weights"), in_turn(int8="int8", int4="int4"))
def test_without_a_fast_form(mixer: MixerSpec, weights: str, monkeypatch: pytest.MonkeyPatch):
    expected = [decoder(tokens()) for decoder in converted_models(mixer, True, weights)]
    monkeypatch.setattr(int8_linear, "has_fast_form", lambda _: False)
    monkeypatch.setattr(int4_linear, "can_pack", lambda _: False)
    found = [converted(decoder, weights)(tokens()) for decoder in models(mixer, tied=True)]
    assert typical(map(error, found, expected)) < 2e-3  # two digits of 8 bits, which the norms of mlstm magnify


@pytest.mark.parametrize("weights", ["int8", "int4"])
def test_a_tied_table_is_held_once_and_the_model_is_smaller_than_float32(weights: str):
    tied, untied = (decoder_with_weights(EXAMPLES[0], tied) for tied in (True, False))
    table = weights_nbytes(converted(untied, weights)) - weights_nbytes(converted(tied, weights))
    assert 0 < table < weights_nbytes(untied) - weights_nbytes(tied)
    decoder = converted(tied, weights)
    assert decoder.embedding.tokens.table is decoder.head
    assert weights_nbytes(decoder) < weights_nbytes(tied)


@torch.no_grad()
@each_mixer_and_head(get_args(Precision))
def test_decoding_with_a_state_gives_what_one_pass_gives(mixer: MixerSpec, weights: str, tied: bool):
    decoder = converted_once(mixer, tied, weights)
    prompt, rest = tokens()[:1, :5], tokens()[:1, 5:]
    state, other = (decoder.initial_state(1, 12) for _ in range(2))
    decoder(prompt, state), decoder(prompt, other)
    by_one = torch.cat([decoder(rest[:, i : i + 1], state) for i in range(7)], dim=1)
    assert error(by_one, decoder(rest, other)) < (1e-3 if weights == "float32" else 0.03)  # one row: in bfloat16


@torch.no_grad()
@pytest.mark.parametrize(("mixer", "tied"), in_turn(tied=True, untied=False))
def test_bfloat16_is_near_float32_and_halves_the_state_but_for_what_is_never_narrow(mixer: MixerSpec, tied: bool):
    decoder = decoder_with_weights(mixer, tied)
    narrow = converted_once(mixer, tied, "bfloat16")
    pairs = zip(converted_models(mixer, tied, "bfloat16"), models(mixer, tied), strict=True)
    assert typical(error(rounded(tokens()), each(tokens())) for rounded, each in pairs) < 0.05
    assert narrow(tokens()).dtype == narrow.dtype == torch.bfloat16
    state = narrow.initial_state(1, 64)
    narrow(tokens()[:1], state)
    cost = model_cost(decoder.spec)
    fixed = cost.blocks.state_fixed_bytes + 64 * cost.blocks.state_bytes_per_token
    assert state.nbytes - fixed == (cost.state_bytes(64) - fixed) / 2


@torch.no_grad()
@each_mixer
@pytest.mark.parametrize("weights", get_args(Precision))
def test_the_bytes_of_a_state_are_known_before(mixer: MixerSpec, weights: str):
    decoder = converted_once(mixer, True, weights)
    for room in (1, 64):
        state = decoder.initial_state(1, room)
        decoder(tokens(1)[:1], state)
        assert state.nbytes == model_cost(decoder.spec).state_bytes_for_precision(weights, room)


KEEPS = [spec for spec in EXAMPLES if spec.kind in ("attention", "plga")]
"""Keys and values: in 16 bits, unless by a window, positions by distance, sinks or bounded scores."""


def keeps_narrow(mixer: MixerSpec) -> bool:
    wide = mixer.kind == "attention" and (mixer.window or mixer.positions or mixer.sinks or mixer.soft_cap)
    return not wide


@torch.no_grad()
@pytest.mark.parametrize(
    ("mixer", "weights", "compiled"),
    [
        pytest.param(spec, weights, (index + number) % 2 == 0, id=f"{spec.kind}-{index}-{weights}")
        for index, spec in enumerate(KEEPS)
        for number, weights in enumerate(("int8", "int4"))
    ],
)
def test_beside_few_bits_keys_and_values_have_sixteen(
    mixer: MixerSpec, weights: str, compiled: bool, monkeypatch: pytest.MonkeyPatch
):
    """And nothing else of it has: rounded once, when they are kept, so that a stream is the same however it is read."""
    if not compiled:
        monkeypatch.setattr("linnet.ops.attention.library", lambda _: None)
        monkeypatch.setattr("linnet.inference.native_step.library", lambda _: None)
    decoder = converted_once(mixer, True, weights)
    state, other, third = (decoder.initial_state(1, 12) for _ in range(3))
    kept = state.layers[0].tensors()
    assert kept["keys"].dtype == kept["values"].dtype == (torch.bfloat16 if keeps_narrow(mixer) else torch.float32)
    whole = decoder(tokens()[:1], state)
    assert whole.dtype == torch.float32
    parts = torch.cat([decoder(part, other) for part in tokens()[:1].split([5, 1, 3, 3], dim=1)], dim=1)
    decoder(tokens()[:1, :5], third)
    native = NativeStep.of(decoder, third)
    assert (native is not None) <= compiled
    if native is not None:
        by_row = torch.stack([native.logits(tokens()[:1, i : i + 1])[0] for i in range(5, 12)])
        assert error(by_row, parts[0, 5:]) < 2e-3
    if mixer.kind == "plga":  # its operator is that of the first chunk
        state = decoder.initial_state(1, 12)
        whole = torch.cat([decoder(part, state) for part in tokens()[:1].split([5, 7], dim=1)], dim=1)
    assert error(parts, whole) < 2e-3
    asked = decoder.initial_state(1, 12, dtype=torch.float64)
    assert asked.layers[0].tensors()["keys"].dtype == torch.float64


@torch.no_grad()
def test_bfloat16_without_packing_is_the_same_model(monkeypatch: pytest.MonkeyPatch):
    decoder = decoder_with_weights(EXAMPLES[0], tied=True)
    expected = converted(decoder, "bfloat16")(tokens())
    monkeypatch.setattr("linnet.nn.packed_linear.can_pack_bfloat16", lambda _: False)
    monkeypatch.setattr("linnet.inference.weights.can_pack_bfloat16", lambda _: False)
    plain = converted(decoder, "bfloat16")
    assert not any(isinstance(module, PackedLinear) for module in plain.modules()) and plain.head is None
    assert error(plain(tokens()), expected) < 0.02


@each_mixer_and_head(["int8", "int4", *(["bfloat16"] if can_pack_bfloat16(torch.device("cpu")) else [])])
def test_every_linear_map_is_converted_but_those_that_skip_it(mixer: MixerSpec, weights: str, tied: bool):
    decoder = copy.deepcopy(decoder_with_weights(mixer, tied))
    names = {name for name, module in decoder.named_modules() if isinstance(module, nn.Linear)}
    parts = [part for sublayer in decoder.sublayers for part in sublayer.skip_quantization()]
    precise = {id(module) for part in parts for module in part.modules()}
    skipped = {name for name, module in decoder.named_modules() if name in names and id(module) in precise}
    before = {name: parameter.clone() for name, parameter in decoder.named_parameters()}
    convert_weights(decoder, weights)
    converted_names = {name for name, module in decoder.named_modules() if isinstance(module, PackedLinear)}
    rounded = weights != "bfloat16"
    table = {"embedding.tokens.table"} if rounded else set()
    assert converted_names | {"head"} == names - skipped | {"head"} | table  # a tied head is the table
    kept = dict(decoder.named_parameters())
    assert ("embedding.tokens.weight" in kept) != rounded and skipped <= {name.removesuffix(".weight") for name in kept}
    dtype = torch.float32 if rounded else torch.bfloat16
    assert all(torch.equal(parameter, before[name].to(dtype)) for name, parameter in kept.items())


@pytest.mark.parametrize("stored", [torch.float32, torch.float64, torch.bfloat16])
@pytest.mark.parametrize("weights", get_args(Precision))
def test_conversion_from_every_stored_dtype(stored: torch.dtype, weights: str):
    decoder = copy.deepcopy(decoder_with_weights(EXAMPLES[0], tied=False)).to(stored)
    convert_weights(decoder, weights)
    assert decoder.dtype == (torch.bfloat16 if weights == "bfloat16" else torch.float32)
    kept = decoder.initial_state(1, 4).layers[0].tensors()["keys"].dtype
    assert kept == (torch.float32 if weights == "float32" else torch.bfloat16)
    assert decoder(tokens()).dtype == decoder.dtype
    assert not any(parameter.requires_grad for parameter in decoder.parameters())


@pytest.mark.parametrize("weights", get_args(Precision))
def test_generating(weights: str):
    decoder = converted(decoder_with_weights(EXAMPLES[0], tied=True), weights)
    prompts = [[3, 5, 7], [2, 2]]
    together = list(decode(decoder, prompts, 6, Sampling(temperature=0.0)))
    alone = [list(decode(decoder, [prompt], 6, Sampling(temperature=0.0))) for prompt in prompts]
    if weights == "float32":
        assert together == [[a[0], b[0]] for a, b in zip(*alone, strict=True)]
    assert len(together) == 6


def test_a_second_conversion_and_unknown_precisions_are_refused():
    decoder = copy.deepcopy(decoder_with_weights(EXAMPLES[0], tied=False))
    with pytest.raises(UserError, match="precision: 'int2': expected float32, bfloat16, int8, int4"):
        convert_weights(decoder, "int2")
    convert_weights(decoder, "int8")
    with pytest.raises(ValueError, match="converted before"):
        convert_weights(decoder, "float32")


def test_a_converted_model_is_neither_saved_nor_given_other_operators(tmp_path):
    model = speaker(next(spec for spec in EXAMPLES if spec.kind == "plga"))
    convert_weights(model.decoder, "int8")
    with pytest.raises(ValueError, match="for inference only"):
        save_decoder(model.decoder, tmp_path / "model")
    with pytest.raises(ValueError, match="for inference only"):
        model.with_calibration("identity")


@each_mixer
@pytest.mark.parametrize("weights", ["int8", "int4", pytest.param("bfloat16", marks=needs_packed_bfloat16)])
def test_a_converted_model_moves_as_a_whole(mixer: MixerSpec, weights: str):
    decoder = converted(decoder_with_weights(mixer, tied=True), weights).to("meta")
    maps = [module for module in decoder.modules() if isinstance(module, PackedLinear)]
    assert maps and {module.weight.device.type for module in maps} == {"meta"} == {decoder.device.type}


@torch.no_grad()
@pytest.mark.parametrize("weights", ["int8", "int4", pytest.param("bfloat16", marks=needs_packed_bfloat16)])
def test_a_converted_model_refuses_another_precision_as_a_whole(weights: str):
    decoder = converted(decoder_with_weights(EXAMPLES[0], tied=False), weights)
    expected = decoder(tokens())
    for dtype in {torch.float32, torch.bfloat16} - {decoder.dtype}:
        with pytest.raises(ValueError, match="converted weights stay in"):
            decoder.to(dtype)
    assert torch.equal(decoder(tokens()), expected), "refused before anything was changed"


def test_load_brings_a_folder_to_a_precision(tmp_path):
    tokenizer = Tokenizer.train("bytes", [])
    save_decoder(Decoder(small_spec(EXAMPLES[0], tokenizer.vocab_size)), tmp_path / "model")
    tokenizer.save(tmp_path / "model" / "tokenizer.json")
    assert isinstance(load(tmp_path / "model", precision="int8").decoder.head, PackedLinear)
    assert load(tmp_path / "model", precision="bfloat16").decoder.dtype == torch.bfloat16
    with pytest.raises(UserError, match="precision: 'tiny'"):
        load(tmp_path / "model", precision="tiny")


def test_a_group_that_no_product_takes():
    with pytest.raises(UserError, match="group: 100: expected 32, 64, 128, 256"):
        convert_weights(copy.deepcopy(decoder_with_weights(EXAMPLES[0], tied=True)), "int4", group=100)
