"""Which parameter is updated by what, and the optimizer's state as named tensors."""

from collections.abc import Callable, Iterator

import torch
from torch import Tensor, nn

from linnet.layers.contract import MuonParameter, linear_maps, muon_parameter_of
from linnet.model.decoder import Decoder
from linnet.training.optimizers.adamw import AdamW
from linnet.training.optimizers.groups import Group, Optimizer
from linnet.training.optimizers.muon import Muon, of_adamw, spectral
from linnet.training.sections import OptimizerSpec

SCALES = {"adamw": of_adamw, "spectral": spectral}


def build_optimizer(spec: OptimizerSpec, decoder: Decoder, precision: torch.dtype = torch.float32) -> Optimizer:
    """AdamW over all parameters, in the fused form of PyTorch (CPU and CUDA), or Muon and AdamW.

    precision: of the products of a pass, and of Muon's iteration where nothing else is said.
    """
    matrices = list(hidden_matrices(decoder)) if spec.kind == "muon" else []
    of_muon = {id(matrix.parameter) for matrix in matrices}
    sensitive = {
        id(parameter) for sublayer in decoder.sublayers for parameter in sublayer.low_lr_parameters()
    } - of_muon
    decayed, free = split_by_decay(decoder)
    of_free = spec.weight_decay if spec.weight_decay_on == "all" else 0.0
    parts = [(list(decayed.values()), spec.weight_decay), (list(free.values()), of_free)]

    def groups(lr: float, wanted: Callable[[int], bool]) -> list[Group]:
        chosen = [([each for each in part if wanted(id(each))], decay) for part, decay in parts]
        return [Group(params=part, lr=lr, scale=lr / spec.lr, weight_decay=decay) for part, decay in chosen if part]

    of_rest = groups(spec.lr, lambda each: each not in of_muon | sensitive)
    of_rest += groups(spec.low_lr or spec.lr, sensitive.__contains__)
    rest = AdamW(of_rest, spec.betas, spec.eps, spec.cautious_decay)
    if spec.kind == "adamw":
        return rest
    muon = spec.muon
    return Muon(
        groups(muon.lr or spec.lr, of_muon.__contains__),
        matrices,
        rest,
        muon.momentum,
        muon.iterations,
        muon.every,
        SCALES[muon.scale],
        precision if muon.precision == "auto" else getattr(torch, muon.precision),
        spec.cautious_decay,
    )


def hidden_matrices(decoder: Decoder) -> Iterator[MuonParameter]:
    """What sublayers say (`Sublayer.muon_parameters`), and the maps between blocks of different widths."""
    for sublayer in decoder.sublayers:
        yield from sublayer.muon_parameters()
    for project in (*(block.project for block in decoder.blocks_in_order()), decoder.project):
        if project is not None:
            yield muon_parameter_of(project)


def split_by_decay(decoder: Decoder) -> tuple[dict[str, nn.Parameter], dict[str, nn.Parameter]]:
    """Parameters by name: those that weight decay always acts on, and the others.

    Always decayed are the weights of linear maps, the head's included, but where it is the embedding's, and what a
    sublayer says beside (`Sublayer.no_weight_decay`).
    """
    sublayers = list(decoder.sublayers)
    within = {id(parameter) for sublayer in sublayers for parameter in sublayer.parameters()}
    of_sublayers = {id(parameter) for sublayer in sublayers for parameter in sublayer.no_weight_decay()}
    maps = {id(linear.weight) for linear in linear_maps(decoder)}
    decayed: dict[str, nn.Parameter] = {}
    free: dict[str, nn.Parameter] = {}
    for name, parameter in decoder.named_parameters():
        decays = id(parameter) not in of_sublayers if id(parameter) in within else id(parameter) in maps
        (decayed if decays else free)[name] = parameter
    return decayed, free


def set_learning_rate(optimizer: Optimizer, lr: float) -> None:
    """The learning rate of the next update."""
    for group in optimizer.param_groups:
        group["lr"] = lr * group["scale"]


def optimizer_tensors(optimizer: Optimizer, decoder: Decoder) -> dict[str, Tensor]:
    """State as `parameter/key`; empty before the first update."""
    return {
        f"{name}/{key}": tensor
        for name, parameter in decoder.named_parameters()
        for key, tensor in optimizer.state.get(parameter, {}).items()
    }


def load_optimizer_tensors(optimizer: Optimizer, decoder: Decoder, tensors: dict[str, Tensor]) -> None:
    """Put back what `optimizer_tensors` gave. Tensors are copied, so that they lie in memory as PyTorch aligns them."""
    parameters = dict(decoder.named_parameters())
    for path, tensor in tensors.items():
        name, _, key = path.rpartition("/")
        parameter = parameters[name]
        device = torch.device("cpu") if tensor.dtype == torch.int64 else parameter.device
        optimizer.state[parameter][key] = tensor.to(device, copy=True)
