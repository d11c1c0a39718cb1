"""What every mixer promises. A new mixer is found through the registry; nothing is to be added here."""

from itertools import pairwise

import pytest
import torch
from examples import WIDTH, inputs, randomised
from safetensors.torch import load, save
from torch import Tensor

from linnet.layers.contract import Mixer, MixerSpec, Span, State

PROMPT = 5
LENGTH = 14
BF16_RELATIVE_ERROR = 0.05
"""Root mean square of the error of a bfloat16 pass over that of the outputs."""
CUTS = {
    "ones": list(range(PROMPT, LENGTH + 1)),
    "twos": [5, 7, 9, 11, 13, 14],
    "threes": [5, 8, 11, 14],
    "uneven": [5, 6, 10, 12, 14],
    "rest": [5, 14],
}


def empty_state(mixer: Mixer, batch: int, capacity: int = LENGTH, dtype: torch.dtype = torch.float64) -> State:
    return mixer.initial_state(batch, capacity, torch.device("cpu"), dtype)


def feed(mixer: Mixer, x_BTD: Tensor, state: State, bounds: list[int], padding_B: Tensor | None = None) -> Tensor:
    """Outputs of the chunks between `bounds`, joined."""
    return torch.cat([mixer(x_BTD[:, a:b], state, Span(a, padding_B)) for a, b in pairwise(bounds)], dim=1)


def in_two(mixer: Mixer, x_BTD: Tensor) -> Tensor:
    """The prompt, then the rest."""
    return feed(mixer, x_BTD, empty_state(mixer, len(x_BTD), x_BTD.shape[1]), [0, PROMPT, x_BTD.shape[1]])


def test_predicted_parameters_are_the_built_ones(mixer_spec: MixerSpec, mixer: Mixer):
    assert mixer_spec.cost(WIDTH, 128).parameters == sum(p.numel() for p in mixer.parameters())


@pytest.mark.parametrize(("dtype", "element_bytes"), [(torch.float32, 4), (torch.bfloat16, 2)])
def test_predicted_state_bytes_are_the_allocated_ones(mixer_spec: MixerSpec, mixer: Mixer, dtype, element_bytes):
    mixer.to(dtype)
    for capacity in (LENGTH, 100):
        state = empty_state(mixer, 1, capacity, dtype)
        mixer(inputs(1, PROMPT, dtype), state)
        assert state.nbytes == mixer_spec.cost(WIDTH, 128).state_bytes(capacity, element_bytes)


def test_only_a_constant_state_does_not_grow(mixer: Mixer):
    sizes = {empty_state(mixer, 1, capacity).nbytes for capacity in (LENGTH, 100)}
    assert (len(sizes) == 1) == mixer.traits.constant_state


@pytest.mark.parametrize("cut", CUTS)
def test_after_the_prompt_every_cut_gives_the_same(mixer: Mixer, cut: str):
    x_BTD = inputs(2, LENGTH)
    expected = in_two(mixer, x_BTD)
    actual = feed(mixer, x_BTD, empty_state(mixer, 2), [0, *CUTS[cut]])
    torch.testing.assert_close(actual, expected)


@pytest.mark.parametrize("bounds", [[0, 14], [0, 1, 2, 14], list(range(15)), [0, 3, 4, 9, 14]])
def test_a_stream_in_chunks_equals_one_pass_exactly_where_the_traits_say_so(mixer: Mixer, bounds: list[int]):
    x_BTD = inputs(2, LENGTH)
    chunked = feed(mixer, x_BTD, empty_state(mixer, 2), bounds)
    equal = torch.allclose(chunked, mixer(x_BTD))
    settled = mixer.traits.settled_after is not None and bounds[1] >= mixer.traits.settled_after
    assert equal == (mixer.traits.exact_when_split or settled or bounds == [0, 14])


def test_left_padding_changes_nothing_for_the_real_tokens(mixer: Mixer):
    padding_B = torch.tensor([3, 0, 1])
    x_BTD = inputs(3, LENGTH)
    padded = feed(mixer, x_BTD, empty_state(mixer, 3), [0, PROMPT + 2, 8, LENGTH], padding_B)
    assert padded.isfinite().all()
    for row, padding in enumerate(padding_B.tolist()):
        real = x_BTD[row : row + 1, padding:]
        bounds = [0, *(bound - padding for bound in (PROMPT + 2, 8, LENGTH))]
        alone = feed(mixer, real, empty_state(mixer, 1), bounds)
        torch.testing.assert_close(padded[row : row + 1, padding:], alone)


def test_a_fork_goes_its_own_way(mixer: Mixer):
    x_BTD, other = inputs(2, LENGTH), inputs(2, LENGTH)
    state = empty_state(mixer, 2)
    mixer(x_BTD[:, :PROMPT], state)
    fork = state.fork()
    mixer(other[:, PROMPT:], fork, Span(PROMPT))
    actual = mixer(x_BTD[:, PROMPT:], state, Span(PROMPT))
    torch.testing.assert_close(actual, in_two(mixer, x_BTD)[:, PROMPT:])


def test_selected_rows_go_on_as_their_own(mixer: Mixer):
    x_BTD = inputs(3, LENGTH)
    state = empty_state(mixer, 3)
    mixer(x_BTD[:, :PROMPT], state)
    rows = torch.tensor([2, 0, 2])
    actual = mixer(x_BTD[rows, PROMPT:], state.select(rows), Span(PROMPT))
    torch.testing.assert_close(actual, in_two(mixer, x_BTD)[rows, PROMPT:])


def test_a_state_survives_saving_and_loading(mixer: Mixer):
    x_BTD = inputs(2, LENGTH)
    state = empty_state(mixer, 2)
    mixer(x_BTD[:, :PROMPT], state)
    loaded = empty_state(mixer, 2).with_tensors(load(save(state.tensors())))
    actual = mixer(x_BTD[:, PROMPT:], loaded, Span(PROMPT))
    torch.testing.assert_close(actual, in_two(mixer, x_BTD)[:, PROMPT:])


def test_a_cropped_state_goes_on_from_there(mixer: Mixer):
    x_BTD, wrong = inputs(2, LENGTH), inputs(2, 4)
    state = empty_state(mixer, 2)
    mixer(x_BTD[:, :PROMPT], state)
    mixer(wrong, state, Span(PROMPT))
    try:
        state.crop(PROMPT)
    except NotImplementedError:
        pytest.skip("this architecture cannot go back")
    actual = mixer(x_BTD[:, PROMPT:], state, Span(PROMPT))
    torch.testing.assert_close(actual, in_two(mixer, x_BTD)[:, PROMPT:])


def test_a_state_that_forgets_is_causal_from_the_first_token(mixer: Mixer):
    x_BTD = inputs(2, LENGTH)
    state = empty_state(mixer, 2)
    mixer(inputs(2, LENGTH), state)
    frozen = state.forget()
    whole = mixer(x_BTD, frozen.fork())
    torch.testing.assert_close(feed(mixer, x_BTD, frozen, [0, 1, 4, LENGTH]), whole)


def _gradient_of_step(mixer: Mixer, step: int, with_prompt: bool) -> Tensor:
    x_BTD = inputs(1, LENGTH).requires_grad_()
    state, start = None, 0
    if with_prompt:
        state, start = empty_state(mixer, 1), PROMPT
        with torch.no_grad():
            mixer(x_BTD[:, :PROMPT], state)
    out = mixer(x_BTD[:, start:], state, Span(start))
    (gradient,) = torch.autograd.grad(out[:, step - start].square().sum(), x_BTD)
    return gradient


@pytest.mark.parametrize("step", [PROMPT, 9, LENGTH - 2])
def test_no_output_sees_a_later_token(mixer: Mixer, step: int):
    assert (_gradient_of_step(mixer, step, with_prompt=True)[:, step + 1 :] == 0).all()
    blind = (_gradient_of_step(mixer, step, with_prompt=False)[:, step + 1 :] == 0).all()
    settled = mixer.traits.settled_after is not None and step >= mixer.traits.settled_after - 1
    assert blind == (mixer.traits.causal or settled)


def test_every_output_sees_the_first_token_unless_its_window_ends_before(mixer: Mixer):
    window = mixer.traits.window or LENGTH
    for step in range(LENGTH):
        sees = (_gradient_of_step(mixer, step, with_prompt=False)[:, 0] != 0).any()
        assert sees == (step < window)


def test_rows_do_not_touch_each_other(mixer: Mixer):
    x_BTD = inputs(3, LENGTH).requires_grad_()
    (gradient,) = torch.autograd.grad(mixer(x_BTD)[1].square().sum(), x_BTD)
    assert (gradient[[0, 2]] == 0).all()
    assert (gradient[1] != 0).any()


@pytest.mark.parametrize("length", [1, 63, 65])
def test_fast_form_equals_reference_form_with_all_gradients(mixer_spec: MixerSpec, mixer: Mixer, length: int):
    slow = mixer_spec.build(WIDTH, 128).double()
    slow.load_state_dict(mixer.state_dict())
    assert mixer.references, "a mixer names the slow form of its fast operations"
    for attribute, reference in mixer.references.items():
        assert getattr(slow, attribute) is not reference
        setattr(slow, attribute, reference)
    x_BTD = inputs(2, length)
    upstream = torch.randn_like(x_BTD)
    outputs = []
    for form in (mixer, slow):
        x = x_BTD.clone().requires_grad_()
        out = form(x)
        wanted = (x, *form.parameters())
        outputs.append((out, *torch.autograd.grad(out, wanted, upstream)))
    for fast, reference in zip(*outputs, strict=True):
        torch.testing.assert_close(fast, reference)


def test_gradients_are_those_of_finite_differences(mixer: Mixer):
    x_BTD = inputs(1, 6).requires_grad_()
    assert torch.autograd.gradcheck(mixer, (x_BTD,), fast_mode=True)
    names, parameters = zip(*mixer.named_parameters(), strict=True)

    def of_parameters(*values: Tensor) -> Tensor:
        return torch.func.functional_call(mixer, dict(zip(names, values, strict=True)), (x_BTD.detach(),))

    assert torch.autograd.gradcheck(of_parameters, parameters, fast_mode=True)


def test_bfloat16_stays_within_the_stated_error(mixer_spec: MixerSpec):
    """The median over random weights: PLGA's powers make much of the rounding of a few."""
    errors = []
    for _ in range(15):
        mixer, x_BTD = randomised(mixer_spec.build(WIDTH, 128).double()), inputs(2, 64, torch.bfloat16)
        rough = mixer.bfloat16()(x_BTD).double()
        exact = mixer.double()(x_BTD.double())
        errors.append((rough - exact).square().mean().sqrt() / exact.square().mean().sqrt())
    assert 0 < torch.stack(errors).median() < BF16_RELATIVE_ERROR


def test_compiled_form_is_the_same(mixer_spec: MixerSpec, mixer: Mixer):
    if mixer_spec != type(mixer_spec).examples()[0]:
        pytest.skip("one example of each kind: compiling takes seconds")
    compiled = torch.compile(mixer, dynamic=False)
    upstream, results = torch.randn(2, LENGTH, WIDTH, dtype=torch.float64), []
    x_BTD = inputs(2, LENGTH).requires_grad_()
    for form in (mixer, compiled):
        out = form(x_BTD)
        results.append((out, *torch.autograd.grad(out, (x_BTD, *mixer.parameters()), upstream)))
    for eager, optimised in zip(*results, strict=True):
        # The rotary table is float32 by definition, and PLGA's powers multiply the last bit of its angles.
        torch.testing.assert_close(optimised, eager, rtol=1e-3, atol=1e-4)
