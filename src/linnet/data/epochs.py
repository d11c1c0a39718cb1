"""What is drawn anew for each epoch of training, from the seed and the epoch's number alone."""

from collections.abc import Callable

import numpy as np
from numpy.typing import NDArray


class Epochs:
    """The last two epochs' draws, a batch may need both; any other is drawn again when it is asked for."""

    def __init__(self, seed: int) -> None:
        """`seed` is not negative."""
        self._seed = seed
        self._kept: dict[int, NDArray[np.int64]] = {}

    def drawn(self, epoch: int, draw: Callable[[np.random.Generator], NDArray[np.int64]]) -> NDArray[np.int64]:
        """What `draw` makes of the epoch's own random numbers."""
        if epoch not in self._kept:
            if len(self._kept) == 2:
                del self._kept[next(iter(self._kept))]
            self._kept[epoch] = draw(np.random.Generator(np.random.PCG64(np.random.SeedSequence([self._seed, epoch]))))
        return self._kept[epoch]
