"""Drawn `config.json` files and weights mean the same to Transformers' `AutoModelForCausalLM` and to the importer.

A field is absent, null or given, in the names of any version of Transformers; sizes are always given, as their defaults
are large.
"""

import json
from pathlib import Path
from typing import Any

import pytest
import torch
from hypothesis import Phase, assume, given, settings
from hypothesis import strategies as st
from safetensors.torch import load_file, save_file

from linnet.core.errors import UserError
from linnet.interop import families
from linnet.interop.families.family import Family
from linnet.interop.families.gpt import Bloom
from linnet.interop.families.llama_variants import Exaone4, Granite
from linnet.interop.transformers_folder import WEIGHTS, read_family, read_weights
from linnet.model.cost import model_cost
from linnet.model.decoder import Decoder, decoder_with_weights

transformers = pytest.importorskip("transformers")

ABSENT = object()
TOKENS, CONTEXT = 40, 96
LLAMA_SIZES = {"vocab_size": 31, "hidden_size": 16, "intermediate_size": 20, "num_attention_heads": 4}
LLAMA_SIZES |= {"max_position_embeddings": CONTEXT}
GPT2_SIZES = {"vocab_size": 31, "n_embd": 16, "n_head": 4, "n_positions": CONTEXT}

ACTS = st.sampled_from([ABSENT, "silu", "swish", "gelu", "gelu_new", "gelu_pytorch_tanh", "relu", "relu2"])
BOOLS = st.sampled_from([ABSENT, True, False])
EPS = st.sampled_from([ABSENT, 1e-5, 1e-2])
KV_HEADS = st.sampled_from([None, 1, 2, 4])
WINDOWS = st.sampled_from([None, 3, 7, 64])
TRAINED = {"original_max_position_embeddings": 24}
YARN = {"rope_type": "yarn", "factor": 4.0}
ROPES = st.sampled_from(
    [
        {"rope_type": "default"},
        {"rope_type": "linear", "factor": 2.5},
        {"rope_type": "dynamic", "factor": 2.0},
        YARN,
        {**YARN, **TRAINED, "beta_fast": 3.0, "beta_slow": 0.2, "truncate": False},
        {**YARN, **TRAINED, "mscale": 0.7, "mscale_all_dim": 1.5},
        {**YARN, **TRAINED, "mscale": 0.7},
        {**YARN, **TRAINED, "mscale": 0.7, "mscale_all_dim": 1.5, "attention_factor": 1.1},
        {"rope_type": "llama3", "factor": 4.0, "low_freq_factor": 0.5, "high_freq_factor": 3.0, **TRAINED},
        {"rope_type": "llama3", "factor": 8.0, "low_freq_factor": 1.0, "high_freq_factor": 4.0},
    ]
)


@st.composite
def ropes(draw: st.DrawFn, partial: bool = False) -> dict[str, Any]:
    """Rotary positions as version 5 writes them, or 4."""
    theta, rope = draw(st.sampled_from([ABSENT, 50.0, 5000])), draw(ROPES)
    rope = dict(rope) if not partial else {**rope, "partial_rotary_factor": draw(st.sampled_from([0.5, 1.0]))}
    if draw(st.booleans()):
        return {"rope_parameters": {**rope, **({} if theta is ABSENT else {"rope_theta": theta})}}
    if draw(st.booleans()):
        rope["type"] = rope.pop("rope_type")
    plain = rope.get("type", rope.get("rope_type")) == "default" and draw(st.booleans())
    return {"rope_theta": theta} if plain else {"rope_theta": theta, "rope_scaling": rope}


@st.composite
def phi_ropes(draw: st.DrawFn, kinds: list[str]) -> dict[str, Any]:
    """Rotary positions of a part of each head, named beside them or, in version 5, among them."""
    rope = draw(ROPES.filter(lambda rope: rope["rope_type"] in kinds))
    fraction = draw(st.sampled_from([ABSENT, 0.5, 1.0]))
    if fraction is not ABSENT and draw(st.booleans()):
        rope, fraction = {**rope, "partial_rotary_factor": fraction}, ABSENT
    return {"rope_parameters": rope, "partial_rotary_factor": fraction}


@st.composite
def qwen_windows(draw: st.DrawFn) -> dict[str, Any]:
    layers = draw(st.integers(1, 3))
    types = st.lists(st.sampled_from(["full_attention", "sliding_attention"]), min_size=layers, max_size=layers)
    fields = {"num_hidden_layers": layers, "sliding_window": draw(WINDOWS), "use_sliding_window": draw(BOOLS)}
    fields["max_window_layers"] = draw(st.sampled_from([ABSENT, 0, 1, 2]))
    if fields["use_sliding_window"] is True and fields["sliding_window"]:
        fields["layer_types"] = draw(st.one_of(st.just(ABSENT), st.none(), types))
    return fields


HEAD_DIM = {"head_dim": st.sampled_from([None, 6])}
GROUPED = {"num_key_value_heads": st.sampled_from([1, 2, 4])}


@st.composite
def gemma_layers(draw: st.DrawFn) -> dict[str, Any]:
    layers = draw(st.integers(1, 3))
    types = st.lists(st.sampled_from(["full_attention", "sliding_attention"]), min_size=layers, max_size=layers)
    return {"num_hidden_layers": layers, "layer_types": draw(st.one_of(st.just(ABSENT), st.none(), types))}


@st.composite
def gemma_ropes(draw: st.DrawFn) -> dict[str, Any]:
    """Rotary positions of two kinds of layers, as version 5 writes them, or 4."""
    theta = st.sampled_from([ABSENT, 50.0, 5000.0])
    if draw(st.booleans()):
        older = {"rope_theta": draw(theta), "rope_local_base_freq": draw(theta)}
        return {**older, "rope_scaling": draw(st.sampled_from([None, {"rope_type": "linear", "factor": 2.5}]))}
    named = {"full_attention": draw(ROPES), "sliding_attention": {"rope_type": "default", "rope_theta": draw(theta)}}
    given = {kind: {name: x for name, x in rope.items() if x is not ABSENT} for kind, rope in named.items()}
    return {"rope_parameters": given}


LAYER_KINDS = st.sampled_from(["full_attention", "sliding_attention"])


@st.composite
def smollm_layers(draw: st.DrawFn) -> dict[str, Any]:
    """Layers without rotary positions, listed or at an interval, and windows in them or in listed layers."""
    layers = draw(st.integers(1, 3))
    fields = {"num_hidden_layers": layers, "no_rope_layer_interval": draw(st.sampled_from([ABSENT, 1, 2]))}
    rotated = st.lists(st.integers(0, 1), min_size=layers, max_size=layers + 1)
    fields["no_rope_layers"] = draw(st.one_of(st.just(ABSENT), st.none(), rotated))
    fields |= {"use_sliding_window": draw(BOOLS), "sliding_window": draw(WINDOWS)}
    if fields["use_sliding_window"] is True and fields["sliding_window"]:
        fields["layer_types"] = draw(st.just(ABSENT) | st.lists(LAYER_KINDS, min_size=layers, max_size=layers))
    return fields


@st.composite
def exaone_layers(draw: st.DrawFn) -> dict[str, Any]:
    """Without a window Transformers needs the list of layers."""
    layers, window = draw(st.integers(1, 3)), draw(WINDOWS)
    if window is None:
        return {"num_hidden_layers": layers, "sliding_window": None, "layer_types": ["full_attention"] * layers}
    kinds = draw(st.just(ABSENT) | st.lists(LAYER_KINDS, min_size=layers, max_size=layers))
    pattern = draw(st.sampled_from([ABSENT, 1, 2]))
    return {"num_hidden_layers": layers, "sliding_window": window, "sliding_window_pattern": pattern} | {
        "layer_types": kinds
    }


@st.composite
def hybrid_layers(draw: st.DrawFn) -> dict[str, Any]:
    """Attention and Mamba-2 under the names of any version of Transformers, which needs one layer of attention."""
    names = draw(st.sampled_from([["attention", "mamba"], ["full_attention", "linear_attention"]]))
    kinds = [*draw(st.lists(st.sampled_from(names), max_size=2)), names[0]]
    kinds = draw(st.permutations(kinds))
    return {"num_hidden_layers": len(kinds), draw(st.sampled_from(["layer_types", "layers_block_type"])): kinds}


MULTIPLIERS = {
    "embedding_multiplier": st.sampled_from([ABSENT, 1.0, 12.0]),
    "logits_scaling": st.sampled_from([ABSENT, 6]),
}
MULTIPLIERS |= {"residual_multiplier": st.sampled_from([ABSENT, 1.0, 0.22])}
MULTIPLIERS |= {"attention_multiplier": st.sampled_from([ABSENT, 0.4])}
GRANITE_MAMBA = {"mamba_n_heads": 4, "mamba_d_state": 6, "mamba_expand": 2, "mamba_d_head": 8, "mamba_chunk_size": 16}
LAYERS = {"num_hidden_layers": st.integers(1, 2)}
LLAMA = {"hidden_act": ACTS, "rms_norm_eps": EPS, "num_key_value_heads": KV_HEADS, "tie_word_embeddings": BOOLS}
LLAMA2 = {"hidden_activation": ACTS, **{name: field for name, field in LLAMA.items() if name != "hidden_act"}}
GEMMA = {"head_dim": st.sampled_from([4, 6]), "attention_bias": BOOLS, "pad_token_id": st.just(0)}
GEMMA2 = {"query_pre_attn_scalar": st.sampled_from([ABSENT, 5, 9]), "sliding_window": st.sampled_from([3, 7])}
CAPS = st.sampled_from([ABSENT, None, 2.0])
GEMMA2["final_logit_softcapping"] = CAPS
GPT = {"layer_norm_epsilon": EPS, "activation_function": ACTS, "tie_word_embeddings": BOOLS}
MAMBA = {"conv_kernel": st.sampled_from([ABSENT, 2]), "use_bias": BOOLS, "use_conv_bias": BOOLS}
MAMBA |= {"layer_norm_epsilon": EPS, "tie_word_embeddings": BOOLS}
NEOX = {"layer_norm_eps": EPS, "hidden_act": ACTS, "tie_word_embeddings": BOOLS, "attention_bias": BOOLS}
DELTA_SIZES = {**LLAMA_SIZES, "head_dim": 8, "linear_key_head_dim": 4, "num_hidden_layers": 4}
DELTA_SIZES |= {"linear_num_key_heads": 2, "linear_num_value_heads": 4}
DELTA = {"num_key_value_heads": st.sampled_from([1, 2, 4]), "attention_bias": BOOLS, "tie_word_embeddings": BOOLS}
DELTA |= {"full_attention_interval": st.sampled_from([ABSENT, 2]), "linear_value_head_dim": st.sampled_from([4, 6])}
DELTA |= {"linear_conv_kernel_dim": st.sampled_from([ABSENT, 2])}
DELTA |= {"rms_norm_eps": st.sampled_from([1e-2, 1e-1])}  # large: norms of heads this narrow amplify rounding
FAMILIES: dict[str, tuple[dict[str, Any], dict[str, st.SearchStrategy], list[st.SearchStrategy]]] = {
    "llama": (
        LLAMA_SIZES,
        {**LLAMA, **LAYERS, "head_dim": st.sampled_from([ABSENT, None, 6]), "attention_bias": BOOLS, "mlp_bias": BOOLS},
        [ropes()],
    ),
    "mistral": (
        LLAMA_SIZES,
        {
            **LLAMA,
            **LAYERS,
            **GROUPED,
            "head_dim": st.sampled_from([None, 6]),
            "sliding_window": WINDOWS | st.just(ABSENT),
        },
        [ropes()],
    ),
    "qwen2": (LLAMA_SIZES, LLAMA, [ropes(), qwen_windows()]),
    "qwen3": (LLAMA_SIZES, {**LLAMA, "head_dim": st.just(6), "attention_bias": BOOLS}, [ropes(), qwen_windows()]),
    "gpt2": (
        GPT2_SIZES,
        {**GPT, "n_layer": st.integers(1, 2), "n_inner": st.sampled_from([ABSENT, None, 12])},
        [],
    ),
    "gpt_neox": (
        {**LLAMA_SIZES, "num_attention_heads": 2},
        {**NEOX, **LAYERS, "use_parallel_residual": BOOLS},
        [ropes(partial=True)],
    ),
    "mixtral": (
        LLAMA_SIZES,
        {**LLAMA, **LAYERS, **GROUPED, "head_dim": st.sampled_from([4, 6]), "sliding_window": WINDOWS}
        | {"num_local_experts": st.integers(2, 4), "num_experts_per_tok": st.sampled_from([ABSENT, 1, 2])},
        [ropes()],
    ),
    "phi3": (
        {**LLAMA_SIZES, "num_attention_heads": 2, "pad_token_id": 0},
        {**LLAMA, **LAYERS, "num_key_value_heads": st.sampled_from([None, 1, 2]), "sliding_window": WINDOWS},
        [phi_ropes(["default"])],
    ),
    "phi": (
        {**LLAMA_SIZES, "num_attention_heads": 2},
        {
            **LAYERS,
            "layer_norm_eps": EPS,
            "hidden_act": ACTS,
            "num_key_value_heads": st.sampled_from([ABSENT, None, 2]),
        },
        [phi_ropes(["default", "linear", "llama3", "yarn"])],
    ),
    "stablelm": (
        {**LLAMA_SIZES, "hidden_size": 32, "num_attention_heads": 2},
        {**LAYERS, "layer_norm_eps": EPS, "hidden_act": ACTS, "num_key_value_heads": st.sampled_from([1, 2])}
        | {"use_qkv_bias": BOOLS, "tie_word_embeddings": BOOLS},
        [phi_ropes(["default", "linear", "llama3", "yarn"])],
    ),
    "olmo2": (LLAMA_SIZES, {**LLAMA, **LAYERS, "attention_bias": BOOLS}, [ropes()]),
    "gemma": (LLAMA_SIZES, {**LLAMA, **LAYERS, **GROUPED, **GEMMA}, [ropes()]),
    "gemma2": (
        LLAMA_SIZES,
        {**LLAMA2, **GROUPED, **GEMMA, **GEMMA2, "attn_logit_softcapping": CAPS},
        [ropes(), gemma_layers()],
    ),
    "gemma3_text": (
        LLAMA_SIZES,
        {**LLAMA2, **GROUPED, **GEMMA, **GEMMA2, "sliding_window_pattern": st.sampled_from([ABSENT, 1, 2])},
        [gemma_ropes(), gemma_layers()],
    ),
    "gpt_neo": (
        {"vocab_size": 31, "hidden_size": 16, "num_heads": 4, "max_position_embeddings": CONTEXT},
        {**GPT, "intermediate_size": st.sampled_from([ABSENT, None, 12]), "window_size": st.sampled_from([3, 7])},
        [
            st.sampled_from(
                [
                    {"num_layers": 2, "attention_types": [[["global", "local"], 1]]},
                    {"num_layers": 3, "attention_types": [[["local"], 2], [["global"], 1]]},
                ]
            )
        ],
    ),
    "opt": (
        {
            "vocab_size": 31,
            "hidden_size": 16,
            "num_attention_heads": 4,
            "max_position_embeddings": CONTEXT,
            "ffn_dim": 20,
        },
        {**LAYERS, "word_embed_proj_dim": st.sampled_from([ABSENT, 16, 8]), "do_layer_norm_before": BOOLS}
        | {"activation_function": ACTS, "pad_token_id": st.just(1)},
        [],
    ),
    "bloom": (
        {"vocab_size": 31, "n_head": 4},
        {"n_layer": st.integers(1, 2), "layer_norm_epsilon": EPS, "tie_word_embeddings": BOOLS}
        | {"hidden_size": st.sampled_from([16, 24]), "n_embed": st.sampled_from([ABSENT, 16])},
        [],
    ),
    "mamba": (
        {"vocab_size": 31, "hidden_size": 16, "state_size": 5},
        {**MAMBA, **LAYERS, "time_step_rank": st.sampled_from([ABSENT, "auto", 3]), "expand": st.sampled_from([1, 2])},
        [],
    ),
    "mamba2": (
        {"vocab_size": 31, "hidden_size": 16, "state_size": 5, "num_heads": 4, "head_dim": 8},
        {**MAMBA, **LAYERS, "n_groups": st.sampled_from([1, 2, 4])},
        [],
    ),
    "granite": (
        LLAMA_SIZES,
        {**LLAMA, **LAYERS, **MULTIPLIERS, "attention_bias": BOOLS, "mlp_bias": BOOLS},
        [ropes()],
    ),
    "qwen3_5_text": (DELTA_SIZES, DELTA, [ropes(partial=True)]),
    "qwen3_next": (
        {**DELTA_SIZES, "moe_intermediate_size": 12, "shared_expert_intermediate_size": 10},
        {**DELTA, "num_experts": st.sampled_from([0, 3, 4]), "num_experts_per_tok": st.sampled_from([1, 2])}
        | {"norm_topk_prob": BOOLS, "decoder_sparse_step": st.sampled_from([ABSENT, 2])}
        | {"mlp_only_layers": st.sampled_from([ABSENT, None, [1]])},
        [ropes(partial=True)],
    ),
    "granitemoe": (
        LLAMA_SIZES,
        {**LLAMA, **LAYERS, **MULTIPLIERS, "attention_bias": BOOLS}
        | {"num_local_experts": st.integers(2, 4), "num_experts_per_tok": st.sampled_from([ABSENT, 1, 2])},
        [ropes()],
    ),
    "granitemoehybrid": (
        {**LLAMA_SIZES, "shared_intermediate_size": 20, "num_local_experts": 0, **GRANITE_MAMBA},
        {**MULTIPLIERS, "attention_bias": BOOLS, "mamba_conv_bias": BOOLS, "mamba_proj_bias": BOOLS}
        | {"position_embedding_type": st.sampled_from([ABSENT, None, "rope", "nope"]), "rms_norm_eps": EPS}
        | {
            "num_key_value_heads": KV_HEADS,
            "mamba_n_groups": st.sampled_from([ABSENT, 2]),
            "tie_word_embeddings": BOOLS,
        },
        [hybrid_layers(), ropes()],
    ),
    "smollm3": (
        {**LLAMA_SIZES, "pad_token_id": 0},
        {**LLAMA, "attention_bias": BOOLS, "mlp_bias": BOOLS},
        [smollm_layers(), ropes()],
    ),
    "exaone4": (LLAMA_SIZES, {**LLAMA, **GROUPED}, [exaone_layers(), ropes()]),
    "helium": (
        {**LLAMA_SIZES, "pad_token_id": 0},
        {**LLAMA, **LAYERS, **GROUPED, "head_dim": st.just(4), "attention_bias": BOOLS, "mlp_bias": BOOLS},
        [ropes()],
    ),
    "ernie4_5": (
        {**LLAMA_SIZES, "pad_token_id": 0},
        {**LLAMA, **LAYERS, "head_dim": st.sampled_from([None, 6]), "use_bias": BOOLS},
        [ropes()],
    ),
    "olmo": (
        {**LLAMA_SIZES, "pad_token_id": 0},
        {**LAYERS, "num_key_value_heads": KV_HEADS, "hidden_act": ACTS, "attention_bias": BOOLS}
        | {"tie_word_embeddings": BOOLS, "clip_qkv": st.sampled_from([ABSENT, None])},
        [ropes()],
    ),
    "olmoe": (
        {**LLAMA_SIZES, "pad_token_id": 0},
        {**LLAMA, **LAYERS, "attention_bias": BOOLS, "norm_topk_prob": BOOLS}
        | {"num_experts": st.integers(2, 4), "num_experts_per_tok": st.sampled_from([1, 2])},
        [ropes()],
    ),
    "cohere": (
        {**LLAMA_SIZES, "pad_token_id": 0},
        {**LAYERS, "num_key_value_heads": KV_HEADS, "hidden_act": ACTS, "attention_bias": BOOLS, "layer_norm_eps": EPS}
        | {"logit_scale": st.sampled_from([ABSENT, 0.3, 1.0]), "tie_word_embeddings": BOOLS},
        [ropes()],
    ),
    "starcoder2": (
        LLAMA_SIZES,
        {**LAYERS, **GROUPED, "hidden_act": ACTS, "norm_epsilon": EPS, "use_bias": BOOLS, "tie_word_embeddings": BOOLS}
        | {"sliding_window": WINDOWS | st.just(ABSENT)},
        [ropes()],
    ),
    "gpt_bigcode": (
        GPT2_SIZES,
        {**GPT, "n_layer": st.integers(1, 2), "n_inner": st.sampled_from([ABSENT, None, 12]), "multi_query": BOOLS},
        [],
    ),
    "gptj": (
        {**GPT2_SIZES, "n_embd": 32, "tie_word_embeddings": False},
        {"layer_norm_epsilon": EPS, "activation_function": ACTS, "n_layer": st.integers(1, 2)}
        | {"n_inner": st.sampled_from([ABSENT, None, 12]), "rotary_dim": st.sampled_from([2, 4, 8])},
        [],
    ),
    "codegen": (
        {**GPT2_SIZES, "n_embd": 64, "n_head": 8, "tie_word_embeddings": False},
        {"layer_norm_epsilon": EPS, "activation_function": ACTS, "n_layer": st.integers(1, 2)}
        | {"n_inner": st.sampled_from([ABSENT, None, 12]), "rotary_dim": st.sampled_from([2, 4, 8])},
        [],
    ),
    "falcon": (
        {"vocab_size": 31, "hidden_size": 16, "num_attention_heads": 4, "max_position_embeddings": CONTEXT},
        {**LAYERS, "layer_norm_epsilon": EPS, "activation": ACTS, "bias": BOOLS, "multi_query": BOOLS}
        | {"tie_word_embeddings": BOOLS, "ffn_hidden_size": st.sampled_from([ABSENT, None, 12])},
        [ropes()],
    ),
    "rwkv": (
        {"vocab_size": 31, "hidden_size": 16, "num_hidden_layers": 2},
        {"attention_hidden_size": st.sampled_from([ABSENT, None, 16]), "tie_word_embeddings": BOOLS}
        | {"intermediate_size": st.sampled_from([ABSENT, None, 12]), "layer_norm_epsilon": EPS}
        | {"context_length": st.sampled_from([ABSENT, 64]), "rescale_every": st.sampled_from([ABSENT, 0])},
        [],
    ),
}
"""For each family its sizes, the strategies of its other fields, and strategies of fields that belong together."""


def drawn_config(kind: str, data: st.DataObject) -> dict[str, Any]:
    sizes, fields, groups = FAMILIES[kind]
    config = {"model_type": kind, **sizes, **{name: data.draw(field, name) for name, field in fields.items()}}
    for group in groups:
        config |= data.draw(group)
    return {name: value for name, value in config.items() if value is not ABSENT}


def write(folder: Path, config: dict[str, Any], other_head: bool) -> Any:
    """Write the drawn file and random weights, and return Transformers' model of the folder."""
    path = folder / "config.json"
    path.write_text(json.dumps(config))
    torch.manual_seed(0)
    model = transformers.AutoModelForCausalLM.from_config(transformers.AutoConfig.from_pretrained(folder))
    with torch.no_grad():
        for parameter in model.parameters():
            parameter.add_(0.3 * torch.randn_like(parameter))
    model.save_pretrained(folder)
    named = load_file(folder / WEIGHTS)
    head = next(name for name, module in model.named_modules() if module is model.get_output_embeddings())
    if other_head and model.config.tie_word_embeddings:
        named[f"{head}.weight"] = torch.randn_like(model.get_input_embeddings().weight)
        save_file(named, folder / WEIGHTS, {"format": "pt"})
    path.write_text(json.dumps(config))
    return transformers.AutoModelForCausalLM.from_pretrained(folder, dtype=torch.float32).eval()


@pytest.mark.parametrize("examples", [4, pytest.param(40, marks=pytest.mark.slow)])
@pytest.mark.parametrize("kind", FAMILIES)
@torch.no_grad()
def test_logits_are_those_of_transformers(kind: str, examples: int, tmp_path_factory: pytest.TempPathFactory):
    @settings(max_examples=examples, deadline=None, database=None, phases=[Phase.generate])
    @given(data=st.data(), other_head=st.booleans())
    def compare(data: st.DataObject, other_head: bool) -> None:
        folder = tmp_path_factory.mktemp("drawn")
        config = drawn_config(kind, data)
        assume(not other_head or config.get("word_embed_proj_dim") != 8)  # such a head is not supported
        theirs = write(folder, config, other_head)
        family = read_family(folder)
        spec, tensors, _ = read_weights(folder, family, family.model("drawn", "config.json"))
        ours: Decoder = decoder_with_weights(spec, tensors).eval()
        tokens = torch.randint(31, (2, TOKENS), generator=torch.Generator().manual_seed(1))
        torch.testing.assert_close(ours(tokens), theirs(tokens).logits, rtol=1e-4, atol=1e-4)

    compare()


@pytest.mark.parametrize("copy", ["equal", "alone", "other"])
def test_a_tied_head_in_the_file(copy: str, tmp_path: Path, caplog: pytest.LogCaptureFixture):
    theirs = write(
        tmp_path, {"model_type": "llama", **LLAMA_SIZES, "num_hidden_layers": 1, "tie_word_embeddings": True}, False
    )
    named = load_file(tmp_path / WEIGHTS)
    matrix = named["model.embed_tokens.weight"]
    named["lm_head.weight"] = matrix + 1 if copy == "other" else matrix.clone()
    if copy == "alone":
        del named["model.embed_tokens.weight"]
    save_file(named, tmp_path / WEIGHTS, {"format": "pt"})
    family = read_family(tmp_path)
    spec, tensors, _ = read_weights(tmp_path, family, family.model("drawn", "config.json"))
    assert spec.head.tied == (copy != "other")
    assert tensors["embedding.tokens.weight"].equal(matrix)
    messages = [record.getMessage() for record in caplog.records]
    if copy != "other":
        assert messages == []
    else:
        (message,) = messages
        assert message.endswith(
            f"{WEIGHTS}: lm_head.weight: differs from model.embed_tokens.weight, so the head is not tied,"
            " although config.json says so"
        )
        assert tensors["head.weight"].equal(matrix + 1)
    assert theirs.config.tie_word_embeddings


def test_layer_types_without_a_window_are_refused(tmp_path: Path):
    config = {"model_type": "qwen2", **LLAMA_SIZES, "num_hidden_layers": 1, "layer_types": ["sliding_attention"]}
    (tmp_path / "config.json").write_text(json.dumps(config))
    with pytest.raises(UserError, match=r"layer_types: sliding_attention: requires use_sliding_window: true"):
        read_family(tmp_path)


LLAMA_32 = {"rope_type": "llama3", "factor": 32.0, "low_freq_factor": 1.0, "high_freq_factor": 4.0}
LLAMA_32 |= {"original_max_position_embeddings": 8192}
GEMMA_3 = {"head_dim": 256, "num_key_value_heads": 1, "num_attention_heads": 4, "rope_scaling": None}
PUBLISHED: dict[str, dict[str, Any]] = {
    "SmolLM2-135M": {
        "model_type": "llama", "vocab_size": 49152, "hidden_size": 576, "intermediate_size": 1536,
        "num_hidden_layers": 30,
        "num_attention_heads": 9, "num_key_value_heads": 3, "max_position_embeddings": 8192, "rms_norm_eps": 1e-5,
        "rope_theta": 100000, "rope_scaling": None, "rope_interleaved": False, "tie_word_embeddings": True,
    },
    "Llama-3.2-1B": {
        "model_type": "llama", "vocab_size": 128256, "hidden_size": 2048, "intermediate_size": 8192, "head_dim": 64,
        "num_hidden_layers": 16, "num_attention_heads": 32, "num_key_value_heads": 8, "rms_norm_eps": 1e-5,
        "max_position_embeddings": 131072, "rope_theta": 5e5, "rope_scaling": LLAMA_32, "tie_word_embeddings": True,
    },
    "Qwen2-0.5B": {
        "model_type": "qwen2", "vocab_size": 151936, "hidden_size": 896, "intermediate_size": 4864,
        "num_hidden_layers": 24,
        "num_attention_heads": 14, "num_key_value_heads": 2, "max_position_embeddings": 131072, "max_window_layers": 24,
        "rope_theta": 1e6, "sliding_window": 131072, "use_sliding_window": False, "tie_word_embeddings": True,
    },
    "Qwen3-0.6B": {
        "model_type": "qwen3", "vocab_size": 151936, "hidden_size": 1024, "intermediate_size": 3072, "head_dim": 128,
        "num_hidden_layers": 28, "num_attention_heads": 16, "num_key_value_heads": 8, "max_position_embeddings": 40960,
        "max_window_layers": 28, "rope_theta": 1e6, "sliding_window": None, "tie_word_embeddings": True,
    },
    "gemma-3-1b": {
        **GEMMA_3, "model_type": "gemma3_text", "vocab_size": 262144, "hidden_size": 1152, "intermediate_size": 6912,
        "num_hidden_layers": 26, "max_position_embeddings": 32768, "query_pre_attn_scalar": 256, "sliding_window": 512,
        "sliding_window_pattern": 6, "rope_local_base_freq": 10000, "rope_theta": 1000000,
    },
    "OLMo-2-1B": {
        "model_type": "olmo2", "vocab_size": 100352, "hidden_size": 2048, "intermediate_size": 8192,
        "num_hidden_layers": 16, "num_attention_heads": 16, "max_position_embeddings": 4096, "rope_theta": 500000,
    },
    "bloom-560m": {"model_type": "bloom", "n_embed": 1024, "n_head": 16, "n_layer": 24, "seq_length": 2048},
    "stablelm-2-1.6b": {
        "model_type": "stablelm", "vocab_size": 100352, "hidden_size": 2048, "intermediate_size": 5632,
        "num_hidden_layers": 24, "num_attention_heads": 32, "max_position_embeddings": 4096, "use_qkv_bias": True,
    },
    "mamba-130m": {"model_type": "mamba", "hidden_size": 768, "num_hidden_layers": 24, "rms_norm": True},
    "mamba2-130m": {
        "model_type": "mamba2", "vocab_size": 50288, "hidden_size": 768, "num_hidden_layers": 24, "num_heads": 24,
        "n_groups": 1, "time_step_limit": [0.0, float("inf")], "tie_word_embeddings": True,
    },
    "granite-3.1-2b": {
        "model_type": "granite", "vocab_size": 49152, "hidden_size": 2048, "intermediate_size": 8192,
        "num_hidden_layers": 40, "num_attention_heads": 32, "num_key_value_heads": 8, "tie_word_embeddings": True,
        "max_position_embeddings": 131072, "embedding_multiplier": 12.0, "residual_multiplier": 0.22,
        "attention_multiplier": 0.015625, "logits_scaling": 8.0,
    },
    "granite-4.0-350m": {
        "model_type": "granitemoehybrid", "vocab_size": 100352, "hidden_size": 1024, "shared_intermediate_size": 2048,
        "num_hidden_layers": 28, "num_attention_heads": 16, "num_key_value_heads": 4, "tie_word_embeddings": True,
        "num_local_experts": 0, "layer_types": ["attention"] * 28, "position_embedding_type": "rope",
        "embedding_multiplier": 12.0, "residual_multiplier": 0.263, "attention_multiplier": 0.015625,
        "mamba_n_heads": 32,
    },
    "Qwen3.5-0.8B, its text model": {
        "model_type": "qwen3_5_text", "vocab_size": 248320, "hidden_size": 1024, "intermediate_size": 3584,
        "num_hidden_layers": 24, "num_attention_heads": 8, "num_key_value_heads": 2, "tie_word_embeddings": True,
        "linear_num_value_heads": 16,
    },
    "Qwen3-Next-80B-A3B": {"model_type": "qwen3_next", "rope_theta": 10000000, "max_position_embeddings": 262144},
    "granite-3.1-1b-a400m": {
        "model_type": "granitemoe", "vocab_size": 49155, "hidden_size": 1024, "intermediate_size": 512,
        "num_hidden_layers": 24, "num_attention_heads": 16, "num_key_value_heads": 8, "tie_word_embeddings": True,
        "num_local_experts": 32, "num_experts_per_tok": 8, "embedding_multiplier": 12.0, "residual_multiplier": 0.22,
    },
    "SmolLM3-3B": {"model_type": "smollm3", "vocab_size": 128256, "hidden_size": 2048, "intermediate_size": 11008},
    "OLMoE-1B-7B": {"model_type": "olmoe", "hidden_size": 2048, "num_experts": 64, "num_experts_per_tok": 8},
    "EXAONE-4.0-1.2B": {
        "model_type": "exaone4", "vocab_size": 102400, "hidden_size": 2048, "intermediate_size": 4096,
        "num_hidden_layers": 30, "num_attention_heads": 32, "num_key_value_heads": 8, "tie_word_embeddings": True,
        "sliding_window": None, "sliding_window_pattern": None, "layer_types": ["full_attention"] * 30,
    },
    "ERNIE-4.5-0.3B": {"model_type": "ernie4_5", "vocab_size": 103424, "hidden_size": 1024},
    "helium-1-preview-2b": {"model_type": "helium", "vocab_size": 48000, "hidden_size": 2560},
    "starcoder2-3b": {"model_type": "starcoder2", "vocab_size": 49152, "hidden_size": 3072, "sliding_window": 4096},
    "tiny_starcoder": {
        "model_type": "gpt_bigcode", "vocab_size": 49152, "n_embd": 768, "n_head": 12, "n_layer": 20,
        "n_positions": 8192, "n_inner": 3072,
    },
    "rwkv-4-169m": {"model_type": "rwkv", "hidden_size": 768, "num_hidden_layers": 12, "attention_hidden_size": 768},
}  # fmt: skip
"""Fields of models that many people use; parameters are counted without building them."""


@pytest.mark.parametrize("name", PUBLISHED)
def test_a_published_model_has_the_parameters_of_transformers(name: str, tmp_path: Path):
    (tmp_path / "config.json").write_text(json.dumps(PUBLISHED[name]))
    with torch.device("meta"):
        config = transformers.AutoConfig.from_pretrained(tmp_path)
        theirs = transformers.AutoModelForCausalLM.from_config(config)
    spec = read_family(tmp_path).model(name, "config.json")
    assert model_cost(spec).parameters == sum(parameter.numel() for parameter in theirs.parameters())


@pytest.mark.parametrize("family", families.FAMILIES, ids=lambda family: family.__name__)
def test_other_names_of_fields_are_those_of_transformers(family: type[Family]):
    theirs = transformers.CONFIG_MAPPING[family.model_fields["model_type"].default].attribute_map
    assert theirs.items() <= family.aliases.items()


def test_refused_families_are_those_of_transformers_that_are_not_imported():
    imported = {family.model_fields["model_type"].default for family in families.FAMILIES}
    assert families.REFUSED.keys() <= set(transformers.CONFIG_MAPPING) - imported


def test_a_pattern_of_letters_needs_the_list_of_layers():
    config = {"model_type": "exaone4", "sliding_window": 4, "sliding_window_pattern": "LLLG"}
    with pytest.raises(UserError, match="sliding_window_pattern: LLLG: must be a number, or layer_types must be given"):
        Exaone4.read(config, "config.json")


def test_granite_changes_no_weight():
    """The multipliers of Granite 3 are fields of the description: 12 / 0.22, and an epsilon of 1e-5 / 0.22 squared."""
    plain = Granite.read(PUBLISHED["granite-3.1-2b"] | {"rms_norm_eps": 1e-5}, "config.json").to_dict()
    assert plain["embedding"]["scale"] == pytest.approx(54.545454, abs=1e-5) and plain["head"]["scale"] == 8.0
    assert plain["blocks"][0]["norm"]["eps"] == plain["head"]["norm"]["eps"] == pytest.approx(2.0661157e-4, rel=1e-6)
    assert plain["blocks"][0]["mixer"]["scale"] == 0.015625


def test_a_published_bloom_names_its_heads_in_another_way():
    config = {"model_type": "bloom", "n_embed": 1024, "n_layer": 24, "num_attention_heads": 16}
    plain = Bloom.read(config, "config.json").to_dict()
    assert (
        plain["d_model"] == 1024 and plain["blocks"][0]["mixer"]["heads"] == 16 and plain["blocks"][0]["repeat"] == 24
    )
    with pytest.raises(
        UserError, match=r"num_attention_heads: 16: another name of n_head, which is 8; expected one value"
    ):
        Bloom.read({**config, "n_head": 8}, "config.json")
