"""The same weights in Transformers' RWKV and in ours give the same outputs, gradients and decoding."""

from itertools import pairwise

import pytest
import torch
from torch import nn

from linnet.layers.batch_layout import BatchLayout
from linnet.layers.contract import Place, Sublayer
from linnet.layers.feed_forwards.rwkv4_channel import Rwkv4ChannelSpec
from linnet.layers.mixers.rwkv4 import Rwkv4Spec
from linnet.model.decoder import Decoder
from linnet.model.spec import ModelSpec

transformers = pytest.importorskip("transformers")
from transformers.models.rwkv.modeling_rwkv import RwkvFeedForward, RwkvSelfAttention  # noqa: E402

from same_weights.rwkv4 import BLOCKS, config_of, twins  # noqa: E402

WIDTH, CHANNELS, HIDDEN = 24, 40, 36
KINDS = [(RwkvSelfAttention, Rwkv4Spec(channels=CHANNELS)), (RwkvFeedForward, Rwkv4ChannelSpec(hidden=HIDDEN))]
Spec = Rwkv4Spec | Rwkv4ChannelSpec


def config() -> object:
    return config_of(WIDTH, CHANNELS, HIDDEN)


def pair(block: type[nn.Module], spec: Spec, scale: float = 0.4) -> tuple[nn.Module, Sublayer]:
    """Transformers' part and ours."""
    assert BLOCKS[type(spec)] is block
    both = twins(spec, WIDTH, scale)
    return both.theirs, both.ours


@pytest.mark.parametrize("length", [1, 3, 63, 65])
@pytest.mark.parametrize(("block", "spec"), KINDS)
def test_outputs_and_all_gradients(block: type[nn.Module], spec: Spec, length: int):
    theirs, ours = pair(block, spec)
    x_BTD, upstream = torch.randn(2, length, WIDTH), torch.randn(2, length, WIDTH)
    results = []
    for form in (lambda x: theirs(x)[0], ours):
        x = x_BTD.clone().requires_grad_()
        out = form(x)
        named = dict((ours if form is ours else theirs).named_parameters())
        wanted = [x, *(named[name] for name in sorted(named))]
        gradients = torch.autograd.grad(out, wanted, upstream, materialize_grads=length == 1)
        results.append((out, *gradients))
    for expected, found in zip(*results, strict=True):
        torch.testing.assert_close(found, expected, rtol=1e-4, atol=1e-4)


@pytest.mark.parametrize("scale", [0.4, 8.0])
@pytest.mark.parametrize(("block", "spec"), KINDS)
@torch.no_grad()
def test_decoding_with_a_state(block: type[nn.Module], spec: Spec, scale: float):
    """In chunks and token by token; with keys of hundreds too, whose exponentials no number holds."""
    theirs, ours = pair(block, spec, scale)
    x_BTD = torch.randn(1, 20, WIDTH)  # one stream: of several theirs mixes up the rows, one token at a time
    state = ours.initial_state(1, 20, torch.device("cpu"), torch.float32)
    their_state = [torch.zeros(1, width, 1) for width in (WIDTH, WIDTH, CHANNELS, CHANNELS, CHANNELS)]
    their_state[4] -= 1e30
    found, expected = [], []
    for begin, end in pairwise([0, 11, *range(12, 21)]):
        found.append(ours(x_BTD[:, begin:end], state, BatchLayout(begin)))
        options = {"use_cache": True} if block is RwkvSelfAttention else {}
        expected.append(theirs(x_BTD[:, begin:end], state=their_state, **options)[0])
    expected_BTD = torch.cat(expected, 1)
    torch.testing.assert_close(
        torch.cat(found, 1), expected_BTD, rtol=1e-4, atol=1e-4 * expected_BTD.abs().max().item()
    )


@pytest.mark.parametrize("index", [0, 1, 3])
@pytest.mark.parametrize(("block", "spec"), KINDS)
def test_rates_and_mixes_start_as_published(block: type[nn.Module], spec: Spec, index: int):
    """But for the bonus, which Transformers starts at 1 by a slip: published is 0.3, in a zigzag of its logarithm."""
    theirs = block(config(), index)
    transformers.models.rwkv.modeling_rwkv.RwkvPreTrainedModel(config())._init_weights(theirs)
    ours = dict(spec.build(Place(WIDTH, 128, index, 4)).named_parameters())
    named = {name: tensor for name, tensor in theirs.named_parameters() if name.startswith("time_")}
    assert named.keys() == {name for name in ours if name.startswith("time_")}
    for name, expected in named.items():
        if name != "time_first":
            torch.testing.assert_close(ours[name], expected)
    if "time_first" in ours:
        assert ours["time_first"][:3].exp().tolist() == pytest.approx([0.3 * 2.718282**x for x in (0, 0.5, -0.5)])


def test_a_whole_model_with_all_gradients():
    """Norms, the one behind the embedding too, both branches and their order stand in a decoder as they do there."""
    torch.manual_seed(0)
    theirs = transformers.RwkvModel(config()).train()  # for inference it scales late layers, in place
    for parameter in theirs.parameters():
        nn.init.normal_(parameter, std=0.3)
    ours = Decoder(described())
    weights = {ours_of(name): tensor for name, tensor in theirs.state_dict().items()}
    ours.load_state_dict(weights)
    tokens_BT, upstream, results = torch.randint(8, (2, 17)), torch.randn(2, 17, WIDTH), []
    results.append((theirs(tokens_BT).last_hidden_state, {ours_of(n): p for n, p in theirs.named_parameters()}))
    results.append((ours.hidden(tokens_BT), dict(ours.named_parameters())))
    (expected, of_theirs), (found, of_ours) = (
        (out, dict(zip(named, torch.autograd.grad(out, list(named.values()), upstream), strict=True)))
        for out, named in results
    )
    torch.testing.assert_close(found, expected, rtol=1e-4, atol=1e-4)
    assert of_ours.keys() == of_theirs.keys()
    for name, gradient in of_theirs.items():
        torch.testing.assert_close(of_ours[name], gradient, rtol=1e-3, atol=1e-3 * gradient.abs().max().item())


def described() -> ModelSpec:
    norm = {"kind": "layer", "eps": 1e-5}
    block = {"repeat": 4, "mixer": KINDS[0][1], "feed_forward": KINDS[1][1], "norm": norm}
    fields = {"vocab_size": 8, "d_model": WIDTH, "context_length": 32, "blocks": [block]}
    return ModelSpec.parse({**fields, "embedding": {"norm": norm}, "head": {"tied": True, "norm": norm}}, "test")


def ours_of(name: str) -> str:
    """The name in a decoder of a parameter of theirs."""
    for theirs, ours in (
        ("embeddings.", "embedding.tokens."), ("blocks.0.pre_ln.", "embedding.norm."), ("ln_out.", "norm."),
        ("blocks.", "blocks.0.layers."), (".ln1.", ".mixer_norm."), (".ln2.", ".feed_forward_norm."),
        (".attention.", ".mixer."),
    ):  # fmt: skip
        name = name.replace(theirs, ours)
    return name
