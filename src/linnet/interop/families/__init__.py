"""Decoder families of Transformers that a model description of linnet can express."""

from linnet.interop.families.family import Family
from linnet.interop.families.gemma import Gemma, Gemma2, Gemma3
from linnet.interop.families.gpt import Bloom, Gpt2, GptNeo, GptNeoX, Opt
from linnet.interop.families.gpt_variants import CodeGen, Falcon, GptBigCode, GptJ
from linnet.interop.families.llama import Llama, Mistral, Mixtral, Olmo2, Phi, Phi3, Qwen2, Qwen3, StableLm
from linnet.interop.families.llama_variants import (
    Cohere,
    Ernie45,
    Exaone4,
    Granite,
    GraniteExperts,
    GraniteHybrid,
    Helium,
    Olmo,
    Olmoe,
    Qwen3Next,
    Qwen35,
    SmolLm3,
    Starcoder2,
)
from linnet.interop.families.recurrent import Mamba2Model, MambaModel, Rwkv4Model

FAMILIES: tuple[type[Family], ...] = (
    *(Llama, Mistral, Qwen2, Qwen3, Mixtral, Phi3, Phi, StableLm, Olmo2, Gemma, Gemma2, Gemma3),
    *(
        Qwen3Next,
        Qwen35,
        Granite,
        GraniteExperts,
        GraniteHybrid,
        SmolLm3,
        Olmo,
        Olmoe,
        Exaone4,
        Ernie45,
        Helium,
        Cohere,
        Starcoder2,
    ),
    *(Gpt2, GptNeo, GptNeoX, Opt, Bloom, GptBigCode, GptJ, CodeGen, Falcon),
    *(MambaModel, Mamba2Model, Rwkv4Model),
)
"""Each has its own `model_type` in `config.json`."""

REFUSED: dict[str, str] = {
    "falcon_h1": "each layer has attention and Mamba-2 side by side",
    "gemma3n": "layers have token vectors of their own and share keys and values",
    "hunyuan_v1_dense": "queries and keys are normalized after their rotation",
    "lfm2": "layers have gated short convolutions",
    "nemotron": "gains of layer norms are one plus a parameter",
    "qwen3_5": "it also reads images; its text model alone (qwen3_5_text) can be imported",
    "zamba2": "layers share blocks of attention, each with adapters of its own",
}
"""Families that many people use, by `model_type`, and what linnet has no layer or table for."""
