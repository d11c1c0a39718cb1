"""T5 of Transformers on the same weights: outputs, all gradients, and greedy generation with caches.

Its biases of distances are one table for all layers of a stack; here each layer has a copy, so that its gradient is the
sum of theirs. Buckets in which no pair of a text lies, and what all scores share, have none.
"""

import pytest
import torch
from torch import Tensor

from linnet.inference.begun import begun
from linnet.inference.engine import decode
from linnet.inference.sampling import Sampling
from linnet.model.decoder import Decoder
from linnet.model.spec import ModelSpec

transformers = pytest.importorskip("transformers")

CLOSE = 1e-5
"""Of the largest element: their norms and softmax are in float32, whatever the model's precision."""

VOCABULARY, WIDTH, HEADS, HEAD_DIM, HIDDEN, LAYERS, BUCKETS, FURTHEST = 40, 24, 3, 6, 32, 2, 8, 12
FEED_FORWARDS = {
    "relu": {"kind": "mlp", "hidden": HIDDEN, "activation": "relu", "bias": False},
    "gated-gelu": {"kind": "glu", "hidden": HIDDEN, "activation": "gelu_tanh", "bias": False},
}


def theirs(projection: str, scaled: bool) -> "transformers.T5ForConditionalGeneration":
    config = transformers.T5Config(
        vocab_size=VOCABULARY,
        d_model=WIDTH,
        d_kv=HEAD_DIM,
        d_ff=HIDDEN,
        num_layers=LAYERS,
        num_heads=HEADS,
        relative_attention_num_buckets=BUCKETS,
        relative_attention_max_distance=FURTHEST,
        feed_forward_proj=projection,
        tie_word_embeddings=scaled,  # by which it says whether the tied head is scaled
        dropout_rate=0.0,
        decoder_start_token_id=0,
    )
    torch.manual_seed(0)
    model = transformers.T5ForConditionalGeneration(config).double().eval()
    with torch.no_grad():
        for parameter in model.parameters():
            parameter.add_(0.2 * torch.randn_like(parameter))
    return model


def described(projection: str, scaled: bool) -> ModelSpec:
    def block(**more: object) -> dict[str, object]:
        positions = {"kind": "t5", "buckets": BUCKETS, "furthest": FURTHEST, "both_ways": not more}
        mixer = {"kind": "attention", "heads": HEADS, "head_dim": HEAD_DIM, "scale": 1.0, "positions": positions}
        norm = {"kind": "rms", "eps": 1e-6, "placement": "pre"}
        return {"repeat": LAYERS, "mixer": mixer, "feed_forward": FEED_FORWARDS[projection], "norm": norm, **more}

    norm = {"kind": "rms", "eps": 1e-6}
    cross = {"heads": HEADS, "head_dim": HEAD_DIM, "scale": 1.0}
    return ModelSpec.parse(
        {
            "vocab_size": VOCABULARY,
            "d_model": WIDTH,
            "context_length": 64,
            "encoder": {"blocks": [block()], "norm": norm},
            "blocks": [block(cross_attention=cross)],
            "head": {"tied": True, "scale": scaled, "norm": norm},
        },
        "t5",
    )


def layer_tensors(tensors: dict[str, Tensor], stack: str, layer: int) -> dict[str, Tensor]:
    """Those of one layer by our names."""
    block = f"{stack}.block.{layer}.layer"
    own = "SelfAttention"
    table = tensors[f"{stack}.block.0.layer.0.{own}.relative_attention_bias.weight"]
    named = {
        "mixer.query_key_value.weight": torch.cat([tensors[f"{block}.0.{own}.{part}.weight"] for part in "qkv"]),
        "mixer.out.weight": tensors[f"{block}.0.{own}.o.weight"],
        "mixer.positions.bias_UN": table,
        "mixer_norm.weight": tensors[f"{block}.0.layer_norm.weight"],
    }
    last = 1 if stack == "encoder" else 2
    if stack == "decoder":
        cross = f"{block}.1.EncDecAttention"
        named |= {
            "cross_attention.query.weight": tensors[f"{cross}.q.weight"],
            "cross_attention.key_value.weight": torch.cat([tensors[f"{cross}.{part}.weight"] for part in "kv"]),
            "cross_attention.out.weight": tensors[f"{cross}.o.weight"],
            "cross_attention_norm.weight": tensors[f"{block}.1.layer_norm.weight"],
        }
    dense = f"{block}.{last}.DenseReluDense"
    gated = f"{dense}.wi_0.weight" in tensors
    up = [tensors[f"{dense}.{name}.weight"] for name in (("wi_0", "wi_1") if gated else ("wi",))]
    named |= {
        "feed_forward.up.weight": torch.cat(up),
        "feed_forward.down.weight": tensors[f"{dense}.wo.weight"],
    }
    return named | {"feed_forward_norm.weight": tensors[f"{block}.{last}.layer_norm.weight"]}


def by_our_names(tensors: dict[str, Tensor]) -> dict[str, Tensor]:
    """Theirs, or their gradients, as a decoder has them."""
    named = {"embedding.tokens.weight": tensors["shared.weight"]}
    for stack, prefix in (("encoder", "encoder."), ("decoder", "")):
        for layer in range(LAYERS):
            for name, tensor in layer_tensors(tensors, stack, layer).items():
                named[f"{prefix}blocks.0.layers.{layer}.{name}"] = tensor
        named[f"{prefix}norm.weight"] = tensors[f"{stack}.final_layer_norm.weight"]
    return named


@pytest.fixture(params=[("relu", True), ("gated-gelu", False)], ids=["scaled-relu", "gated-gelu"])
def pair(request: pytest.FixtureRequest) -> tuple["transformers.T5ForConditionalGeneration", Decoder]:
    reference = theirs(*request.param)
    decoder = Decoder(described(*request.param)).double()
    weights = {name: tensor.detach() for name, tensor in reference.named_parameters()}
    decoder.load_state_dict({name: tensor.clone() for name, tensor in by_our_names(weights).items()})
    return reference, decoder


def assert_near(name: str, found: Tensor, expected: Tensor) -> None:
    found, expected = found.detach(), expected.detach()
    torch.testing.assert_close(
        found, expected, rtol=0, atol=CLOSE * expected.abs().max().item(), msg=lambda said: f"{name}: {said}"
    )


def test_outputs_and_all_gradients_are_theirs(pair):
    reference, decoder = pair
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
    wanted = by_our_names({name: parameter.grad for name, parameter in reference.named_parameters()})
    found = {name: parameter.grad for name, parameter in decoder.named_parameters()}
    for prefix in ("encoder.", ""):
        tables = [f"{prefix}blocks.0.layers.{layer}.mixer.positions.bias_UN" for layer in range(LAYERS)]
        assert_near(tables[0], sum(found.pop(name) for name in tables), wanted[tables[0]])
        for name in tables:
            del wanted[name]
    assert found.keys() == wanted.keys()
    for name, gradient in found.items():
        assert_near(name, gradient, wanted[name])


@torch.no_grad()
def test_greedy_generation_with_caches_is_theirs(pair):
    """Theirs ends with token 1, of which there is to be none."""
    reference, decoder = pair
    torch.manual_seed(2)
    inputs = [torch.randint(2, VOCABULARY, (length,)).tolist() for length in (9, 5)]
    for row in inputs:
        expected = reference.generate(torch.tensor([row]), max_new_tokens=20, eos_token_id=-1, do_sample=False)
        first = begun(decoder, [[0]], [row])
        steps = decode(decoder, first.prompts, 20, Sampling(0), given=first.given(decoder))
        found = [token for (token,) in steps]
        assert found == expected[0, 1:].tolist()
