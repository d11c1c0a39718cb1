"""Low-rank adaptation: a model is fine-tuned by small matrices beside its linear maps, whose own weights stay.

The weight of a linear map becomes `W + (alpha / rank) U D` with `U [O, R]` and `D [R, I]`; only `U` and `D` are trained
(LoRA, Hu et al., arXiv 2106.09685, section 4.1). `D` starts random and `U` at 0, so that the first step begins with the
model as it was. The parts belong to the weight (`nn.low_rank`), so every form of every layer that reads `weight` is
adapted; where a layer multiplies by a map as it is, no gradient of the whole matrix is computed. The weights that are
not trained may be held in 8 or 4 bits (QLoRA, Dettmers et al., arXiv 2305.14314): they are rounded once, when the run
begins, and made whole for one product at a time.

Legend: `I` inputs, `O` outputs, `R` rank.
"""

from collections.abc import Collection, Iterable, Iterator, Mapping
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
from linnet.data.token_data import TokenData
from linnet.inference.weights import quantizable_maps
from linnet.layers.contract import linear_maps
from linnet.model.adapter import DOWN, UP, AdapterInfo
from linnet.model.decoder import Decoder
from linnet.model.folder import ADAPTER, ADAPTER_WEIGHTS, CONFIG
from linnet.model.store import TokenizerLike, write_other_files
from linnet.nn.linear import Linear
from linnet.nn.low_rank import PARAMETRIZED, LowRankSum, frozen_parts, store_in_few_bits
from linnet.present.numbers import decimal, metric
from linnet.training.initialization import initial_decoder
from linnet.training.sections import LoraSpec
from linnet.training.spec import RunSpec


def add_lora(decoder: Decoder, spec: LoraSpec, seed: int, whole: Collection[str] = ()) -> None:
    """Freeze a decoder, and add low-rank parts to the linear maps of its layers, in place.

    The same seed draws the same parts. whole: the names of parameters that are trained as they are, such as a
    vocabulary to which tokens were added. `UserError` if the layers that `spec.parts` names have no linear map.
    """
    decoder.requires_grad_(False)
    found = adapted_maps(decoder, spec)
    if not found:
        raise UserError("no layer has a linear map", field="training.lora.parts", value=spec.parts, accepted="all")
    _make_linear(found)
    _round_maps(decoder, spec)
    for name in whole:
        decoder.get_parameter(name).requires_grad_(True)
    generator = torch.Generator().manual_seed(seed)
    if decoder.value is not None:
        decoder.value.requires_grad_(True)  # of a reward model: as small as a part, and it starts at 0
    for linear in found:
        part = LowRankSum(linear.weight, spec.rank, spec.alpha, generator)
        parametrize.register_parametrization(linear, "weight", part)


def reference_decoder(run: RunSpec, data: TokenData) -> Decoder:
    """The model that a run starts from, its weights rounded as the run holds those that it does not train."""
    decoder = initial_decoder(run, data)
    if run.training.lora is not None:
        _round_maps(decoder, run.training.lora)
    return decoder


def _round_maps(decoder: Decoder, spec: LoraSpec) -> None:
    rounded = few_bit_maps(decoder, spec)
    _make_linear(rounded)
    for linear in rounded:
        assert spec.precision != "float32"
        store_in_few_bits(linear, spec.precision)


def _make_linear(maps: Iterable[nn.Linear]) -> None:
    """Let maps multiply by parts; only their initial weights set PyTorch's apart."""
    for linear in maps:
        if type(linear) is nn.Linear:
            linear.__class__ = Linear


def adapted_maps(decoder: Decoder, spec: LoraSpec) -> list[nn.Linear]:
    """The linear maps that receive a low-rank part: those of all sublayers, or of one of the two kinds."""
    layers = [layer for block in decoder.all_blocks for layer in block.unique_layers()]
    parts: list[nn.Module | None] = []
    for layer in layers:
        parts += [layer.mixer] if spec.parts in ("all", "mixers") else []
        parts += [layer.feed_forward] if spec.parts in ("all", "feed_forwards") else []
    return list(dict.fromkeys(linear for part in parts if part is not None for linear in linear_maps(part)))


def few_bit_maps(decoder: Decoder, spec: LoraSpec) -> list[nn.Linear]:
    """The linear maps whose weights are rounded to few bits: those of all sublayers, but for what these exclude."""
    if spec.precision == "float32":
        return []
    layers = [layer for block in decoder.all_blocks for layer in block.unique_layers()]
    return list(dict.fromkeys(linear for layer in layers for _, _, linear in quantizable_maps(layer)))


def few_bit_weights(decoder: Decoder) -> tuple[int, int]:
    """How many weights of linear maps are held in few bits, and their bytes; two zeros if none are."""
    count = nbytes = 0
    for module in linear_maps(decoder):
        parts = frozen_parts(module)
        if parts is not None and not isinstance(parts.weight, Tensor):
            count += module.in_features * module.out_features
            nbytes += sum(part.nbytes for part in parts.weight if isinstance(part, Tensor))
    return count, nbytes


def few_bit_note(decoder: Decoder, spec: LoraSpec) -> str:
    """What the maps of few bits take, in a line."""
    count, nbytes = few_bit_weights(decoder)
    sizes = f"{decimal(nbytes)} instead of {decimal(4 * count)}"
    return f"training.lora.precision: {spec.precision}: {metric(count)} weights of linear maps take {sizes}"


def low_rank_parameters(decoder: Decoder) -> set[nn.Parameter]:
    """The parameters of the low-rank parts, which are none of the model's own."""
    return {each for part in _low_rank_sums(decoder).values() for each in part.parameters()}


def _low_rank_sums(decoder: Decoder) -> dict[str, LowRankSum]:
    """The low-rank parts by the names of their maps."""
    found = ((name, module) for name, module in decoder.named_modules() if isinstance(module, LowRankSum))
    return {name.rpartition(PARAMETRIZED)[0]: module for name, module in found}


def trains_parts_alone(decoder: Decoder) -> bool:
    """True if only low-rank parts are trained: without them the decoder stays the model that the run starts from."""
    trained = {parameter for parameter in decoder.parameters() if parameter.requires_grad}
    return bool(trained) and trained <= low_rank_parameters(decoder)


@contextmanager
def without_parts(decoder: Decoder) -> Iterator[None]:
    """Within the block, the decoder computes as the model that its low-rank parts were added to."""
    parts = _low_rank_sums(decoder).values()
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
    tensors = {name: tensor for name, tensor in decoder.state_dict().items() if PARAMETRIZED not in name}
    for name, module in decoder.named_modules():
        if isinstance(module, nn.Linear) and frozen_parts(module) is not None:
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
    named, parts = dict(decoder.named_parameters()), low_rank_parameters(decoder)
    whole = {name: each.detach() for name, each in named.items() if each.requires_grad and each not in parts}
    tensors = dict(whole)
    for name, part in _low_rank_sums(decoder).items():
        tensors |= {f"{name}.{UP}": part.up_OR.detach(), f"{name}.{DOWN}": part.down_RI.detach()}
    few_bit = set(few_bit_maps(decoder, spec))
    rounded = tuple(name for name, module in decoder.named_modules() if module in few_bit)
    settings = spec.model_dump()
    info = AdapterInfo(base=base, sha256=base_sha256, **settings, whole=tuple(whole), rounded=rounded)
    with atomic_directory(folder) as temporary:
        write_json(temporary / CONFIG, decoder.spec.model_dump())
        write_json(temporary / ADAPTER, info.model_dump(mode="json"))
        write_tensors(temporary / ADAPTER_WEIGHTS, tensors)
        write_other_files(temporary, (CONFIG, ADAPTER, ADAPTER_WEIGHTS), tokenizer, made, published, beside)
