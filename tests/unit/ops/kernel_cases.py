"""Kernels against plain PyTorch in Triton's interpreter, on a processor; `test_kernels.py` calls it with a case."""

import os
import sys

os.environ["TRITON_INTERPRET"] = "1"  # read when Triton is imported

from collections.abc import Callable, Iterator
from contextlib import contextmanager
from unittest.mock import patch

import torch
from torch import Tensor
from torch.utils.flop_counter import FlopCounterMode

from linnet.layers.contract import MixerSpec, Place
from linnet.layers.mixers.gated_delta import GatedDeltaSpec
from linnet.layers.mixers.ted import TedSpec
from linnet.ops import delta_rule, gated_delta, rwkv7
from linnet.ops.decay import sums
from linnet.ops.decay.reference import decay_reference

CHOOSING = (sums, delta_rule, gated_delta)
FLOAT32, BFLOAT16 = 2e-5, 1.5e-2
"""Largest error, relative to the largest number of a tensor; that of bfloat16 is two roundings to 8 bits."""


@contextmanager
def kernels() -> Iterator[None]:
    """Make operations use their kernels on the CPU."""
    patches = [patch.object(module, "use_kernels", lambda *_: True) for module in CHOOSING]
    for one in patches:
        one.start()
    yield
    for one in patches:
        one.stop()


def gradients(form: Callable[..., tuple[Tensor, ...]], tensors: list[Tensor], upstream: list[Tensor]) -> list[Tensor]:
    """The outputs, and the gradient of every input."""
    tensors = [x.detach().requires_grad_() for x in tensors]
    found = form(*tensors)
    given = [g.to(x.dtype) for g, x in zip(upstream, found, strict=True)]
    return [*(x.detach() for x in found), *torch.autograd.grad(found, tensors, given)]


def assert_near(found: list[Tensor], right: list[Tensor], error: float, told: object) -> None:
    for number, (x, y) in enumerate(zip(found, right, strict=True)):
        assert x.shape == y.shape
        off = float((x.double() - y.double()).abs().max() / y.double().abs().max().clamp(min=1e-30))
        assert off <= error, f"{told}: tensor {number} is off by {off:.1e}"


def decay() -> None:
    """Chunks that are no power of two, non-contiguous quantities, rates from 1e-7 to 1e4 and 0."""
    sizes = [(1, 1, 5, 32), (63, 2, 3, 32), (65, 1, 70, 32), (130, 2, 20, 32), (40, 2, 17, 7), (200, 1, 16, 64)]
    for length, heads, channels, chunk in sizes:
        for dtype in (torch.float32, torch.bfloat16):
            torch.manual_seed(length)
            rates = 10 ** (-7 + 11 * torch.rand(1, length, heads))
            rates[:, length // 2] = 0.0
            v = torch.randn(1, length, 2, heads * channels).to(dtype)[:, :, 1].unflatten(-1, (heads, channels))
            upstream = [torch.randn(1, length, heads, channels).to(dtype)]

            def fast(rates: Tensor, v: Tensor, chunk: int = chunk) -> tuple[Tensor]:
                return (sums.decay_chunked(rates, v, v.shape[1], 1e-6, chunk),)

            def slow(rates: Tensor, v: Tensor) -> tuple[Tensor]:
                return (decay_reference(rates, v, v.shape[1]),)

            with kernels():
                found = gradients(fast, [rates, v], upstream)
            right = gradients(slow, [rates.double(), v.double()], upstream)
            error = FLOAT32 if dtype == torch.float32 else BFLOAT16
            assert_near(found, right, error, (length, heads, channels, chunk, dtype))
            assert found[0].dtype == found[2].dtype == dtype and found[1].dtype == torch.float32


def decay_at_a_fixed_rate() -> None:
    """The fixed rates of the bank, where the quotient is 0 / 0, and rates close to them."""
    bank = sums.bank_for(160, 1e-6, 16)
    assert bank is not None
    rates = (bank.rates_R * torch.tensor([1.0, 1 + 1e-5, 1 - 1e-3])[:, None]).flatten()[: 3 * 16].float()[None, :, None]
    rates = torch.cat([rates, torch.full((1, 160 - rates.shape[1], 1), 0.02)], dim=1)
    torch.manual_seed(0)
    v, upstream = torch.randn(1, 160, 1, 4), torch.randn(1, 160, 1, 4)
    with kernels():
        found = gradients(lambda r, v: (sums.decay_chunked(r, v, 160, 1e-6, 16),), [rates, v], [upstream])
    right = gradients(lambda r, v: (decay_reference(r, v, 160),), [rates.double(), v.double()], [upstream])
    assert_near(found, right, FLOAT32, "at fixed rates")


def of_keys(length: int, keys: int, key_heads: int) -> Tensor:
    both = torch.randn(2, 1, key_heads, length, keys)
    return both / both.norm(dim=-1, keepdim=True)


def gated() -> None:
    """One gate for each head, and for each channel; one and two value heads per key head; closed gates."""
    sizes = [(2, 5, 3, 1, 1), (15, 5, 3, 2, 1), (63, 20, 40, 1, 1), (65, 5, 3, 2, 5), (130, 70, 3, 1, 1)]
    for length, keys, values, key_heads, gates in sizes:
        torch.manual_seed(length)
        q, k = of_keys(length, keys, key_heads)
        log_alpha = -(2 * torch.randn(1, 2, length, gates)).exp()
        tensors = [q, k, torch.randn(1, 2, length, values), log_alpha, torch.rand(1, 2, length)]
        tensors.append(torch.randn(1, 2, keys, values))
        upstream = [torch.randn(1, 2, length, values), torch.randn(1, 2, keys, values)]
        with kernels():
            found = gradients(gated_delta.gated_delta, tensors, upstream)
        right = gradients(gated_delta.gated_delta_reference, [x.double() for x in tensors], upstream)
        assert_near(found, right, FLOAT32, (length, keys, values, key_heads, gates))


def same_key() -> None:
    """The worst case of the triangular system: equal keys, no decay, every token replaces the value."""
    keys, v = torch.ones(1, 1, 70, 1), torch.randn(1, 1, 70, 3)
    with kernels():
        out, _ = gated_delta.gated_delta(keys, keys, v, torch.zeros(1, 1, 70, 1), torch.ones(1, 1, 70))
    torch.testing.assert_close(out, v)


def rwkv() -> None:
    """Only the pass, with the rule of RWKV-7: twice as many writes as tokens."""
    for length in (40, 65):
        torch.manual_seed(length)
        tensors = [torch.randn(1, 2, length, 6) for _ in range(5)]
        tensors += [torch.randn(2, 6), torch.rand(2, 6), torch.randn(1, 2, 6, 6)]
        upstream = [torch.randn(1, 2, length, 6), torch.randn(1, 2, 6, 6)]
        with kernels():
            found = gradients(rwkv7.rwkv7, tensors, upstream)
        right = gradients(rwkv7.rwkv7_reference, [x.double() for x in tensors], upstream)
        assert_near(found, right, 1e-4, length)


def layers() -> None:
    """Whole mixers, in float32 and in bfloat16: outputs, and the gradients of inputs and parameters."""
    specs: list[MixerSpec] = [TedSpec(heads=2, form="chunked"), *GatedDeltaSpec.examples()[:2]]
    for spec in specs:
        for dtype, error in ((torch.float32, 1e-4), (torch.bfloat16, 0.05)):
            torch.manual_seed(0)
            mixer = spec.build(Place(16, 80)).to(dtype)
            x, upstream = torch.randn(1, 80, 16).to(dtype).requires_grad_(), torch.randn(1, 80, 16).to(dtype)
            wanted = [x, *mixer.parameters()]
            right = mixer(x)
            right = [right.detach(), *torch.autograd.grad(right, wanted, upstream)]
            with kernels():
                found = mixer(x)
                found = [found.detach(), *torch.autograd.grad(found, wanted, upstream)]
            assert_near(found, right, error, (spec.kind, dtype))


def flops() -> None:
    """The FLOPs counted with kernels equal the predicted ones (for operations that are registered)."""
    import linnet.ops.kernels._decay
    import linnet.ops.kernels._delta  # noqa: F401

    rates, v = torch.rand(2, 100, 2), torch.randn(2, 100, 2, 3)
    sums.bank_for(100, 1e-5, 16)
    with kernels(), FlopCounterMode(display=False) as counter:
        sums.decay_chunked(rates, v, 100, 1e-5, 16)
    assert counter.get_total_flops() == 2 * sums.decay_flops(100, 6, 2, "chunked", 1e-5, 16)
    q, k = of_keys(70, 5, 2)
    with kernels(), FlopCounterMode(display=False) as counter:
        gated_delta.gated_delta(q, k, torch.randn(1, 4, 70, 3), -torch.rand(1, 4, 70, 1), torch.rand(1, 4, 70))
    assert counter.get_total_flops() == gated_delta.gated_delta_flops(70, (2, 4), (5, 3), 1)


CASES = {case.__name__: case for case in (decay, decay_at_a_fixed_rate, gated, same_key, rwkv, layers, flops)}

if __name__ == "__main__":
    torch.set_num_threads(1)
    CASES[sys.argv[1]]()
