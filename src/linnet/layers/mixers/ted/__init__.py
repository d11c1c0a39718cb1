"""TED, trainable exponential decays: every past token decays at its own rate (github.com/biuq/ted)."""

from linnet.layers.mixers.ted.module import Ted, TedSpec
from linnet.layers.mixers.ted.policies import BankCache, EvictionCache

__all__ = ["BankCache", "EvictionCache", "Ted", "TedSpec"]
