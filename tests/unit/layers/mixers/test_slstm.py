import pytest
import torch
from one_layer import drawn, states_in_bfloat16
from torch import Tensor, nn

from linnet.core.errors import UserError
from linnet.layers.contract import Place
from linnet.layers.mixers.slstm import Slstm, SlstmSpec
from linnet.model.spec import ModelSpec

WIDTH, LENGTH = 16, 7
SPECS = [SlstmSpec(heads=2, conv=3), SlstmSpec(heads=3, channels=12, conv=None)]


def of_one_stream(mixer: Slstm, spec: SlstmSpec, x_TD: Tensor) -> Tensor:
    """The equations of the documentation, token by token and head by head."""
    near_TD = x_TD
    if spec.conv is not None:
        before_TD = torch.cat([torch.zeros(spec.conv - 1, WIDTH, dtype=x_TD.dtype), x_TD])
        windows = [before_TD[token : token + spec.conv] for token in range(len(x_TD))]
        convolved = [(part * mixer.conv1d.weight[:, 0].t()).sum(0) + mixer.conv1d.bias for part in windows]
        near_TD = nn.functional.silu(torch.stack(convolved))
    logits = [map_(read) for map_, read in ((mixer.input_forget, near_TD), (mixer.cell_output, x_TD))]
    x_T4NP = torch.cat(logits, dim=1).unflatten(1, (4, spec.heads, -1))
    within, heads = mixer.channels // spec.heads, []
    for head in range(spec.heads):
        R = mixer.recurrent[head].unflatten(1, (4, within))
        h, c, n = torch.zeros(3, within, dtype=x_TD.dtype)
        m, outs = torch.full_like(h, -torch.inf), []
        for token in range(len(x_TD)):
            i, f, z, o = (x_T4NP[token, gate, head] + h @ R[:, gate] for gate in range(4))
            before, m = m, torch.maximum(f.sigmoid().log() + m, i)
            share, kept = (i - m).exp(), f.sigmoid() * (before - m).exp()
            c, n = kept * c + share * z.tanh(), kept * n + share
            h = o.sigmoid() * c / n
            outs.append(h)
        heads.append(nn.functional.layer_norm(torch.stack(outs), (within,), eps=spec.eps))
    return (torch.cat(heads, dim=1) * mixer.norm.weight) @ mixer.out.weight.t()


@torch.no_grad()
@pytest.mark.parametrize("spec", SPECS)
def test_matches_the_equations_of_the_documentation(spec: SlstmSpec):
    mixer = drawn(spec, WIDTH)
    x_TD = torch.randn(LENGTH, WIDTH, dtype=torch.float64)
    torch.testing.assert_close(mixer(x_TD[None])[0], of_one_stream(mixer, spec, x_TD))


@torch.no_grad()
@pytest.mark.parametrize("spec", SPECS)
def test_state_is_four_float32_numbers_for_each_channel_in_any_precision(spec: SlstmSpec):
    for state in states_in_bfloat16(spec, WIDTH):
        memory = state.hidden, state.cell, state.normalizer, state.peak
        assert all((part.shape[:2], part.dtype) == ((3, spec.heads), torch.float32) for part in memory)
        assert spec.conv is None or (state.inputs.shape[2], state.inputs.dtype) == (2, torch.bfloat16)


@pytest.mark.parametrize(("index", "middle"), [(0, 5 - 12 * 0.5**0.3), (3, 5 - 12 * 0.5**1.6)])
def test_forget_gates_start_as_published(index: int, middle: float):
    """From 5 to -7 over a head, with an exponent by depth; recurrent matrices and other biases are 0."""
    mixer = SlstmSpec(heads=2, channels=6).build(Place(8, 32, index, 4))
    torch.testing.assert_close(mixer.input_forget.bias[6:], torch.tensor([5.0, middle, -7.0] * 2))
    assert not any(part.any() for part in (mixer.input_forget.bias[:6], mixer.cell_output.bias, mixer.recurrent))


def test_invalid_head_counts_are_refused():
    blocks = [{"mixer": {"kind": "slstm", "heads": 3}, "feed_forward": None}]
    with pytest.raises(UserError, match="heads: 3: must divide the 16 channels"):
        ModelSpec.parse({"vocab_size": 9, "d_model": WIDTH, "context_length": 8, "blocks": blocks}, "test")


@torch.no_grad()
def test_a_forgotten_state_is_empty():
    """The largest exponent included: with another, gates far below it would let nothing in, divided by nothing."""
    mixer = SPECS[0].build(Place(WIDTH, 32))
    empty, state = (mixer.initial_state(2, 9, torch.device("cpu"), torch.float32) for _ in range(2))
    mixer(torch.randn(2, 3, WIDTH), state)
    forgotten = state.forget().tensors()
    assert all(torch.equal(forgotten[name], tensor) for name, tensor in empty.tensors().items())
