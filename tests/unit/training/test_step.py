import math
from dataclasses import replace

import pytest
import torch
import torch.nn.functional as F

from linnet.core.system import Stopped
from linnet.data.loader import Batch
from linnet.data.pieces import ByteCounts
from linnet.model.decoder import Decoder
from linnet.ops.cross_entropy import IGNORE_INDEX
from linnet.training.objectives import Loss
from linnet.training.objectives.language_modelling import next_token_loss
from linnet.training.parallel import ParallelModel
from linnet.training.sections import ClipSpec
from linnet.training.step import NonFiniteError, Stepper

BYTES = torch.arange(257) % 5


@pytest.fixture
def stepper_of(tiny_model):
    def make(clip="none", at=1.0, objective=next_token_loss, precision=torch.float32):
        torch.manual_seed(0)
        decoder = Decoder(tiny_model())
        optimizer = torch.optim.SGD([{"params": decoder.parameters(), "scale": 1.0}], lr=9.0)
        return Stepper(
            ParallelModel(decoder),
            objective,
            optimizer,
            ClipSpec(by=clip, at=at),
            precision,
            ByteCounts.create(BYTES.tolist()).to("cpu"),
        )

    return make


def _batches(count, rows, seed=1):
    tokens = torch.randint(257, (2, count, rows, 16), generator=torch.Generator().manual_seed(seed))
    return [Batch(*batch) for batch in zip(tokens[0], tokens[1], strict=True)]


def _gradient_of_mean(stepper, batches):
    logits = torch.cat([stepper.model.decoder(batch.tokens) for batch in batches])
    targets = torch.cat([batch.labels for batch in batches])
    loss = F.cross_entropy(logits.flatten(0, 1), targets.flatten())
    return loss, dict(
        zip(
            dict(stepper.model.decoder.named_parameters()),
            torch.autograd.grad(loss, list(stepper.model.decoder.parameters())),
            strict=True,
        )
    )


def _weights(stepper):
    return {name: p.detach().clone() for name, p in stepper.model.decoder.named_parameters()}


def test_accumulated_batches_are_one_large_batch(stepper_of):
    stepper = stepper_of()
    before, batches = _weights(stepper), _batches(3, 2)
    loss, gradients = _gradient_of_mean(stepper, batches)
    result = stepper(batches, lr=0.5)
    assert result.tokens == 3 * 2 * 16
    assert result.nats / result.tokens == pytest.approx(loss.item(), rel=1e-6)
    assert result.bytes == sum(int(BYTES[batch.targets].sum()) for batch in batches)
    assert result.gradient_norm == pytest.approx(math.sqrt(sum(float((g**2).sum()) for g in gradients.values())))
    for name, weight in stepper.model.decoder.named_parameters():
        torch.testing.assert_close(weight, before[name] - 0.5 * gradients[name], rtol=1e-5, atol=1e-7, msg=name)


def test_a_loss_of_examples_is_their_mean_and_so_are_its_terms(stepper_of):
    def first_row_less_second(decoder, batch):
        each = next_token_loss(decoder, batch)
        logits = decoder(batch.tokens).flatten(0, 1)
        nats = F.cross_entropy(logits, batch.targets.flatten(), reduction="none").view_as(batch.targets).sum(dim=1)
        margins = nats[0::2] - nats[1::2]
        return Loss(margins.square().sum(), each.nats, example_terms={"margin": margins.detach().sum()})

    def pairs(batch):
        return replace(batch, rows_per_example=2, mean_over_examples=True)

    parts, whole = _batches(2, 4), stepper_of(objective=first_row_less_second)
    accumulated = stepper_of(objective=first_row_less_second)
    batch = Batch(torch.cat([part.tokens for part in parts]), torch.cat([part.targets for part in parts]))
    one, other = whole([pairs(batch)], lr=0.1), accumulated([pairs(part) for part in parts], lr=0.1)
    assert one.examples == other.examples == 4
    assert one.example_terms == pytest.approx(other.example_terms) and set(one.example_terms) == {"margin"}
    assert one.gradient_norm == pytest.approx(other.gradient_norm) and one.gradient_norm > 1e-3
    for name, weight in whole.model.decoder.named_parameters():
        torch.testing.assert_close(weight, _weights(accumulated)[name], rtol=1e-4, atol=1e-6, msg=name)


def test_ignored_targets_do_not_count(stepper_of):
    stepper = stepper_of()
    before, (whole, *_) = _weights(stepper), _batches(1, 2)
    targets = whole.targets.clone()
    targets[0, 5:], targets[1, :3] = IGNORE_INDEX, IGNORE_INDEX
    batch = Batch.from_labels(whole.tokens, targets)
    _, gradients = _gradient_of_mean(stepper, [batch])
    result = stepper([batch], lr=0.5)
    assert result.tokens == 5 + 13
    assert result.bytes == int(BYTES[targets[0, :5]].sum() + BYTES[targets[1, 3:]].sum())
    for name, weight in stepper.model.decoder.named_parameters():
        torch.testing.assert_close(weight, before[name] - 0.5 * gradients[name], rtol=1e-5, atol=1e-7, msg=name)


def test_clipping_by_norm_keeps_the_direction(stepper_of):
    stepper = stepper_of("norm", at=0.01)
    before, batches = _weights(stepper), _batches(1, 2)
    _, gradients = _gradient_of_mean(stepper, batches)
    result = stepper(batches, lr=1.0)
    assert result.gradient_norm > 0.01
    for name, weight in stepper.model.decoder.named_parameters():
        expected = before[name] - gradients[name] * 0.01 / result.gradient_norm
        torch.testing.assert_close(weight, expected, rtol=1e-4, atol=1e-7, msg=name)


def test_clipping_by_value_cuts_each_element(stepper_of):
    stepper = stepper_of("value", at=1e-3)
    before, batches = _weights(stepper), _batches(1, 2)
    _, gradients = _gradient_of_mean(stepper, batches)
    assert any((g.abs() > 1e-3).any() for g in gradients.values())
    stepper(batches, lr=1.0)
    for name, weight in stepper.model.decoder.named_parameters():
        expected = before[name] - gradients[name].clamp(-1e-3, 1e-3)
        torch.testing.assert_close(weight, expected, rtol=1e-4, atol=1e-7, msg=name)


def _broken_loss(decoder, batch):
    loss = next_token_loss(decoder, batch)
    return Loss(loss.total + math.inf, loss.nats)


def _broken_gradient(decoder, batch):
    loss = next_token_loss(decoder, batch)
    # The square root of 0 is finite, its slope is not.
    return Loss(loss.total + (decoder.embedding.tokens.weight.sum() * 0).abs().sqrt(), loss.nats)


@pytest.mark.parametrize(("objective", "word"), [(_broken_loss, "loss inf"), (_broken_gradient, "gradient norm nan")])
def test_a_nonfinite_step_is_never_applied(objective, word, stepper_of):
    stepper = stepper_of(objective=objective)
    before = _weights(stepper)
    with pytest.raises(NonFiniteError, match=word) as error:
        stepper(_batches(1, 2), lr=0.25)
    assert "learning rate 0.25" in str(error.value)
    assert all(torch.equal(weight, before[name]) for name, weight in stepper.model.decoder.named_parameters())
    assert all(p.grad is None for p in stepper.model.decoder.parameters())


def test_a_term_of_the_objective_is_minimized_but_not_reported_as_likelihood(stepper_of):
    def with_a_term(decoder, batch):
        loss = next_token_loss(decoder, batch)
        return Loss(loss.total + 1000 * sum((p**2).sum() for p in decoder.parameters()), loss.nats)

    plain, regularized = stepper_of(), stepper_of(objective=with_a_term)
    batches = _batches(1, 2)
    assert plain(batches, 0.01).nats == regularized(batches, 0.01).nats
    sizes = [sum(float((w**2).sum()) for w in _weights(stepper).values()) for stepper in (plain, regularized)]
    assert sizes[1] < sizes[0]


def test_bfloat16_products_keep_float32_weights_and_gradients(stepper_of):
    stepper, exact = stepper_of(precision=torch.bfloat16), stepper_of()
    batches = _batches(1, 2)
    low, high = stepper(batches, 0.1), exact(batches, 0.1)
    assert low.nats != high.nats and low.nats == pytest.approx(high.nats, rel=1e-2)
    assert all(p.dtype == torch.float32 for p in stepper.model.decoder.parameters())


def test_a_stop_between_two_batches_discards_the_step(stepper_of):
    def one_and_no_more(batches):
        yield batches[0]
        raise Stopped

    stepper = stepper_of()
    before = {name: tensor.clone() for name, tensor in stepper.model.decoder.state_dict().items()}
    with pytest.raises(Stopped):
        stepper(_batches(3, rows=2), 1.0, one_and_no_more)
    assert all(torch.equal(tensor, before[name]) for name, tensor in stepper.model.decoder.state_dict().items())
    assert all(parameter.grad is None for parameter in stepper.model.decoder.parameters())
