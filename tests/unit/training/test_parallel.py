import pytest
import torch

from linnet.core.errors import UserError
from linnet.data.loader import Batch
from linnet.model.decoder import Decoder
from linnet.training.distributed import SINGLE_PROCESS, Processes
from linnet.training.objectives.language_modelling import next_token_loss
from linnet.training.parallel import ParallelModel, check_shard, recompute, with_fitting_shard
from linnet.training.sections import ParallelSpec
from linnet.training.spec import TrainingSpec

PENALTIES = {"dag": {"a_lm": 0.05, "g": 0.05}}


def _trained(decoder: Decoder, penalties=PENALTIES):
    tokens = torch.randint(257, (2, 13), generator=torch.Generator().manual_seed(0))
    kept = []
    with torch.autograd.graph.saved_tensors_hooks(lambda x: kept.append(x.numel()) or x, lambda x: x):
        loss = next_token_loss(decoder, Batch(tokens[:, :-1], tokens[:, 1:]), penalties)
    loss.total.backward()
    gradients = [p.grad.clone() for p in decoder.parameters()]
    decoder.zero_grad()
    return loss, gradients, sum(kept)


@pytest.mark.parametrize("mixer", ["attention", "ted", "plga"])
def test_recomputation_is_bit_for_bit_equal_and_saves_memory(tiny_model, mixer):
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


def test_the_field_selects_it(tiny_model):
    decoder = Decoder(tiny_model())
    spec = TrainingSpec.parse({"parallel": {"checkpointing": True}}, "test")
    _, _, kept = _trained(decoder, {})
    ParallelModel(decoder, spec, torch.float32, SINGLE_PROCESS)
    assert _trained(decoder, {})[2] < kept


def test_shard_must_divide_the_number_of_processes():
    six = Processes()
    six.count = 6
    for shard in (1, 2, 3, 6):
        check_shard(ParallelSpec(shard=shard), six)
    with pytest.raises(UserError, match=r"^training.parallel.shard: 4: expected a divisor of the .* processes, 6$"):
        check_shard(ParallelSpec(shard=4), six)
    accepted = r"expected 1 in one process \(`set` training.parallel.shard=1\), or torchrun --nproc-per-node 2"
    with pytest.raises(UserError, match=rf"shard: 2: {accepted}"):
        check_shard(ParallelSpec(shard=2), SINGLE_PROCESS)


@pytest.mark.parametrize(("asked", "count", "taken"), [(2, 1, 1), (4, 6, 3), (8, 2, 2), (2, 3, 1)])
def test_a_resumed_run_uses_the_next_smaller_shard(asked, count, taken):
    several, notes = Processes(), []
    several.count = count
    spec = TrainingSpec.parse({"parallel": {"shard": asked, "checkpointing": True}}, "test")
    found = with_fitting_shard(spec, several, notes.append)
    assert found.parallel == ParallelSpec(shard=taken, checkpointing=True)
    (line,) = notes
    assert line.startswith(f"note: training.parallel.shard: {taken} instead of {asked} in ")


def test_a_shard_that_divides_the_processes_is_unchanged(tiny_model):
    spec = TrainingSpec.parse({"parallel": {"shard": 2}}, "test")
    four = Processes()
    four.count = 4
    assert with_fitting_shard(spec, four, pytest.fail) is spec
