"""The deductive outputs of power-law graph attention, caught while a decoder runs."""

from torch import Tensor

from linnet.mixers.plga_operator import DeductiveOutputs, catch_deductive_outputs
from linnet.model.decoder import Decoder


def deductive_outputs(decoder: Decoder, tokens_BT: Tensor) -> list[DeductiveOutputs]:
    """`A, A_LM, A_P, G` (`[B, H, K, K]` each) of every PLGA layer for the given text, in the order of the layers.

    They carry gradients unless the caller disables them. A decoder without PLGA layers gives an empty list.
    """
    with catch_deductive_outputs(decoder) as caught:
        decoder.hidden(tokens_BT)
    return caught
