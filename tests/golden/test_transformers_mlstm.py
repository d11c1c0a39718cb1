"""The same weights in Transformers' xLSTM and in our mLSTM give the same outputs, gradients, states and decoding."""

from collections.abc import Mapping
from itertools import pairwise

import pytest
import torch
from torch import Tensor, nn

from linnet.layers.contract import Place
from linnet.layers.mixers.mlstm import Mlstm, MlstmSpec
from linnet.layers.view import View

transformers = pytest.importorskip("transformers")
from transformers.models.xlstm import modeling_xlstm  # noqa: E402

WIDTH, HEADS, KEY, VALUE = 32, 4, 4, 8


def names(theirs: Mapping[str, Tensor]) -> dict[str, Tensor]:
    """Ours, of their weights or gradients."""
    gates = ("igate_preact", "fgate_preact")
    return {
        "query_key_value_gate.weight": torch.cat(
            [theirs[f"{name}.weight"] for name in ("q", "k", "v", "ogate_preact")]
        ),
        "input_forget.weight": torch.cat([theirs[f"{name}.weight"] for name in gates]),
        "input_forget.bias": torch.cat([theirs[f"{name}.bias"] for name in gates]),
        "norm.weight": theirs["multihead_norm.weight"],
        "out.weight": theirs["out_proj.weight"],
    }


def pair() -> tuple[nn.Module, Mlstm]:
    """Transformers' layer and ours, with weights alike away from where they start; gates that reach the cap."""
    torch.manual_seed(0)
    config = transformers.xLSTMConfig(
        hidden_size=WIDTH, num_hidden_layers=1, num_heads=HEADS, gate_soft_cap=5.0, norm_eps=1e-3, chunk_size=16
    )
    theirs = modeling_xlstm.xLSTMBlock(config).mlstm_layer
    for name, parameter in theirs.named_parameters():
        nn.init.normal_(parameter, std=1.0 if "gate" in name else 0.3)
    ours = MlstmSpec(heads=HEADS, gate_cap=5.0, eps=1e-3).build(Place(WIDTH, 128))
    ours.load_state_dict(names(theirs.state_dict()))
    return theirs, ours


@pytest.mark.skipif(modeling_xlstm.external_xlstm, reason="their own form stands in for it where xlstm is installed")
@pytest.mark.parametrize("length", [1, 15, 63, 64, 65, 130])
def test_outputs_states_and_all_gradients(length: int):
    theirs, ours = pair()
    x_BTD, upstream = torch.randn(2, length, WIDTH), torch.randn(2, length, WIDTH)
    x, own = (x_BTD.clone().requires_grad_() for _ in range(2))
    expected, (memory, normaliser, peak) = theirs(x)
    expected.backward(upstream)
    out = ours(own)
    out.backward(upstream)
    tolerances = {"rtol": 1e-4, "atol": 1e-4}
    torch.testing.assert_close(out, expected, **tolerances)
    torch.testing.assert_close(own.grad, x.grad, **tolerances)
    of_theirs = {name: parameter.grad for name, parameter in theirs.named_parameters()}
    torch.testing.assert_close({n: p.grad for n, p in ours.named_parameters()}, names(of_theirs), **tolerances)
    state = ours.initial_state(2, length, torch.device("cpu"), torch.float32)
    ours(x_BTD, state)
    torch.testing.assert_close(state.memory, torch.cat([memory, normaliser[..., None]], dim=-1), **tolerances)
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
        found.append(ours(x_BTD[:, begin:end], state, View(begin)))
    torch.testing.assert_close(torch.cat(found, 1), torch.cat(expected, 1), rtol=1e-4, atol=1e-4)
