"""Starting values of a decoder's weights, by its description.

Legend: `H` heads, `K` head width.
"""

import torch
from torch import Tensor, nn

from linnet.layers.mixers.plga.operator import FixedOperator
from linnet.model.operators import choose_operators
from linnet.model.spec import InitialisationSpec, ModelSpec
from linnet.nn.linear import FusedLinear

LAST_OF_BRANCH = ("mixer.out", "feed_forward.down")
"""The maps whose output is added to the residual stream."""

IN_THE_STREAM = "project"
"""How the names of maps end that stand in the residual stream, where the width changes: nothing goes around them."""


def initialise(decoder: nn.Module, spec: ModelSpec) -> None:
    """Set linear layers, embeddings and fixed operators; what a mixer holds beside them it has set itself."""
    settings = spec.initialisation
    for name, module in decoder.named_modules():
        if isinstance(module, nn.Embedding):
            nn.init.normal_(module.weight, std=settings.embedding_std)
        elif isinstance(module, nn.Linear) and name.endswith(IN_THE_STREAM):
            nn.init.xavier_uniform_(
                module.weight
            )  # keeps the stream's size; smaller ones cost bits (experiments/LOG.md)
        elif isinstance(module, nn.Linear):
            scaled = settings.scale_residual and name.endswith(LAST_OF_BRANCH)
            _linear(module, settings, (2 * spec.layers) ** -0.5 if scaled else 1.0)
    _fill_fixed_operators(decoder, settings.operator)


def fixed_operators(decoder: nn.Module) -> list[Tensor]:
    """The operators `[H, K, K]` that are given instead of learned, as a file holds them."""
    return [module.g for module in decoder.modules() if isinstance(module, FixedOperator)]


def _fill_fixed_operators(decoder: nn.Module, source: str) -> None:
    """A model without numbers (on the device meta) needs none; what it is filled with holds them."""
    fixed = fixed_operators(decoder)
    if not fixed or fixed[0].is_meta:
        return
    operators = choose_operators(source, [g_HKK.shape for g_HKK in fixed], "initialisation.operator")
    with torch.no_grad():
        for g_HKK, operator in zip(fixed, operators, strict=True):
            g_HKK.copy_(operator)


def _linear(module: nn.Linear, settings: InitialisationSpec, factor: float) -> None:
    if settings.linear == "normal":
        nn.init.normal_(module.weight, std=settings.std * factor)
    else:
        for weight in module.part_weights() if isinstance(module, FusedLinear) else (module.weight,):
            nn.init.xavier_uniform_(weight, gain=factor)
    if module.bias is not None:
        nn.init.zeros_(module.bias)
