"""Code that is compiled is not taken for exported code; autocast, segments and recomputation."""

from types import SimpleNamespace

import pytest
import torch
from torch import Tensor
from torch.utils._python_dispatch import TorchDispatchMode

from linnet.layers.mixers.plga.operator import acyclicity
from linnet.layers.mixers.retention import log_rates
from linnet.layers.mixers.ted.state import of_rows
from linnet.ops import support
from linnet.ops.cross_entropy import linear_cross_entropy
from linnet.ops.decay.rates import bank_on
from linnet.ops.decay.sums import decay
from linnet.ops.gated_feed_forward import (
    gated_feed_forward,
    gated_feed_forward_reference,
    gated_output,
    gated_output_reference,
)
from linnet.ops.power_law import log_trace_exponential
from linnet.ops.state_space_dual import state_space_dual
from linnet.ops.support import is_exporting, recompute, segment_length, segment_slices, to_autocast_dtype
from linnet.ops.xlstm import mlstm


def asked(x: Tensor) -> Tensor:
    return x + 1 if is_exporting() else x


class Asking(torch.nn.Module):
    def forward(self, x: Tensor) -> Tensor:
        return asked(x)


def test_is_exporting_is_true_only_during_an_export():
    x = torch.zeros(2)
    assert torch.equal(asked(x), x)
    assert torch.equal(torch.export.export(Asking(), (x,), strict=False).module()(x), x + 1)


def test_a_compilation_that_pytorch_reports_as_an_export_is_not_one(monkeypatch: pytest.MonkeyPatch):
    said = SimpleNamespace(is_exporting=lambda: True, is_dynamo_compiling=torch.compiler.is_dynamo_compiling)
    monkeypatch.setattr("linnet.ops.support.torch", SimpleNamespace(compiler=said))  # as 2.11 does
    x = torch.zeros(2)
    assert torch.equal(torch.compile(asked, backend="eager")(x), x)


def test_products_have_the_precision_of_autocast():
    x, bias = torch.ones(2), None
    assert to_autocast_dtype(x, bias)[0] is x
    with torch.autocast("cpu", torch.bfloat16):
        narrow, nothing = to_autocast_dtype(x, bias)
    assert narrow.dtype == torch.bfloat16 and nothing is None


def test_fused_forms_under_autocast_are_close_to_the_definition_with_gradients_in_the_dtype_of_the_weights():
    torch.manual_seed(0)
    x, up, down = (torch.randn(*shape, requires_grad=True) for shape in ((5, 16), (48, 16), (16, 24)))
    gate = torch.randn(5, 16, requires_grad=True)
    for fast, slow, inputs in (
        (gated_feed_forward, gated_feed_forward_reference, (x, up, None, down, None)),
        (gated_output, gated_output_reference, (x, up[:16].detach().requires_grad_(), gate)),
    ):
        wanted = [tensor for tensor in inputs if tensor is not None]
        with torch.autocast("cpu", torch.bfloat16):
            out = fast(*inputs)
        assert out.dtype == torch.bfloat16
        expected = slow(*inputs)
        upstream = torch.randn_like(expected)
        of_fast = torch.autograd.grad(out, wanted, upstream.bfloat16())
        for one, other in zip(
            (out, *of_fast), (expected, *torch.autograd.grad(expected, wanted, upstream)), strict=True
        ):
            assert (one - other).abs().max() < 0.03 * other.abs().max()
        assert all(gradient.dtype == torch.float32 for gradient in of_fast)


def test_a_segment_has_the_whole_chunks_that_fit_the_limit(monkeypatch: pytest.MonkeyPatch):
    monkeypatch.setattr(support, "SEGMENT_NUMBERS", 1000)
    monkeypatch.setattr(support, "SEGMENT_NUMBERS_DEVICE", 4000)
    assert segment_length(2, 5, 8) == 8 * (1000 // 80)
    assert segment_length(2, 5, 8, "cuda") == 8 * (4000 // 80)
    assert segment_length(100, 100, 8) == 8


@pytest.mark.parametrize("length", [1, 7, 8, 9, 24])
def test_segments_cover_the_sequence(length: int):
    places = segment_slices(length, 8)
    assert [place for part in places for place in range(length)[part]] == list(range(length))
    assert all(part.stop - part.start == 8 for part in places[:-1])


def function(x: Tensor, y: Tensor) -> Tensor:
    return (x.exp() * y).sin() * y


def test_recompute_gives_the_outputs_and_gradients_of_the_function():
    x, y = (torch.randn(3, 4, dtype=torch.float64, requires_grad=True) for _ in range(2))
    upstream = torch.randn(3, 4, dtype=torch.float64)
    found, expected = recompute(function, x, y), function(x, y)
    torch.testing.assert_close(found, expected)
    gradients = (torch.autograd.grad(out, (x, y), upstream) for out in (found, expected))
    for own, plain in zip(*gradients, strict=True):
        torch.testing.assert_close(own, plain)


def test_recompute_saves_only_the_inputs():
    x, y = (torch.randn(3, 4, requires_grad=True) for _ in range(2))
    kept: list[Tensor] = []
    with torch.autograd.graph.saved_tensors_hooks(lambda tensor: kept.append(tensor) or tensor, lambda tensor: tensor):
        recompute(function, x, y)
    assert {tensor.data_ptr() for tensor in kept} == {x.data_ptr(), y.data_ptr()}


@pytest.mark.parametrize(
    ("cpuinfo", "expected"),
    [("vendor_id\t: GenuineIntel\n", True), ("vendor_id\t: AuthenticAMD\n", False), (None, False)],
)
def test_processors_of_intel_are_recognized(cpuinfo, expected, tmp_path, monkeypatch: pytest.MonkeyPatch):
    path = tmp_path / "cpuinfo"
    if cpuinfo is not None:
        path.write_text(cpuinfo)
    monkeypatch.setattr(support, "Path", lambda _: path)
    monkeypatch.setattr(support.platform, "processor", lambda: "AMD64 Family 25 Model 97, AuthenticAMD")
    assert support._is_intel() == expected


class NoFloat64(TorchDispatchMode):
    """Raises if an operation creates a tensor of float64, as Apple's GPUs do."""

    def __torch_dispatch__(self, func, types, args=(), kwargs=None):
        found = func(*args, **(kwargs or {}))
        for out in found if isinstance(found, tuple | list) else (found,):
            assert not isinstance(out, Tensor) or out.dtype != torch.float64, f"float64 made by {func}"
        return found


def decaying(x: Tensor) -> Tensor:
    return decay(x.abs(), x[..., None].expand(-1, -1, -1, 3), x.shape[1], "chunked", chunk=16)


MPS_CASES = {
    "cross entropy": lambda x: linear_cross_entropy(x[0], x[0, :8], None, torch.arange(130) % 8, z_loss=0.1).total,
    "decay": decaying,
    "mLSTM": lambda x: mlstm(*(x[:, None],) * 3, x[:, None, :, 0], x[:, None, :, 1])[0],
    "state-space duality": lambda x: state_space_dual(
        x[..., None], x.abs(), -x[0, 0].abs(), x[:, :, None], x[:, :, None], x[0, 1]
    )[0],
    "log trace exponential": lambda x: log_trace_exponential(x[:, :4].square()),
    "acyclicity": lambda x: acyclicity(x[:, None, :4]),
    "rates of retention": lambda x: log_rates(4, x.device, x.dtype) * x,
    "counts of rows": lambda x: of_rows(7, x) * x.sum(),
}


@pytest.mark.parametrize("case", MPS_CASES)
def test_without_float64_operations_run_in_float32(case: str, monkeypatch: pytest.MonkeyPatch):
    """As on an Apple GPU: outputs and gradients are close to those with float64, and no float64 tensor is created."""
    assert support.accumulation_dtype(torch.device("mps")) == torch.float32
    x = (torch.rand(1, 130, 4, generator=torch.Generator().manual_seed(0)) - 0.3).requires_grad_()
    function = MPS_CASES[case]
    expected = function(x)
    (gradient,) = torch.autograd.grad(expected.sum(), x)
    ops = [f"ops.{name}" for name in ("support", "cross_entropy", "decay.chunks", "decay.rates")]
    for module in (*ops, "layers.mixers.retention", "layers.mixers.ted.state"):
        monkeypatch.setattr(f"linnet.{module}.accumulation_dtype", lambda device: torch.float32)
    bank_on.cache_clear()
    with NoFloat64():
        found = function(x)
        (own,) = torch.autograd.grad(found.sum(), x)
    bank_on.cache_clear()
    torch.testing.assert_close(found, expected.float(), rtol=1e-2, atol=1e-3)
    torch.testing.assert_close(own, gradient, rtol=1e-2, atol=1e-2 * float(gradient.abs().max()))
