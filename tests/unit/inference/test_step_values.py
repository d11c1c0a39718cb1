"""Values of weights and of positions alone: hoisted out of a captured step, or stored as tensors, and nothing else."""

from collections.abc import Sequence

import pytest
import torch
from small_models import EXAMPLES, small_decoder
from torch import Tensor, nn
from torch.export import Dim, ExportedProgram

from linnet.inference.captured_step import export_step
from linnet.inference.step_packages import example_state
from linnet.inference.step_values import hoist_weight_values, realize, realize_position_values

WIDTH = 6


class Toy(nn.Module):
    """A step with a decay and a frequency of weights, a constant, an angle, and what is better left where it is."""

    def forward(self, token_B1: Tensor, position_B: Tensor, states: list[Tensor], weights: list[Tensor]) -> Tensor:
        """As an `InPlaceStep`."""
        table_VD, log_decay_D, frequency_D, large_D = weights
        decay_D = -torch.nn.functional.softplus(log_decay_D)
        angle_BD = position_B[:, None] * (frequency_D * torch.exp2(-torch.arange(WIDTH, dtype=torch.float32)))
        x_BD = table_VD[token_B1[:, 0]] * angle_BD.cos() + large_D.view(1, -1)[:, :WIDTH]
        states[0].copy_(states[0] * decay_D.exp() + x_BD)
        outer = (large_D[:, None].exp() * large_D).sum() if large_D.shape[0] > WIDTH else 0.0
        return states[0] + outer


def exported(large: int = WIDTH) -> tuple[ExportedProgram, tuple[object, ...]]:
    """The program of the toy, for any number of rows; large: elements of a weight."""
    torch.manual_seed(0)
    weights = [torch.randn(9, WIDTH), torch.randn(WIDTH), torch.rand(WIDTH), torch.randn(large)]
    inputs = torch.tensor([[1], [2], [3]]), torch.tensor([4, 5, 6]), [torch.randn(3, WIDTH)], weights
    rows = {0: Dim("rows", min=2)}
    shapes = rows, rows, [rows], [None] * len(weights)
    return torch.export.export(Toy(), inputs, dynamic_shapes=shapes, strict=False), shapes


def run(program: ExportedProgram, inputs: Sequence[object], *more: list[Tensor]) -> tuple[Tensor, Tensor]:
    """The result and the state of a program; the inputs stay as they are."""
    token, position, states, weights = inputs
    own = [state.clone() for state in states]  # type: ignore[attr-defined]
    return program.module()(token, position, own, weights, *more), own[0]


def functions(program: ExportedProgram) -> set[str]:
    return {str(node.target).removeprefix("aten.") for node in program.graph.nodes if node.op == "call_function"}


def test_values_of_weights_are_computed_apart():
    program, shapes = exported()
    step, values = hoist_weight_values(program, shapes)
    assert values is not None
    assert {"softplus.default", "exp.default", "exp2.default", "arange.default"} <= functions(values)
    assert not functions(step) & {"softplus.default", "exp.default", "exp2.default", "arange.default"}
    assert "cos.default" in functions(step)  # it depends on the position
    token, position, states, weights = program.example_inputs[0]
    for scale in (1.0, 0.5):  # other weights have other values
        inputs = token[:2], position[:2] + 3, [states[0][:2]], [scale * weight for weight in weights]
        made = values.module()(inputs[3])
        assert [tuple(value.shape) for value in made] == [(WIDTH,), (WIDTH,)]
        torch.testing.assert_close(run(step, inputs, made), run(program, inputs))


def test_views_of_weights_and_values_larger_than_them_stay_in_the_step():
    program, shapes = exported(large=100)
    step, values = hoist_weight_values(program, shapes)
    assert values is not None
    assert all(value.numel() < 100 for value in values.module()(program.example_inputs[0][3]))
    assert {"view.default", "slice.Tensor"} <= functions(step)
    made = values.module()(program.example_inputs[0][3])
    torch.testing.assert_close(run(step, program.example_inputs[0], made), run(program, program.example_inputs[0]))


def test_a_tensor_that_the_step_writes_is_no_value():
    class Writing(nn.Module):
        def forward(self, token_B1: Tensor, position_B: Tensor, states: list[Tensor], weights: list[Tensor]) -> Tensor:
            """Change the sign of every second factor in place."""
            factor_D, decay_D = weights[0].sin(), weights[0].exp()
            factor_D[1::2] *= -1
            states[0].mul_(decay_D)
            return states[0] * factor_D + decay_D

    inputs = torch.ones(1, 1, dtype=torch.int64), torch.ones(1), [torch.randn(1, WIDTH)], [torch.randn(WIDTH)]
    program = torch.export.export(Writing(), inputs, strict=False)
    step, values = hoist_weight_values(program, ({}, {}, [{}], [None]))
    assert values is not None
    assert "exp.default" in functions(values) and "sin.default" not in functions(values)
    made = values.module()(inputs[3])
    for _ in range(2):  # nothing has been written
        torch.testing.assert_close(run(step, inputs, made), run(program, inputs))


def test_a_step_without_such_values_stays_as_it_is():
    class Plain(nn.Module):
        def forward(self, token_B1: Tensor, position_B: Tensor, states: list[Tensor], weights: list[Tensor]) -> Tensor:
            """Add a weight."""
            return states[0] + position_B[:, None] * weights[0].view(1, -1)

    inputs = torch.ones(1, 1, dtype=torch.int64), torch.ones(1), [torch.ones(1, 2)], [torch.ones(2)]
    program = torch.export.export(Plain(), inputs, strict=False)
    assert hoist_weight_values(program, ({}, {}, [{}], [None])) == (program, None)


def test_values_of_positions_are_stored_as_tensors():
    program, shapes = exported()
    step, values = hoist_weight_values(program, shapes)
    assert values is not None
    realize_position_values(step)
    (copy,) = step.graph.find_nodes(op="call_function", target=realize)
    assert copy.args[0].target == torch.ops.aten.cos.default
    made = values.module()(program.example_inputs[0][3])
    torch.testing.assert_close(run(step, program.example_inputs[0], made), run(program, program.example_inputs[0]))


def test_layers_share_what_they_compute_of_the_same_positions():
    """Not what one of them has written in between."""
    decoder = small_decoder(next(mixer for mixer in EXAMPLES if mixer.kind == "retention")).float()
    with torch.no_grad():
        program, shapes = export_step(decoder, example_state(decoder, 1, [{"kind": "full"}] * 2))

    def sines(of: ExportedProgram) -> int:
        return len(of.graph.find_nodes(op="call_function", target=torch.ops.aten.sin.default))

    step, values = hoist_weight_values(program, shapes)
    assert values is not None
    assert (sines(program), sines(step)) == (2, 1)
    made, inputs = values.module()(program.example_inputs[0][3]), program.example_inputs[0]
    torch.testing.assert_close(run(step, inputs, made), run(program, inputs))


def test_equal_reads_of_a_tensor_that_is_written_in_between_stay_two():
    class Writing(nn.Module):
        def forward(self, token_B1: Tensor, position_B: Tensor, states: list[Tensor], weights: list[Tensor]) -> Tensor:
            """Read a tensor of weights before and after it has changed."""
            factor_D = weights[0].sin()
            before_D = factor_D.cos()
            factor_D.mul_(2)
            return states[0] * before_D + factor_D.cos() + weights[0].exp()

    inputs = torch.ones(1, 1, dtype=torch.int64), torch.ones(1), [torch.randn(1, WIDTH)], [torch.randn(WIDTH)]
    program = torch.export.export(Writing(), inputs, strict=False)
    step, values = hoist_weight_values(program, ({}, {}, [{}], [None]))
    assert values is not None
    torch.testing.assert_close(run(step, inputs, values.module()(inputs[3])), run(program, inputs))


@pytest.mark.parametrize("kind", ["s4d", "retention"])
def test_no_layer_computes_its_coefficients_for_every_token(kind: str):
    decoder = small_decoder(next(mixer for mixer in EXAMPLES if mixer.kind == kind)).float()
    with torch.no_grad():
        program, shapes = export_step(decoder, example_state(decoder, 1, [{"kind": "full"}] * 2))
    step, values = hoist_weight_values(program, shapes)
    assert values is not None
    hidden = {"exp.default", "sin.default", "cos.default", "exp2.default", "pow.Scalar", "log1p.default"}
    assert functions(values) & hidden
    assert functions(step) & hidden <= ({"sin.default", "cos.default"} if kind == "retention" else set())
    made, inputs = values.module()(program.example_inputs[0][3]), program.example_inputs[0]
    torch.testing.assert_close(run(step, inputs, made), run(program, inputs))
