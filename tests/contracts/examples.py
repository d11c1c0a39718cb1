"""Every example of every mixer and feed-forward, and random weights for them."""

import itertools
from collections.abc import Sequence
from functools import cache
from typing import TypeVar

import pytest
import torch
from _pytest.mark import ParameterSet
from torch import Tensor, nn

import on_device  # which is chosen after a conftest has read this file
from linnet.layers.batch_layout import BatchLayout, layout_at
from linnet.layers.cache_policy import FULL, CachePolicy
from linnet.layers.contract import Place, Sublayer, SublayerSpec, sublayers_of
from linnet.layers.registry import FEED_FORWARDS, MIXERS

WIDTH, CONTEXT = 16, 128
PLACE = Place(WIDTH, CONTEXT)
EXAMPLES = [spec for kind in MIXERS.values() for spec in kind.examples()]
FEED_FORWARD_EXAMPLES = [spec for kind in FEED_FORWARDS.values() for spec in kind.examples()]
ALL = [*EXAMPLES, *FEED_FORWARD_EXAMPLES]
Module = TypeVar("Module", bound=nn.Module)


@cache  # tests are named by the ten thousand, and examples are made anew on every call
def examples_of(kind: type[SublayerSpec]) -> Sequence[SublayerSpec]:
    return kind.examples()


def name_of(spec: SublayerSpec) -> str:
    return f"{spec.kind}-{examples_of(type(spec)).index(spec)}"


@cache
def policies_of(spec: SublayerSpec) -> dict[str, CachePolicy]:
    """Each cache policy of a sublayer, by what follows its name in that of a test: nothing for the full cache."""
    supported = spec.build(PLACE).cache_policies
    others = [policy for kind in spec.cache_policies if kind in supported for policy in kind.examples()]
    return {"": FULL, **{f"-{policy.name}-{index}": policy for index, policy in enumerate(others)}}


def first_of_its_kind(spec: SublayerSpec) -> bool:
    return spec == examples_of(type(spec))[0]


def in_turn(*choices: object, specs: Sequence[SublayerSpec] = ALL) -> list[ParameterSet]:
    """Specs with choices: all of them for the first example of each kind; for the others one, which take turns."""
    turns, cases = itertools.cycle(choices), []
    for spec in specs:
        some = choices if first_of_its_kind(spec) else (next(turns),)
        cases += [pytest.param(spec, choice, id=f"{name_of(spec)}-{choice}") for choice in some]
    return cases


def randomized(module: Module) -> Module:
    """The module on the device of the tests with random weights, so that no zero bias, unit norm or identity hides an
    error.

    Stored calibrations, which are buffers, are random, too; other buffers (tables, masks) do not change.
    """
    sublayers = [module, *sublayers_of(module)]
    stored = [one for part in sublayers if isinstance(part, Sublayer) for one in part.calibration().values()]
    with torch.no_grad():
        for tensor in [*module.parameters(), *stored]:
            tensor.add_(0.5 * torch.randn_like(tensor) / max(tensor.shape[-1] if tensor.dim() else 1, 1) ** 0.5)
    return module.to(on_device.DEVICE)


def inputs(batch: int, length: int, dtype: torch.dtype = torch.float64) -> Tensor:
    """Random inputs, equal on every device."""
    return torch.randn(batch, length, WIDTH, dtype=dtype).to(on_device.DEVICE)


def padded_view(begin: int, end: int, padding: Sequence[int]) -> BatchLayout:
    """The layout of the chunk from `begin` to before `end` of rows with this padding."""
    of_chunk = [min(max(pad - begin, 0), end - begin) for pad in padding]
    return layout_at([max(begin - pad, 0) for pad in padding], of_chunk)
