"""A model whose operators are given: the net behind them is gone, what they were, or others, stands in their place.

With a model's own operators this is the paper's v51Gi (Gokden, arXiv 2502.13502); with the identity, random numbers or
another model's operators, its negative tests.

Legend: `H` heads, `K` head width.
"""

from collections.abc import Sequence

import torch
from torch import Tensor

from linnet.core.errors import UserError
from linnet.layers.contract import Mixer
from linnet.layers.registry import MIXERS, kinds_with_calibration, operator_files
from linnet.model.decoder import Decoder
from linnet.model.skip_init import decoder_with_weights, meta_decoder
from linnet.model.spec import ModelSpec

Shape = tuple[int, ...]


def calibrated_layers(decoder: Decoder) -> list[Mixer]:
    """The mixers that have an operator, in the order a token meets them (a shared one several times)."""
    return [mixer for mixer in decoder.mixers if mixer.operator_shape is not None]


def read_calibrations(decoder: Decoder, source: str, origin: str) -> list[Tensor]:
    """Operators `[H, K, K]` for the model: `identity`, `random`, or a file's; `UserError` where it takes none."""
    shapes = _shapes(decoder)
    if not shapes:
        raise UserError(f"{origin}: {source}: the model has no {kinds_with_calibration()} layer")
    return operator_files().choose(source, shapes, origin)


def check_calibration(spec: ModelSpec, origin: str) -> None:
    """`UserError`, with `origin` in front, where the given operators of a model that is to be built cannot be had.

    A file of operators is read and held against the model; nothing else is done.
    """
    with torch.random.fork_rng(devices=[]):
        operator_files().choose(spec.initialization.calibration, _given_shapes(spec), origin)


def check_calibration_fits(teacher: ModelSpec, spec: ModelSpec, where: str) -> None:
    """`UserError`, with `where` in front, unless the operators of `teacher` fit `spec`, whose operators are given."""
    operator_files().check_fit(_given_shapes(spec), _shapes(meta_decoder(teacher)), where)


def _shapes(decoder: Decoder) -> list[Shape]:
    return [mixer.operator_shape for mixer in decoder.mixers if mixer.operator_shape is not None]


def _given_shapes(spec: ModelSpec) -> list[Shape]:
    given = (sublayer.given for sublayer in meta_decoder(spec).sublayers)
    return [tuple(g_HKK.shape) for g_HKK in given if g_HKK is not None]


def with_calibration_from(decoder: Decoder, source: str, seed: int) -> Decoder:
    """`with_stored_calibration` of `read_calibrations`; the seed decides random ones; torch's generator stays"""
    with torch.random.fork_rng(devices=[]):
        torch.manual_seed(seed)
        return with_stored_calibration(decoder, read_calibrations(decoder, source, "`calibration`"))


def with_stored_calibration(decoder: Decoder, operators: Sequence[Tensor]) -> Decoder:
    """The same model with one operator `[H, K, K]` for each layer that has one; it shares all other weights.

    A block that repeats one set of weights gets a set for each layer, as the operators differ.
    """
    spec = stored_spec(decoder.spec)
    fixed = meta_decoder(spec)
    given = {id(sublayer.given) for sublayer in fixed.sublayers}
    names = [name for name, tensor in fixed.named_buffers() if id(tensor) in given]
    tensors = {name: _source(name, decoder) for name in fixed.state_dict() if name not in names}
    for name, operator in zip(names, operators, strict=True):
        tensors[name] = operator.to(decoder.device, decoder.dtype).clone()
    return decoder_with_weights(spec, tensors).train(decoder.training)


def stored_spec(spec: ModelSpec) -> ModelSpec:
    """The description with every operator given, and no block that has them shares weights."""
    plain = spec.model_dump()
    for block in plain["blocks"]:
        given = MIXERS[block["mixer"]["kind"]].with_operator(block["mixer"], "identity")
        if given is not None:
            block["mixer"], block["share_weights"] = given, False
    return ModelSpec.parse(plain, spec.name)


def _source(name: str, decoder: Decoder) -> Tensor:
    """The decoder's tensor of that name; of a layer that is no longer shared, that of the set it had."""
    state: dict[str, Tensor] = decoder.state_dict()
    if name in state:
        return state[name].detach()
    blocks, block, layers, _, rest = name.split(".", 4)
    return state[f"{blocks}.{block}.{layers}.0.{rest}"].detach().clone()
