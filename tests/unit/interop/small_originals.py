"""Small models as Transformers writes them, with a tokenizer of their own."""

import json
from pathlib import Path
from typing import Any

import pytest
import tokenizers
import torch
from tokenizers import decoders, models, pre_tokenizers, trainers

TEXT = "Once upon a time there was a little bird. It said: I can't fly! Schönes Wetter. " * 4
SMALL = {"vocab_size": 290, "hidden_size": 24, "num_hidden_layers": 2, "num_attention_heads": 4}
LLAMA = {**SMALL, "intermediate_size": 28, "max_position_embeddings": 320, "num_key_value_heads": 2}
BIASES = {"attention_bias": True, "mlp_bias": True, "tie_word_embeddings": True, "head_dim": 10}
YARN = {"rope_type": "yarn", "factor": 4.0, "rope_theta": 1e4, "original_max_position_embeddings": 80}
MAMBA2 = {"vocab_size": 290, "hidden_size": 24, "num_hidden_layers": 2, "state_size": 5}
LLAMA3 = {"rope_type": "llama3", "factor": 8.0, "low_freq_factor": 1.0, "high_freq_factor": 4.0}
LLAMA3 |= {"rope_theta": 5e5, "original_max_position_embeddings": 80}
NEOX = {**SMALL, "intermediate_size": 28, "max_position_embeddings": 64}
NEOX_ROPE = {"rope_type": "default", "rope_theta": 9000.0, "partial_rotary_factor": 0.7}
SEQUENTIAL = {"use_parallel_residual": False, "attention_bias": False, "hidden_act": "gelu_new"}
GPT2 = {"vocab_size": 290, "n_positions": 224, "n_embd": 24, "n_layer": 2, "n_head": 4}
RELU = {"n_positions": 60, "n_inner": 36, "activation_function": "relu", "tie_word_embeddings": False}
DELTA = {"head_dim": 8, "linear_num_key_heads": 2, "linear_num_value_heads": 4, "linear_key_head_dim": 6}
DELTA |= {"linear_value_head_dim": 5, "partial_rotary_factor": 0.5}
NEXT = {"num_experts": 3, "num_experts_per_tok": 2, "moe_intermediate_size": 20, "shared_expert_intermediate_size": 12}
NEXT |= {"mlp_only_layers": [1]}
MULTIPLIERS = {"embedding_multiplier": 12.0, "residual_multiplier": 0.22, "attention_multiplier": 0.3}
MULTIPLIERS |= {"logits_scaling": 6.0}
GRANITE = {**MULTIPLIERS, "shared_intermediate_size": 28, "position_embedding_type": "rope"}
GRANITE |= {"mamba_n_heads": 6, "mamba_d_head": 8, "mamba_d_state": 5, "mamba_n_groups": 2}
CONFIGS: dict[str, tuple[str, dict[str, Any]]] = {
    "llama": ("LlamaConfig", {**LLAMA, "rms_norm_eps": 1e-5, "rope_parameters": {"rope_theta": 5000.0}}),
    "llama with biases, tied": ("LlamaConfig", {**LLAMA, **BIASES}),
    "llama with longer texts": (
        "LlamaConfig",
        {**LLAMA, "rope_parameters": {"rope_type": "linear", "factor": 4.0, "rope_theta": 1e4}},
    ),
    "llama with yarn": ("LlamaConfig", {**LLAMA, "rope_parameters": YARN}),
    "llama of version 3": ("LlamaConfig", {**LLAMA, "rope_parameters": LLAMA3}),
    "mistral": ("MistralConfig", {**LLAMA, "sliding_window": 21}),
    "qwen2": ("Qwen2Config", {**LLAMA, "tie_word_embeddings": True}),
    "qwen3": ("Qwen3Config", {**LLAMA, "head_dim": 14}),
    "mixtral": ("MixtralConfig", {**LLAMA, "head_dim": 6, "num_local_experts": 3}),
    "phi3": ("Phi3Config", {**LLAMA, "pad_token_id": 0, "partial_rotary_factor": 0.7, "sliding_window": 21}),
    "olmo2": ("Olmo2Config", {**LLAMA, "pad_token_id": 0}),
    "gemma2": ("Gemma2Config", {**LLAMA, "head_dim": 6, "pad_token_id": 0, "attn_logit_softcapping": 0.5}),
    "gemma3": ("Gemma3TextConfig", {**LLAMA, "head_dim": 6, "pad_token_id": 0, "sliding_window": 21}),
    "phi": ("PhiConfig", {**LLAMA, "num_attention_heads": 2}),
    "stablelm": ("StableLmConfig", {**LLAMA, "num_attention_heads": 3, "num_key_value_heads": 1, "use_qkv_bias": True}),
    "opt": ("OPTConfig", {**SMALL, "ffn_dim": 28, "word_embed_proj_dim": 10, "do_layer_norm_before": False}),
    "mamba": ("MambaConfig", {"vocab_size": 290, "hidden_size": 24, "num_hidden_layers": 2, "state_size": 5}),
    "mamba2": ("Mamba2Config", {**MAMBA2, "num_heads": 6, "head_dim": 8, "n_groups": 2}),
    "rwkv": ("RwkvConfig", {"vocab_size": 290, "hidden_size": 24, "num_hidden_layers": 2}),
    "gpt2": ("GPT2Config", GPT2),
    "gpt2 untied": ("GPT2Config", {**GPT2, **RELU}),
    "granite of both layers": (
        "GraniteMoeHybridConfig",
        {**LLAMA, **GRANITE, "layer_types": ["linear_attention", "full_attention"], "num_local_experts": 0},
    ),
    "qwen3.5": ("Qwen3_5TextConfig", {**LLAMA, **DELTA, "layer_types": ["linear_attention", "full_attention"]}),
    "qwen3 next": (
        "Qwen3NextConfig",
        {
            **LLAMA,
            **DELTA,
            **NEXT,
            "num_hidden_layers": 3,
            "layer_types": ["linear_attention"] * 2 + ["full_attention"],
        },
    ),
    "granite with experts": ("GraniteMoeConfig", {**LLAMA, **MULTIPLIERS, "num_local_experts": 3}),
    "smollm3": ("SmolLM3Config", {**LLAMA, "pad_token_id": 0, "no_rope_layers": [0, 1]}),
    "olmo": ("OlmoConfig", {**LLAMA, "pad_token_id": 0}),
    "olmoe": ("OlmoeConfig", {**LLAMA, "pad_token_id": 0, "num_experts": 3, "num_experts_per_tok": 2}),
    "cohere": ("CohereConfig", {**LLAMA, "pad_token_id": 0, "logit_scale": 0.3}),
    "gpt_bigcode": ("GPTBigCodeConfig", GPT2),
    "codegen": ("CodeGenConfig", {**GPT2, "n_positions": 320, "rotary_dim": 4}),
    "falcon": ("FalconConfig", {**SMALL, "max_position_embeddings": 320, "alibi": False}),
    "gpt_neox": ("GPTNeoXConfig", {**NEOX, "rope_parameters": NEOX_ROPE}),
    "gpt_neox one after the other": ("GPTNeoXConfig", {**NEOX, **SEQUENTIAL, "num_attention_heads": 3}),
}


def tokenizer(vocab_size: int = 290) -> tokenizers.Tokenizer:
    """Byte pairs as GPT-2 cuts them."""
    library = tokenizers.Tokenizer(models.BPE())
    library.pre_tokenizer = pre_tokenizers.ByteLevel(add_prefix_space=False)
    library.decoder = decoders.ByteLevel()
    alphabet = pre_tokenizers.ByteLevel.alphabet()
    trainer = trainers.BpeTrainer(
        vocab_size=vocab_size, special_tokens=["<|endoftext|>"], initial_alphabet=alphabet, show_progress=False
    )
    library.train_from_iterator([TEXT], trainer)
    return library


def write(folder: Path, name: str, **saving: Any) -> Any:
    """A model of `CONFIGS`, every weight away from its start, and its tokenizer; gives the model."""
    transformers = pytest.importorskip("transformers")

    kind, fields = CONFIGS[name]
    torch.manual_seed(0)
    fields = {"bos_token_id": 0, "eos_token_id": 0, **fields}
    model = transformers.AutoModelForCausalLM.from_config(getattr(transformers, kind)(**fields)).eval()
    with torch.no_grad():
        for parameter in model.parameters():
            parameter.add_(0.2 * torch.randn_like(parameter))
    model.save_pretrained(folder, **saving)
    tokenizer().save(str(folder / "tokenizer.json"))
    if name.startswith("gemma"):  # its default class has an unknown token
        (folder / "tokenizer_config.json").write_text('{"tokenizer_class": "PreTrainedTokenizerFast"}')
    return model


def chat_tokenizer(folder: Path) -> None:
    """Give a model of `write` the tokenizer of a chat model: three ends, and a chat template."""
    library = tokenizer(vocab_size=287)
    library.add_special_tokens(["<|im_start|>", "<|im_end|>", "<|eot|>"])  # 287 to 289
    library.save(str(folder / "tokenizer.json"))
    chat = {"eos_token": "<|im_end|>", "chat_template": "{{ messages[0]['content'] }}<|im_end|>"}
    (folder / "tokenizer_config.json").write_text(json.dumps(chat))
    (folder / "generation_config.json").write_text(json.dumps({"eos_token_id": [0, 288, 289], "top_k": 7}))
