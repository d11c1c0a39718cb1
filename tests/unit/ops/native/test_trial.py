from collections.abc import Iterator
from types import SimpleNamespace

import pytest
import torch

from linnet.ops.native import ARGUMENTS, library
from linnet.ops.native.trial import problem

COMPILED = library(torch.device("cpu"))
pytestmark = pytest.mark.skipif(COMPILED is None, reason="no compiler, or another processor")


@pytest.fixture(autouse=True)
def _new_memory_is_no_number() -> Iterator[None]:
    """Otherwise unwritten memory may look right: the allocator returns the results of the previous trial."""
    torch.use_deterministic_algorithms(True)
    assert torch.utils.deterministic.fill_uninitialized_memory
    assert torch.empty(3).isnan().all()
    yield
    torch.use_deterministic_algorithms(False)


def test_native_functions_equal_pytorch():
    assert problem(COMPILED) is None


@pytest.mark.parametrize("name", ["float32", "bfloat16", "int8", "int4"])
def test_a_product_that_does_nothing_is_detected(name: str):
    functions = {each: getattr(COMPILED, each) for each in (*ARGUMENTS, "linnet_run", "linnet_max_int4_rows")}
    functions[f"linnet_{name}_rows"] = lambda *arguments, **_: arguments[-2].zero_()
    said = problem(SimpleNamespace(**functions))
    assert said is not None
    assert said.startswith(f"{name} is off by ")


BESIDE = {
    "attention_row": "attention",
    "attention_past": "attention to the past",
    "rms_norm": "RMS norm",
    "rotate": "rotation",
    "glu": "gate",
    "float32_matrix": "float32's lookup",
    "bfloat16_matrix": "bfloat16's lookup",
    "int8_matrix": "int8's lookup",
    "int4_matrix": "int4's matrix",
    "apply_operator": "operator",
    "layer_norm": "layer norm",
    "activation": "gelu_tanh",
    "scale_add": "sum",
    "run": "program",
}


@pytest.mark.parametrize(("function", "name"), BESIDE.items())
def test_any_other_function_that_does_nothing_is_detected(function: str, name: str):
    functions = {each: getattr(COMPILED, each) for each in (*ARGUMENTS, "linnet_run", "linnet_max_int4_rows")}
    functions[f"linnet_{function}"] = lambda *arguments, **_: None
    said = problem(SimpleNamespace(**functions))
    assert said is not None
    assert f"{name} is off by " in said


def test_other_devices_have_no_native_library():
    assert library(torch.device("meta")) is None
