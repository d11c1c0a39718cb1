"""Every decoder of linnet as a model of Transformers: importing this registers `AutoConfig` and `AutoModelForCausalLM`.

No code lies in exported folders and none is downloaded: `pip install 'linnet[transformers]'` and this import suffice.
"""

from linnet.interop import optional_package

optional_package("transformers", "linnet.interop.transformers")

from linnet.interop.transformers.cache import StateCache  # noqa: E402 (the line before names a missing package)
from linnet.interop.transformers.model import LinnetConfig, LinnetForCausalLM  # noqa: E402
from linnet.interop.transformers.penalties import GeneratedTokenPenalties  # noqa: E402

__all__ = ["GeneratedTokenPenalties", "LinnetConfig", "LinnetForCausalLM", "StateCache"]
