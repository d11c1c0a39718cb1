import pytest
import torch

from linnet.core.errors import UserError
from linnet.model.decoder import Decoder
from linnet.training.objective import next_token_loss
from linnet.training.parallel import check_shard, parallelise, recompute
from linnet.training.processes.group import ALONE, Processes
from linnet.training.sections import ParallelSpec
from linnet.training.spec import TrainingSpec

PENALTIES = {"dag": {"a_lm": 0.05, "g": 0.05}}


def _trained(decoder: Decoder, penalties=PENALTIES):
    tokens = torch.randint(257, (2, 13), generator=torch.Generator().manual_seed(0))
    kept = []
    with torch.autograd.graph.saved_tensors_hooks(lambda x: kept.append(x.numel()) or x, lambda x: x):
        loss = next_token_loss(decoder, tokens[:, :-1], tokens[:, 1:], penalties)
    loss.total.backward()
    gradients = [p.grad.clone() for p in decoder.parameters()]
    decoder.zero_grad()
    return loss, gradients, sum(kept)


@pytest.mark.parametrize("mixer", ["attention", "ted", "plga"])
def test_what_is_computed_anew_is_the_same_to_the_bit_and_less_is_kept(tiny_model, mixer):
    """Penalties and values that layers leave are left once."""
    decoder = Decoder(tiny_model(mixer))
    penalties = PENALTIES if mixer == "plga" else {}
    expected, gradients, kept = _trained(decoder, penalties)
    for layer in decoder.layers:
        recompute(layer)
    found, again, less = _trained(decoder, penalties)
    assert torch.equal(found.total, expected.total) and found.terms == expected.terms
    assert all(map(torch.equal, again, gradients))
    assert less < 0.7 * kept


def test_without_gradients_nothing_is_computed_twice(tiny_model, monkeypatch):
    decoder = Decoder(tiny_model())
    tokens = torch.randint(257, (1, 8))
    with torch.no_grad():
        expected = decoder(tokens)
    for layer in decoder.layers:
        recompute(layer)
    monkeypatch.setattr("linnet.training.parallel.checkpoint", None)
    with torch.no_grad():
        assert torch.equal(decoder(tokens), expected)
    state = decoder.initial_state(1, 8)
    assert torch.allclose(decoder(tokens, state), expected, atol=1e-5)


def test_the_field_asks_for_it(tiny_model):
    decoder = Decoder(tiny_model())
    spec = TrainingSpec.parse({"parallel": {"checkpointing": True}}, "test")
    _, _, kept = _trained(decoder, {})
    parallelise(decoder, spec, torch.float32, ALONE)
    assert _trained(decoder, {})[2] < kept


def test_a_copy_is_shared_by_a_divisor_of_the_processes():
    six = Processes()
    six.count = 6
    for shard in (1, 2, 3, 6):
        check_shard(ParallelSpec(shard=shard), six)
    with pytest.raises(UserError, match=r"^training.parallel.shard: 4: expected a divisor of the .* processes, 6$"):
        check_shard(ParallelSpec(shard=4), six)
    with pytest.raises(UserError, match=r"shard: 2: expected 1 in one process; torchrun --nproc-per-node 2 starts"):
        check_shard(ParallelSpec(shard=2), ALONE)
