import torch

from linnet.ops.autocast import to_autocast_dtype
from linnet.ops.gated_feed_forward import gated_feed_forward, gated_feed_forward_reference
from linnet.ops.gated_output import gated_output, gated_output_reference


def test_the_precision_of_products_is_that_of_autocast():
    x, bias = torch.ones(2), None
    assert to_autocast_dtype(x, bias)[0] is x
    with torch.autocast("cpu", torch.bfloat16):
        narrow, nothing = to_autocast_dtype(x, bias)
    assert narrow.dtype == torch.bfloat16 and nothing is None


def test_fused_forms_under_autocast_are_near_the_definition_and_give_gradients_in_the_precision_of_the_weights():
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
