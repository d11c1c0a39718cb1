"""Power-law graph attention (PLDR-LLM): attention through an operator that a deep net deduces from the text."""

from linnet.layers.mixers.plga.density import DensitySpec
from linnet.layers.mixers.plga.module import Plga, PlgaState
from linnet.layers.mixers.plga.spec import PlgaSpec

__all__ = ["DensitySpec", "Plga", "PlgaSpec", "PlgaState"]
