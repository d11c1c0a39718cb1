import pytest
import torch

from linnet.model.decoder import Decoder
from linnet.training.callbacks.saving import Averaging, weight_of
from linnet.training.sections import AveragingSpec


@pytest.fixture
def decoder(tiny_model):
    torch.manual_seed(0)
    return Decoder(tiny_model())


def _step(decoder, seed):
    generator = torch.Generator().manual_seed(seed)
    with torch.no_grad():
        for parameter in decoder.parameters():
            parameter.copy_(torch.randn(parameter.shape, generator=generator))


def _weights(decoder):
    return {name: parameter.detach().clone() for name, parameter in decoder.named_parameters()}


def _same(one, other):
    return all(torch.equal(one[name], other[name]) for name in one)


@pytest.mark.parametrize(("share", "first"), [(0.5, 6), (0.3, 8), (1.0, 1), (0.01, 10)])
def test_the_mean_is_that_of_the_last_share_of_the_steps(decoder, share, first):
    averaging, seen = Averaging(AveragingSpec(kind="mean", share=share), decoder), []
    for step in range(1, 11):
        _step(decoder, step)
        seen.append(_weights(decoder))
        averaging.update(step, 10)
    with averaging.saved_weights():
        for name, found in _weights(decoder).items():
            expected = torch.stack([weights[name] for weights in seen[first - 1 :]]).mean(0)
            torch.testing.assert_close(found, expected)


def test_before_its_share_the_mean_is_not_used(decoder):
    averaging = Averaging(AveragingSpec(kind="mean", share=0.5), decoder)
    averaging.update(3, 10)
    before = _weights(decoder)
    with averaging.saved_weights() as trained:
        assert trained == {} and _same(before, _weights(decoder))


def test_the_exponential_mean_has_its_weights(decoder):
    averaging, expected = Averaging(AveragingSpec(decay=0.7), decoder), {}
    for step in range(1, 41):
        _step(decoder, step)
        decay = min(0.7, (1 + step) / (10 + step))
        for name, weights in _weights(decoder).items():
            expected[name] = decay * expected.get(name, weights.double()) + (1 - decay) * weights.double()
        averaging.update(step, 40)
    with averaging.saved_weights():
        for name, found in _weights(decoder).items():
            torch.testing.assert_close(found.double(), expected[name], rtol=1e-4, atol=1e-5)


def test_weights_of_the_average_add_up_to_one():
    for spec in (AveragingSpec(decay=0.9), AveragingSpec(kind="mean", share=0.4)):
        total = 0.0
        for step in range(1, 51):
            weight = weight_of(spec, step, 50)
            total = 1.0 if total == 0 < weight else total * (1 - weight) + weight
        assert total == pytest.approx(1.0)


def test_trained_weights_are_restored_after_an_error(decoder):
    averaging = Averaging(AveragingSpec(), decoder)
    averaging.update(1, 9)
    _step(decoder, 2)
    averaging.update(2, 9)
    before = _weights(decoder)
    with pytest.raises(ZeroDivisionError), averaging.saved_weights() as trained:
        assert not _same(before, _weights(decoder))
        assert _same({f"{name}/trained_weight": each for name, each in before.items()}, trained)
        raise ZeroDivisionError
    assert _same(before, _weights(decoder))


def test_the_mean_of_an_extended_run_starts_again(decoder):
    averaging = Averaging(AveragingSpec(kind="mean", share=0.5), decoder)
    for step in range(1, 11):
        _step(decoder, step)
        averaging.update(step, 10)
    _step(decoder, 11)
    averaging.update(11, 40)
    with averaging.saved_weights() as trained:
        assert trained == {}
