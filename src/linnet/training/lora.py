"""Low-rank adaptation: a model is fine-tuned by small matrices beside its linear maps, whose own weights stay.

The weight of a linear map becomes `W + (alpha / rank) U D` with `U [O, R]` and `D [R, I]`; only `U` and `D` are trained
(LoRA, Hu et al., arXiv 2106.09685, section 4.1). `D` starts random and `U` at 0, so that the first step begins with the
model as it was. The sum is computed at each use of the weight (`torch.nn.utils.parametrize`), so every form of every
layer that reads `weight` is adapted; it costs `O R I` multiplications for a pass over all tokens of a batch. Maps that
are computed by `ops.linear` multiply the parts one by one in training, without the gradient of the whole matrix.

Legend: `I` inputs, `O` outputs, `R` rank.
"""

import math
from collections.abc import Collection, Iterator, Mapping
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import torch
from torch import Tensor, nn
from torch.nn.utils import parametrize

from linnet.core.arrays import write_tensors
from linnet.core.atomic import atomic_directory
from linnet.core.errors import UserError
from linnet.core.files import write_json
from linnet.layers.contract import linear_maps
from linnet.model.adapter import DOWN, UP, AdapterInfo
from linnet.model.decoder import Decoder
from linnet.model.folder import ADAPTER, ADAPTER_WEIGHTS, CONFIG
from linnet.model.store import TokenizerLike, write_other_files
from linnet.ops.linear import LowRankParts, low_rank_sum
from linnet.training.sections import LoraSpec

_ORIGINAL = "parametrizations.weight.original"
_ADDED = "parametrizations.weight.0."
_PARTS = {"up_OR": UP, "down_RI": DOWN}
"""The names of the parts in a file by those of the parameters."""


class LowRankSum(nn.Module):
    """The weight of a linear map with its low-rank part, `[O, I] -> [O, I]`."""

    def __init__(self, weight_OI: Tensor, spec: LoraSpec, generator: torch.Generator) -> None:
        super().__init__()
        outputs, inputs = weight_OI.shape
        self.scale = spec.alpha / spec.rank
        bound = 1 / math.sqrt(inputs)  # of the uniform distribution that LoRA's authors draw from
        drawn_RI = torch.rand((spec.rank, inputs), generator=generator).mul_(2 * bound).sub_(bound)
        self.down_RI = nn.Parameter(drawn_RI.to(weight_OI))
        self.up_OR = nn.Parameter(weight_OI.new_zeros(outputs, spec.rank))
        self.is_on = True

    def forward(self, weight_OI: Tensor) -> Tensor:
        if not self.is_on:
            return weight_OI
        return low_rank_sum(LowRankParts(weight_OI, self.up_OR, self.down_RI, self.scale))


def add_lora(decoder: Decoder, spec: LoraSpec, seed: int, whole: Collection[str] = ()) -> None:
    """Freeze a decoder, and add low-rank parts to the linear maps of its layers, in place.

    The same seed draws the same parts. whole: the names of parameters that are trained as they are, such as a
    vocabulary to which tokens were added. `UserError` if the layers that `spec.parts` names have no linear map.
    """
    decoder.requires_grad_(False)
    for name in whole:
        decoder.get_parameter(name).requires_grad_(True)
    generator = torch.Generator().manual_seed(seed)
    found = adapted_maps(decoder, spec)
    if not found:
        raise UserError("no layer has a linear map", field="training.lora.parts", value=spec.parts, accepted="all")
    if decoder.value is not None:
        decoder.value.requires_grad_(True)  # of a reward model: as small as a part, and it starts at 0
    for linear in found:
        parametrize.register_parametrization(linear, "weight", LowRankSum(linear.weight, spec, generator))


def adapted_maps(decoder: Decoder, spec: LoraSpec) -> list[nn.Linear]:
    """The linear maps that receive a low-rank part: those of all sublayers, or of one of the two kinds."""
    layers = [layer for block in decoder.all_blocks for layer in block.unique_layers()]
    parts: list[nn.Module | None] = []
    for layer in layers:
        parts += [layer.mixer] if spec.parts in ("all", "mixers") else []
        parts += [layer.feed_forward] if spec.parts in ("all", "feed_forwards") else []
    return list(dict.fromkeys(linear for part in parts if part is not None for linear in linear_maps(part)))


def low_rank_parameters(decoder: Decoder) -> set[nn.Parameter]:
    """The parameters of the low-rank parts, which are none of the model's own."""
    return {parameter for name, parameter in decoder.named_parameters() if _ADDED in name}


def trains_parts_alone(decoder: Decoder) -> bool:
    """True if only low-rank parts are trained: without them the decoder stays the model that the run starts from."""
    trained = {parameter for parameter in decoder.parameters() if parameter.requires_grad}
    return bool(trained) and trained <= low_rank_parameters(decoder)


@contextmanager
def without_parts(decoder: Decoder) -> Iterator[None]:
    """Within the block, the decoder computes as the model that its low-rank parts were added to."""
    parts = [module for module in decoder.modules() if isinstance(module, LowRankSum)]
    for part in parts:
        part.is_on = False
    try:
        yield
    finally:
        for part in parts:
            part.is_on = True


@torch.no_grad()
def merged_state_dict(decoder: Decoder) -> dict[str, Tensor]:
    """The weights of a decoder by their names without low-rank parts, which are added to what they belong to."""
    tensors = {name: tensor for name, tensor in decoder.state_dict().items() if _ADDED not in name}
    sums = {name: module for name, module in decoder.named_modules() if parametrize.is_parametrized(module, "weight")}
    for name, module in sums.items():
        original = tensors.pop(f"{name}.{_ORIGINAL}")
        assert original.shape == module.weight.shape
        tensors[f"{name}.weight"] = module.weight
    return tensors


def write_adapter(
    folder: Path,
    decoder: Decoder,
    base: Path,
    base_sha256: str | None,
    spec: LoraSpec,
    tokenizer: TokenizerLike,
    made: Mapping[str, Any],
    published: Mapping[str, Path],
    beside: Mapping[str, str],
) -> None:
    """Write a model folder with the low-rank parts of a decoder instead of weights, which is made or replaced.

    base: the model folder, or the run's, that the run started from, and the hash of its weights. Parameters that were
    trained as they are, such as a vocabulary that has grown, are stored whole. The other arguments are those of
    `write_model`.
    """
    tensors, whole = dict[str, Tensor](), list[str]()
    for name, parameter in decoder.named_parameters():
        owner, _, part = name.rpartition(f".{_ADDED}")
        if owner:
            tensors[f"{owner}.{_PARTS[part]}"] = parameter.detach()
        elif parameter.requires_grad:
            tensors[name] = parameter.detach()
            whole.append(name)
    info = AdapterInfo(base=base, sha256=base_sha256, **spec.model_dump(), whole=tuple(whole))
    with atomic_directory(folder) as temporary:
        write_json(temporary / CONFIG, decoder.spec.model_dump())
        write_json(temporary / ADAPTER, info.model_dump(mode="json"))
        write_tensors(temporary / ADAPTER_WEIGHTS, tensors)
        write_other_files(temporary, (CONFIG, ADAPTER, ADAPTER_WEIGHTS), tokenizer, made, published, beside)
