"""Decoders whose numbers come from elsewhere: nothing is drawn for them.

Drawing what is overwritten at once takes time, and without real memory (on the device meta) it even brings in
`torch.compile` with all that belongs to it: a second at every start (`benchmarks/start_up.py`).
"""

from collections.abc import Callable, Iterable, Mapping
from typing import Any

import torch
from torch import Tensor, nn
from torch.overrides import TorchFunctionMode

from linnet.model.decoder import Decoder
from linnet.model.spec import ModelSpec

RANDOM_FILLS = (Tensor.normal_, Tensor.uniform_, nn.init.normal_, nn.init.uniform_, nn.init.kaiming_uniform_)
"""What the ways of starting weights come down to."""


def decoder_with_weights(spec: ModelSpec, tensors: Mapping[str, Tensor]) -> Decoder:
    """A decoder with these tensors, all that its `state_dict` has; on their device, in their precision.

    It keeps the tensors themselves. What is in no `state_dict` (fixed tables, say) its modules make as in any decoder;
    torch's random numbers stay as they were.
    """
    with torch.random.fork_rng(devices=[]), _SkipRandomFills():
        decoder = Decoder(without_calibration_file(spec))
    decoder.spec = spec
    some = next(iter(tensors.values()))
    precision = None if some.dtype == decoder.dtype else some.dtype
    decoder.load_state_dict(tensors, assign=True)
    return decoder.to(device=some.device, dtype=precision)


def meta_decoder(spec: ModelSpec) -> Decoder:
    """A decoder without numbers, on the device meta."""
    with torch.device("meta"), _SkipRandomFills():
        return Decoder(spec)


def without_calibration_file(spec: ModelSpec) -> ModelSpec:
    """A model of the same shapes that reads no file of calibrations: they are among its weights."""
    start = spec.initialization.model_copy(update={"calibration": "identity"})
    return spec.model_copy(update={"initialization": start})


class _SkipRandomFills(TorchFunctionMode):
    """Leaves in a tensor what lies in its memory, where it would be filled with random numbers."""

    def __torch_function__(
        self,
        func: Callable[..., Any],
        types: Iterable[type],
        args: tuple[Any, ...] = (),
        kwargs: dict[str, Any] | None = None,
    ) -> Any:
        kwargs = kwargs or {}
        if func in RANDOM_FILLS:
            return args[0] if args else kwargs["tensor"]
        return func(*args, **kwargs)
