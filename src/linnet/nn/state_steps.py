"""The steps of selective state-space models where training begins (Gu and Dao, 2023, arXiv 2312.00752, section 3.6)."""

import math

import torch
from torch import Tensor

SHORTEST_STEP, LONGEST_STEP, FLOOR = 0.001, 0.1, 1e-4


def step_biases(count: int) -> Tensor:
    """What softplus makes steps of, spread evenly in their logarithm from a thousandth to a tenth: `[count]`."""
    spread = torch.rand(count) * math.log(LONGEST_STEP / SHORTEST_STEP)
    steps = (spread.exp() * SHORTEST_STEP).clamp(min=FLOOR)
    return steps + (-torch.expm1(-steps)).log()
