"""Properties of every mixer and feed-forward; new kinds are found through the registry."""

from itertools import pairwise

import pytest
import torch
from examples import ALL, PLACE, inputs, name_of, padded_view
from safetensors.torch import load, save
from torch import Tensor, nn
from torch.nn.attention import SDPBackend, sdpa_kernel
from torch.utils.flop_counter import FlopCounterMode

from linnet.layers.batch_layout import AuxiliaryOutputs, BatchLayout, layout_at
from linnet.layers.cache_policy import FULL, CachePolicy
from linnet.layers.contract import Place, Sublayer, SublayerSpec, linear_maps
from linnet.layers.passes import run
from linnet.layers.state import State
from linnet.nn.linear import FusedLinear
from on_device import DEVICE

PROMPT = 5
LENGTH = 14
CUTS = {
    "ones": list(range(PROMPT, LENGTH + 1)),
    "twos": [5, 7, 9, 11, 13, 14],
    "threes": [5, 8, 11, 14],
    "uneven": [5, 6, 10, 12, 14],
    "rest": [5, 14],
}


def empty_state(
    sublayer: Sublayer,
    batch: int,
    capacity: int = LENGTH,
    dtype: torch.dtype = torch.float64,
    policy: CachePolicy = FULL,
) -> State:
    return sublayer.initial_state(batch, capacity, DEVICE, dtype, policy)


def feed(sublayer: Sublayer, x_BTD: Tensor, state: State, bounds: list[int], padding: tuple[int, ...] = (0,)) -> Tensor:
    """The joined outputs of the chunks between `bounds`."""
    return torch.cat(
        [run(sublayer, x_BTD[:, a:b], state, padded_view(a, b, padding)) for a, b in pairwise(bounds)], dim=1
    )


def in_two(sublayer: Sublayer, x_BTD: Tensor, policy: CachePolicy = FULL) -> Tensor:
    """The outputs of the prompt and of the rest."""
    state = empty_state(sublayer, len(x_BTD), x_BTD.shape[1], policy=policy)
    return feed(sublayer, x_BTD, state, [0, PROMPT, x_BTD.shape[1]])


def is_settled(sublayer: Sublayer, tokens: int) -> bool:
    calibrated_after = sublayer.traits.calibrated_after
    return calibrated_after is not None and tokens >= calibrated_after


def test_predicted_parameters_equal_those_of_the_module(spec: SublayerSpec, sublayer: Sublayer):
    assert spec.cost(PLACE).parameters == sum(p.numel() for p in sublayer.parameters())


def test_predicted_buffers_are_the_stored_ones(spec: SublayerSpec, sublayer: Sublayer):
    parameters = {name for name, _ in sublayer.named_parameters()}
    stored = [tensor for name, tensor in sublayer.state_dict().items() if name not in parameters]
    assert spec.cost(PLACE).buffers == sum(tensor.numel() for tensor in stored)


@pytest.mark.parametrize(("dtype", "element_bytes"), [(torch.float32, 4), (torch.bfloat16, 2)])
def test_predicted_state_bytes_are_the_allocated_ones(spec: SublayerSpec, sublayer: Sublayer, dtype, element_bytes):
    sublayer.to(dtype)
    for capacity in (LENGTH, 100):
        state = empty_state(sublayer, 1, capacity, dtype)
        sublayer(inputs(1, PROMPT, dtype), state)
        assert state.nbytes == spec.cost(PLACE).state_bytes(capacity, element_bytes)
        assert state.held_nbytes(capacity) == state.nbytes
        assert state.held_nbytes(PROMPT) == spec.cost(PLACE).state_bytes(PROMPT, element_bytes)


def test_predictions_hold_at_another_width(spec: SublayerSpec):
    place = Place(48, PLACE.context_length)
    spec.check(place.width)
    cost, sublayer, x_BTD = spec.cost(place), spec.build(place).to(DEVICE), torch.randn(1, 7, place.width).to(DEVICE)
    assert cost.parameters == sum(p.numel() for p in sublayer.parameters())
    state = empty_state(sublayer, 1, dtype=torch.float32)
    sublayer(x_BTD, state)
    assert state.nbytes == cost.state_bytes(LENGTH)
    with sdpa_kernel(SDPBackend.MATH), FlopCounterMode(display=False) as counter:
        sublayer(x_BTD.requires_grad_())
    assert cost.flops(7) == counter.get_total_flops()


def test_predicted_flops_are_the_counted_ones(spec: SublayerSpec, sublayer: Sublayer):
    for tokens in (1, 2, 33):
        sublayer(inputs(1, tokens))  # tables are made
        with sdpa_kernel(SDPBackend.MATH), FlopCounterMode(display=False) as counter:
            sublayer(inputs(1, tokens).requires_grad_())
        assert spec.cost(PLACE).flops(tokens) == counter.get_total_flops(), tokens


def test_predicted_matrices_are_the_linear_maps(spec: SublayerSpec, sublayer: Sublayer):
    """Of the maps that every token passes; modules that are not quantized may have others."""
    precise = {id(linear) for part in sublayer.skip_quantization() for linear in linear_maps(part)}
    built = sum(linear.weight.numel() for linear in linear_maps(sublayer) if id(linear) not in precise)
    assert sum(inputs * outputs for inputs, outputs in spec.cost(PLACE).matrices) == built


def test_only_states_of_constant_size_do_not_grow(sublayer: Sublayer):
    sizes = {empty_state(sublayer, 1, capacity).nbytes for capacity in (LENGTH, 100)}
    assert (len(sizes) == 1) == sublayer.traits.constant_state


def test_after_the_prompt_outputs_do_not_depend_on_the_chunks(sublayer: Sublayer, policy: CachePolicy):
    x_BTD = inputs(2, LENGTH)
    expected = in_two(sublayer, x_BTD, policy)
    for name, bounds in CUTS.items():
        actual = feed(sublayer, x_BTD, empty_state(sublayer, 2, policy=policy), [0, *bounds])
        torch.testing.assert_close(actual, expected, msg=lambda text, name=name: f"{name}: {text}")


def test_a_stream_in_chunks_equals_one_pass_if_the_traits_say_so(sublayer: Sublayer):
    x_BTD = inputs(2, LENGTH)
    expected = sublayer(x_BTD)
    for bounds in ([0, 14], [0, 1, 2, 14], list(range(15)), [0, 3, 4, 9, 14]):
        equal = torch.allclose(feed(sublayer, x_BTD, empty_state(sublayer, 2), bounds), expected)
        exact = sublayer.traits.exact_when_split or is_settled(sublayer, bounds[1]) or bounds == [0, 14]
        assert equal == exact, bounds


def test_a_sublayer_that_is_not_exact_when_split_calibrates(sublayer: Sublayer):
    assert sublayer.traits.exact_when_split or sublayer.traits.calibrates


def test_left_padding_does_not_change_real_tokens(sublayer: Sublayer, policy: CachePolicy):
    padding = (3, 0, 1)
    x_BTD = inputs(3, LENGTH)
    padded = feed(sublayer, x_BTD, empty_state(sublayer, 3, policy=policy), [0, PROMPT + 2, 8, LENGTH], padding)
    assert padded.isfinite().all()
    for row, pad in enumerate(padding):
        real = x_BTD[row : row + 1, pad:]
        bounds = [0, *(bound - pad for bound in (PROMPT + 2, 8, LENGTH))]
        alone = feed(sublayer, real, empty_state(sublayer, 1, policy=policy), bounds)
        torch.testing.assert_close(padded[row : row + 1, pad:], alone)


def test_left_padding_does_not_change_outputs_without_a_state(sublayer: Sublayer):
    padding, x_BTD = (3, 0, LENGTH - 1), inputs(3, LENGTH)
    padded = run(sublayer, x_BTD, None, BatchLayout(0, padding))
    for row, pad in enumerate(padding):
        torch.testing.assert_close(padded[row : row + 1, pad:], sublayer(x_BTD[row : row + 1, pad:]))


def test_rows_at_different_positions_continue_as_separate_ones(sublayer: Sublayer, policy: CachePolicy):
    """Streams that join a running batch, read chunks of different lengths with it, and leave it."""
    x_BTD, lengths = inputs(3, LENGTH), (PROMPT, 9, 6)
    states = [empty_state(sublayer, 1, LENGTH + 3 * row, policy=policy) for row in range(3)]
    for row, length in enumerate(lengths):
        sublayer(x_BTD[row : row + 1, :length], states[row])
    joined = states[0].join(states[1:])
    assert states[0].join_nbytes(states[1:]) == joined.nbytes
    places = list(lengths)
    outs: list[list[Tensor]] = [[], [], []]
    for sizes in ((1, 1, 1), (2, 1, 3), (0, 0, 1), (1, 1, 1)):  # rows may rest
        longest = max(sizes)
        pieces = [x_BTD[row, places[row] : places[row] + size] for row, size in enumerate(sizes)]
        chunk = torch.stack([nn.functional.pad(piece, (0, 0, longest - len(piece), 0)) for piece in pieces])
        padding = [longest - size for size in sizes]
        out = run(sublayer, chunk, joined, layout_at(places, padding))
        for row, pad in enumerate(padding):
            outs[row].append(out[row : row + 1, pad:])
            places[row] += sizes[row]
    left = joined.select(torch.tensor([1]))
    outs[1].append(sublayer(x_BTD[1:2, places[1] :], left, BatchLayout(places[1])))
    for row, length in enumerate(lengths):
        alone = empty_state(sublayer, 1, policy=policy)
        found = torch.cat(outs[row], dim=1)
        expected = feed(sublayer, x_BTD[row : row + 1], alone, [0, length, length + found.shape[1]])[:, length:]
        torch.testing.assert_close(found, expected)


DOCUMENTS = ((3, 4), (), (0, 9))
"""The starts of documents in three rows."""


def apart(sublayer: Sublayer, x_BTD: Tensor) -> Tensor:
    """The outputs of every document separately."""
    rows = []
    for x_TD, begins in zip(x_BTD, DOCUMENTS, strict=True):
        bounds = sorted({0, *begins, LENGTH})
        rows.append(torch.cat([sublayer(x_TD[None, a:b]) for a, b in pairwise(bounds)], dim=1))
    return torch.cat(rows)


def test_documents_in_one_row_do_not_see_each_other(sublayer: Sublayer):
    x_BTD = inputs(3, LENGTH).requires_grad_()
    out = run(sublayer, x_BTD, None, BatchLayout(documents=DOCUMENTS))
    torch.testing.assert_close(out, apart(sublayer, x_BTD))
    (gradient,) = torch.autograd.grad(out[0, 4:].square().sum(), x_BTD)
    assert (gradient[0, :4] == 0).all()
    assert (gradient[0, 4:] != 0).any()


def test_a_document_resets_the_state(sublayer: Sublayer, policy: CachePolicy):
    """The second chunk begins in the middle of the last document."""
    x_BTD, later = inputs(3, LENGTH), inputs(3, 4)
    state = empty_state(sublayer, 3, 2 * LENGTH, policy=policy)
    run(sublayer, x_BTD, state, BatchLayout(documents=DOCUMENTS))
    places = [LENGTH - (begins[-1] if begins else 0) for begins in DOCUMENTS]
    out = run(sublayer, later, state, layout_at(places))
    for row, place in enumerate(places):
        alone = empty_state(sublayer, 1, 2 * LENGTH, policy=policy)
        sublayer(x_BTD[row : row + 1, LENGTH - place :], alone)
        expected = sublayer(later[row : row + 1], alone, BatchLayout(place))
        torch.testing.assert_close(out[row : row + 1], expected)


def test_cross_layer_values_have_the_declared_shapes(spec: SublayerSpec, sublayer: Sublayer):
    """And it reads values of an earlier layer: in a batch, for one token, with padded rows."""
    for layout in (BatchLayout(record=AuxiliaryOutputs()), BatchLayout(0, (3, 0), record=AuxiliaryOutputs())):
        x_BTD = inputs(2, LENGTH)
        first = run(sublayer, x_BTD, None, layout)
        left = dict(layout.record.values)
        assert {name: tuple(value.shape) for name, value in left.items()} == {
            name: (2, LENGTH, *shape) for name, shape in spec.cross_layer_values(PLACE.width).items()
        }
        torch.testing.assert_close(run(sublayer, x_BTD, None, layout), first)
        layout.record.values = {name: value + 1 for name, value in left.items()}
        assert torch.equal(run(sublayer, x_BTD, None, layout)[:, 3:], first[:, 3:]) == (not left)


def test_selected_rows_continue_independently(sublayer: Sublayer, policy: CachePolicy):
    x_BTD = inputs(3, LENGTH)
    state = empty_state(sublayer, 3, policy=policy)
    sublayer(x_BTD[:, :PROMPT], state)
    rows = torch.tensor([2, 0, 2])
    actual = sublayer(x_BTD[rows, PROMPT:], state.select(rows), BatchLayout(PROMPT))
    torch.testing.assert_close(actual, in_two(sublayer, x_BTD, policy)[rows, PROMPT:])


def test_a_state_with_more_capacity_continues(sublayer: Sublayer, policy: CachePolicy):
    x_BTD = inputs(2, LENGTH)
    state = empty_state(sublayer, 2, PROMPT, policy=policy)
    sublayer(x_BTD[:, :PROMPT], state)
    actual = sublayer(x_BTD[:, PROMPT:], state.grown(LENGTH), BatchLayout(PROMPT))
    torch.testing.assert_close(actual, in_two(sublayer, x_BTD, policy)[:, PROMPT:])


def saved_and_loaded(state: State) -> dict[str, Tensor]:
    return {name: tensor.to(DEVICE) for name, tensor in load(save(state.tensors())).items()}


def test_a_state_is_saved_and_loaded(sublayer: Sublayer, policy: CachePolicy):
    x_BTD = inputs(2, LENGTH)
    state = empty_state(sublayer, 2, policy=policy)
    sublayer(x_BTD[:, :PROMPT], state)
    loaded = empty_state(sublayer, 2, policy=policy).with_tensors(saved_and_loaded(state))
    actual = sublayer(x_BTD[:, PROMPT:], loaded, BatchLayout(PROMPT))
    torch.testing.assert_close(actual, in_two(sublayer, x_BTD, policy)[:, PROMPT:])


def test_a_cropped_state_continues_from_its_new_length(sublayer: Sublayer):
    x_BTD, wrong = inputs(2, LENGTH), inputs(2, 4)
    state = empty_state(sublayer, 2)
    sublayer(x_BTD[:, :PROMPT], state)
    sublayer(wrong, state, BatchLayout(PROMPT))
    if not state.can_crop(PROMPT):
        with pytest.raises(NotImplementedError):
            state.crop(PROMPT)
        return
    state.crop(PROMPT)
    actual = sublayer(x_BTD[:, PROMPT:], state, BatchLayout(PROMPT))
    torch.testing.assert_close(actual, in_two(sublayer, x_BTD)[:, PROMPT:])


def test_a_state_cropped_to_0_equals_a_new_one(sublayer: Sublayer):
    x_BTD, state = inputs(2, LENGTH), empty_state(sublayer, 2)
    sublayer(inputs(2, LENGTH), state)
    state.crop(0)
    torch.testing.assert_close(sublayer(x_BTD, state), sublayer(x_BTD))


def test_a_state_that_forgets_is_causal_from_the_first_token(sublayer: Sublayer, policy: CachePolicy):
    x_BTD = inputs(2, LENGTH)
    state = empty_state(sublayer, 2, policy=policy)
    sublayer(inputs(2, LENGTH), state)
    frozen = state.forget()
    whole = sublayer(x_BTD, frozen.fork())
    torch.testing.assert_close(feed(sublayer, x_BTD, frozen, [0, 1, 4, LENGTH]), whole)


def _gradient_of_step(sublayer: Sublayer, step: int, with_prompt: bool) -> Tensor:
    x_BTD = inputs(1, LENGTH).requires_grad_()
    state, start = None, 0
    if with_prompt:
        state, start = empty_state(sublayer, 1), PROMPT
        with torch.no_grad():
            sublayer(x_BTD[:, :PROMPT], state)
    out = sublayer(x_BTD[:, start:], state, BatchLayout(start))
    (gradient,) = torch.autograd.grad(out[:, step - start].square().sum(), x_BTD)
    return gradient


def _is_blind(gradient: Tensor, step: int) -> bool:
    """True if a gradient has nothing of later tokens but rounding: a form by FFT spreads it over the sequence."""
    return bool((gradient[:, step + 1 :].abs() <= 1e-14 * gradient.abs().max()).all())


def test_no_output_sees_a_later_token(sublayer: Sublayer):
    for step in (PROMPT, 9, LENGTH - 2):
        assert _is_blind(_gradient_of_step(sublayer, step, with_prompt=True), step), step
        blind = _is_blind(_gradient_of_step(sublayer, step, with_prompt=False), step)
        assert blind == (sublayer.traits.causal or is_settled(sublayer, step + 1)), step


def test_every_output_sees_the_first_token_of_its_window(sublayer: Sublayer):
    window = sublayer.traits.window or LENGTH
    for step in range(LENGTH):
        sees = (_gradient_of_step(sublayer, step, with_prompt=False)[:, 0] != 0).any()
        assert sees == (step < window)


def test_rows_do_not_affect_each_other(sublayer: Sublayer):
    x_BTD = inputs(3, LENGTH).requires_grad_()
    (gradient,) = torch.autograd.grad(sublayer(x_BTD)[1].square().sum(), x_BTD)
    assert (gradient[[0, 2]] == 0).all()
    assert (gradient[1] != 0).any()


def test_fast_form_equals_reference_form_with_all_gradients(spec: SublayerSpec, sublayer: Sublayer):
    if not sublayer.references:
        pytest.skip("it has only one form")
    slow = spec.build(PLACE).double().to(DEVICE)
    slow.load_state_dict(sublayer.state_dict())
    for attribute, reference in sublayer.references.items():
        assert getattr(slow, attribute) is not reference
        setattr(slow, attribute, reference)
    for length in (1, 63, 65):
        x_BTD = inputs(2, length)
        upstream = torch.randn_like(x_BTD)
        outputs = []
        for form in (sublayer, slow):
            x = x_BTD.clone().requires_grad_()
            out = form(x)
            variables = (x, *form.parameters())
            outputs.append((out, *torch.autograd.grad(out, variables, upstream)))
        for fast, reference in zip(*outputs, strict=True):
            torch.testing.assert_close(fast, reference, msg=lambda text, length=length: f"{length} tokens: {text}")


@pytest.mark.parametrize(
    "spec",
    [pytest.param(spec, id=name_of(spec), marks=pytest.mark.slow if number else ()) for number, spec in enumerate(ALL)],
)
def test_compiled_form_is_the_same(sublayer: Sublayer):
    """The compiled code of one example, and (slow) of every one. `test_decoder` tests captured graphs of all kinds."""
    compiled = torch.compile(sublayer, dynamic=False)
    upstream, results = inputs(2, LENGTH), []
    x_BTD = inputs(2, LENGTH).requires_grad_()
    for form in (sublayer, compiled):
        out = form(x_BTD)
        results.append((out, *torch.autograd.grad(out, (x_BTD, *sublayer.parameters()), upstream)))
    for eager, optimized in zip(*results, strict=True):
        # The rotary table is float32 by definition, and PLGA's powers multiply the last bit of its angles.
        torch.testing.assert_close(optimized, eager, rtol=1e-3, atol=1e-4)


def test_outputs_are_the_same_in_training_if_the_traits_say_so(sublayer: Sublayer):
    x_BTD = inputs(2, LENGTH)
    trained = run(sublayer, x_BTD, None, BatchLayout(record=AuxiliaryOutputs(training=True)))
    assert torch.equal(trained, sublayer(x_BTD)) == sublayer.traits.same_in_training


def test_parameters_without_weight_decay_belong_to_the_sublayer(sublayer: Sublayer):
    own = {id(parameter) for parameter in sublayer.parameters()}
    no_weight_decay = [id(parameter) for parameter in sublayer.no_weight_decay()]
    assert set(no_weight_decay) <= own
    assert len(set(no_weight_decay)) == len(no_weight_decay)
    vectors = {id(parameter) for parameter in sublayer.parameters() if parameter.dim() < 2}
    assert vectors <= set(no_weight_decay)
    maps = {id(linear.weight) for linear in linear_maps(sublayer)}
    assert not maps & set(no_weight_decay)


def test_low_lr_parameters_belong_to_the_sublayer_and_are_no_muon_parameters(sublayer: Sublayer):
    """Parameters of Muon have their own learning rate."""
    sensitive = [id(parameter) for parameter in sublayer.low_lr_parameters()]
    assert set(sensitive) <= {id(parameter) for parameter in sublayer.parameters()}
    assert len(set(sensitive)) == len(sensitive)
    assert not {id(matrices.parameter) for matrices in sublayer.muon_parameters()} & set(sensitive)


def test_each_parameter_is_updated_by_one_optimizer(sublayer: Sublayer):
    """Matrices between hidden vectors by Muon, the rest by AdamW; fused maps are split completely."""
    own = {id(parameter) for parameter in sublayer.parameters()}
    matrices = list(sublayer.muon_parameters())
    found = [id(matrix.parameter) for matrix in matrices]
    assert found and set(found) <= own and len(set(found)) == len(found)
    assert not set(found) & {id(parameter) for parameter in sublayer.no_weight_decay()}
    for matrix in matrices:
        rows, columns = matrix.parameter.shape
        assert sum(matrix.rows) == rows and min(*matrix.rows, columns) > 1
    joined = {id(module.weight): module.parts for module in sublayer.modules() if isinstance(module, FusedLinear)}
    assert all(joined.get(id(matrix.parameter), matrix.rows) == matrix.rows for matrix in matrices)


def test_a_state_has_the_device_and_dtype_of_its_creation(sublayer: Sublayer):
    state = sublayer.initial_state(2, LENGTH, torch.device("meta"), torch.bfloat16)
    assert all(tensor.is_meta for tensor in state.tensors().values())
    assert all(tensor.dtype != torch.float64 for tensor in state.tensors().values())
