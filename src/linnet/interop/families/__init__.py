"""Decoder families of Transformers that a model description of linnet can express."""

from linnet.interop.families.family import Family
from linnet.interop.families.gpt import Gpt2, GptNeoX
from linnet.interop.families.llama import Llama, Mistral, Qwen2, Qwen3

FAMILIES: tuple[type[Family], ...] = (Llama, Mistral, Qwen2, Qwen3, Gpt2, GptNeoX)
"""Each has its own `model_type` in `config.json`."""
