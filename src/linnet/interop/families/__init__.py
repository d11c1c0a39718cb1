"""Families of decoders that Transformers has, and that linnet's descriptions say too."""

from linnet.interop.families.family import Family
from linnet.interop.families.gpt import Gpt2, GptNeoX
from linnet.interop.families.llama import Llama, Qwen2, Qwen3

FAMILIES: tuple[type[Family], ...] = (Llama, Qwen2, Qwen3, Gpt2, GptNeoX)
"""By `model_type` in `config.json`."""
