"""Types of NumPy's arrays; their shapes are in their names: `costs_LM`."""

import numpy as np
import numpy.typing as npt

Numbers = npt.NDArray[np.float64]
Indices = npt.NDArray[np.int64]
