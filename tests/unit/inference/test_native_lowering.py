"""Small passes as native calls, and passes whose calls would be wrong for another token or position."""

from collections.abc import Callable, Sequence

import pytest
import torch
import torch.nn.functional as F
from torch import Tensor

from linnet.inference.captured_step import StateTensors
from linnet.inference.native_lowering import lowered
from linnet.inference.native_plan import repeated
from linnet.inference.native_step import RowProgram, plan_of_pass
from linnet.inference.native_trace import Trace, UnmappedError
from linnet.model.state import DecoderState
from linnet.ops.native import custom_ops, library

pytestmark = pytest.mark.skipif(library(torch.device("cpu")) is None, reason="no compiler, or another processor")

TOKENS, WIDTH, PLACES = 7, 16, 9
ANGLES = torch.arange(1, WIDTH // 4 + 1) / 5
Row = Callable[[Tensor, Tensor], Tensor]
"""From a token `[1, 1]` and its position `[1]` to a row."""


def weight(rows: int, columns: int = WIDTH) -> Tensor:
    return torch.randn(rows, columns, generator=torch.Generator().manual_seed(rows))


TABLE, SQUARE, HALF = weight(TOKENS), weight(WIDTH), weight(WIDTH // 2)


def look_up(token_11: Tensor) -> Tensor:
    return F.embedding(token_11, TABLE)


def rotated(x_11D: Tensor, position_1: Tensor) -> Tensor:
    """Two heads, rotated."""
    angles = (position_1[:, None, None] * ANGLES)[..., None, :]
    return custom_ops.rotate(x_11D.view(1, 1, 2, WIDTH // 2), angles.cos(), angles.sin(), False).view(1, 1, WIDTH)


def as_pass(row: Row) -> Callable[[Tensor, Tensor, Sequence[Tensor]], tuple[Tensor, Sequence[Tensor]]]:
    return lambda token_11, position_1, states: (row(token_11, position_1), states)


def program_of(row: Row) -> RowProgram | None:
    plan, compiled = plan_of_pass(as_pass(row), StateTensors(DecoderState((), (), (), PLACES, (0,)))), library(CPU)
    assert compiled is not None
    return None if plan is None else RowProgram(plan.bind(compiled, [], PLACES), compiled)


CPU = torch.device("cpu")
MAPPED: dict[str, Row] = {
    "a product and its summand": lambda token, at: look_up(token) + F.linear(look_up(token), SQUARE),
    "a summand that comes after the product": lambda token, at: (
        F.linear(look_up(token), SQUARE) + rotated(F.linear(look_up(token), SQUARE), at)
    ),
    "a product that is read twice": lambda token, at: (
        F.silu(y := F.linear(look_up(token), SQUARE)) + (y + look_up(token))
    ),
    "a gate of two halves": lambda token, at: F.silu((y := F.linear(look_up(token), SQUARE))[..., :8]) * y[..., 8:],
    "learned positions": lambda token, at: look_up(token) + F.embedding(at, SQUARE),
    "positions of sines": lambda token, at: look_up(token) * 3.0 + (at[:, None] * torch.arange(WIDTH)).sin(),
    "half of what was rotated": lambda token, at: F.linear(rotated(look_up(token), at)[..., :8], HALF[:, :8]),
    "in bfloat16": lambda token, at: F.linear(look_up(token).bfloat16(), SQUARE.bfloat16()).float() + look_up(token),
    "squared relu": lambda token, at: F.linear(F.linear(look_up(token), SQUARE).relu().square(), HALF),
}


@torch.inference_mode()
@pytest.mark.parametrize("name", MAPPED)
def test_calls_are_the_pass_at_every_token_and_position(name: str):
    row = MAPPED[name]
    program = program_of(row)
    assert program is not None
    for token, position in ((0, 1), (3, 4), (6, 8), (2, 0)):
        expected = row(torch.tensor([[token]]), torch.tensor([position])).flatten()
        tolerance = 0.1 if "bfloat16" in name else 1e-4
        torch.testing.assert_close(program(token, position)[0], expected, rtol=tolerance, atol=tolerance)


def read_before_and_after(token_11: Tensor, position_1: Tensor) -> Tensor:
    """The heads before their rotation are read after it."""
    x_11D = look_up(token_11)
    return x_11D + rotated(x_11D, position_1)


def copied_before(token_11: Tensor, position_1: Tensor) -> Tensor:
    """A copy shares the register of what it copies."""
    x_11D = look_up(token_11)
    return F.linear(x_11D.clone(), SQUARE) + F.linear(rotated(x_11D, position_1), SQUARE) + x_11D.clone()


def branch_on_the_token(token_11: Tensor, position_1: Tensor) -> Tensor:
    return look_up(token_11) * (2.0 if int(token_11) == 0 else 3.0)


def scaled_in_place(token_11: Tensor, position_1: Tensor) -> Tensor:
    return look_up(token_11).mul_(2.0)


def table_in_place(token_11: Tensor, position_1: Tensor) -> Tensor:
    return look_up(token_11) + (position_1[:, None] * torch.ones(WIDTH)).mul_(2.0)


UNMAPPED: dict[str, tuple[Row, str]] = {
    "before and after a rotation": (read_before_and_after, "changed in place"),
    "a copy before a rotation": (copied_before, "changed in place"),
    "a branch": (branch_on_the_token, "a number that Python has read"),
    "in place": (scaled_in_place, "no single operation"),
    "a table changed in place": (table_in_place, "changed in place"),
    "a weight of the text": (lambda token, at: F.linear(SQUARE[:1], look_up(token)[0]), "depends on the text"),
    "a broadcast sum": (
        lambda token, at: look_up(token).view(1, -1) + look_up(token).view(-1, 1),
        "a sum of different shapes",
    ),
    "another token": (lambda token, at: F.embedding(token + 1, TABLE), "not the token itself"),
    "learned positions from 2 on": (
        lambda token, at: look_up(token) + F.embedding(at + 2, SQUARE),
        "not the position itself",
    ),
    "halves of two rows": (
        lambda token, at: F.silu(F.linear(look_up(token), HALF)) * F.linear(look_up(token), HALF),
        "a product of two rows",
    ),
    "swapped halves": (
        lambda token, at: F.silu((y := F.linear(look_up(token), SQUARE))[..., 8:]) * y[..., :8],
        "a product of two rows",
    ),
    "an operation without a function": (lambda token, at: look_up(token).exp(), "aten.exp"),
    "transposed elements": (lambda token, at: F.silu(look_up(token).view(4, 4).t()), "strides"),
}


@torch.inference_mode()
@pytest.mark.parametrize("name", UNMAPPED)
def test_a_pass_of_anything_else_has_no_native_form(name: str):
    row, reason = UNMAPPED[name]
    token_11, position_1 = torch.zeros(1, 1, dtype=torch.int64), torch.ones(1, dtype=torch.int64)
    trace = Trace({"token": [token_11], "position": [position_1], "state": []})
    with trace:
        result = row(token_11, position_1)
    with pytest.raises(UnmappedError, match=reason):
        lowered(trace, result, [])
    assert program_of(row) is None


@torch.inference_mode()
def test_weights_computed_from_others_are_those_of_the_present():
    """And one that is changed in place is no weight."""
    gains_D = torch.ones(WIDTH)
    plan = plan_of_pass(
        as_pass(lambda token, at: F.rms_norm(look_up(token), (WIDTH,), gains_D + 1.0, 1e-5)),
        StateTensors(DecoderState((), (), (), PLACES, (0,))),
    )
    compiled = library(CPU)
    assert plan is not None and compiled is not None
    gains_D += 1.0
    found = RowProgram(plan.bind(compiled, [], PLACES), compiled)(3, 2)
    torch.testing.assert_close(found, F.rms_norm(TABLE[3:4], (WIDTH,), 3.0 * torch.ones(WIDTH), 1e-5))
    trace = Trace({})
    with trace:
        weight_OI = (SQUARE * 2.0).add_(1.0)
    with pytest.raises(UnmappedError, match="changed in place"):
        repeated(trace, weight_OI, {})
