"""Positions by distance equal their formulas."""

import pytest
import torch
from torch import Tensor

from linnet.core.errors import UserError
from linnet.layers.batch_layout import BatchLayout
from linnet.layers.contract import Place
from linnet.layers.mixers.attention import Attention, AttentionSpec
from linnet.layers.positions import ShawSpec

WIDTH, HEADS = 8, 2


def layer(window: int | None = None, clip: int = 3) -> Attention:
    torch.manual_seed(0)
    spec = AttentionSpec(heads=HEADS, window=window, positions=ShawSpec(clip=clip))
    built = spec.build(Place(WIDTH, 64)).double()
    for table in (built.positions.keys_RK, built.positions.values_RK):
        torch.nn.init.normal_(table)
    return built


def shaw(attention: Attention, x_TD: Tensor, window: int | None) -> Tensor:
    """Eq. 3 and 4, for one query and one key at a time."""
    width = WIDTH // HEADS
    maps = attention.query_key_value.weight.view(3, HEADS, width, WIDTH)
    keys_RK, values_RK = attention.positions.keys_RK, attention.positions.values_RK
    rows = []
    for i in range(len(x_TD)):
        first, read = max(0, i + 1 - (window or i + 1)), []
        for head in range(HEADS):
            q_K, seen = maps[0, head] @ x_TD[i], range(first, i + 1)
            near = [min(i - j, len(keys_RK) - 1) for j in seen]
            scores = [
                q_K @ (maps[1, head] @ x_TD[j] + keys_RK[r]) / width**0.5 for j, r in zip(seen, near, strict=True)
            ]
            alphas = torch.stack(scores).softmax(0)
            values = [maps[2, head] @ x_TD[j] + values_RK[r] for j, r in zip(seen, near, strict=True)]
            read.append((alphas[:, None] * torch.stack(values)).sum(0))
        rows.append(attention.out.weight @ torch.cat(read))
    return torch.stack(rows)


@pytest.mark.parametrize("window", [None, 2, 5])
def test_shaw_equals_its_formula_with_all_gradients(window: int | None):
    attention = layer(window)
    x_TD = torch.randn(9, WIDTH, dtype=torch.float64, requires_grad=True)
    found, expected = attention(x_TD[None])[0], shaw(attention, x_TD, window)
    torch.testing.assert_close(found, expected)
    variables, upstream = (x_TD, *attention.parameters()), torch.randn_like(expected)
    gradients = [torch.autograd.grad(out, variables, upstream) for out in (found, expected)]
    for one, other in zip(*gradients, strict=True):
        torch.testing.assert_close(one, other)


def test_all_clips_beyond_the_text_give_the_same_outputs():
    x_TD = torch.randn(5, WIDTH, dtype=torch.float64)
    attention = layer(clip=40)
    torch.testing.assert_close(attention(x_TD[None])[0], shaw(attention, x_TD, None))


@pytest.mark.parametrize("kind", ["alibi", "t5", "shaw"])
def test_only_distances_count(kind: str):
    """A text after another that it cannot see is read as if it were the only one."""
    spec = AttentionSpec.parse({"kind": "attention", "heads": 2, "window": 4, "positions": {"kind": kind}}, "mixer")
    torch.manual_seed(0)
    attention = spec.build(Place(WIDTH, 64)).double()
    for parameter in attention.positions.parameters():
        torch.nn.init.normal_(parameter)
    x_BTD = torch.randn(1, 12, WIDTH, dtype=torch.float64)
    state = attention.initial_state(1, 12, x_BTD.device, x_BTD.dtype)
    chunks = [attention(x_BTD[:, a:b], state, BatchLayout(a)) for a, b in ((0, 6), (6, 7), (7, 12))]
    whole = attention(x_BTD)
    torch.testing.assert_close(torch.cat(chunks, dim=1), whole)
    torch.testing.assert_close(whole[:, 11], attention(x_BTD[:, 8:])[:, 3])


@pytest.mark.parametrize(
    ("mixer", "message"),
    [
        ({"positions": {"kind": "alibi"}, "rotary": {}}, "rotary: must be null with positions, which are alibi"),
        ({"positions": {"kind": "t5", "furthest": 3}}, "positions.furthest: 3: must be above 16"),
        ({"positions": {"kind": "alibis"}}, "positions.kind: 'alibis': must be one of 'alibi', 't5', 'shaw'"),
        ({"rotary": {"scaling": {"kind": "yarn", "factor": 0.5, "trained": 8}}}, "rotary.scaling.factor: 0.5: "),
        ({"rotary": {"base": 1.0, "scaling": {"kind": "ntk", "factor": 2}}}, "rotary.base: 1.0: must be above 1"),
    ],
)
def test_invalid_specs_are_refused_in_one_line(mixer: dict, message: str):
    from linnet.model.spec import ModelSpec

    block = {"mixer": {"kind": "attention", "heads": 2, **mixer}}
    with pytest.raises(UserError, match=f"^model: blocks\\[0\\].mixer.{message}"):
        ModelSpec.parse({"vocab_size": 9, "d_model": 16, "context_length": 8, "blocks": [block]}, "model")


def test_a_spec_without_rotary_positions_writes_null():
    spec = AttentionSpec.parse({"kind": "attention", "heads": 2, "positions": {"kind": "alibi"}}, "mixer")
    assert spec.rotary is None and AttentionSpec.parse(spec.model_dump(), "again") == spec
