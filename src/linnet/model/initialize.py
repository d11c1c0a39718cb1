"""Starting values of a decoder's weights, and how to build a decoder without them.

A sublayer sets its own values when it is built. The description decides those of embeddings, of projections between
widths, of the head, and of the weights of every `nn.linear.Linear`.
"""

from collections.abc import Callable, Iterable
from typing import Any

import torch
from torch import Tensor, nn
from torch.overrides import TorchFunctionMode

from linnet.layers.contract import Sublayer, sublayers_of
from linnet.model.spec import InitializationSpec, ModelSpec
from linnet.nn.linear import FusedLinear, Linear

RANDOM_FILLS = (Tensor.normal_, Tensor.uniform_, nn.init.normal_, nn.init.uniform_, nn.init.kaiming_uniform_)
"""Every way of drawing starting values ends in one of these."""

IN_THE_STREAM = "project"
"""How the names of maps end that stand in the residual stream, where the width changes: nothing goes around them."""


def initialize(decoder: nn.Module, spec: ModelSpec) -> None:
    """Set embeddings and linear maps, and the calibrations that layers store."""
    settings = spec.initialization
    sublayers = list(sublayers_of(decoder))
    last = {id(linear) for sublayer in sublayers for linear in sublayer.output_projections()}
    of_last = _factor_of_last_maps(settings, spec.layers)
    own = {id(part) for sublayer in sublayers for part in sublayer.modules()}
    for name, module in decoder.named_modules():
        factor = of_last if id(module) in last else 1.0
        if isinstance(module, nn.Embedding) and id(module) not in own:
            nn.init.normal_(module.weight, std=settings.embedding_std)
        elif isinstance(module, Linear) and id(module) not in own and name.endswith(IN_THE_STREAM):
            nn.init.xavier_uniform_(module.weight)  # smaller ones cost bits (experiments/LOG.md)
        elif isinstance(module, Linear):
            _draw(module, settings, factor)
            if factor == 0 and module.bias is not None:
                nn.init.zeros_(module.bias)
        elif isinstance(module, nn.Linear) and factor != 1:
            with torch.no_grad():
                for parameter in module.parameters():
                    parameter.mul_(factor)
    _fill_calibrations(sublayers, spec)


def _factor_of_last_maps(settings: InitializationSpec, layers: int) -> float:
    """What the last map of each branch is multiplied by. At 0 it is drawn too: all others are as without."""
    if settings.zero_outputs:
        return 0.0
    return float((2 * layers) ** -0.5) if settings.scale_residual else 1.0


def _draw(module: Linear, settings: InitializationSpec, factor: float) -> None:
    if settings.linear == "normal":
        nn.init.normal_(module.weight, std=settings.std * factor)
        return
    for weight in module.part_weights() if isinstance(module, FusedLinear) else (module.weight,):
        nn.init.xavier_uniform_(weight, gain=factor)


def _fill_calibrations(sublayers: Iterable[Sublayer], spec: ModelSpec) -> None:
    """Set what layers store of a calibration. A model on the device meta needs none: its weights bring it along."""
    stored = [calibration for sublayer in sublayers if (calibration := sublayer.calibration())]
    if not stored or any(tensor.is_meta for calibration in stored for tensor in calibration.values()):
        return
    kind = type(next(block.mixer for block in spec.blocks if block.mixer.calibration == "stored"))
    shapes = [{name: tensor.shape for name, tensor in calibration.items()} for calibration in stored]
    found = kind.read_calibrations(spec.initialization.calibration, shapes, "initialization.calibration")
    with torch.no_grad():
        for calibration, values in zip(stored, found, strict=True):
            for name, tensor in calibration.items():
                tensor.copy_(values[name])


def without_calibration_file(spec: ModelSpec) -> ModelSpec:
    """A model of the same shapes that reads no file of calibrations: they are among its weights."""
    start = spec.initialization.model_copy(update={"calibration": "identity"})
    return spec.model_copy(update={"initialization": start})


class SkipRandomFills(TorchFunctionMode):
    """Within it, functions that fill a tensor with random numbers leave the tensor as it is.

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
