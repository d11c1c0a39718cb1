"""T5 of Transformers on the same weights: outputs, all gradients, and greedy generation with caches.

Buckets in which no pair of a text lies, and what all scores share, have none.
"""

from dataclasses import replace

import pytest
import torch
from torch import Tensor

from linnet.inference.decode import decode
from linnet.inference.prefill import prefill_inputs
from linnet.inference.sampling import Sampling
from linnet.model.decoder import Decoder

pytest.importorskip("transformers")

from same_weights.t5 import Shape, twins
from same_weights.twins import Twins

CLOSE = 1e-5
"""Of the largest element: their norms and softmax are in float32, whatever the model's precision."""

VOCABULARY = 40
SHAPE = Shape(VOCABULARY, width=24, heads=3, head_dim=6, hidden=32, layers=2, buckets=8, furthest=12, context=64)


@pytest.fixture(params=[("relu", True), ("gated-gelu", False)], ids=["scaled-relu", "gated-gelu"])
def pair(request: pytest.FixtureRequest) -> Twins[Decoder]:
    projection, scaled = request.param
    return twins(replace(SHAPE, projection=projection, scaled=scaled))


def assert_near(name: str, found: Tensor, expected: Tensor) -> None:
    found, expected = found.detach(), expected.detach()
    torch.testing.assert_close(
        found, expected, rtol=0, atol=CLOSE * expected.abs().max().item(), msg=lambda said: f"{name}: {said}"
    )


def test_outputs_and_all_gradients_are_theirs(pair):
    reference, decoder = pair.theirs, pair.ours
    torch.manual_seed(1)
    inputs_BS, tokens_BT, padding = (
        torch.randint(1, VOCABULARY, (3, 30)),
        torch.randint(VOCABULARY, (3, 25)),
        (0, 4, 17),
    )
    mask_BS = torch.arange(30) >= torch.tensor(padding)[:, None]
    expected = reference(input_ids=inputs_BS, attention_mask=mask_BS.long(), decoder_input_ids=tokens_BT).logits
    logits = decoder(tokens_BT, memory=decoder.encode(inputs_BS, padding))
    assert_near("logits", logits, expected)
    upstream = torch.randn_like(expected)
    expected.backward(upstream)
    logits.backward(upstream)
    wanted = pair.names({name: parameter.grad for name, parameter in reference.named_parameters()})
    found = pair.joined({name: parameter.grad for name, parameter in decoder.named_parameters()})
    copies = {name for name in wanted if "mixer.positions" in name and ".layers.0." not in name}
    assert found.keys() == wanted.keys() - copies
    for name, gradient in found.items():
        assert_near(name, gradient, wanted[name])


@torch.no_grad()
def test_greedy_generation_with_caches_is_theirs(pair):
    """Theirs ends with token 1, of which there is to be none."""
    reference, decoder = pair.theirs, pair.ours
    torch.manual_seed(2)
    inputs = [torch.randint(2, VOCABULARY, (length,)).tolist() for length in (9, 5)]
    for row in inputs:
        expected = reference.generate(torch.tensor([row]), max_new_tokens=20, eos_token_id=-1, do_sample=False)
        first = prefill_inputs(decoder, [[0]], [row])
        steps = decode(decoder, first.prompts, 20, Sampling(0), context=first.context(decoder))
        found = [token for (token,) in steps]
        assert found == expected[0, 1:].tolist()
