"""The same weights in Transformers' xLSTM and in our mLSTM give the same outputs, gradients, states and decoding."""

from itertools import pairwise

import pytest
import torch
from torch import nn

from linnet.layers.batch_layout import BatchLayout
from linnet.layers.mixers.mlstm import Mlstm, MlstmSpec

transformers = pytest.importorskip("transformers")
from transformers.models.xlstm import modeling_xlstm  # noqa: E402

from same_weights.mlstm import names, twins  # noqa: E402

WIDTH, HEADS = 32, 4


def pair() -> tuple[nn.Module, Mlstm]:
    both = twins(MlstmSpec(heads=HEADS, gate_cap=5.0, eps=1e-3), WIDTH, chunk=16)
    return both.theirs, both.ours


@pytest.mark.skipif(modeling_xlstm.external_xlstm, reason="their own form stands in for it where xlstm is installed")
@pytest.mark.parametrize("length", [1, 15, 63, 64, 65, 130])
def test_outputs_states_and_all_gradients(length: int):
    theirs, ours = pair()
    x_BTD, upstream = torch.randn(2, length, WIDTH), torch.randn(2, length, WIDTH)
    x, own = (x_BTD.clone().requires_grad_() for _ in range(2))
    expected, (memory, normalizer, peak) = theirs(x)
    expected.backward(upstream)
    out = ours(own)
    out.backward(upstream)
    tolerances = {"rtol": 1e-4, "atol": 1e-4}
    torch.testing.assert_close(out, expected, **tolerances)
    torch.testing.assert_close(own.grad, x.grad, **tolerances)
    of_theirs = names({name: parameter.grad for name, parameter in theirs.named_parameters()})
    for name, parameter in ours.named_parameters():
        # A sum over all tokens, whose rounding is relative to its largest elements (20 to 90 here), not to each.
        largest = max(1.0, float(of_theirs[name].abs().max()))
        torch.testing.assert_close(parameter.grad, of_theirs[name], rtol=1e-4, atol=1e-4 * largest, msg=name)
    state = ours.initial_state(2, length, torch.device("cpu"), torch.float32)
    ours(x_BTD, state)
    torch.testing.assert_close(state.memory, torch.cat([memory, normalizer[..., None]], dim=-1), **tolerances)
    torch.testing.assert_close(state.peak, peak[..., 0], **tolerances)


@torch.no_grad()
def test_decoding_with_a_state():
    theirs, ours = pair()
    x_BTD = torch.randn(2, 76, WIDTH)
    cache, state = None, ours.initial_state(2, 76, torch.device("cpu"), torch.float32)
    expected, found = ([], [])
    for begin, end in pairwise([0, 67, *range(68, 77)]):
        out, cache = theirs(x_BTD[:, begin:end], cache)
        expected.append(out)
        found.append(ours(x_BTD[:, begin:end], state, BatchLayout(begin)))
    torch.testing.assert_close(torch.cat(found, 1), torch.cat(expected, 1), rtol=1e-4, atol=1e-4)
