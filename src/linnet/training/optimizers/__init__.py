"""Optimizers: which parameter is updated how."""

from collections.abc import Callable, Iterator

import torch
from torch import nn

from linnet.layers.contract import MuonParameter, linear_maps, muon_parameter_of
from linnet.model.decoder import Decoder
from linnet.training.optimizers.adamw import AdamW, Group, Optimizer
from linnet.training.optimizers.muon import Muon, adamw_scale, spectral_scale
from linnet.training.sections import OptimizerSpec

SCALES = {"adamw": adamw_scale, "spectral": spectral_scale}


def build_optimizer(spec: OptimizerSpec, decoder: Decoder, precision: torch.dtype = torch.float32) -> Optimizer:
    """AdamW over all parameters, in PyTorch's fused form (CPU and CUDA), or Muon and AdamW.

    precision: of the products of a pass, and of Muon's iteration unless the specification names another.
    """
    matrices = list(muon_parameters(decoder)) if spec.kind == "muon" else []
    of_muon = {id(matrix.parameter) for matrix in matrices}
    low_lr = {id(parameter) for sublayer in decoder.sublayers for parameter in sublayer.low_lr_parameters()} - of_muon
    decayed, not_decayed = split_by_decay(decoder)
    other_decay = spec.weight_decay if spec.weight_decay_on == "all" else 0.0
    parts = [(list(decayed.values()), spec.weight_decay), (list(not_decayed.values()), other_decay)]

    def groups(lr: float, belongs: Callable[[int], bool]) -> list[Group]:
        chosen = [([each for each in part if belongs(id(each))], decay) for part, decay in parts]
        return [Group(params=part, lr=lr, scale=lr / spec.lr, weight_decay=decay) for part, decay in chosen if part]

    adamw_groups = groups(spec.lr, lambda each: each not in of_muon | low_lr)
    adamw_groups += groups(spec.low_lr or spec.lr, low_lr.__contains__)
    adamw = AdamW(adamw_groups, spec.betas, spec.eps, spec.cautious_decay)
    if spec.kind == "adamw":
        return adamw
    muon = spec.muon
    return Muon(
        groups(muon.lr or spec.lr, of_muon.__contains__),
        matrices,
        adamw,
        muon.momentum,
        muon.iterations,
        muon.every,
        SCALES[muon.scale],
        precision if muon.precision == "auto" else getattr(torch, muon.precision),
        spec.cautious_decay,
    )


def muon_parameters(decoder: Decoder) -> Iterator[MuonParameter]:
    """Those that sublayers name (`Sublayer.muon_parameters`), and the maps between blocks of different widths."""
    for sublayer in decoder.sublayers:
        yield from sublayer.muon_parameters()
    for project in (*(block.project for block in decoder.blocks_in_order()), decoder.project):
        if project is not None:
            yield muon_parameter_of(project)


def split_by_decay(decoder: Decoder) -> tuple[dict[str, nn.Parameter], dict[str, nn.Parameter]]:
    """Parameters by name: those that weight decay always acts on, and the others.

    Always decayed are the weights of linear maps, the head's included unless it is tied to the embedding, except those
    that a sublayer excludes (`Sublayer.no_weight_decay`).
    """
    sublayers = list(decoder.sublayers)
    within = {id(parameter) for sublayer in sublayers for parameter in sublayer.parameters()}
    excluded = {id(parameter) for sublayer in sublayers for parameter in sublayer.no_weight_decay()}
    maps = {id(linear.weight) for linear in linear_maps(decoder)}
    decayed: dict[str, nn.Parameter] = {}
    not_decayed: dict[str, nn.Parameter] = {}
    for name, parameter in decoder.named_parameters():
        decays = id(parameter) not in excluded if id(parameter) in within else id(parameter) in maps
        (decayed if decays else not_decayed)[name] = parameter
    return decayed, not_decayed


def set_learning_rate(optimizer: Optimizer, lr: float) -> None:
    """Set the learning rate of the next update."""
    for group in optimizer.param_groups:
        group["lr"] = lr * group["scale"]
