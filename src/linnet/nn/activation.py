"""Activations by the names that descriptions use.

`relu_squared` is Primer's (So et al., arXiv 2109.08668).
"""

from collections.abc import Callable
from typing import Literal

import torch.nn.functional as F
from torch import Tensor

Activation = Literal["silu", "gelu", "gelu_tanh", "relu", "relu_squared"]

ACTIVATIONS: dict[Activation, Callable[[Tensor], Tensor]] = {
    "silu": F.silu,
    "gelu": F.gelu,
    "gelu_tanh": lambda x: F.gelu(x, approximate="tanh"),
    "relu": F.relu,
    "relu_squared": lambda x: F.relu(x).square(),
}
