"""Small models of every kind that the registry knows, each as ours and as Transformers' of the same weights."""

import pytest
import torch
from examples import randomized
from torch import Tensor

from linnet.inference.decode import decode
from linnet.inference.sampling import Sampling
from linnet.layers.contract import Mixer
from linnet.layers.registry import FEED_FORWARDS, MIXERS
from linnet.model.decoder import Decoder
from linnet.model.spec import ModelSpec

pytest.importorskip("transformers")
from linnet.interop.transformers import LinnetForCausalLM

VOCABULARY, WIDTH = 23, 16
MIXER_EXAMPLES = {kind: spec.examples()[0] for kind, spec in MIXERS.items()}
FEED_FORWARD_EXAMPLES = {kind: spec.examples()[0] for kind, spec in FEED_FORWARDS.items()}
KINDS = [*MIXER_EXAMPLES, *FEED_FORWARD_EXAMPLES, "hybrid"]
FEW = ("attention", "plga", "mamba")
"""A state that goes back, one that settles, one in sums."""


def few_fast(*kinds: str) -> pytest.MarkDecorator:
    """For each of the kinds (none: all that there are); those that are not `FEW` are slow."""
    marks = [pytest.param(kind, marks=() if kind in FEW else pytest.mark.slow) for kind in kinds or KINDS]
    return pytest.mark.parametrize("kind", marks)


def spec_of(kind: str, **changes: object) -> ModelSpec:
    """Two layers of a mixer; attention with a feed-forward; or one layer of every mixer."""
    mixers = (
        list(MIXER_EXAMPLES.values()) if kind == "hybrid" else [MIXER_EXAMPLES.get(kind, MIXER_EXAMPLES["ted"])] * 2
    )
    feed_forward = FEED_FORWARD_EXAMPLES.get(kind, FEED_FORWARD_EXAMPLES["glu"])
    blocks = [{"mixer": mixer, "feed_forward": feed_forward, "norm": {"kind": "rms"}} for mixer in mixers]
    head = {"tied": True, "norm": {"kind": "rms"}}
    plain = {"name": kind, "vocab_size": VOCABULARY, "d_model": WIDTH, "context_length": 64, "blocks": blocks}
    return ModelSpec.parse({**plain, "head": head, **changes}, "test")


def decoder_with_weights(kind: str, seed: int = 0, **changes: object) -> Decoder:
    """In float64, every weight away from its start."""
    torch.manual_seed(seed)
    return randomized(Decoder(spec_of(kind, **changes))).double().eval()


def model_of(kind: str, seed: int = 0, **changes: object) -> LinnetForCausalLM:
    return LinnetForCausalLM.of(decoder_with_weights(kind, seed, **changes))


def settles(decoder: Decoder) -> bool:
    return any(isinstance(layer, Mixer) and layer.traits.calibrates for layer in decoder.sublayers)


def tokens(*shape: int, seed: int = 0) -> Tensor:
    return torch.randint(VOCABULARY, shape, generator=torch.Generator().manual_seed(seed))


def greedy(decoder: Decoder, prompt: Tensor, new: int) -> list[int]:
    """What our own engine says behind one prompt `[T]`."""
    return [token for (token,) in decode(decoder, [prompt.tolist()], new, Sampling(0.0)) if token is not None]
