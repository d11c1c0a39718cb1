"""AdamW with decay on matrices or on all parameters, and its moments as named tensors."""

from torch import Tensor, nn

from linnet.layers.contract import linear_maps
from linnet.model.decoder import Decoder
from linnet.training.adamw import AdamW, Group
from linnet.training.sections import OptimiserSpec


def build_optimiser(spec: OptimiserSpec, decoder: Decoder) -> AdamW:
    """AdamW over all parameters, in the fused form of PyTorch (CPU and CUDA)."""
    decayed, free = split_by_decay(decoder)
    of_free = spec.weight_decay if spec.weight_decay_on == "all" else 0.0
    parts = ((decayed, spec.weight_decay), (free, of_free))
    groups = [Group(params=list(named.values()), lr=spec.lr, weight_decay=decay) for named, decay in parts]
    return AdamW(groups, spec.betas, spec.eps)


def split_by_decay(decoder: Decoder) -> tuple[dict[str, nn.Parameter], dict[str, nn.Parameter]]:
    """Parameters by name: those that weight decay always acts on, and the others.

    Always decayed are the weights of linear maps, the head's included, but where it is the embedding's, and what a
    sublayer says beside (`Sublayer.undecayed`).
    """
    sublayers = list(decoder.sublayers)
    within = {id(parameter) for sublayer in sublayers for parameter in sublayer.parameters()}
    of_sublayers = {id(parameter) for sublayer in sublayers for parameter in sublayer.undecayed()}
    maps = {id(linear.weight) for linear in linear_maps(decoder)}
    decayed: dict[str, nn.Parameter] = {}
    free: dict[str, nn.Parameter] = {}
    for name, parameter in decoder.named_parameters():
        decays = id(parameter) not in of_sublayers if id(parameter) in within else id(parameter) in maps
        (decayed if decays else free)[name] = parameter
    return decayed, free


def set_learning_rate(optimiser: AdamW, lr: float) -> None:
    """The learning rate of the next update."""
    for group in optimiser.param_groups:
        group["lr"] = lr


def optimiser_tensors(optimiser: AdamW, decoder: Decoder) -> dict[str, Tensor]:
    """Moments and step counts as `parameter/key`; empty before the first update."""
    return {
        f"{name}/{key}": tensor
        for name, parameter in decoder.named_parameters()
        for key, tensor in optimiser.state.get(parameter, {}).items()
    }


def load_optimiser_tensors(optimiser: AdamW, decoder: Decoder, tensors: dict[str, Tensor]) -> None:
    """Put back what `optimiser_tensors` gave. Tensors are copied, so that they lie in memory as PyTorch aligns them."""
    parameters = dict(decoder.named_parameters())
    for path, tensor in tensors.items():
        name, _, key = path.rpartition("/")
        parameter = parameters[name]
        optimiser.state[parameter][key] = tensor.to(parameter.device, copy=True)
