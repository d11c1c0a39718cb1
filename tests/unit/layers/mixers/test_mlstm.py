import pytest
import torch
from one_layer import drawn, states_in_bfloat16
from torch import Tensor, nn

from linnet.core.errors import UserError
from linnet.layers.contract import Place
from linnet.layers.mixers.mlstm import Mlstm, MlstmSpec
from linnet.model.spec import ModelSpec

WIDTH, LENGTH = 16, 7
SPECS = [MlstmSpec(heads=2, gate_cap=1.0), MlstmSpec(heads=3, head_dim=5, value_dim=4, gate_cap=None)]


def of_one_stream(mixer: Mlstm, spec: MlstmSpec, x_TD: Tensor) -> Tensor:
    """The equations of the documentation, token by token and head by head."""
    key, value = spec.widths(WIDTH)
    keys, values = spec.heads * key, spec.heads * value
    q_TE, k_TE, v_TF, gate_TF = (x_TD @ mixer.query_key_value_gate.weight.t()).split(
        [keys, keys, values, values], dim=1
    )
    logits = x_TD @ mixer.input_forget.weight.t() + mixer.input_forget.bias
    if spec.gate_cap is not None:
        logits = spec.gate_cap * (logits / spec.gate_cap).tanh()
    heads = []
    for head in range(spec.heads):
        q_TK, k_TK = (x[:, head * key : (head + 1) * key] for x in (q_TE, k_TE))
        v_TV = v_TF[:, head * value : (head + 1) * value]
        i_T, f_T = logits[:, head], logits[:, spec.heads + head].sigmoid()
        C, n, m, reads = torch.zeros(key, value).double(), torch.zeros(key).double(), torch.zeros(()).double(), []
        for token in range(len(x_TD)):
            before, m = m, torch.maximum(f_T[token].log() + m, i_T[token])
            kept, gate = f_T[token] * (before - m).exp(), (i_T[token] - m).exp()
            C, n = kept * C + gate * torch.outer(k_TK[token], v_TV[token]), kept * n + gate * k_TK[token]
            query = q_TK[token] / key**0.5
            reads.append(query @ C / (torch.maximum((query @ n).abs(), (-m).exp()) + 1e-6))
        heads.append(nn.functional.layer_norm(torch.stack(reads), (value,), eps=spec.eps))
    return (torch.cat(heads, dim=1) * mixer.norm.weight * gate_TF.sigmoid()) @ mixer.out.weight.t()


@torch.no_grad()
@pytest.mark.parametrize("spec", SPECS)
def test_matches_the_equations_of_the_documentation(spec: MlstmSpec):
    mixer = drawn(spec, WIDTH)
    x_TD = torch.randn(LENGTH, WIDTH, dtype=torch.float64)
    torch.testing.assert_close(mixer(x_TD[None])[0], of_one_stream(mixer, spec, x_TD))


@torch.no_grad()
@pytest.mark.parametrize("spec", SPECS)
def test_a_state_has_a_memory_for_each_head_whatever_the_precision(spec: MlstmSpec):
    (key, value) = spec.widths(WIDTH)
    for state in states_in_bfloat16(spec, WIDTH):
        assert (state.memory.shape, state.memory.dtype) == ((3, spec.heads, key, value + 1), torch.float32)
        assert (state.peak.shape, state.peak.dtype) == ((3, spec.heads), torch.float32)


def test_gates_start_as_published():
    gates = MlstmSpec(heads=4).build(Place(64, 32)).input_forget
    assert not gates.weight.any()
    assert gates.bias.tolist() == [-10.0] * 4 + [3.0, 4.0, 5.0, 6.0]


@pytest.mark.parametrize(
    ("mixer", "said"),
    [
        ({"heads": 3}, "heads: 3: must divide the width 16, or value_dim must be given"),
        ({"heads": 16}, "head_dim: null: half of values of width 1 is nothing"),
    ],
)
def test_invalid_head_counts_are_refused(mixer: dict, said: str):
    blocks = [{"mixer": {"kind": "mlstm", **mixer}, "feed_forward": None}]
    with pytest.raises(UserError, match=said):
        ModelSpec.parse({"vocab_size": 9, "d_model": WIDTH, "context_length": 8, "blocks": blocks}, "test")
