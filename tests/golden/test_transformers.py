"""The same weights in Transformers' models and in ours give the same logits."""

import pytest
import torch
from torch import Tensor

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
    ours.load_state_dict(_from_llama(theirs.state_dict(), 2))
    return theirs, ours


def _from_llama(named: dict[str, Tensor], layers: int) -> dict[str, Tensor]:
    ours = {
        "embedding.tokens.weight": named["model.embed_tokens.weight"],
        "norm.weight": named["model.norm.weight"],
        "head.weight": named["lm_head.weight"],
    }
    for i in range(layers):
        theirs, layer = f"model.layers.{i}.", f"blocks.0.layers.{i}."
        qkv = [named[f"{theirs}self_attn.{part}_proj.weight"] for part in "qkv"]
        up = [named[f"{theirs}mlp.{part}_proj.weight"] for part in ("gate", "up")]
        ours |= {
            f"{layer}mixer.query_key_value.weight": torch.cat(qkv),
            f"{layer}mixer.out.weight": named[f"{theirs}self_attn.o_proj.weight"],
            f"{layer}mixer_norm.weight": named[f"{theirs}input_layernorm.weight"],
            f"{layer}feed_forward_norm.weight": named[f"{theirs}post_attention_layernorm.weight"],
            f"{layer}feed_forward.up.weight": torch.cat(up),
            f"{layer}feed_forward.down.weight": named[f"{theirs}mlp.down_proj.weight"],
        }
    return ours


def _from_gpt2(named: dict[str, Tensor], layers: int) -> dict[str, Tensor]:
    named = {name.removeprefix("transformer."): tensor for name, tensor in named.items()}
    ours = {
        "embedding.tokens.weight": named["wte.weight"],
        "embedding.positions.weight": named["wpe.weight"],
        "norm.weight": named["ln_f.weight"],
        "norm.bias": named["ln_f.bias"],
    }
    names = {
        "mixer_norm": "ln_1", "feed_forward_norm": "ln_2", "mixer.query_key_value": "attn.c_attn",
        "mixer.out": "attn.c_proj", "feed_forward.up": "mlp.c_fc", "feed_forward.down": "mlp.c_proj",
    }  # fmt: skip
    for i in range(layers):
        for mine, published in names.items():
            for end in ("weight", "bias"):
                tensor = named[f"h.{i}.{published}.{end}"]
                ours[f"blocks.0.layers.{i}.{mine}.{end}"] = tensor.T if tensor.ndim == 2 else tensor
    return ours


@torch.no_grad()
@pytest.mark.parametrize(("heads", "kv_heads"), [(4, 4), (4, 2), (4, 1)])
def test_llama(heads: int, kv_heads: int):
    torch.manual_seed(0)
    theirs, ours = _llama(heads, kv_heads)
    tokens = torch.randint(37, (2, 33))
    torch.testing.assert_close(ours(tokens), theirs(tokens).logits, rtol=1e-5, atol=1e-5)


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
    ours.load_state_dict(_from_gpt2(theirs.state_dict(), 2))
    tokens = torch.randint(37, (2, 40))
    torch.testing.assert_close(ours(tokens), theirs(tokens).logits, rtol=1e-5, atol=1e-5)
