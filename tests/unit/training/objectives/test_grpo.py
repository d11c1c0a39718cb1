"""The loss of drawn answers against its definition."""

import math

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from linnet.data.loader import Batch
from linnet.model.decoder import Decoder
from linnet.training.objectives.grpo import (
    ADVANTAGE,
    CUT,
    DRAWN,
    REFERENCE_NATS,
    REWARD,
    SMALLEST_STD,
    advantages,
    grpo_loss,
    token_terms,
)
from linnet.training.sections import GrpoSpec

rewards = st.lists(st.sampled_from([0.0, 0.1, 0.25, 1.0]), min_size=8, max_size=8)
nats = st.floats(0.01, 5)


@given(rewards, st.booleans())
@settings(max_examples=40, deadline=None)
def test_advantages_are_those_of_each_group(values: list[float], scale_by_std: bool):
    found = advantages(torch.tensor(values, dtype=torch.float64), 4, scale_by_std).tolist()
    for first in (0, 4):
        group = values[first : first + 4]
        mean = sum(group) / 4
        std = math.sqrt(sum((value - mean) ** 2 for value in group) / 3)
        divisor = std + SMALLEST_STD if scale_by_std else 1.0
        expected = [0.0] * 4 if len(set(group)) == 1 else [(value - mean) / divisor for value in group]
        assert found[first : first + 4] == pytest.approx(expected, abs=1e-12)


@given(nats, nats, nats, st.floats(-2, 2), st.sampled_from([0.0, 0.3]))
@settings(max_examples=60, deadline=None)
def test_the_loss_of_a_token_is_that_of_the_paper(
    now: float, drawn: float, reference: float, advantage: float, kl: float
):
    spec = GrpoSpec(clip=0.2, kl=kl)
    given_BT = [torch.tensor([[value]], dtype=torch.float64) for value in (now, drawn)]
    against = torch.tensor([[reference]], dtype=torch.float64) if kl else None
    found = token_terms(*given_BT, torch.tensor([advantage], dtype=torch.float64), spec, against)
    ratio = math.exp(-now) / math.exp(-drawn)
    bound = min(max(ratio, 0.8), 1.2)
    expected = -min(ratio * advantage, bound * advantage)
    if kl:
        apart = math.exp(-reference) / math.exp(-now)
        expected += kl * (apart - math.log(apart) - 1)
    assert float(found.loss) == pytest.approx(expected, abs=1e-9)
    assert bool(found.clipped) == (bound * advantage < ratio * advantage)


def batch_of(lengths: list[int], width: int, group: int = 2) -> Batch:
    """Answers of these lengths behind two tokens, filled up to a width; drawn from other probabilities."""
    generator = torch.Generator().manual_seed(0)
    tokens, weights = torch.zeros(len(lengths), width + 1, dtype=torch.long), torch.zeros(len(lengths), width)
    for row, length in enumerate(lengths):
        tokens[row, : 2 + length] = torch.randint(1, 257, (2 + length,), generator=generator)
        weights[row, 1 : 1 + length] = 1
    places = torch.arange(width, dtype=torch.float64)
    reward = torch.arange(len(lengths), dtype=torch.float64) % 3
    extras = {
        ADVANTAGE: advantages(reward, group, False), REWARD: reward, CUT: torch.zeros(len(lengths)),
        DRAWN: (5.5 + 0.1 * places).expand(len(lengths), -1), REFERENCE_NATS: torch.full((len(lengths), width), 5.0),
    }  # fmt: skip
    return Batch(tokens[:, :-1], tokens[:, 1:], weights.bool(), extras=extras, rows_per_example=group)


@pytest.mark.parametrize("mixer", ["attention", "ted"])
def test_it_is_the_same_whatever_padding_and_parts(mixer: str, tiny_model):
    torch.manual_seed(0)
    decoder, spec = Decoder(tiny_model(mixer)).double(), GrpoSpec(group=2, kl=0.1)
    parameters, lengths = list(decoder.parameters()), [3, 5, 1, 2, 6, 4]
    narrow, wide = batch_of(lengths, 8), batch_of(lengths, 12)
    losses = [grpo_loss(decoder, batch, spec) for batch in (narrow, wide, narrow.part(0, 1), narrow.part(1, 3))]
    totals = [losses[0].total, losses[1].total, losses[2].total + losses[3].total]
    gradients = [torch.autograd.grad(total, parameters, allow_unused=True, retain_graph=True) for total in totals]
    for total, gradient in zip(totals[1:], gradients[1:], strict=True):
        torch.testing.assert_close(total, totals[0], rtol=1e-8, atol=1e-8)
        torch.testing.assert_close(gradient, gradients[0], rtol=1e-6, atol=1e-8)
    assert {name: float(value) for name, value in losses[0].example_terms.items()} == pytest.approx(
        {"reward": 3.0, "reward_std": 3 * math.sqrt(0.5) + (math.sqrt(2) - math.sqrt(0.5)), "signal": 3.0,
         "answer_tokens": 21 / 2, "cut": 0.0}
    )  # fmt: skip
    assert narrow.total_weight == 21.0


def test_answers_that_were_just_drawn_have_the_gradient_of_their_advantages(tiny_model):
    torch.manual_seed(0)
    decoder, batch = Decoder(tiny_model()).double(), batch_of([3, 5], 8)
    labels = batch.labels
    logp = -torch.nn.functional.cross_entropy(
        decoder(batch.tokens).flatten(0, 1), labels.flatten(), reduction="none"
    ).view_as(labels)
    batch.extras[DRAWN].set_(-logp.detach().contiguous())
    loss = grpo_loss(decoder, batch, GrpoSpec(group=2))
    parameters = list(decoder.parameters())
    found = torch.autograd.grad(loss.total, parameters, allow_unused=True)
    expected = torch.autograd.grad(-(batch.extras[ADVANTAGE][:, None] * logp).sum(), parameters, allow_unused=True)
    torch.testing.assert_close(found, expected, rtol=1e-6, atol=1e-9)
    assert float(loss.terms["clipped"]) == 0
