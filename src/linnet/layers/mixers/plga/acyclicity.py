"""PLDR-LLM's regulariser: the deductive outputs, read as graphs, are drawn towards graphs without cycles.

For `X` in `A_LM, A_P, G`: the mean over layers, batch and heads of `| log(trace(exp(X * X)) / K) |`, each times a
coefficient, added to the cross-entropy (Gokden, arXiv 2410.16703 and 2502.13502).

Legend: `B` batch, `H` heads, `K` head width.
"""

from torch import Tensor

from linnet.layers.mixers.plga.operator import DeductiveOutputs
from linnet.layers.view import View
from linnet.ops.log_trace_exponential import log_trace_exponential

PENALTY = "dag"
"""Its name: training asks for it with a coefficient for each of `a_lm`, `a_p`, `g`."""


def acyclicity(x_BHKK: Tensor) -> Tensor:
    """The mean over batch and heads of `| log(trace(exp(X * X)) / K) |`, a scalar.

    Never negative, as the trace is at least K. Computed in float64, whatever the tensor's precision.
    """
    return log_trace_exponential(x_BHKK.double().square()).mean()


def add_penalties(outputs: DeductiveOutputs, view: View) -> None:
    """Add `dag_a_lm`, `dag_a_p`, `dag_g` to the losses, those that training asks for."""
    for name, coefficient in view.wanted(PENALTY).items():
        view.add_loss(f"{PENALTY}_{name}", acyclicity(getattr(outputs, name)), coefficient)
