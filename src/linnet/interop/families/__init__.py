"""Decoder families of Transformers that a model description of linnet can express."""

from linnet.interop.families.family import Family
from linnet.interop.families.gemma import Gemma, Gemma2, Gemma3
from linnet.interop.families.gpt import Bloom, Gpt2, GptNeo, GptNeoX, Opt
from linnet.interop.families.llama import Llama, Mistral, Mixtral, Olmo2, Phi, Phi3, Qwen2, Qwen3, StableLm
from linnet.interop.families.recurrent import Mamba2Model, MambaModel, Rwkv4Model

FAMILIES: tuple[type[Family], ...] = (
    *(Llama, Mistral, Qwen2, Qwen3, Mixtral, Phi3, Phi, StableLm, Olmo2, Gemma, Gemma2, Gemma3),
    *(Gpt2, GptNeo, GptNeoX, Opt, Bloom),
    *(MambaModel, Mamba2Model, Rwkv4Model),
)
"""Each has its own `model_type` in `config.json`."""
