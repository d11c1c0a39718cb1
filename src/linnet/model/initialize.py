"""Starting values of a decoder's weights, by its description.

A sublayer has set its own when it was built. The description says those of embeddings, of projections between widths,
of the head, and of the weights of `nn.linear.Linear`, wherever they stand.
"""

from collections.abc import Iterable

import torch
from torch import nn

from linnet.layers.contract import Sublayer, sublayers_of
from linnet.model.spec import InitializationSpec, ModelSpec
from linnet.nn.linear import FusedLinear, Linear

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
