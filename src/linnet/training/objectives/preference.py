"""Learning from preferences: DPO, IPO, ORPO and reward models, on pairs of a chosen and a rejected answer to a prompt.

With `l_w`, `l_l` the log-probabilities of the chosen and the rejected answer, `r` those of the reference (the model
that the run starts from), and `h = (l_w - r_w) - (l_l - r_l)`:

    dpo    -(1 - e) log sigmoid(beta h) - e log sigmoid(-beta h)      Rafailov et al., arXiv 2305.18290, equation 7;
                                                                      e, the label smoothing: Mitchell, cDPO
    ipo    (h' - 1 / (2 beta))^2                                      Azar et al., arXiv 2310.12036, equation 17
    orpo   -m_w - beta log sigmoid(log odds(m_w) - log odds(m_l))     Hong et al., arXiv 2403.07691, equation 6
    reward -log sigmoid(v_w - v_l)                                    Bradley and Terry, 1952; Ouyang et al.,
                                                                      arXiv 2203.02155, equation 1

`m` are means over the tokens of an answer, and `h'` is `h` of such means, as in TRL: sums would make the distance that
`ipo` asks for depend on the length. `odds(m) = exp(m) / (1 - exp(m))`. `v` are the values of a reward model
(`Decoder.values`) at the last token of an answer before its stop token. The loss of a step is the mean over its pairs.

Legend: `B` rows, `P` pairs (`B = 2 P`, a chosen row before its rejected one), `U` places of a row.
"""

from collections.abc import Mapping
from types import MappingProxyType
from typing import NamedTuple

import torch
import torch.nn.functional as F
from torch import Tensor

from linnet.data.loader import Batch
from linnet.layers.batch_layout import AuxiliaryOutputs
from linnet.model.decoder import Decoder
from linnet.model.example_loss import example_nats, example_values
from linnet.training.objectives import Loss
from linnet.training.objectives.language_modelling import Penalties, mean_losses
from linnet.training.sections import PreferenceSpec

REFERENCE = "reference"
"""In `Batch.extras`: the log-probability of each row's answer by the reference, `[B]`."""


TERMS = ("preference_loss", "accuracy", "margin", "chosen", "rejected")
"""The values to log of each pair.

preference_loss: without losses of sublayers. accuracy: 1 where the chosen answer is ahead; 0.5 where none is. margin:
by how much, times beta. chosen, rejected: log-probabilities in nats; of a reward model: the values.
"""


class AnswerScores(NamedTuple):
    """What a loss reads of the answers.

    sums_B: log-probabilities in nats, summed over the tokens of each answer, or the values of a reward model, with
    gradients. tokens_B: the numbers of tokens. nats: of all answers together, without gradients.
    """

    sums_B: Tensor
    tokens_B: Tensor
    nats: Tensor


def answer_scores(
    decoder: Decoder, batch: Batch, record: AuxiliaryOutputs | None = None, is_reward: bool = False
) -> AnswerScores:
    """The log-probability of each row's answer, with gradients, or for a reward model its value."""
    assert batch.weights is not None, "rows whose prompts do not count"
    rows = decoder, batch.tokens, batch.labels, batch.prefix_lengths
    tokens_B = batch.weights.sum(dim=1)
    if is_reward:
        found = example_values(*rows, document_starts=batch.document_starts, record=record)
        return AnswerScores(found.values_B, tokens_B, found.nats)
    nats_BU = example_nats(*rows, document_starts=batch.document_starts, record=record)
    return AnswerScores(-nats_BU.sum(dim=1), tokens_B, nats_BU.detach().sum())


def preference_loss(
    decoder: Decoder, batch: Batch, spec: PreferenceSpec, penalties: Penalties = MappingProxyType({})
) -> Loss:
    """The summed loss of the pairs of a batch, and the losses of sublayers, each of which counts once per pair.

    The likelihood part is that of the chosen and the rejected answers together. Terms: `TERMS`.
    """
    auxiliary = AuxiliaryOutputs(requested_penalties=penalties, training=True)
    scores = answer_scores(decoder, batch, auxiliary, spec.kind == "reward")
    losses_P, terms = pair_losses(spec, scores, batch.extras.get(REFERENCE))
    means, pairs = mean_losses(auxiliary.losses), len(losses_P)
    coefficients = {loss.name: loss.coefficient for loss in auxiliary.losses}
    total = losses_P.sum() + sum(pairs * coefficients[name] * mean for name, mean in means.items())
    summed = {name: (pairs * mean).detach() for name, mean in means.items()}
    summed |= {name: values_P.detach().sum() for name, values_P in terms.items()}
    return Loss(total, scores.nats, example_terms=summed)


def pair_losses(
    spec: PreferenceSpec, scores: AnswerScores, reference_B: Tensor | None
) -> tuple[Tensor, Mapping[str, Tensor]]:
    """The loss of each pair `[P]`, and values to log, `[P]` each.

    reference_B: log-probabilities of the answers by the reference; None for `orpo` and `reward`.
    """
    if spec.kind == "reward":
        ahead_P = _difference(scores.sums_B)
        losses_P = -F.logsigmoid(ahead_P)
        return losses_P, _terms(losses_P, ahead_P, ahead_P, scores)
    means_B = scores.sums_B / scores.tokens_B
    if spec.kind == "orpo":
        odds_B = means_B - torch.log(-torch.expm1(means_B))
        ahead_P = _difference(odds_B)
        losses_P = -means_B[::2] - spec.beta * F.logsigmoid(ahead_P)
        return losses_P, _terms(losses_P, ahead_P, spec.beta * ahead_P, scores)
    assert reference_B is not None, "a reference that was not computed"
    gains_B = scores.sums_B - reference_B.to(scores.sums_B.dtype)
    if spec.kind == "ipo":
        ahead_P = _difference(gains_B / scores.tokens_B)
        losses_P = (ahead_P - 1 / (2 * spec.beta)).square()
    else:
        ahead_P = _difference(gains_B)
        right_P, wrong_P = (F.logsigmoid(sign * spec.beta * ahead_P) for sign in (1, -1))
        losses_P = -(1 - spec.label_smoothing) * right_P - spec.label_smoothing * wrong_P
    return losses_P, _terms(losses_P, ahead_P, spec.beta * ahead_P, scores)


def _difference(values_B: Tensor) -> Tensor:
    """Chosen less rejected, `[P]`."""
    return values_B[::2] - values_B[1::2]


def _terms(losses_P: Tensor, ahead_P: Tensor, margins_P: Tensor, scores: AnswerScores) -> dict[str, Tensor]:
    """`TERMS` of each pair, `[P]` each."""
    ahead = (ahead_P.sign() + 1) / 2
    values = (losses_P, ahead, margins_P, scores.sums_B[::2], scores.sums_B[1::2])
    return dict(zip(TERMS, values, strict=True))
