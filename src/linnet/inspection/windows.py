"""Windows of text that are spread over a data set.

Legend: `N` windows, `T` tokens of a window.
"""

import numpy as np
import torch
from torch import Tensor

from linnet.core.errors import UserError
from linnet.data.loader import document_windows
from linnet.data.shards import TokenSequence


def spread_windows(sequence: TokenSequence, count: int, context_length: int) -> Tensor:
    """Up to `count` different places, `[N, T]`, that begin with documents where they can; `UserError` without one."""
    if len(sequence) <= context_length:
        raise UserError(
            f"{sequence.name}: {len(sequence)} tokens: expected more than a window of {context_length};"
            " prepare more text or choose a shorter `context_length`"
        )
    starts = document_windows(sequence, context_length).whole_windows(sequence, context_length).starts_N
    chosen = np.unique(np.linspace(0, len(starts) - 1, min(count, len(starts))).astype(int))
    return torch.from_numpy(np.stack([sequence.read(int(starts[i]), context_length) for i in chosen]))
