"""The same weights in Transformers' models and in ours give the same logits."""

import pytest
import torch

from linnet.core.errors import UserError
from linnet.interop.tensor_names import GPT2, LLAMA
from linnet.model.decoder import Decoder
from linnet.model.spec import ModelSpec

transformers = pytest.importorskip("transformers")


def _llama(heads: int, kv_heads: int) -> tuple[torch.nn.Module, Decoder]:
    config = transformers.LlamaConfig(
        vocab_size=37, hidden_size=32, intermediate_size=44, num_hidden_layers=2, num_attention_heads=heads,
        num_key_value_heads=kv_heads, rms_norm_eps=1e-6, max_position_embeddings=64, tie_word_embeddings=False,
    )  # fmt: skip
    theirs = transformers.LlamaForCausalLM(config).double()
    block = {
        "repeat": 2,
        "mixer": {"kind": "attention", "heads": heads, "kv_heads": kv_heads},
        "feed_forward": {"kind": "glu", "hidden": 44},
    }
    head = {"tied": False, "norm": {"kind": "rms", "eps": 1e-6}}
    ours = Decoder(ModelSpec(vocab_size=37, d_model=32, context_length=64, blocks=[block], head=head)).double()
    ours.load_state_dict(LLAMA.from_published(theirs.state_dict(), ours.spec))
    return theirs, ours


@torch.no_grad()
@pytest.mark.parametrize(("heads", "kv_heads"), [(4, 4), (4, 2), (4, 1)])
def test_llama(heads: int, kv_heads: int):
    torch.manual_seed(0)
    theirs, ours = _llama(heads, kv_heads)
    tokens = torch.randint(37, (2, 33))
    torch.testing.assert_close(ours(tokens), theirs(tokens).logits, rtol=1e-5, atol=1e-5)


@torch.no_grad()
@pytest.mark.parametrize("kv_heads", [4, 2])
def test_qwen3(kv_heads: int):
    """Queries and keys normalized over the head's width, before they are turned."""
    torch.manual_seed(0)
    config = transformers.Qwen3Config(
        vocab_size=37, hidden_size=32, intermediate_size=44, num_hidden_layers=2, num_attention_heads=4, head_dim=12,
        num_key_value_heads=kv_heads, rms_norm_eps=1e-6, max_position_embeddings=64, tie_word_embeddings=False,
    )  # fmt: skip
    theirs = transformers.Qwen3ForCausalLM(config).double()
    for name, parameter in theirs.named_parameters():
        if "norm" in name:
            parameter.add_(0.3 * torch.randn_like(parameter))
    mixer = {"kind": "attention", "heads": 4, "kv_heads": kv_heads, "head_dim": 12, "query_key_norm": {"kind": "rms"}}
    block = {"repeat": 2, "mixer": mixer, "feed_forward": {"kind": "glu", "hidden": 44}}
    head = {"tied": False, "norm": {"kind": "rms", "eps": 1e-6}}
    base = theirs.config.rope_parameters["rope_theta"]
    block["mixer"]["rotary"] = {"base": base}
    ours = Decoder(ModelSpec(vocab_size=37, d_model=32, context_length=64, blocks=[block], head=head)).double()
    ours.load_state_dict(LLAMA.from_published(theirs.state_dict(), ours.spec))
    tokens = torch.randint(37, (2, 33))
    torch.testing.assert_close(ours(tokens), theirs(tokens).logits, rtol=1e-5, atol=1e-5)


def test_a_part_that_published_models_have_not_is_refused():
    spec = ModelSpec.load("gpt2-124m").model_dump()
    spec["blocks"][0]["mixer"]["query_key_norm"] = {"kind": "layer"}
    with pytest.raises(
        UserError, match=r"^gpt2-124m: blocks\.0\.layers\.0\.mixer\.query_key_norm\.query\.weight: published"
    ):
        GPT2.from_published({}, ModelSpec.parse(spec, "gpt2"))


@torch.no_grad()
def test_gpt2():
    torch.manual_seed(0)
    config = transformers.GPT2Config(
        vocab_size=37, n_positions=48, n_embd=32, n_layer=2, n_head=4, resid_pdrop=0, embd_pdrop=0, attn_pdrop=0
    )
    theirs = transformers.GPT2LMHeadModel(config).double().eval()
    spec = ModelSpec.load("gpt2-124m").model_dump()
    spec |= {"vocab_size": 37, "d_model": 32, "context_length": 48}
    spec["blocks"][0] |= {"repeat": 2, "mixer": {**spec["blocks"][0]["mixer"], "heads": 4}}
    spec["blocks"][0]["feed_forward"]["hidden"] = 128
    ours = Decoder(ModelSpec.parse(spec, "gpt2")).double()
    ours.load_state_dict(GPT2.from_published(theirs.state_dict(), ours.spec))
    tokens = torch.randint(37, (2, 40))
    torch.testing.assert_close(ours(tokens), theirs(tokens).logits, rtol=1e-5, atol=1e-5)
