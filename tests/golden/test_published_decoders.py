"""Presets of published decoders: as many parameters as Transformers' models of the same configuration, and, made small,
the same logits from the same weights."""

from collections.abc import Callable

import pytest
import torch

from linnet.interop.families.gpt import GptNeoX
from linnet.interop.tensor_names import GPT2, GPT_NEO, GPT_NEOX, OPT
from linnet.model.cost import model_cost
from linnet.model.decoder import Decoder
from linnet.model.spec import ModelSpec

transformers = pytest.importorskip("transformers")

GPT2_CONTEXT, CONTEXT = 1024, 2048


def opt(**changes: object) -> object:
    return transformers.OPTConfig(dropout=0.0, **changes)


def gpt_neox(width: int, layers: int, heads: int, **changes: object) -> object:
    rope = {"rope_type": "default", "rope_theta": 10000.0, "partial_rotary_factor": 0.25}
    return transformers.GPTNeoXConfig(
        vocab_size=changes.pop("vocab_size", 50304), hidden_size=width, intermediate_size=4 * width,
        num_hidden_layers=layers, num_attention_heads=heads, rope_parameters=rope, use_parallel_residual=True,
        hidden_dropout=0.0, attention_dropout=0.0, **changes,
    )  # fmt: skip


def gpt_neo(**changes: object) -> object:
    sizes = {"hidden_size": 768, "num_layers": 12, "num_heads": 12, "attention_types": [[["global", "local"], 6]]}
    return transformers.GPTNeoConfig(**{**sizes, "window_size": 256, **changes})


def gpt2(**changes: object) -> object:
    return transformers.GPT2Config(resid_pdrop=0, embd_pdrop=0, attn_pdrop=0, **changes)


OPT_350M = {
    "hidden_size": 1024, "num_hidden_layers": 24, "ffn_dim": 4096, "num_attention_heads": 16,
    "word_embed_proj_dim": 512, "do_layer_norm_before": False,
}  # fmt: skip

PUBLISHED: dict[str, tuple[Callable[[], object], int]] = {
    "opt-125m": (opt, OPT.padding_positions * 768),
    "opt-350m": (lambda: opt(**OPT_350M), OPT.padding_positions * 1024),
    "pythia-70m": (lambda: gpt_neox(512, 6, 8), 0),
    "pythia-160m": (lambda: gpt_neox(768, 12, 12), 0),
    "cerebras-gpt-111m": (lambda: gpt2(n_layer=10, n_positions=CONTEXT, n_inner=3072, activation_function="gelu"), 0),
    "gpt-neo-125m": (gpt_neo, 0),
    "gpt2-124m": (gpt2, 0),
}
"""Each model's configuration, and how many of its parameters no text can reach (OPT's positions of padding)."""


@pytest.mark.parametrize("name", PUBLISHED)
def test_a_preset_has_the_parameters_of_transformers_model(name: str):
    make_config, unreachable = PUBLISHED[name]
    with torch.device("meta"):
        theirs = transformers.AutoModelForCausalLM.from_config(make_config())
    counted = sum(parameter.numel() for parameter in theirs.parameters())
    assert model_cost(ModelSpec.load(name)).parameters == counted - unreachable


@pytest.mark.parametrize("name", PUBLISHED)
def test_a_preset_reads_as_many_tokens(name: str):
    expected = GPT2_CONTEXT if name == "gpt2-124m" else CONTEXT
    config = PUBLISHED[name][0]()
    assert config.max_position_embeddings == expected == ModelSpec.load(name).context_length


def small(name: str, width: int, hidden: int, heads: int, repeat: int, blocks: int, **changes: object) -> ModelSpec:
    """The preset, but narrow: everything else is its own."""
    plain = {**ModelSpec.load(name).model_dump(), "vocab_size": 37, "d_model": width, "context_length": 48, **changes}
    plain["blocks"] = plain["blocks"][:blocks]
    for block in plain["blocks"]:
        block["repeat"], block["mixer"]["heads"], block["feed_forward"]["hidden"] = repeat, heads, hidden
        if block["mixer"]["window"] is not None:
            block["mixer"]["window"] = 5
    return ModelSpec.parse(plain, name)


def randomized(config: object) -> torch.nn.Module:
    """Transformers' model with every weight and bias away from its starting value."""
    torch.manual_seed(0)
    model = transformers.AutoModelForCausalLM.from_config(config).double().eval()
    with torch.no_grad():
        for parameter in model.parameters():
            parameter.add_(0.1 * torch.randn_like(parameter))
    return model


@torch.no_grad()
def assert_same_logits(theirs: torch.nn.Module, spec: ModelSpec, tensors: dict[str, torch.Tensor]) -> None:
    ours = Decoder(spec).double()
    ours.load_state_dict(tensors)
    tokens = torch.randint(37, (2, 40))
    expected = theirs(tokens).logits
    torch.testing.assert_close(ours(tokens), expected, rtol=1e-5, atol=1e-5)
    state = ours.initial_state(2, 40)
    steps = [ours(tokens[:, i : i + 1], state) for i in range(40)]
    torch.testing.assert_close(torch.cat(steps, dim=1), expected, rtol=1e-5, atol=1e-5)


SMALL = {
    "vocab_size": 37, "max_position_embeddings": 48, "hidden_size": 32, "num_hidden_layers": 2, "ffn_dim": 44,
    "num_attention_heads": 4,
}  # fmt: skip


def test_opt_125m():
    theirs = randomized(opt(**SMALL, word_embed_proj_dim=32))
    spec = small("opt-125m", 32, 44, 4, repeat=2, blocks=1)
    assert_same_logits(theirs, spec, OPT.from_published(theirs.state_dict(), spec))


def test_opt_350m_with_narrow_token_vectors_and_norms_behind():
    theirs = randomized(opt(**SMALL, word_embed_proj_dim=24, do_layer_norm_before=False))
    spec = small("opt-350m", 32, 44, 4, repeat=2, blocks=1, embedding={"width": 24, "positions": "learned"})
    assert_same_logits(theirs, spec, OPT.from_published(theirs.state_dict(), spec))


def test_pythia_with_parallel_branches_and_a_quarter_of_each_head_turned():
    theirs = randomized(gpt_neox(32, 2, 4, vocab_size=37, max_position_embeddings=48))
    spec = small("pythia-70m", 32, 128, 4, repeat=2, blocks=1)
    named = {GptNeoX.tensor_name(name): tensor for name, tensor in theirs.state_dict().items()}
    assert_same_logits(theirs, spec, GPT_NEOX.from_published(named, spec))


def test_gpt_neo_with_windows_in_every_second_layer():
    sizes = {"vocab_size": 37, "max_position_embeddings": 48, "hidden_size": 32, "num_layers": 4, "num_heads": 4}
    theirs = randomized(gpt_neo(**sizes, attention_types=[[["global", "local"], 2]], window_size=5))
    spec = small("gpt-neo-125m", 32, 128, 4, repeat=1, blocks=4)
    tensors = GPT_NEO.from_published(theirs.state_dict(), spec)
    # Transformers computes these scores in float32 whatever the model's precision.
    assert_same_logits(theirs, spec, tensors)


def test_cerebras_gpt():
    sizes = {"vocab_size": 37, "n_positions": 48, "n_embd": 32, "n_layer": 2, "n_head": 4, "n_inner": 128}
    theirs = randomized(gpt2(**sizes, activation_function="gelu"))
    spec = small("cerebras-gpt-111m", 32, 128, 4, repeat=2, blocks=1)
    assert_same_logits(theirs, spec, GPT2.from_published(theirs.state_dict(), spec))
