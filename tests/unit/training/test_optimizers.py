import pytest
import torch
from runs_alike import with_gradients

from linnet.training.checkpoint import load_optimizer_tensors, optimizer_tensors
from linnet.training.optimizers import (
    build_optimizer,
    set_learning_rate,
    split_by_decay,
)
from linnet.training.optimizers.adamw import AdamW
from linnet.training.sections import OptimizerSpec


def test_weight_decay_acts_on_matrices_but_not_on_embeddings_norms_and_biases(decoder_with_weights):
    decoder = decoder_with_weights("plga", embedding={"positions": "learned"}, head={"tied": False, "bias": True})
    decayed, free = split_by_decay(decoder)
    assert {n.rpartition(".")[2] for n in decayed} == {"weight", "metric_weight", "power", "curvature_weight"}
    assert all(p.dim() >= 2 for p in decayed.values())
    assert {"embedding.tokens.weight", "embedding.positions.weight", "head.bias"} <= free.keys()
    assert {n for n, p in free.items() if p.dim() >= 2 and "embedding" not in n} == {
        f"blocks.0.layers.{i}.mixer.operator.{kind}_bias" for i in range(2) for kind in ("metric", "curvature")
    }
    assert "head.weight" in decayed
    assert len(decayed) + len(free) == len(list(decoder.parameters()))


@pytest.mark.parametrize("kind", ["adamw", "muon"])
@pytest.mark.parametrize(("own", "rate"), [(None, 0.005), (0.002, 0.001)])
def test_low_lr_parameters_have_their_own_learning_rate(decoder_with_weights, kind, own, rate):
    decoder = decoder_with_weights("plga")
    optimizer = build_optimizer(OptimizerSpec(kind=kind, lr=0.01, low_lr=own), decoder)
    set_learning_rate(optimizer, 0.005)
    rates = {id(parameter): group["lr"] for group in optimizer.param_groups for parameter in group["params"]}
    for name, parameter in decoder.named_parameters():
        assert rates[id(parameter)] == pytest.approx(rate if ".operator." in name else 0.005), name


@pytest.mark.parametrize("on", ["matrices", "all"])
def test_the_update_is_adamw(decoder_with_weights, on: str):
    """Loshchilov and Hutter, algorithm 2, two steps in float64 beside the fused kernel."""
    decoder = decoder_with_weights()
    spec = OptimizerSpec(lr=0.1, betas=(0.8, 0.9), eps=1e-3, weight_decay=0.5, weight_decay_on=on)
    optimizer = build_optimizer(spec, decoder)
    decayed = split_by_decay(decoder)[0] if on == "matrices" else dict(decoder.named_parameters())
    expected = {name: p.detach().double().clone() for name, p in decoder.named_parameters()}
    m = {name: torch.zeros_like(p) for name, p in expected.items()}
    v = {name: torch.zeros_like(p) for name, p in expected.items()}
    for t, lr in ((1, 0.1), (2, 0.05)):
        with_gradients(decoder, t)
        for name, parameter in decoder.named_parameters():
            gradient = parameter.grad.double()
            m[name] = 0.8 * m[name] + 0.2 * gradient
            v[name] = 0.9 * v[name] + 0.1 * gradient**2
            step = (m[name] / (1 - 0.8**t)) / ((v[name] / (1 - 0.9**t)).sqrt() + 1e-3)
            expected[name] = expected[name] * (1 - lr * (0.5 if name in decayed else 0)) - lr * step
        set_learning_rate(optimizer, lr)
        optimizer.step()
    for name, parameter in decoder.named_parameters():
        torch.testing.assert_close(parameter.double(), expected[name], rtol=1e-4, atol=1e-5, msg=name)


@pytest.mark.parametrize("mixer", ["attention", "plga", "ted"])
def test_moments_loaded_into_another_optimizer_continue_bit_for_bit(mixer, decoder_with_weights):
    one, two = decoder_with_weights(mixer), decoder_with_weights(mixer)
    first, second = (build_optimizer(OptimizerSpec(), decoder) for decoder in (one, two))
    assert optimizer_tensors(first, one) == {}
    with_gradients(one, 1)
    first.step()
    two.load_state_dict(one.state_dict())
    load_optimizer_tensors(second, two, optimizer_tensors(first, one))
    for decoder, optimizer in ((one, first), (two, second)):
        with_gradients(decoder, 2)
        optimizer.step()
    assert all(torch.equal(a, b) for a, b in zip(one.parameters(), two.parameters(), strict=True))
    moments = optimizer_tensors(second, two)
    assert moments.keys() == {f"{n}/{k}" for n, _ in two.named_parameters() for k in ("step", "exp_avg", "exp_avg_sq")}


def test_it_is_pytorchs_fused_form_bit_for_bit():
    ours = [torch.nn.Parameter(torch.randn(shape)) for shape in ((7, 5), (3,), (4, 4))]
    theirs = [torch.nn.Parameter(parameter.detach().clone()) for parameter in ours]
    settings = {"betas": (0.8, 0.9), "eps": 1e-6}

    def groups(parameters):
        return [
            {"params": parameters[:1], "lr": 0.1, "scale": 1.0, "weight_decay": 0.5},
            {"params": parameters[1:], "lr": 0.1, "scale": 1.0, "weight_decay": 0.0},
        ]

    optimizers = AdamW(groups(ours), **settings), torch.optim.AdamW(groups(theirs), **settings, fused=True)
    for step in range(3):
        for mine, other in zip(ours[: 2 + step], theirs, strict=False):  # the last one has no gradient at first
            mine.grad = torch.randn(mine.shape)
            other.grad = mine.grad.clone()
        for optimizer in optimizers:
            optimizer.step()
            optimizer.zero_grad()
    assert all(torch.equal(mine, other) for mine, other in zip(ours, theirs, strict=True))
    assert all(parameter.grad is None for parameter in ours)


def test_cautious_decay_acts_where_update_and_weight_agree(decoder_with_weights):
    """Chen et al., arXiv 2510.12402: the sign of the update is that of the mean gradient, the latest one included."""
    decoder = decoder_with_weights()
    spec = OptimizerSpec(lr=0.1, betas=(0.8, 0.9), eps=1e-3, weight_decay=0.5, cautious_decay=True)
    optimizer = build_optimizer(spec, decoder)
    decayed = split_by_decay(decoder)[0]
    expected = {name: p.detach().double().clone() for name, p in decoder.named_parameters()}
    m, v = ({name: torch.zeros_like(p) for name, p in expected.items()} for _ in "mv")
    kept = 0
    for t in (1, 2):
        with_gradients(decoder, t)
        for name, parameter in decoder.named_parameters():
            gradient, before = parameter.grad.double(), expected[name]
            m[name] = 0.8 * m[name] + 0.2 * gradient
            v[name] = 0.9 * v[name] + 0.1 * gradient**2
            update = (m[name] / (1 - 0.8**t)) / ((v[name] / (1 - 0.9**t)).sqrt() + 1e-3)
            agree = (update * before >= 0) & (name in decayed)
            kept += int((~agree).sum())
            expected[name] = before - 0.1 * (update + 0.5 * agree * before)
        optimizer.step()
    assert kept > 100
    for name, parameter in decoder.named_parameters():
        torch.testing.assert_close(parameter.double(), expected[name], rtol=1e-4, atol=1e-5, msg=name)
