"""Compiled decoding steps: the captured pass equals the decoder, and takes over only where it is there and right."""

import copy
import gc
import json
import subprocess
import sys
import time
import weakref
from collections import Counter
from collections.abc import Callable
from functools import partial
from pathlib import Path
from types import SimpleNamespace

import pytest
import torch
from small_models import CASES, EXAMPLES, small_decoder
from torch import Tensor

from linnet.inference import compiled_step, step_packages
from linnet.inference.cache_policy import cache_policy_state
from linnet.inference.captured_step import InPlaceStep, PassFunction, StateTensors, export_step, weights_of
from linnet.inference.compiled_step import (
    BUILD_AFTER_S,
    MAX_ERRORS,
    POLL_TOKENS,
    TIMED_TOKENS,
    CompiledSteps,
    Step,
    Times,
    can_compile,
    candidate_of,
    finish_builds,
)
from linnet.inference.cuda_graphs import GraphSteps
from linnet.inference.decode import decode
from linnet.inference.engine import Engine
from linnet.inference.prefill import new_state
from linnet.inference.readers import _ordinary_step
from linnet.inference.sampling import Sampling
from linnet.inference.step_packages import BUILDS, example_state, ordinary_steps, package_of, start_build
from linnet.inference.streams import Request
from linnet.inference.weights import convert_weights
from linnet.layers.cache_policy import FULL, CachePolicy, RecalibratingCache
from linnet.layers.contract import MixerSpec
from linnet.layers.mixers.ted import BankCache, EvictionCache
from linnet.layers.mixers.ted.bank import BankState
from linnet.model.decoder import Decoder
from linnet.model.spec import ModelSpec
from linnet.model.state import DecoderState
from linnet.ops.linear import can_pack_bfloat16
from linnet.ops.native import custom_ops_in_graphs, library
from recorded_steps import compile_from_the_first_token, record_from_the_first_token, uncompiled

PROMPT = [1, 2, 3]
GREEDY = Sampling(temperature=0.0)
MAMBA = next(mixer for mixer in EXAMPLES if mixer.kind == "mamba")
GATED_DELTA = next(mixer for mixer in EXAMPLES if mixer.kind == "gated_delta")
MAMBA2 = next(mixer for mixer in EXAMPLES if mixer.kind == "mamba2")
TED = next(mixer for mixer in EXAMPLES if mixer.kind == "ted")
S4D = next(mixer for mixer in EXAMPLES if mixer.kind == "s4d")
RETENTION = next(mixer for mixer in EXAMPLES if mixer.kind == "retention")
PLGA = next(mixer for mixer in EXAMPLES if mixer.kind == "plga")

needs_library = pytest.mark.skipif(
    library(torch.device("cpu")) is None, reason="graphs have native custom ops only where the library is"
)


def read_prompt(decoder: Decoder, room: int = 64, rows: int = 1) -> DecoderState:
    state = new_state(decoder, [PROMPT] * rows, room)
    with torch.inference_mode():
        decoder.hidden(torch.tensor([PROMPT] * rows), state)
    return state


def test_streams_of_any_room_use_one_package():
    """Capacities are sizes of the graph that are free, so that no room needs a package of its own."""
    decoder = small_decoder()
    for rows in (1, 3):
        states = [read_prompt(decoder, room, rows) for room in (3, 64, 65)]
        assert len({state.capacity for state in states}) == 3
        assert len({package_of(decoder, state)[1] for state in states}) == 1
        assert len({id(candidate_of(decoder, state)) for state in states}) == 1


def begun(mixer: MixerSpec, seed: int = 0) -> tuple[Decoder, DecoderState]:
    """A decoder in float32, and a state that has read the prompt."""
    decoder = small_decoder(mixer, seed=seed).float()
    return decoder, read_prompt(decoder)


@pytest.fixture(autouse=True)
def _enabled(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(BUILDS, "enabled", True)
    monkeypatch.setattr(BUILDS, "processes", {})


@pytest.fixture
def package(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> Path:
    """The package of the Mamba-2 decoder in an empty cache."""
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path))
    return package_of(*begun(MAMBA2))[1]


@torch.inference_mode()
@pytest.mark.parametrize("mixer", CASES)
def test_the_captured_step_writes_what_a_pass_of_the_decoder_writes(mixer: MixerSpec):
    decoder = small_decoder(mixer)
    state = read_prompt(decoder)
    assert can_compile(decoder, state) is False and can_compile(decoder.float(), state)  # not in float64
    decoder.double()
    ordinary, captured = read_prompt(decoder), read_prompt(decoder)
    step = uncompiled(decoder, captured)
    for index in range(8):
        token_11 = torch.tensor([[index % 5]])
        expected_1V = decoder.logits(decoder.hidden(token_11, ordinary))[:, 0]
        found_1V = decoder.logits(decoder.hidden(token_11, captured))[:, 0] if index == 3 else step(token_11)
        torch.testing.assert_close(found_1V, expected_1V)
    assert captured.positions == ordinary.positions
    for name, tensor in ordinary.tensors().items():
        torch.testing.assert_close(captured.tensors()[name], tensor, equal_nan=True)


@torch.inference_mode()
@pytest.mark.skipif(library(torch.device("cpu")) is None, reason="no compiler, or another processor")
@pytest.mark.parametrize(("precision", "rows"), [("float32", 1), ("bfloat16", 3), ("int8", 3), ("int4", 1)])
def test_a_graph_has_native_products_and_attention_of_every_precision(precision: str, rows: int):
    decoder = small_decoder(EXAMPLES[1]).float()  # maps with biases
    convert_weights(decoder, precision)
    state = example_state(decoder, rows, [{"kind": "full"}] * 2)
    program = export_step(decoder, state)[0]
    found = Counter(str(node.target) for node in program.graph.nodes)
    products = 2 * (2 + 2) + 1
    assert found[f"linnet.linnet_{precision}_linear.default"] == products and not found["aten.linear.default"]
    assert found["linnet.linnet_attention_past.default"] == 2
    tensors = [x.clone() for x in StateTensors(state).tensors.values()]
    weights = list(weights_of(PassFunction(decoder, StateTensors(state))).values())
    tokens_B1, positions_B = torch.arange(rows)[:, None], torch.full((rows,), state.position)
    logits_BV = program.module()(tokens_B1, positions_B, tensors, weights)
    expected_BV = decoder.logits(decoder.hidden(tokens_B1, state))[:, 0]
    error = (logits_BV - expected_BV).abs().max() / expected_BV.float().std()
    assert error <= MAX_ERRORS[precision]


@torch.inference_mode()
@pytest.mark.parametrize(("mixer", "rows"), [(MAMBA2, 3), (GATED_DELTA, 1)], ids=["bias", "no bias"])
def test_a_graph_has_sums_of_products_for_convolutions(mixer: MixerSpec, rows: int):
    decoder = small_decoder(mixer).float()
    state = example_state(decoder, rows, [{"kind": "full"}] * len(decoder.mixers))
    program = export_step(decoder, state)[0]
    assert not list(program.graph.find_nodes(op="call_function", target=torch.ops.aten.conv1d.default))
    tensors = [x.clone(memory_format=torch.contiguous_format) for x in StateTensors(state).tensors.values()]
    weights = list(weights_of(PassFunction(decoder, StateTensors(state))).values())
    tokens_B1, positions_B = torch.arange(rows)[:, None], torch.full((rows,), state.position)
    found_BV = program.module()(tokens_B1, positions_B, tensors, weights)
    torch.testing.assert_close(found_BV, decoder.logits(decoder.hidden(tokens_B1, state))[:, 0], rtol=1e-4, atol=1e-5)


@needs_library
@torch.inference_mode()
@pytest.mark.parametrize("rows", [1, 3])
def test_a_graph_has_batched_products_in_float32(rows: int):
    """Those of the gates of RG-LRU, which take seven times as long in bfloat16."""
    decoder = small_decoder(next(mixer for mixer in EXAMPLES if mixer.kind == "rglru")).float()
    convert_weights(decoder, "bfloat16")
    state = example_state(decoder, rows, [{"kind": "full"}] * len(decoder.mixers))
    program = export_step(decoder, state)[0]
    products = program.graph.find_nodes(op="call_function", target=torch.ops.aten.baddbmm.default)
    assert [product.meta["val"].dtype for product in products] == [torch.float32] * 4
    tensors = [x.clone(memory_format=torch.contiguous_format) for x in StateTensors(state).tensors.values()]
    weights = list(weights_of(PassFunction(decoder, StateTensors(state))).values())
    tokens_B1, positions_B = torch.arange(rows)[:, None], torch.full((rows,), state.position)
    found_BV = program.module()(tokens_B1, positions_B, tensors, weights)
    expected_BV = decoder.logits(decoder.hidden(tokens_B1, state))[:, 0]
    assert (found_BV - expected_BV).abs().max() / expected_BV.float().std() <= MAX_ERRORS["bfloat16"]


@needs_library
@torch.inference_mode()
def test_other_packed_weights_are_inputs_of_the_same_step():
    decoder, other = small_decoder(EXAMPLES[0], seed=1).float(), small_decoder(EXAMPLES[0], seed=2).float()
    for each in (decoder, other):
        convert_weights(each, "int4")
    state, expected = read_prompt(other), read_prompt(other)
    states = StateTensors(state)
    step = InPlaceStep(decoder, states)
    weights = list(weights_of(PassFunction(other, states)).values())
    token_11 = torch.tensor([[3]])
    with custom_ops_in_graphs():
        found_1V = step(token_11, torch.tensor([3]), list(states.tensors.values()), weights)
    torch.testing.assert_close(found_1V, other.logits(other.hidden(token_11, expected))[:, 0], rtol=0.02, atol=0.02)


@needs_library
@torch.inference_mode()
@pytest.mark.parametrize("precision", ["int8", "int4"])
def test_a_tied_table_of_few_bits_is_one_input_of_an_exported_step(precision: str):
    def made(seed: int) -> Decoder:
        torch.manual_seed(seed)
        block = {"mixer": {"kind": "attention", "heads": 2}, "feed_forward": {"kind": "mlp", "hidden": 16}}
        shape = {"vocab_size": 9, "d_model": 16, "context_length": 99, "head": {"tied": True}, "embedding": {}}
        decoder = Decoder(ModelSpec.parse({**shape, "blocks": [block]}, "test")).eval()
        convert_weights(decoder, precision)
        return decoder

    program = export_step(made(0), example_state(made(0), 1, [{"kind": "full"}]))[0].module()
    other = made(1)
    state, expected = read_prompt(other), read_prompt(other)
    states = StateTensors(state)
    weights = list(weights_of(PassFunction(other, states)).values())
    found_1V = program(torch.tensor([[3]]), torch.tensor([3]), list(states.tensors.values()), weights)
    expected_1V = other.logits(other.hidden(torch.tensor([[3]]), expected))[:, 0]
    assert (found_1V - expected_1V).abs().max() <= MAX_ERRORS[precision] * expected_1V.std()


def test_each_precision_has_a_package_of_its_own(package: Path):
    found = set()
    for precision, group in [("float32", 32), ("bfloat16", 32), ("int8", 32), ("int4", 32), ("int4", 64)]:
        decoder, _ = begun(MAMBA2)
        convert_weights(decoder, precision, group)
        request, made = package_of(decoder, read_prompt(decoder))
        assert request["weights"]["precision"] == precision
        found.add(made)
    decoder, _ = begun(MAMBA2)
    decoder.bfloat16()  # without packed weights
    found.add(package_of(decoder, read_prompt(decoder))[1])
    packs_bfloat16 = can_pack_bfloat16(torch.device("cpu"))
    assert len(found) == 5 + packs_bfloat16 and package in found


def test_what_the_code_depends_on_names_the_package(package: Path, monkeypatch: pytest.MonkeyPatch):
    assert package_of(*begun(MAMBA2, seed=1))[1] == package  # other weights
    assert package_of(*begun(TED))[1] != package
    monkeypatch.setattr(torch, "get_num_threads", lambda: 7)
    assert package_of(*begun(MAMBA2))[1] != package


def test_every_policy_and_number_of_streams_is_compiled_but_no_calibration_at_every_step():
    decoder, plga = small_decoder(TED).float(), small_decoder(PLGA).float()
    for policy in (FULL, BankCache(8), EvictionCache(top_k=4)):
        assert can_compile(decoder, new_state(decoder, [PROMPT, PROMPT], 8, policy))
    assert not can_compile(plga, new_state(plga, [PROMPT], 8))  # it calibrates on the prompt
    assert can_compile(plga, read_prompt(plga))
    recalibrating = new_state(plga, [PROMPT], 8, RecalibratingCache())
    plga.hidden(torch.tensor([PROMPT]), recalibrating)
    assert not can_compile(plga, recalibrating)


def test_policies_and_several_rows_have_packages_of_their_own():
    decoder = small_decoder(TED).float()
    states = [new_state(decoder, [PROMPT] * rows, 8, policy) for rows in (1, 2) for policy in (FULL, BankCache(8))]
    assert len({package_of(decoder, state)[1] for state in states}) == len(states)
    assert package_of(decoder, new_state(decoder, [PROMPT] * 5, 20))[1] == package_of(decoder, states[2])[1]


@torch.inference_mode()
def test_streams_grow_past_the_places_that_their_layers_have_reserved(monkeypatch: pytest.MonkeyPatch):
    monkeypatch.setattr(compiled_step, "RESERVED_TOKENS", 3)
    decoder, keeps_all = small_decoder(TED), EvictionCache(threshold=-1.0)
    states = [new_state(decoder, [PROMPT] * 2, 40, keeps_all) for _ in range(2)]
    for state in states:
        decoder.hidden(torch.tensor([PROMPT] * 2), state)
    step = uncompiled(decoder, states[1])
    for index in range(20):
        tokens_B1 = torch.tensor([[index % 5], [index % 3]])
        expected_BV, found_BV = (
            decoder.logits(decoder.hidden(tokens_B1, states[0]))[:, 0],
            decoder.logits(decoder.hidden(tokens_B1, states[1]))[:, 0] if index == 7 else step(tokens_B1),
        )
        torch.testing.assert_close(found_BV, expected_BV)


def tokens_of(decoder: Decoder, count: int) -> list[int | None]:
    return [token for (token,) in decode(decoder, [PROMPT], count, GREEDY)]


def counted_steps(monkeypatch: pytest.MonkeyPatch) -> list[tuple[int, ...]]:
    """Packages hold the uncompiled step; the positions of the rows at each call."""
    calls = list[tuple[int, ...]]()

    def compiled(decoder: Decoder, _state: DecoderState, _package: Path) -> Callable[[DecoderState], Step]:
        def of(state: DecoderState) -> Step:
            step = uncompiled(decoder, state)
            return lambda tokens_B1: calls.append(state.positions) or step(tokens_B1)

        return of

    monkeypatch.setattr(compiled_step, "compiled_step", compiled)
    return calls


@pytest.mark.parametrize("mixer", [EXAMPLES[0], MAMBA2, TED, PLGA], ids=lambda mixer: mixer.kind)
def test_streams_that_join_and_leave_share_the_compiled_step(
    mixer: MixerSpec, monkeypatch: pytest.MonkeyPatch, tmp_path: Path
):
    monkeypatch.setattr(step_packages, "cache_folder", lambda: tmp_path)
    monkeypatch.setattr(compiled_step, "TIMED_TOKENS", 1)
    monkeypatch.setattr(Times, "compiled_is_faster", property(lambda times: True if times.compiled_s else None))
    decoder = small_decoder(mixer).float()
    wanted = [([1, 2, 3], 20), ([4], 9), ([2, 2, 0, 1, 3, 4], 14), ([3, 1], 25)]
    alone = [[token for (token,) in decode(decoder, [prompt], count, GREEDY)] for prompt, count in wanted]
    calls, engine = counted_steps(monkeypatch), Engine(decoder)
    for rows in (1, 2):
        _, package = package_of(decoder, read_prompt(decoder, rows=rows))
        package.parent.mkdir(parents=True, exist_ok=True)
        package.touch()
    streams = []
    for prompt, count in wanted:
        streams.append(engine.submit(Request(prompt, count, GREEDY)))
        for _ in range(3):
            engine.step()
    for stream, expected in zip(streams, alone, strict=True):
        assert [event.token for event in stream] == expected
    assert max(map(len, calls)) == len(wanted) and any(len(set(positions)) > 1 for positions in calls)


def test_a_package_takes_over_between_two_tokens_and_the_text_stays(package: Path, monkeypatch: pytest.MonkeyPatch):
    decoder = small_decoder(MAMBA2).float()
    expected = tokens_of(decoder, 60)
    calls = counted_steps(monkeypatch)
    assert tokens_of(decoder, 60) == expected and not calls
    package.parent.mkdir(parents=True)
    package.touch()
    assert tokens_of(decoder, 60) == expected
    assert calls[0] == (len(PROMPT) + TIMED_TOKENS,)
    calls.clear()
    monkeypatch.setattr(Times, "compiled_is_faster", True)
    assert tokens_of(decoder, 20) == expected[:20]  # the next stream does not wait for it
    assert calls[0] == (len(PROMPT),)


def steps_with(
    monkeypatch: pytest.MonkeyPatch, ordinary_s: float, compiled_s: float
) -> tuple[CompiledSteps, list[str]]:
    """Steps whose forms take these seconds, and a list of the forms that were used."""
    used, now = list[str](), [0.0]
    monkeypatch.setattr(compiled_step.time, "perf_counter", lambda: now[0])

    def form(name: str, seconds: float) -> Callable[[Tensor], Tensor]:
        def step(token_11: Tensor) -> Tensor:
            now[0] += seconds
            used.append(name)
            return token_11

        return step

    decoder = small_decoder(MAMBA2).float()
    monkeypatch.setattr(compiled_step, "compiled_step", lambda *_: lambda _: form("compiled", compiled_s))
    return CompiledSteps(decoder, read_prompt(decoder), form("ordinary", ordinary_s)), used


@pytest.mark.parametrize(("compiled_s", "stays"), [(0.5, "compiled"), (2.0, "ordinary")])
def test_the_faster_form_goes_on(package: Path, monkeypatch: pytest.MonkeyPatch, compiled_s: float, stays: str):
    package.parent.mkdir(parents=True)
    package.touch()
    steps, used = steps_with(monkeypatch, 1.0, compiled_s)
    for _ in range(20):
        steps.logits(torch.zeros(1, 1))
    assert used == ["ordinary"] * TIMED_TOKENS + ["compiled"] * TIMED_TOKENS + [stays] * (20 - 2 * TIMED_TOKENS)


@pytest.mark.parametrize("form", ["captured", "recorded"])
@torch.inference_mode()
def test_the_chunks_of_a_bank_begin_between_steps_in_each_row_when_they_are_due(
    form: str, monkeypatch: pytest.MonkeyPatch
):
    decoder = small_decoder(TED).float()

    def begun() -> DecoderState:
        states = [cache_policy_state(decoder, 1, 200, BankCache()) for _ in range(3)]
        for tokens, state in zip((31, 3, 1), states, strict=True):
            decoder.hidden(torch.ones(1, tokens, dtype=torch.int64), state)
        return states[0].join(*states[1:])

    state, expected = begun(), begun()
    if form == "recorded":
        record_from_the_first_token(monkeypatch)
        step = GraphSteps(decoder, state, partial(_ordinary_step, decoder, state)).logits
    else:
        step = uncompiled(decoder, state)
    for index in range(100):
        if index == 40:  # an ordinary pass of several tokens
            for each in (state, expected):
                decoder.hidden(torch.ones(3, 7, dtype=torch.int64), each)
        tokens_B1 = torch.full((len(state.positions), 1), index % 7)
        expected_BV = _ordinary_step(decoder, expected, tokens_B1)
        torch.testing.assert_close(step(tokens_B1), expected_BV, rtol=1e-4, atol=1e-5)


@torch.inference_mode()
@pytest.mark.parametrize(("mixer", "rows"), [(MAMBA2, 1), (MAMBA2, 2), (EXAMPLES[0], 2)])
def test_a_step_of_tokens_as_numbers_notices_a_rewind(mixer: MixerSpec, rows: int, monkeypatch: pytest.MonkeyPatch):
    """It keeps tensors from one token to the next, and takes others when the state has others."""
    decoder = small_decoder(mixer).float()
    compile_from_the_first_token(monkeypatch)
    numbered, expected = (read_prompt(decoder, rows=rows) for _ in range(2))
    steps, before = CompiledSteps(decoder, numbered, lambda _: torch.empty(0)), numbered.fork()
    for index in range(9):
        if index == 5:
            expected = before.fork()
            for part, held in zip(numbered.sublayers, before.sublayers, strict=True):
                for name, tensor in held.tensors().items():
                    setattr(part, name, tensor.clone().transpose(0, -1).contiguous().transpose(0, -1))
            numbered.positions = before.positions
        tokens = [index % 5, index % 3][:rows]
        expected_BV = decoder.logits(decoder.hidden(torch.tensor([[token] for token in tokens]), expected))[:, 0]
        torch.testing.assert_close(steps.logits_behind(tokens), expected_BV)


def test_steps_say_while_the_forms_are_compared(package: Path, monkeypatch: pytest.MonkeyPatch):
    package.parent.mkdir(parents=True)
    package.touch()
    steps, _ = steps_with(monkeypatch, 1.0, 0.5)
    found = []
    for _ in range(3 * TIMED_TOKENS):
        found.append(steps.is_comparing)
        steps.logits(torch.zeros(1, 1))
    assert found == [TIMED_TOKENS <= index < 2 * TIMED_TOKENS for index in range(3 * TIMED_TOKENS)]


def test_passes_instead_of_steps_start_a_build_at_the_next_step(package: Path, monkeypatch: pytest.MonkeyPatch):
    started = list[Path]()
    monkeypatch.setattr(compiled_step, "start_build", lambda _, package, nbytes: bool(started.append(package)))
    steps, _ = steps_with(monkeypatch, 1e-4, 1.0)
    for _ in range(TIMED_TOKENS):
        steps.logits(torch.zeros(1, 1))
    steps.count_pass(POLL_TOKENS, BUILD_AFTER_S)
    assert not started
    steps.logits(torch.zeros(1, 1))
    assert started == [package]


def test_long_decoding_starts_a_build_once_and_short_decoding_none(package: Path, monkeypatch: pytest.MonkeyPatch):
    started = list[Path]()
    monkeypatch.setattr(compiled_step, "start_build", lambda _, package, nbytes: bool(started.append(package)))
    for ordinary_s, expected in ((1e-4, []), (1.0, [package])):
        steps, _ = steps_with(monkeypatch, ordinary_s, 1.0)
        for _ in range(4 * POLL_TOKENS):
            steps.logits(torch.zeros(1, 1))
        assert started == expected


def test_builds_are_waited_for_until_there_is_a_package_or_cannot_be_one(
    package: Path, monkeypatch: pytest.MonkeyPatch
):
    (decoder, state), waits = begun(MAMBA2), list[float]()
    package.parent.mkdir(parents=True)
    CompiledSteps(decoder, state, lambda tokens_B1: tokens_B1).logits(torch.zeros(1, 1))
    monkeypatch.setattr(compiled_step, "start_build", lambda *_: True)
    monkeypatch.setattr(
        compiled_step.time, "sleep", lambda wait_s: waits.append(wait_s) or len(waits) < 3 or package.touch()
    )
    finish_builds(decoder)
    assert len(waits) == 3
    package.unlink()
    monkeypatch.setattr(compiled_step, "start_build", lambda *_: False)
    finish_builds(decoder), finish_builds(decoder)
    assert len(waits) == 4


def test_a_compiled_step_does_not_keep_its_decoder(package: Path, monkeypatch: pytest.MonkeyPatch):
    decoder = small_decoder(MAMBA2).float()
    step = InPlaceStep(copy.deepcopy(decoder), StateTensors(read_prompt(decoder)))
    count = len(step.function.flat.tensors)

    def run(inputs: list[Tensor]) -> list[Tensor]:
        calls.append(len(inputs))
        return [step(inputs[0], inputs[1], inputs[2 : 2 + count], inputs[2 + count :])]

    calls, model = list[int](), weakref.ref(decoder)
    monkeypatch.setattr(compiled_step, "opened", lambda _: run)
    monkeypatch.setattr(Times, "compiled_is_faster", property(lambda times: True if times.compiled_s else None))
    package.parent.mkdir(parents=True)
    package.touch()
    tokens_of(decoder, 20)
    assert len(calls) > 10
    del decoder
    gc.collect()
    assert model() is None


@torch.inference_mode()
def test_a_step_that_differs_is_refused_and_one_that_cannot_be_read_too(
    package: Path, caplog: pytest.LogCaptureFixture
):
    decoder = small_decoder(MAMBA2).float()
    state = read_prompt(decoder)
    step = InPlaceStep(decoder, StateTensors(state))
    weights = list(weights_of(step.function).values())

    def run(token: Tensor, position: Tensor, states: list[Tensor]) -> Tensor:
        return step(token, position, list(states), weights)

    def problem(run: compiled_step.Run) -> str | None:
        return compiled_step._difference(decoder, state, lambda state: compiled_step._advancing(state, run))

    before = {name: tensor.clone() for name, tensor in state.tensors().items()}
    assert problem(run) is None
    assert "logits differ" in problem(lambda *given: 1.1 * run(*given))
    assert "state" in problem(lambda *given: run(given[0], given[1], [x.clone() for x in given[2]]))
    assert all(torch.equal(tensor, before[name]) for name, tensor in state.tensors().items())
    package.parent.mkdir(parents=True)
    package.write_bytes(b"no package")
    assert compiled_step.compiled_step(decoder, state, package) is None
    assert not package.exists() and "ZIP" in package.with_suffix(".failed").read_text()
    assert "the compiled step is not used" in caplog.text


def test_what_could_not_be_compiled_is_not_tried_again(package: Path, monkeypatch: pytest.MonkeyPatch, caplog):
    monkeypatch.setattr(subprocess, "Popen", lambda *_, **__: pytest.fail("started"))
    package.parent.mkdir(parents=True)
    package.with_suffix(".failed").write_text("SomeError: of the compiler\n")
    assert not start_build({}, package)
    assert "SomeError: of the compiler" in caplog.text


def test_a_build_that_was_killed_is_not_started_again_by_this_process(package: Path, monkeypatch: pytest.MonkeyPatch):
    BUILDS.processes[package] = SimpleNamespace(poll=lambda: -9)
    monkeypatch.setattr(subprocess, "Popen", lambda *_, **__: pytest.fail("started"))
    assert not start_build({}, package)


def test_too_little_memory_and_no_compiler_leave_the_ordinary_steps(package: Path, monkeypatch: pytest.MonkeyPatch):
    monkeypatch.setattr(subprocess, "Popen", lambda *_, **__: pytest.fail("started"))
    assert not start_build({}, package, nbytes=1 << 50)
    monkeypatch.setattr(step_packages, "find_compiler", lambda: None)
    assert not start_build({}, package)


def test_a_cache_that_cannot_be_written_costs_a_note(monkeypatch: pytest.MonkeyPatch, tmp_path: Path, caplog):
    (tmp_path / "file").write_text("no folder")
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path / "file"))
    steps, used = steps_with(monkeypatch, 1.0, 1.0)
    for _ in range(2 * POLL_TOKENS):
        steps.logits(torch.zeros(1, 1))
    assert set(used) == {"ordinary"} and "the decoding step is not compiled" in caplog.text


def test_without_a_home_folder_steps_are_the_ordinary_ones(monkeypatch: pytest.MonkeyPatch, caplog):
    def no_home() -> Path:
        raise RuntimeError("Could not determine home directory.")

    monkeypatch.delenv("XDG_CACHE_HOME", raising=False)
    monkeypatch.setattr(Path, "home", no_home)
    steps, used = steps_with(monkeypatch, 1.0, 0.5)
    steps.logits(torch.zeros(1, 1))
    assert set(used) == {"ordinary"} and "XDG_CACHE_HOME=FOLDER names one for caches" in caplog.text


def test_without_compiled_steps_neither_a_package_nor_a_build_is_used(package: Path, monkeypatch: pytest.MonkeyPatch):
    package.parent.mkdir(parents=True)
    package.touch()
    steps, used = steps_with(monkeypatch, 1.0, 0.5)
    with ordinary_steps():
        for _ in range(2 * POLL_TOKENS):
            steps.logits(torch.zeros(1, 1))
    assert set(used) == {"ordinary"}


@pytest.mark.parametrize("limit", [MAX_ERRORS["float32"], MAX_ERRORS["int8"]])
def test_truth_values_of_a_state_are_compared_in_every_precision(limit: float):
    padding = torch.tensor([True, False])
    assert compiled_step._is_near(padding, padding.clone(), limit)
    assert not compiled_step._is_near(padding, ~padding, limit)


@pytest.mark.slow
@pytest.mark.parametrize("mixer", [MAMBA, MAMBA2, TED, S4D, RETENTION, EXAMPLES[0]], ids=lambda mixer: mixer.kind)
def test_a_process_compiles_the_step_and_other_weights_use_it(mixer: MixerSpec, package: Path):
    request, package = package_of(*begun(mixer))
    assert start_build(request, package) and start_build(request, package)  # the second call finds the first at work
    (process,) = (process for file, process in BUILDS.processes.items() if file == package)
    process.kill()
    process.wait()
    assert not package.is_file() and not package.with_suffix(".failed").exists()
    BUILDS.processes.clear()  # as another process would find it
    assert start_build(request, package)
    assert BUILDS.processes[package].wait(300) == 0, package.with_suffix(".log").read_text()
    for seed in (0, 1):
        decoder = small_decoder(mixer, seed=seed).float()
        state, expected = read_prompt(decoder), read_prompt(decoder)
        made = compiled_step.compiled_step(decoder, state, package)
        assert made is not None
        step = made(state)
        for index in range(12):
            tokens = torch.tensor([[index]] if index % 5 else [[3, 1, 2]])  # ordinary passes of several tokens, too
            with torch.inference_mode():
                expected_1V = decoder.logits(decoder.hidden(tokens, expected)[:, -1:])[:, 0]
                chunk_1V = None if index % 5 else decoder.logits(decoder.hidden(tokens, state)[:, -1:])[:, 0]
            found_1V = step(tokens) if chunk_1V is None else chunk_1V
            torch.testing.assert_close(found_1V, expected_1V, rtol=1e-4, atol=1e-4)
    for parameter in decoder.parameters():  # as a step of training changes them
        parameter.data.mul_(0.9)
    assert_steps_are_near(decoder, read_prompt(decoder), read_prompt(decoder), package, "float32", tokens=4, made=made)


@torch.inference_mode()
def assert_steps_are_near(
    decoder: Decoder,
    state: DecoderState,
    expected: DecoderState,
    package: Path,
    precision: str,
    tokens: int,
    made: Callable[[DecoderState], Step] | None = None,
) -> None:
    """The package's logits of the next tokens are as near to those of the ordinary step as the precision allows."""
    made = made or compiled_step.compiled_step(decoder, state, package)
    assert made is not None
    step, rows = made(state), len(state.positions)
    for index in range(tokens):
        tokens_B1 = torch.arange(index, index + rows)[:, None] % decoder.spec.vocab_size
        expected_BV = decoder.logits(decoder.hidden(tokens_B1, expected))[:, 0].float()
        error = (step(tokens_B1).float() - expected_BV).abs().max() / expected_BV.std()
        assert error <= MAX_ERRORS[precision]


@pytest.mark.slow
@pytest.mark.parametrize("precision", ["bfloat16", "int8", "int4"])
@pytest.mark.parametrize("rows", [1, 3])
def test_a_package_of_each_precision_is_right_for_other_weights(precision: str, rows: int, package: Path):
    for seed in (0, 1):
        decoder = small_decoder(EXAMPLES[1], seed=seed).float()
        convert_weights(decoder, precision)
        state, expected = read_prompt(decoder, rows=rows), read_prompt(decoder, rows=rows)
        request, package = package_of(decoder, state)
        if seed == 0:
            assert start_build(request, package)
            assert BUILDS.processes[package].wait(300) == 0, package.with_suffix(".log").read_text()
        assert_steps_are_near(decoder, state, expected, package, precision, tokens=4)


@pytest.mark.slow
@pytest.mark.parametrize("rows", [1, 3])
@pytest.mark.parametrize("policy", [BankCache(), EvictionCache(top_k=0, threshold=0.05)], ids=["bank", "eviction"])
def test_a_package_of_each_cache_policy_is_right_for_longer_than_a_chunk(policy: CachePolicy, rows: int, package: Path):
    decoder = small_decoder(TED).float()

    def begun() -> DecoderState:
        state = cache_policy_state(decoder, rows, 2**18, policy)
        decoder.hidden(torch.tensor([PROMPT] * rows), state)
        return state

    with torch.inference_mode():
        state, expected = begun(), begun()
    request, package = package_of(decoder, state)
    assert start_build(request, package)
    assert BUILDS.processes[package].wait(300) == 0, package.with_suffix(".log").read_text()
    chunks = 4 * state.layers[0].bank.nearest if isinstance(state.layers[0], BankState) else 100
    assert_steps_are_near(decoder, state, expected, package, "float32", tokens=chunks)


@pytest.mark.slow
@torch.inference_mode()
@pytest.mark.parametrize(("precision", "rows"), [("int8", 3), ("float32", 3)])
def test_a_package_of_an_encoder_decoder_reads_the_memory_of_each_row(precision: str, rows: int, package: Path):
    spec = ModelSpec.load("tiny-encoder-decoder").model_copy(update={"vocab_size": 50})
    decoder = Decoder(spec).eval().requires_grad_(False)
    convert_weights(decoder, precision)

    def begun() -> DecoderState:
        """Rows that have read inputs and prompts of different lengths."""
        states = [decoder.initial_state(1, 20) for _ in range(rows)]
        for index, state in enumerate(states):
            memory = decoder.encode(torch.arange(4 + 3 * index)[None])
            decoder.hidden(torch.arange(1, 3 + index)[None], state, memory=memory)
        return states[0].join(*states[1:]) if rows > 1 else states[0]

    state, expected = begun(), begun()
    request, package = package_of(decoder, state)
    assert start_build(request, package)
    assert BUILDS.processes[package].wait(300) == 0, package.with_suffix(".log").read_text()
    assert_steps_are_near(decoder, state, expected, package, precision, tokens=6)


@pytest.mark.slow
def test_a_description_that_cannot_be_compiled_leaves_the_reason(package: Path):
    package.parent.mkdir(parents=True)
    command = [sys.executable, "-m", "linnet.inference.step_packages", str(package)]
    run = subprocess.run(
        command, input=json.dumps({"description": {}, "threads": 1}).encode(), capture_output=True, check=False
    )
    assert run.returncode == 1 and "UserError" in package.with_suffix(".failed").read_text()
    deadline_s = time.monotonic() + 60
    while package.with_suffix(".lock").exists() and time.monotonic() < deadline_s:
        time.sleep(0.1)
    assert not package.exists() and not package.with_suffix(".lock").exists()
