"""Native operators: what a graph calls through PyTorch, and what a package calls in C, are the same functions."""

import ctypes
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from typing import Any

import pytest
import torch
import torch.nn.functional as F
from torch import Tensor, nn
from torch._ops import OpOverload
from torch._subclasses.fake_tensor import FakeTensorMode

from linnet.nn.packed_linear import Bfloat16Linear, Int4Linear, Int8Linear, PackedLinear, QuantizedEmbedding
from linnet.ops.attention import KeyRange, attention, attention_reference
from linnet.ops.native import captures_custom_ops, captures_row_ops, custom_ops_in_graphs, library, row_ops_in_graphs
from linnet.ops.rotary import rotary_table, rotate_heads, rotate_reference
from linnet.ops.support import graph_forms

COMPILED = library(torch.device("cpu"))
pytestmark = pytest.mark.skipif(COMPILED is None, reason="no compiler, or another processor")
if COMPILED is not None:
    from linnet.ops.native import custom_ops

INPUTS, OUTPUTS = 70, 45


def packed(form: Callable[..., PackedLinear], **options: Any) -> PackedLinear:
    draw = torch.Generator().manual_seed(1)
    return form(
        torch.randn(OUTPUTS, INPUTS, generator=draw), torch.randn(OUTPUTS, generator=draw), (OUTPUTS,), **options
    )


def cases() -> dict[str, tuple[OpOverload, list[Any], Tensor]]:
    """Arguments of each operator, and the expected result."""
    draw = torch.Generator().manual_seed(0)
    x_RI, weight_OI = torch.randn(3, INPUTS, generator=draw), torch.randn(OUTPUTS, INPUTS, generator=draw)
    bias_O = torch.randn(OUTPUTS, generator=draw)
    int8, int4 = packed(Int8Linear), packed(Int4Linear, group=64)
    keys, values = (torch.randn(2, 3, 20, 24, generator=draw)[:, :, :17] for _ in range(2))
    q_BMPK, last_B = torch.randn(2, 3, 2, 24, generator=draw), torch.tensor([[4, 0], [16, 0]])[:, 0]
    past = attention_reference(q_BMPK.view(2, 6, 1, 24), keys, values, KeyRange(last_BT=last_B[:, None]), 0.3)
    narrow = keys.bfloat16(), values.bfloat16()
    return {
        "float32": (custom_ops.float32_linear, [x_RI, weight_OI, bias_O], F.linear(x_RI, weight_OI, bias_O)),
        "float32 without a bias": (custom_ops.float32_linear, [x_RI, weight_OI, None], F.linear(x_RI, weight_OI)),
        "bfloat16": (
            custom_ops.bfloat16_linear,
            [x_RI, weight_OI.bfloat16(), bias_O],
            F.linear(x_RI, weight_OI.bfloat16().float(), bias_O),
        ),
        "int8": (custom_ops.int8_linear, [x_RI, *int8.tensors, bias_O], F.linear(x_RI, int8.weight, bias_O)),
        "int4": (
            custom_ops.int4_linear,
            [x_RI, *int4.tensors, 64, OUTPUTS, bias_O],
            F.linear(x_RI, int4.weight, bias_O),
        ),
        "attention": (custom_ops.attention_past, [q_BMPK, keys, values, last_B, 0.3], past.view(q_BMPK.shape)),
        "attention in bfloat16": (
            custom_ops.attention_past,
            [q_BMPK, *narrow, last_B, 0.3],
            attention_reference(
                q_BMPK.view(2, 6, 1, 24), *(x.float() for x in narrow), KeyRange(last_BT=last_B[:, None]), 0.3
            ).view(q_BMPK.shape),
        ),
    }


CASES = cases() if COMPILED is not None else {}
TOLERANCE = {"rtol": 1e-3, "atol": 1e-3}  # of fixed point


@pytest.mark.parametrize("name", CASES)
def test_an_operator_equals_its_definition_and_knows_its_shape(name: str):
    operator, arguments, expected = CASES[name]
    torch.testing.assert_close(operator(*arguments), expected, **TOLERANCE)
    with FakeTensorMode() as mode:
        fakes = [mode.from_tensor(part) if isinstance(part, Tensor) else part for part in arguments]
        fake = operator(*fakes)
    assert (fake.shape, fake.stride(), fake.dtype) == (expected.shape, expected.stride(), torch.float32)


def in_c(operator: OpOverload, arguments: list[Any]) -> Tensor:
    """Call the function that packages call; `RuntimeError` after an error."""
    custom_ops.link()
    python = ctypes.pythonapi
    python.PyCapsule_GetPointer.restype, python.PyCapsule_New.restype = ctypes.c_void_p, ctypes.py_object
    python.PyCapsule_GetPointer.argtypes = [ctypes.py_object, ctypes.c_char_p]
    python.PyCapsule_New.argtypes = [ctypes.c_void_p, ctypes.c_char_p, ctypes.c_void_p]
    given: list[Any] = []
    for argument, part in zip(operator._schema.arguments, arguments, strict=True):
        if isinstance(part, Tensor):
            capsule = torch._C._aoti.unsafe_alloc_void_ptr_from_tensor(part)
            handle = ctypes.c_void_p(python.PyCapsule_GetPointer(capsule, None))
            given.append(ctypes.byref(handle) if isinstance(argument.type, torch.OptionalType) else handle)
        else:
            given.append({int: ctypes.c_int64, float: ctypes.c_double}.get(type(part), ctypes.c_void_p)(part))
    made = ctypes.c_void_p()
    if getattr(COMPILED, f"aoti_torch_cpu_{operator._opname}")(*given, ctypes.byref(made)):
        raise RuntimeError("an error")
    result: Tensor = torch._C._aoti.alloc_tensor_by_stealing_from_void_ptr(python.PyCapsule_New(made, None, None))
    return result


@pytest.mark.parametrize("name", CASES)
def test_the_function_of_packages_is_the_operator(name: str):
    operator, arguments, _ = CASES[name]
    expected = operator(*arguments)
    found = in_c(operator, arguments)
    assert torch.equal(found, expected) and found.stride() == expected.stride()


def test_a_position_without_room_is_an_error_and_not_a_read_past_the_end():
    operator, arguments, _ = CASES["attention"]
    arguments = [*arguments[:3], torch.tensor([3, 17]), 0.3]
    with pytest.raises(RuntimeError, match="an error"):
        in_c(operator, arguments)
    with pytest.raises(ValueError, match="1 to 17 tokens"):
        operator(*arguments)


def captured(module: nn.Module, *inputs: Tensor) -> tuple[list[str], Tensor]:
    """The native operators of the captured module, and what the graph computes."""
    with custom_ops_in_graphs(), torch.no_grad():
        program = torch.export.export(module, inputs, strict=False)
    nodes = [str(node.target) for node in program.graph.nodes if "linnet" in str(node.target)]
    return nodes, program.module()(*inputs)


FORMS = {"int8": (Int8Linear, {}), "int4": (Int4Linear, {"group": 32}), "bfloat16": (Bfloat16Linear, {})}


@pytest.mark.parametrize("name", FORMS)
def test_a_packed_map_is_its_operator_in_a_graph(name: str):
    form, options = FORMS[name]
    module = packed(form, **options)
    x = torch.randn(2, 1, INPUTS, generator=torch.Generator().manual_seed(2)).to(module.dtype)
    nodes, found = captured(module, x)
    assert nodes == [f"linnet.linnet_{name}_linear.default"] and not captures_custom_ops()
    assert found.dtype == module.dtype and torch.equal(found, module(x))


@pytest.mark.parametrize("name", FORMS)
def test_other_weights_take_the_place_of_a_packed_maps_own_for_a_while(name: str):
    form, options = FORMS[name]
    module, x = packed(form, **options), torch.randn(1, INPUTS).to(FORMS[name][0].dtype)
    before = module._product(x)
    zeros = [torch.zeros_like(part) for part in module.tensors]
    with module.replaced(zeros):
        assert all(a is b for a, b in zip(module.tensors, zeros, strict=True))
        assert not torch.equal(module._product(x), before)
    assert torch.equal(module._product(x), before)


@pytest.mark.parametrize("name", ["int8", "int4"])
def test_a_table_of_few_bits_is_looked_up_in_a_graph(name: str):
    form, options = FORMS[name]
    table = QuantizedEmbedding(packed(form, **options))
    places = torch.tensor([[OUTPUTS - 1]])
    assert torch.equal(captured(table, places)[1], table(places))


class Past(nn.Module):
    """Attention of one query of each stream up to a position."""

    def forward(self, q_BNTK: Tensor, keys_BMSK: Tensor, values_BMSK: Tensor, last_BT: Tensor) -> Tensor:
        return attention(q_BNTK, keys_BMSK, values_BMSK, KeyRange(last_BT=last_BT))


@pytest.mark.parametrize("cache", [torch.float32, torch.bfloat16])
@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16])
def test_attention_over_a_past_is_an_operator_in_a_graph(dtype: torch.dtype, cache: torch.dtype):
    draw = torch.Generator().manual_seed(3)
    q_BNTK = torch.randn(2, 4, 1, 8, generator=draw).to(dtype)
    keys, values = (torch.randn(2, 2, 9, 8, generator=draw).to(cache) for _ in range(2))
    last_BT = torch.tensor([[5], [8]])
    nodes, found = captured(Past(), q_BNTK, keys, values, last_BT)
    expected = attention_reference(q_BNTK.float(), keys.float(), values.float(), KeyRange(last_BT=last_BT))
    assert nodes == ["linnet.linnet_attention_past.default"] and found.dtype == dtype
    torch.testing.assert_close(found, expected.to(dtype), rtol=1e-5 if dtype == torch.float32 else 1e-2, atol=1e-5)


@pytest.mark.parametrize("pairing", ["halves", "adjacent"])
def test_a_graph_rotates_without_a_concatenation(pairing: Any):
    class Rotation(nn.Module):
        def forward(self, joint_BTNK: Tensor, positions_BT: Tensor) -> Tensor:
            return torch.cat(rotate_heads(joint_BTNK, (2, 1, 1), rotary_table(positions_BT, 8, 100.0, 50), pairing), 2)

    joint_BTNK, positions_BT = torch.randn(2, 1, 4, 8), torch.tensor([[3], [40]])
    expected = rotate_reference(joint_BTNK[:, :, :3], rotary_table(positions_BT, 8, 100.0, 50), pairing)
    _, found = captured(Rotation(), joint_BTNK, positions_BT)
    torch.testing.assert_close(found[:, :, :3], expected, rtol=1e-5, atol=1e-5)
    assert torch.equal(found[:, :, 3:], joint_BTNK[:, :, 3:])


def test_a_capture_of_one_thread_changes_none_of_another():
    """As two models of a server that trace their first step at the same time."""
    with ThreadPoolExecutor(1) as other, row_ops_in_graphs(), graph_forms():
        assert captures_row_ops() and captures_custom_ops()

        def asked() -> tuple[bool, bool]:
            with graph_forms():
                before = captures_row_ops(), captures_custom_ops()
                with custom_ops_in_graphs():
                    assert captures_custom_ops()
                return before

        assert other.submit(asked).result() == (False, False)
        assert captures_row_ops() and captures_custom_ops()
