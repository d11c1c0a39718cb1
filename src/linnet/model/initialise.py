"""Starting values of a decoder's weights, by its description."""

from torch import nn

from linnet.model.spec import InitialisationSpec, ModelSpec
from linnet.nn.linear import FusedLinear

LAST_OF_BRANCH = ("mixer.out", "feed_forward.down")
"""The maps whose output is added to the residual stream."""


def initialise(decoder: nn.Module, spec: ModelSpec) -> None:
    """Set linear layers and embeddings; what a mixer holds beside them it has set itself."""
    settings = spec.initialisation
    for name, module in decoder.named_modules():
        if isinstance(module, nn.Embedding):
            nn.init.normal_(module.weight, std=settings.embedding_std)
        elif isinstance(module, nn.Linear):
            scaled = settings.scale_residual and name.endswith(LAST_OF_BRANCH)
            _linear(module, settings, (2 * spec.layers) ** -0.5 if scaled else 1.0)


def _linear(module: nn.Linear, settings: InitialisationSpec, factor: float) -> None:
    if settings.linear == "normal":
        nn.init.normal_(module.weight, std=settings.std * factor)
    else:
        for weight in module.part_weights() if isinstance(module, FusedLinear) else (module.weight,):
            nn.init.xavier_uniform_(weight, gain=factor)
    if module.bias is not None:
        nn.init.zeros_(module.bias)
