import torch
from one_layer import states_in_bfloat16
from torch import Tensor, nn

from linnet.layers.batch_layout import BatchLayout
from linnet.layers.contract import Place
from linnet.layers.mixers.retention import RetentionSpec

WIDTH, HEADS, LENGTH = 16, 2, 7


def turned(x_TK: Tensor) -> Tensor:
    """Pairs as complex numbers, times `exp(i t theta)` (eq. 3 of the paper)."""
    width = x_TK.shape[1]
    theta_P = 10000.0 ** (-torch.arange(0, width, 2).double() / width)
    angles_TP = torch.arange(len(x_TK)).double()[:, None] * theta_P
    turned_TP = torch.view_as_complex(x_TK.view(len(x_TK), -1, 2)) * torch.polar(torch.ones_like(angles_TP), angles_TP)
    return torch.view_as_real(turned_TP).flatten(1)


@torch.no_grad()
def test_matches_the_recurrence_of_the_paper():
    torch.manual_seed(0)
    mixer = RetentionSpec(heads=HEADS).build(Place(WIDTH, 32)).double()
    for parameter in mixer.parameters():
        nn.init.normal_(parameter, std=0.5)
    x_TD = torch.randn(LENGTH, WIDTH, dtype=torch.float64)
    q_D, k_D, v_F, gate_F = (x_TD @ weight.t() for weight in mixer.query_key_value_gate.part_weights())
    reads = []
    for head, gamma in enumerate((1 - 2**-5, 1 - 2**-6)):
        q_TK, k_TK, v_TV = (part.chunk(HEADS, dim=1)[head].contiguous() for part in (q_D, k_D, v_F))
        q_TK, k_TK, sum_KV = turned(q_TK), turned(k_TK) * 8**-0.5, torch.zeros(8, 16, dtype=torch.float64)
        rows = []
        for q_K, k_K, v_V in zip(q_TK, k_TK, v_TV, strict=True):
            sum_KV = gamma * sum_KV + torch.outer(k_K, v_V)
            rows.append(q_K @ sum_KV)
        o_TV = torch.stack(rows)
        centered_TV = o_TV - o_TV.mean(1, keepdim=True)
        reads.append(centered_TV / (centered_TV.square().mean(1, keepdim=True) + 1e-6).sqrt())
    normed_TF = torch.cat(reads, dim=1) * mixer.norm.weight + mixer.norm.bias
    expected_TD = (nn.functional.silu(gate_F) * normed_TF) @ mixer.out.weight.t()
    torch.testing.assert_close(mixer(x_TD[None])[0], expected_TD, rtol=1e-5, atol=1e-5)


@torch.no_grad()
def test_a_state_holds_one_matrix_for_each_head_whatever_the_precision():
    for state in states_in_bfloat16(RetentionSpec(heads=HEADS), WIDTH):
        assert (state.sums.shape, state.sums.dtype) == ((3, HEADS, 8, 16), torch.float32)


def test_lifetimes_double_from_head_to_head():
    mixer = RetentionSpec(heads=HEADS).build(Place(WIDTH, 512))
    x_BTD = torch.zeros(1, 300, WIDTH)
    x_BTD[0, 0] = 1
    state = mixer.initial_state(1, 300, torch.device("cpu"), torch.float32)
    mixer(x_BTD[:, :1], state)
    first_NKV = state.sums[0].clone()
    mixer(x_BTD[:, 1:97], state, BatchLayout(1))
    torch.testing.assert_close(state.sums[0, 0], first_NKV[0] * (1 - 1 / 32) ** 96)
    torch.testing.assert_close(state.sums[0, 1], first_NKV[1] * (1 - 1 / 64) ** 96)
