import pytest
import torch
import torch.nn.functional as F

from linnet.model.decoder import Decoder
from linnet.training.objective import next_token_loss


@pytest.fixture
def setup(tiny_model):
    def make(mixer="attention"):
        torch.manual_seed(0)
        return Decoder(tiny_model(mixer)), *torch.randint(257, (2, 3, 16)).unbind()

    return make


@pytest.mark.parametrize("mixer", ["attention", "ted", "plga"])
def test_it_is_the_summed_cross_entropy(mixer, setup):
    decoder, inputs, targets = setup(mixer)
    loss = next_token_loss(decoder, inputs, targets)
    expected = F.cross_entropy(decoder(inputs).flatten(0, 1), targets.flatten(), reduction="sum")
    torch.testing.assert_close(loss.total, expected, check_dtype=False)
    assert loss.nats.item() == loss.total.item() and not loss.nats.requires_grad


def test_logits_of_low_precision_are_summed_in_float64(setup):
    decoder, inputs, targets = setup()
    with torch.autocast("cpu", torch.bfloat16):
        assert decoder(inputs).dtype == torch.bfloat16
        assert next_token_loss(decoder, inputs, targets).total.dtype == torch.float64
