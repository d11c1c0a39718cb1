"""A model whose operators are fixed: the net behind them is gone, what they were, or others, stands in their place.

With a model's own operators this is the paper's v51Gi (Gokden, arXiv 2502.13502); with the identity, random numbers or
another model's operators, its negative tests.

Legend: `H` heads, `K` head width.
"""

from collections.abc import Sequence

import torch
from torch import Tensor

from linnet.core.errors import UserError
from linnet.layers.mixers.plga.module import Plga, with_fixed_operator
from linnet.model.decoder import Decoder
from linnet.model.initialise import fixed_operators
from linnet.model.operators import Shape, check_fit, choose_operators
from linnet.model.spec import ModelSpec
from linnet.model.undrawn import decoder_of, shapes_only


def plga_layers(decoder: Decoder) -> list[Plga]:
    """The plga mixers in the order a token meets them (a shared one several times)."""
    return [mixer for mixer in decoder.mixers if isinstance(mixer, Plga)]


def operators_for(decoder: Decoder, source: str, origin: str) -> list[Tensor]:
    """`choose_operators` for the model's plga layers; `UserError` where it has none."""
    shapes = _plga_shapes(decoder)
    if not shapes:
        raise UserError(f"{origin}: {source}: the model has no plga layer")
    return choose_operators(source, shapes, origin)


def check_fixed_operators(spec: ModelSpec, origin: str) -> None:
    """`UserError`, with `origin` in front, where the fixed operators of a model that is to be built cannot be had.

    A file of operators is read and held against the model; nothing else is done.
    """
    shapes = [g_HKK.shape for g_HKK in fixed_operators(shapes_only(spec))]
    with torch.random.fork_rng(devices=[]):
        choose_operators(spec.initialisation.operator, shapes, origin)


def check_taught_operators(teacher: ModelSpec, spec: ModelSpec, where: str) -> None:
    """`UserError`, with `where` in front, unless the operators of `teacher` fit `spec`, whose operators are fixed."""
    shapes = [g_HKK.shape for g_HKK in fixed_operators(shapes_only(spec))]
    check_fit(shapes, _plga_shapes(shapes_only(teacher)), where)


def _plga_shapes(decoder: Decoder) -> list[Shape]:
    return [(mixer.heads, mixer.head_dim, mixer.head_dim) for mixer in plga_layers(decoder)]


def with_chosen_operators(decoder: Decoder, source: str, seed: int, origin: str = "--operator") -> Decoder:
    """`with_fixed_operators` of `operators_for`; random ones follow the seed, and the caller's random numbers stay."""
    with torch.random.fork_rng(devices=[]):
        torch.manual_seed(seed)
        return with_fixed_operators(decoder, operators_for(decoder, source, origin))


def with_fixed_operators(decoder: Decoder, operators: Sequence[Tensor]) -> Decoder:
    """The same model with one operator `[H, K, K]` for each plga layer; it shares all other weights with `decoder`.

    A block that repeats one set of weights gets a set for each layer, as the operators differ.
    """
    spec = fixed_spec(decoder.spec)
    needed = shapes_only(spec).state_dict()
    tensors = {name: _source(name, decoder) for name in needed if not name.endswith(".operator.g")}
    names = [name for name in needed if name.endswith(".operator.g")]
    for name, operator in zip(names, operators, strict=True):
        tensors[name] = operator.to(decoder.device, decoder.dtype).clone()
    return decoder_of(spec, tensors).train(decoder.training)


def fixed_spec(spec: ModelSpec) -> ModelSpec:
    """The description with every plga operator fixed, and no plga block that shares weights."""
    plain = spec.model_dump()
    for block in plain["blocks"]:
        if block["mixer"]["kind"] == "plga":
            block["mixer"] = with_fixed_operator(block["mixer"])
            block["share_weights"] = False
    return ModelSpec.parse(plain, spec.name)


def _source(name: str, decoder: Decoder) -> Tensor:
    """The decoder's tensor of that name; of a layer that is no longer shared, that of the set it had."""
    state: dict[str, Tensor] = decoder.state_dict()
    if name in state:
        return state[name].detach()
    blocks, block, layers, _, rest = name.split(".", 4)
    return state[f"{blocks}.{block}.{layers}.0.{rest}"].detach().clone()
