"""Starting values of a decoder's weights, and how to build a decoder without them.

A sublayer initializes its parameters when it is built. The description determines the starting values of embeddings, of
projections between widths, of the head, and of the weights of every `nn.linear.Linear`.
"""

from collections.abc import Callable, Iterable
from typing import Any

import torch
from torch import Tensor, nn
from torch.overrides import TorchFunctionMode

from linnet.layers.contract import Sublayer, sublayers_of
from linnet.model.spec import ModelSpec
from linnet.nn.linear import FusedLinear, Linear

RANDOM_FILLS = (Tensor.normal_, Tensor.uniform_, nn.init.normal_, nn.init.uniform_, nn.init.kaiming_uniform_)
"""The functions that all random starting values come from."""


def initialize(decoder: nn.Module, spec: ModelSpec) -> None:
    """Initialize embeddings and linear maps, and the calibrations that layers store."""
    settings = spec.initialization
    sublayers = list(sublayers_of(decoder))
    of_sublayers = {id(part) for sublayer in sublayers for part in sublayer.modules()}
    outputs = {id(linear) for sublayer in sublayers for linear in sublayer.output_projections()}
    output_factor = float((2 * spec.layers) ** -0.5) if settings.scale_residual else 1.0
    if settings.zero_outputs:
        output_factor = 0.0  # still drawn at random first, so that all other weights are the same as without the option
    for name, module in decoder.named_modules():
        factor = output_factor if id(module) in outputs else 1.0
        if isinstance(module, nn.Embedding) and id(module) not in of_sublayers:
            nn.init.normal_(module.weight, std=settings.embedding_std)
        elif isinstance(module, Linear) and id(module) not in of_sublayers and name.endswith("project"):
            # A projection between widths, which no residual branch bypasses: smaller weights cost bits
            # (experiments/LOG.md).
            nn.init.xavier_uniform_(module.weight)
        elif isinstance(module, Linear):
            if settings.linear == "normal":
                nn.init.normal_(module.weight, std=settings.std * factor)
            else:
                for weight in module.part_weights() if isinstance(module, FusedLinear) else (module.weight,):
                    nn.init.xavier_uniform_(weight, gain=factor)
            if factor == 0 and module.bias is not None:
                nn.init.zeros_(module.bias)
        elif isinstance(module, nn.Linear) and factor != 1:
            with torch.no_grad():
                for parameter in module.parameters():
                    parameter.mul_(factor)
    _fill_calibrations(sublayers, spec)


def _fill_calibrations(sublayers: Iterable[Sublayer], spec: ModelSpec) -> None:
    """Set the stored calibrations of layers. A model on the device meta needs none: they are among its weights."""
    stored = [calibration for sublayer in sublayers if (calibration := sublayer.calibration())]
    if not stored or any(tensor.is_meta for calibration in stored for tensor in calibration.values()):
        return
    kind = type(next(block.mixer for block in spec.blocks if block.mixer.calibration == "stored"))
    shapes = [{name: tensor.shape for name, tensor in calibration.items()} for calibration in stored]
    values = kind.read_calibrations(spec.initialization.calibration, shapes, "initialization.calibration")
    with torch.no_grad():
        for calibration, tensors in zip(stored, values, strict=True):
            for name, tensor in calibration.items():
                tensor.copy_(tensors[name])


def without_calibration_file(spec: ModelSpec) -> ModelSpec:
    """A model of the same shapes that reads no calibration file: the calibration is among its weights."""
    start = spec.initialization.model_copy(update={"calibration": "identity"})
    return spec.model_copy(update={"initialization": start})


class SkipRandomFills(TorchFunctionMode):
    """A context in which functions that fill a tensor with random numbers leave the tensor unchanged.

    Drawing numbers that are overwritten at once takes time; on the device meta it even imports `torch.compile`, which
    takes a second at every start (`benchmarks/start_up.py`).
    """

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
