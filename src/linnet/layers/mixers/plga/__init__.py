"""Power-law graph attention (PLDR-LLM): attention through an operator that a deep network deduces from the text."""

from linnet.layers.mixers.plga.module import DensitySpec, Plga, PlgaSpec, PlgaState

__all__ = ["DensitySpec", "Plga", "PlgaSpec", "PlgaState"]
