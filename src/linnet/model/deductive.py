"""The deductive outputs of power-law graph attention, caught while a decoder runs."""

import torch
from torch import Tensor

from linnet.core.errors import UserError
from linnet.layers.mixers.plga.operator import DeductiveOutputs, FixedOperator, catch_deductive_outputs
from linnet.model.decoder import Decoder
from linnet.model.fixed import plga_layers
from linnet.model.operator_file import OUTPUTS

Operators = list[dict[str, Tensor]]
"""The deductive outputs `[H, K, K]` of each plga layer, by name (`OUTPUTS`); `G` alone of a fixed operator."""


def deductive_outputs(decoder: Decoder, tokens_BT: Tensor) -> list[DeductiveOutputs]:
    """`A, A_LM, A_P, G` (`[B, H, K, K]` each) of every PLGA layer for the given text, in the order of the layers.

    They carry gradients unless the caller disables them. A layer whose operator is fixed deduces nothing and is left
    out; a decoder without PLGA layers gives an empty list.
    """
    with catch_deductive_outputs(decoder) as caught:
        decoder.hidden(tokens_BT)
    return caught


@torch.no_grad()
def operators(decoder: Decoder, tokens_1T: Tensor) -> Operators:
    """The operators of every plga layer, deduced from one text or fixed."""
    return operators_from(decoder, deductive_outputs(decoder, tokens_1T.to(decoder.device)))


def operators_from(decoder: Decoder, outputs: list[DeductiveOutputs]) -> Operators:
    """What the layers deduced from one text in one pass, and the fixed operators between them."""
    deduced = iter(outputs)
    return [
        {"G": mixer.operator.g}
        if isinstance(mixer.operator, FixedOperator)
        else {name: x_1HKK[0] for name, x_1HKK in zip(OUTPUTS, next(deduced), strict=True)}
        for mixer in plga_layers(decoder)
    ]


def deduces_operators(decoder: Decoder, model: str) -> bool:
    """Whether a plga layer deduces its operator from the text; `UserError` naming the model if it has no such layer."""
    layers = plga_layers(decoder)
    if not layers:
        kinds = dict.fromkeys(block.mixer.kind for block in decoder.spec.blocks)
        raise UserError(f"{model}: has no operator: its token mixer is {', '.join(kinds)}; expected a model with plga")
    return not all(isinstance(mixer.operator, FixedOperator) for mixer in layers)
