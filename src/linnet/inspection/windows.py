"""Windows of text that are spread over a data set.

Legend: `N` windows, `T` tokens of a window.
"""

import numpy as np
import torch
from torch import Tensor

from linnet.core.errors import UserError
from linnet.data.shards import TokenSequence
from linnet.data.windows import document_windows


def spread_windows(sequence: TokenSequence, end_id: int, count: int, context_length: int) -> Tensor:
    """Up to `count` different places, `[N, T]`, that begin with documents where they can; `UserError` without one."""
    if len(sequence) <= context_length:
        raise UserError(
            f"{sequence.name}: {len(sequence)} tokens: expected more than a window of {context_length};"
            " prepare more text or choose a shorter `context_length`"
        )
    starts = document_windows(sequence, end_id, context_length).whole(sequence, context_length)
    chosen = np.unique(np.linspace(0, len(starts) - 1, min(count, len(starts))).astype(int))
    return torch.from_numpy(np.stack([sequence.read(int(starts[i]), context_length) for i in chosen]))
