"""Passes for GPUs: what they put into the place of linear maps, norms and splits computes the same."""

from collections.abc import Callable

import pytest
import torch
from torch import Tensor, nn
from torch.export import Dim, ExportedProgram

from linnet.inference.fusions import use_sums_for_one_row
from linnet.inference.step_values import realize

WIDTH, OUTPUTS, EPS = 8, 12, 1e-3
F = nn.functional
Step = Callable[[Tensor, list[Tensor]], Tensor]

GAIN, MATRIX, BIAS, BACK = 0, 1, 2, 3
"""The places of the weights."""


def normed(x_B1D: Tensor, weights: list[Tensor]) -> Tensor:
    return F.rms_norm(x_B1D, [WIDTH], weights[GAIN], EPS)


def plain(x_B1D: Tensor, weights: list[Tensor]) -> Tensor:
    return F.linear(x_B1D * 2, weights[MATRIX])


def with_bias_behind_a_norm(x_B1D: Tensor, weights: list[Tensor]) -> Tensor:
    return x_B1D.sum() + F.linear(normed(x_B1D, weights), weights[MATRIX], weights[BIAS])


def norm_without_gain(x_B1D: Tensor, weights: list[Tensor]) -> Tensor:
    return F.linear(F.rms_norm(x_B1D, [WIDTH], None, EPS), weights[MATRIX])


def norm_read_by_others(x_B1D: Tensor, weights: list[Tensor]) -> Tensor:
    n_B1D = normed(x_B1D, weights)
    return F.linear(n_B1D, weights[MATRIX]) + n_B1D.sum()


def norm_of_heads(x_B1D: Tensor, weights: list[Tensor]) -> Tensor:
    """A norm over fewer inputs than the map has is none of the row."""
    halves = F.rms_norm(x_B1D.unflatten(-1, (2, -1)), [WIDTH // 2], None, EPS)
    return F.linear(halves.flatten(-2), weights[MATRIX])


def gate(x_B1D: Tensor, weights: list[Tensor]) -> Tensor:
    gate_B1H, up_B1H = F.linear(normed(x_B1D, weights), weights[MATRIX], weights[BIAS]).chunk(2, -1)
    return F.silu(gate_B1H) * up_B1H


def three_parts(x_B1D: Tensor, weights: list[Tensor]) -> Tensor:
    one, two, three = F.linear(x_B1D + 1, weights[MATRIX], weights[BIAS]).unflatten(-1, (3, -1)).split(1, -2)
    return one * two.sin() + three


def a_part_unread(x_B1D: Tensor, weights: list[Tensor]) -> Tensor:
    return F.linear(x_B1D + 1, weights[MATRIX]).split(4, -1)[1]


def unequal_parts(x_B1D: Tensor, weights: list[Tensor]) -> Tensor:
    one, two = F.linear(x_B1D, weights[MATRIX]).split([4, 8], -1)
    return one.sum() + two


def split_of_another_dimension(x_B1D: Tensor, weights: list[Tensor]) -> Tensor:
    one, two = F.linear(x_B1D, weights[MATRIX]).view(1, 2, 6).split(3, -1)
    return one * two


def two_maps(x_B1D: Tensor, weights: list[Tensor]) -> Tensor:
    return F.linear(F.linear(x_B1D, weights[MATRIX]).relu(), weights[BACK], weights[GAIN])


STEPS = [
    plain,
    with_bias_behind_a_norm,
    norm_without_gain,
    norm_read_by_others,
    norm_of_heads,
    gate,
    three_parts,
    a_part_unread,
    unequal_parts,
    split_of_another_dimension,
    two_maps,
]


def exported(step: Step, dtype: torch.dtype, rows: int = 1) -> tuple[ExportedProgram, tuple[Tensor, list[Tensor]]]:
    class Module(nn.Module):
        def forward(self, x_B1D: Tensor, weights: list[Tensor]) -> Tensor:
            return step(x_B1D, weights)

    torch.manual_seed(0)
    shapes = (WIDTH,), (OUTPUTS, WIDTH), (OUTPUTS,), (WIDTH, OUTPUTS)
    inputs = torch.randn(rows, 1, WIDTH, dtype=dtype), [torch.randn(shape, dtype=dtype) for shape in shapes]
    free = ({0: Dim("rows", min=2)}, [None] * len(shapes)) if rows > 1 else None
    return torch.export.export(Module(), inputs, dynamic_shapes=free, strict=False), inputs


def calls(program: ExportedProgram, function: object) -> int:
    return len(program.graph.find_nodes(op="call_function", target=function))


@pytest.mark.parametrize("step", STEPS, ids=lambda step: step.__name__)
@pytest.mark.parametrize("dtype", [torch.float64, torch.float32, torch.bfloat16])
def test_sums_of_products_are_the_linear_maps(step: Step, dtype: torch.dtype):
    program, inputs = exported(step, dtype)
    use_sums_for_one_row(program)
    program.graph_module.graph.lint()
    assert calls(program, torch.ops.aten.linear.default) == 0 and calls(program, torch.ops.aten.sum.dim_IntList) > 0
    exact = step(inputs[0].double(), [weight.double() for weight in inputs[1]])
    found = program.module()(*inputs)
    assert found.dtype == dtype and found.shape == exact.shape
    error, size = (found.double() - exact).norm(), exact.norm()
    assert error <= {torch.float64: 1e-12, torch.float32: 1e-5, torch.bfloat16: 0.02}[dtype] * size


def test_a_norm_becomes_a_factor_and_equal_parts_have_sums_of_their_own():
    norm, add = torch.ops.aten.rms_norm.default, torch.ops.aten.sum.dim_IntList
    found = {}
    for step in STEPS:
        program, _ = exported(step, torch.float32)
        use_sums_for_one_row(program)
        found[step] = calls(program, norm), calls(program, add)
    assert found[with_bias_behind_a_norm] == found[norm_without_gain] == (0, 1)
    assert found[norm_read_by_others] == found[norm_of_heads] == (1, 1)
    assert found[gate] == (0, 2) and found[three_parts] == (0, 3) and found[a_part_unread] == (0, 1)
    assert found[unequal_parts] == found[split_of_another_dimension] == (0, 1)


def test_what_maps_read_and_give_is_stored():
    program, _ = exported(two_maps, torch.float32)
    use_sums_for_one_row(program)
    stored = [str(node.args[0].target) for node in program.graph.find_nodes(op="call_function", target=realize)]
    assert len(stored) == 3 and "aten.relu.default" in stored  # the input of the step is stored as it is


def test_maps_of_several_rows_stay():
    program, inputs = exported(gate, torch.float32, rows=3)
    use_sums_for_one_row(program)
    assert calls(program, torch.ops.aten.linear.default) == 1 and calls(program, realize) == 0
    torch.testing.assert_close(program.module()(*inputs), gate(*inputs))
