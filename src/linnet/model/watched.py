"""What layers show while a decoder runs: the deductive outputs of power-law graph attention, for one.

Legend: `H` heads, `K` head width.
"""

from collections.abc import Sequence

import torch
from torch import Tensor

from linnet.core.errors import UserError
from linnet.layers.batch_layout import AuxiliaryOutputs
from linnet.layers.registry import kinds_with_calibration, operator_files
from linnet.model.calibration import calibrated_layers
from linnet.model.decoder import Decoder

Operators = list[dict[str, Tensor]]
"""What each layer that has an operator deduced, `[H, K, K]` by name, the operator last; it alone where it is given."""


def shown(decoder: Decoder, tokens_BT: Tensor) -> list[dict[str, Tensor]]:
    """What every layer shows for a text, by name, in the order of the layers; empty where it shows nothing.

    Tensors carry gradients unless the caller disables them, and begin with the batch.
    """
    record = AuxiliaryOutputs(outputs=[])
    decoder.hidden(tokens_BT, record=record)
    assert record.outputs is not None
    return record.outputs


@torch.no_grad()
def operators(decoder: Decoder, tokens_1T: Tensor) -> Operators:
    """The operators of every layer that has one, deduced from one text or given."""
    return operators_from(shown(decoder, tokens_1T.to(decoder.device)))


def operators_from(outputs: Sequence[dict[str, Tensor]]) -> Operators:
    """What the layers deduced from one text in one pass, and the given operators between them."""
    names = operator_files().names
    found = ({name: x_1HKK[0] for name, x_1HKK in layer.items() if name in names} for layer in outputs)
    return [layer for layer in found if layer]


def deduces_operators(decoder: Decoder, model: str) -> bool:
    """Whether a layer deduces its operator from the text; `UserError` naming the model if none has an operator."""
    layers = calibrated_layers(decoder)
    if not layers:
        kinds = ", ".join(dict.fromkeys(block.mixer.kind for block in decoder.spec.blocks))
        expected = kinds_with_calibration()
        raise UserError(f"{model}: has no operator: its token mixer is {kinds}; expected a model with {expected}")
    return any(mixer.traits.calibrates for mixer in layers)
