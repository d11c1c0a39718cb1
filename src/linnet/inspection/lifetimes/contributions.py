"""What tokens leave behind in layers of trainable exponential decays, caught while a decoder reads them.

Legend: `T` tokens, `N` heads, `D` model width.
"""

from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

import torch
from torch import Tensor, nn

from linnet.core.errors import UserError
from linnet.layers.contract import DecayingMixer
from linnet.model.decoder import Decoder


def ted_layers(decoder: Decoder, model: str) -> list[int]:
    """The numbers of the layers with trainable exponential decays; `UserError` naming the model if there is none."""
    numbers = [number for number, mixer in enumerate(decoder.mixers) if isinstance(mixer, DecayingMixer)]
    if not numbers:
        kinds = dict.fromkeys(block.mixer.kind for block in decoder.spec.blocks)
        raise UserError(
            f"{model}: no token of it has a lifetime: its token mixer is {', '.join(kinds)}; expected a model with ted"
        )
    return numbers


def norms_and_rates(mixer: DecayingMixer, x_BTD: Tensor) -> tuple[Tensor, Tensor]:
    """The norms of each head's quantity and the rates, `[B, T, N]`, as the model computes them, then in float64.

    `FloatingPointError` where one of them is not finite: a model that has broken down.
    """
    v_BTNC, rates_BTN = mixer.contributions(x_BTD)
    norms_BTN = torch.linalg.vector_norm(v_BTNC.double(), dim=-1)
    if not (norms_BTN.isfinite().all() and rates_BTN.isfinite().all()):
        raise FloatingPointError("quantities or rates are not finite, so its tokens have no lifetimes")
    return norms_BTN.cpu(), rates_BTN.double().cpu()


@torch.no_grad()
def text_contributions(decoder: Decoder, tokens_T: Tensor) -> list[tuple[Tensor, Tensor]]:
    """The norms and rates `[T, N]` of a text's tokens in each ted layer, from one pass as in training."""
    with _catch_inputs(decoder) as caught:
        decoder.hidden(tokens_T[None].to(decoder.device))
    found = [norms_and_rates(mixer, x_1TD) for mixer, x_1TD in caught]
    return [(norms_1TN[0], rates_1TN[0]) for norms_1TN, rates_1TN in found]


@contextmanager
def _catch_inputs(decoder: Decoder) -> Iterator[list[tuple[DecayingMixer, Tensor]]]:
    """A list to which every ted mixer adds itself and what it reads meanwhile, in the order of the layers."""
    caught: list[tuple[DecayingMixer, Tensor]] = []

    def catch(mixer: nn.Module, inputs: tuple[Any, ...]) -> None:
        assert isinstance(mixer, DecayingMixer)
        caught.append((mixer, inputs[0]))

    mixers = [part for part in decoder.modules() if isinstance(part, DecayingMixer)]  # a shared one once
    hooks = [mixer.register_forward_pre_hook(catch) for mixer in mixers]
    try:
        yield caught
    finally:
        for hook in hooks:
            hook.remove()
