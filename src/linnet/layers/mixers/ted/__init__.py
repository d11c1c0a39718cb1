"""TED: every past token decays at its own rate (github.com/biuq/ted)."""

from linnet.layers.mixers.ted.module import Ted, TedSpec

__all__ = ["Ted", "TedSpec"]
