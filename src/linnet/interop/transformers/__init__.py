"""Every model of linnet as one of Transformers: importing this registers `AutoConfig` and `AutoModelForCausalLM`.

No code lies in the folders, and none is fetched: `pip install 'linnet[transformers]'` and this import are enough.
"""

from linnet.interop.in_transformers import transformers_module

transformers_module("linnet.interop.transformers")

from linnet.interop.transformers.cache import StateCache  # noqa: E402 (the line before says what is missing)
from linnet.interop.transformers.config import LinnetConfig  # noqa: E402
from linnet.interop.transformers.model import LinnetForCausalLM  # noqa: E402

__all__ = ["LinnetConfig", "LinnetForCausalLM", "StateCache"]
