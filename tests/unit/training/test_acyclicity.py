import json

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st

from linnet.core.errors import UserError
from linnet.model.decoder import Decoder
from linnet.model.deductive import deductive_outputs
from linnet.ops.cross_entropy import IGNORED
from linnet.training.acyclicity import acyclicity, with_acyclicity
from linnet.training.loop import BrokenDownError, train
from linnet.training.objective import next_token_loss
from linnet.training.spec import DagSpec


def _plain(tensors):
    """The formula as the specification writes it."""
    values = []
    for x in tensors:
        traces = torch.linalg.matrix_exp(x * x).diagonal(dim1=-2, dim2=-1).sum(-1)
        values.append((traces / x.shape[-1]).log().abs())
    return torch.stack(values).mean()


@given(layers=st.integers(1, 3), batch=st.integers(1, 3), width=st.integers(1, 6), seed=st.integers(0, 50))
def test_it_is_the_formula(layers, batch, width, seed):
    generator = torch.Generator().manual_seed(seed)
    tensors = [torch.randn(batch, 2, width, width, dtype=torch.float64, generator=generator) for _ in range(layers)]
    torch.testing.assert_close(acyclicity(tensors), _plain(tensors))


@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16])
def test_it_is_finite_for_what_the_operator_can_become(dtype):
    x = (1e6 * torch.randn(1, 2, 8, 8)).to(dtype).requires_grad_()
    value = acyclicity([x])
    (gradient,) = torch.autograd.grad(value, x)
    assert value.isfinite() and value > 1e12
    assert gradient.isfinite().all() and (gradient != 0).any()


@pytest.fixture
def decoder(tiny_model):
    torch.manual_seed(0)
    return Decoder(tiny_model("plga"))


def test_terms_are_added_with_their_coefficients_and_logged_without(decoder):
    inputs, targets = torch.randint(257, (2, 2, 16), generator=torch.Generator().manual_seed(1))
    targets[0, :6] = IGNORED
    loss = with_acyclicity(next_token_loss, DagSpec(a_lm=0.5, a_p=0, g=2.0), decoder)(decoder, inputs, targets)
    plain, outputs = next_token_loss(decoder, inputs, targets), deductive_outputs(decoder, inputs)
    a_lm, g = (26 * acyclicity([getattr(layer, name) for layer in outputs]) for name in ("a_lm", "g"))
    torch.testing.assert_close(loss.nats, plain.nats)
    torch.testing.assert_close(loss.terms, {"dag_a_lm": a_lm.detach(), "dag_g": g.detach()})
    torch.testing.assert_close(loss.total, plain.total + 0.5 * a_lm + 2.0 * g)


def test_a_small_step_down_its_gradient_makes_it_smaller(decoder):
    decoder, inputs = decoder.double(), torch.randint(257, (2, 16), generator=torch.Generator().manual_seed(1))

    def term():
        outputs = deductive_outputs(decoder, inputs)
        return sum(acyclicity([getattr(layer, name) for layer in outputs]) for name in ("a_lm", "a_p", "g"))

    parameters, before = list(decoder.parameters()), term()
    gradients = torch.autograd.grad(before, parameters, allow_unused=True)
    squared_norm = sum(gradient.square().sum() for gradient in gradients if gradient is not None)
    with torch.no_grad():
        for parameter, gradient in zip(parameters, gradients, strict=True):
            if gradient is not None:
                parameter.sub_(1e-6 * before / squared_norm * gradient)
        after = term()
    assert float((before - after) / before) == pytest.approx(1e-6, rel=0.01)


def test_a_run_with_it_logs_its_three_terms(tmp_path, tiny_run):
    for name, dag in (("with", {}), ("without", None)):
        train(tiny_run("plga", dag=dag), tmp_path / name)
    last = {
        name: json.loads((tmp_path / name / "metrics.jsonl").read_text().splitlines()[-1])
        for name in ("with", "without")
    }
    assert last["with"]["terms"].keys() == {"dag_a_lm", "dag_a_p", "dag_g"}
    assert "terms" not in last["without"]


def test_a_tensor_that_is_not_finite_breaks_the_run_down_in_one_line(tmp_path, tiny_run):
    run = tiny_run("plga", dag={}, optimiser={"lr": 1e30}, clip={"by": "none"})
    with pytest.raises(BrokenDownError, match="not finite, stopped at step"):
        train(run, tmp_path)


def test_a_model_without_an_operator_is_refused(tmp_path, tiny_run):
    with pytest.raises(UserError, match=r"training\.dag: the model has no plga layer"):
        train(tiny_run("ted", dag={}), tmp_path)
