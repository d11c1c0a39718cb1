"""Models that store the calibration of their layers among their weights instead of calibrating on a text.

With a PLDR-LLM's own calibration this is the paper's v51Gi (Gokden, arXiv 2502.13502); with the identity, random
numbers or another model's calibration, its negative tests.
"""

from collections.abc import Mapping, Sequence

import torch
from torch import Tensor

from linnet.core.errors import UserError
from linnet.layers.contract import Mixer, MixerSpec
from linnet.layers.registry import kinds_with_calibration
from linnet.model.decoder import Decoder, decoder_with_weights, meta_decoder
from linnet.model.spec import ModelSpec

Calibration = Mapping[str, Tensor]
"""What one layer calibrates, by name (`Sublayer.calibration`)."""


def calibrating_specs(spec: ModelSpec) -> list[MixerSpec]:
    """The mixer of each layer that calibrates, or stores a calibration, in the order in which a token passes them."""
    return [block.mixer for block in spec.blocks for _ in range(block.repeat) if block.mixer.calibration != "none"]


def calibrated_layers(decoder: Decoder) -> list[Mixer]:
    """The mixers of a decoder that calibrate or store a calibration; one with shared weights several times."""
    specs = (block.mixer for block in decoder.spec.blocks for _ in range(block.repeat))
    return [mixer for spec, mixer in zip(specs, decoder.mixers, strict=True) if spec.calibration != "none"]


@torch.no_grad()
def calibrate(decoder: Decoder, tokens_1T: Tensor) -> list[dict[str, Tensor]]:
    """The calibration of each layer that has one: computed on one text, or as stored."""
    state = decoder.initial_state(*tokens_1T.shape)
    decoder.hidden(tokens_1T.to(decoder.device), state)
    calibrations = [mixer.calibration(layer) for mixer, layer in zip(decoder.mixers, state.layers, strict=True)]
    return [calibration for calibration in calibrations if calibration]


def save_calibration(decoder: Decoder, tokens_1T: Tensor, path: str) -> None:
    """Write the calibration of the layers on one text to a file that `read_calibrations` reads."""
    type(calibrating_specs(decoder.spec)[0]).save_calibrations(calibrate(decoder, tokens_1T), path)


def read_calibrations(decoder: Decoder, source: str, origin: str) -> list[dict[str, Tensor]]:
    """A calibration for each layer, from a file or a name that the kind knows; `UserError` if no layer calibrates."""
    specs = calibrating_specs(decoder.spec)
    if not specs:
        raise UserError(f"{origin}: {source}: the model has no {kinds_with_calibration()} layer")
    return type(specs[0]).read_calibrations(source, _shapes(decoder.spec), origin)


def check_calibration(spec: ModelSpec, origin: str) -> None:
    """`UserError`, beginning with `origin`, if the stored calibration of a model cannot be read."""
    specs = [mixer for mixer in calibrating_specs(spec) if mixer.calibration == "stored"]
    if specs:
        with torch.random.fork_rng(devices=[]):
            type(specs[0]).read_calibrations(spec.initialization.calibration, _shapes(spec), origin)


def check_calibration_fits(teacher: ModelSpec, spec: ModelSpec, where: str) -> None:
    """`UserError`, beginning with `where`, if the calibration of `teacher` cannot be stored in the model `spec`."""
    available, needed = _shapes(teacher), _shapes(spec)
    if len(available) != len(needed):
        raise UserError(f"{where}: it calibrates {len(available)} layers: the model has {len(needed)} that store it")
    for index, (expected, actual) in enumerate(zip(needed, available, strict=True)):
        for name, shape in expected.items():
            if actual.get(name) != shape:
                other = list(actual.get(name, ()))
                raise UserError(f"{where}: layer {index}: {name}: shape {other}: the model's is {list(shape)}")


def _shapes(spec: ModelSpec) -> list[dict[str, tuple[int, ...]]]:
    """The shapes of the calibration of each layer that calibrates or stores one."""
    layers = calibrated_layers(meta_decoder(stored_spec(spec)))
    return [{name: tuple(tensor.shape) for name, tensor in layer.calibration().items()} for layer in layers]


def with_calibration_from(decoder: Decoder, source: str, seed: int) -> Decoder:
    """`with_stored_calibration` of `read_calibrations`.

    The seed determines random calibrations; the state of the global generator does not change.
    """
    with torch.random.fork_rng(devices=[]):
        torch.manual_seed(seed)
        return with_stored_calibration(decoder, read_calibrations(decoder, source, "`calibration`"))


def with_stored_calibration(decoder: Decoder, calibrations: Sequence[Calibration]) -> Decoder:
    """The same model with a stored calibration in each layer that calibrates; it shares all other weights.

    A block that repeats one set of weights gets a set for each layer, as the calibrations differ.
    """
    spec = stored_spec(decoder.spec)
    stored = meta_decoder(spec)
    buffers = {id(tensor): name for name, tensor in stored.named_buffers()}
    tensors: dict[str, Tensor] = {}
    for layer, calibration in zip(calibrated_layers(stored), calibrations, strict=True):
        for name, buffer in layer.calibration().items():
            tensors[buffers[id(buffer)]] = calibration[name].to(decoder.device, decoder.dtype).clone()
    state: dict[str, Tensor] = decoder.state_dict()
    for name in stored.state_dict().keys() - tensors.keys():
        if name in state:
            tensors[name] = state[name].detach()
        else:  # a layer that no longer shares its weights gets a copy of the shared ones
            blocks, block, layers, _, rest = name.split(".", 4)
            tensors[name] = state[f"{blocks}.{block}.{layers}.0.{rest}"].detach().clone()
    return decoder_with_weights(spec, tensors).train(decoder.training)


def stored_spec(spec: ModelSpec) -> ModelSpec:
    """The description with every calibration stored; blocks with a calibration do not share weights."""
    plain = spec.model_dump()
    for block, described in zip(plain["blocks"], spec.blocks, strict=True):
        if described.mixer.calibration != "none":
            block["mixer"] = described.mixer.with_calibration("stored").model_dump()
            block["share_weights"] = False
    return ModelSpec.parse(plain, spec.name)
