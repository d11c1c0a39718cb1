"""The deductive outputs of power-law graph attention, caught while a decoder runs."""

from typing import Any

from torch import Tensor, nn

from linnet.mixers.plga_operator import DeductiveOutputs, PowerLawOperator
from linnet.model.decoder import Decoder


def deductive_outputs(decoder: Decoder, tokens_BT: Tensor) -> list[DeductiveOutputs]:
    """`A, A_LM, A_P, G` (`[B, H, K, K]` each) of every PLGA layer for the given text, in the order of the layers.

    They carry gradients unless the caller disables them. A decoder without PLGA layers gives an empty list.
    """
    caught: list[DeductiveOutputs] = []

    def catch(module: nn.Module, inputs: Any, outputs: DeductiveOutputs) -> None:
        caught.append(outputs)

    nets = [module for module in decoder.modules() if isinstance(module, PowerLawOperator)]
    hooks = [net.register_forward_hook(catch) for net in nets]
    try:
        decoder.hidden(tokens_BT)
    finally:
        for hook in hooks:
            hook.remove()
    return caught
