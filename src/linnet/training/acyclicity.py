"""PLDR-LLM's regulariser: the deductive outputs, read as graphs, are drawn towards graphs without cycles.

For `X` in `A_LM, A_P, G`: the mean over layers, batch and heads of `| log(trace(exp(X * X)) / K) |`, each times a
coefficient, added to the cross-entropy (Gokden, arXiv 2410.16703 and 2502.13502).

Legend: `B` batch, `T` tokens, `H` heads, `K` head width.
"""

import torch
from torch import Tensor

from linnet.core.errors import UserError
from linnet.layers.mixers.plga.operator import DeductiveOutputs, PowerLawOperator, catch_deductive_outputs
from linnet.model.decoder import Decoder
from linnet.ops.cross_entropy import IGNORED
from linnet.ops.log_trace_exponential import log_trace_exponential
from linnet.training.objective import Loss, Objective
from linnet.training.spec import DagSpec


def acyclicity(tensors: list[Tensor]) -> Tensor:
    """The mean over layers, batch and heads of `| log(trace(exp(X * X)) / K) |`; `[B, H, K, K]` of each layer.

    Never negative, as the trace is at least K. Computed in float64, whatever the tensors' precision.
    """
    return torch.stack([log_trace_exponential(x_BHKK.double().square()).mean() for x_BHKK in tensors]).mean()


def with_acyclicity(objective: Objective, spec: DagSpec, decoder: Decoder) -> Objective:
    """The objective and the terms, logged as `dag_a_lm`, `dag_a_p`, `dag_g` without their coefficients.

    A term whose coefficient is 0 is neither computed nor logged. `UserError` where the model has no such tensors.
    """
    if not any(isinstance(module, PowerLawOperator) for module in decoder.modules()):
        raise UserError("training.dag: the model has no plga layer that deduces an operator; expected null")
    coefficients = {name: value for name, value in spec.model_dump().items() if value}

    def regularised(decoder: Decoder, inputs_BT: Tensor, targets_BT: Tensor) -> Loss:
        with catch_deductive_outputs(decoder) as layers:
            loss = objective(decoder, inputs_BT, targets_BT)
        count = (targets_BT != IGNORED).sum()
        terms = {name: count * _term(layers, name) for name in coefficients}
        total = loss.total + sum(coefficients[name] * term for name, term in terms.items())
        logged = {f"dag_{name}": term.detach() for name, term in terms.items()}
        return Loss(total, loss.nats, {**loss.terms, **logged})

    return regularised


def _term(layers: list[DeductiveOutputs], name: str) -> Tensor:
    return acyclicity([getattr(outputs, name) for outputs in layers])
