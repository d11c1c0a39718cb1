"""The vocabulary that suits a size: its table grows slower than the rest of a model.

Tao et al. 2024, arXiv 2407.13623, approach 2: `N_v = 3.15 M (N_nv / 33 M)^0.835`, `N_v` parameters of the table and
`N_nv` of all else. They trained 33 M to 3 B parameters; what is said of smaller models goes beyond that.
"""

import math

from linnet.scaling.candidate import candidate
from linnet.scaling.counts import Counting, parameter_counts

TABLE, REST, EXPONENT = 3_145_728, 33e6, 0.8354
LEAST, MOST = 256, 262_144
"""Tokens: as many as there are bytes, and as many as large models have."""

SOURCE = "Tao et al. 2024, arXiv 2407.13623"


def fitted_vocabulary(parameters: float, counted: Counting, context_length: int) -> int:
    """The power of two nearest to the best number of tokens for a plain decoder of so many parameters, counted so."""
    model = candidate(parameters, counted, LEAST, context_length)
    table = TABLE * (parameter_counts(model).without_embedding / REST) ** EXPONENT
    return 1 << round(math.log2(min(max(table / model.d_model, LEAST), MOST)))
