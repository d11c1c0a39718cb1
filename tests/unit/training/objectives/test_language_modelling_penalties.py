import json

import pytest
import torch

from linnet.core.errors import UserError
from linnet.data.loader import Batch
from linnet.layers.mixers.plga.operator import DeductiveOutputs, acyclicity
from linnet.model.decoder import Decoder
from linnet.ops.cross_entropy import IGNORE_INDEX
from linnet.training.objectives.language_modelling import check_penalties, next_token_loss
from linnet.training.run import train_run
from linnet.training.run_folder import DivergedError


def deductive_outputs(decoder: Decoder, tokens_BT: torch.Tensor) -> list[DeductiveOutputs]:
    return [DeductiveOutputs(*layer.values()) for layer in decoder.auxiliary_outputs(tokens_BT) if len(layer) > 1]


def mean(outputs: list[DeductiveOutputs], name: str) -> torch.Tensor:
    return torch.stack([acyclicity(getattr(layer, name)) for layer in outputs]).mean()


@pytest.fixture
def decoder(tiny_model):
    torch.manual_seed(0)
    return Decoder(tiny_model("plga"))


def test_terms_are_added_with_their_coefficients_and_logged_without(decoder):
    inputs, targets = torch.randint(257, (2, 2, 16), generator=torch.Generator().manual_seed(1))
    targets[0, :6] = IGNORE_INDEX
    penalties = check_penalties(decoder, {"dag": {"a_lm": 0.5, "a_p": 0, "g": 2.0}})
    loss = next_token_loss(decoder, Batch(inputs, targets), penalties)
    plain, outputs = next_token_loss(decoder, Batch(inputs, targets)), deductive_outputs(decoder, inputs)
    a_lm, g = (26 * mean(outputs, name) for name in ("a_lm", "g"))
    torch.testing.assert_close(loss.nats, plain.nats)
    torch.testing.assert_close(loss.terms, {"dag_a_lm": a_lm.detach(), "dag_g": g.detach()})
    torch.testing.assert_close(loss.total, plain.total + 0.5 * a_lm + 2.0 * g)


def test_terms_have_the_weight_of_the_targets_in_the_total_alone(decoder):
    inputs, targets = torch.randint(257, (2, 2, 16), generator=torch.Generator().manual_seed(1))
    weights, penalties = torch.rand(2, 16) + 0.1, check_penalties(decoder, {"dag": {"a_lm": 0, "a_p": 0, "g": 2.0}})
    plain, found = (next_token_loss(decoder, Batch(inputs, targets, weights), each) for each in ({}, penalties))
    g = mean(deductive_outputs(decoder, inputs), "g")
    torch.testing.assert_close(found.total, plain.total + 2.0 * weights.sum() * g)
    torch.testing.assert_close(found.terms, {"dag_g": 32 * g.detach()})


def test_a_small_step_along_the_gradient_reduces_the_loss(decoder):
    decoder, inputs = decoder.double(), torch.randint(257, (2, 16), generator=torch.Generator().manual_seed(1))

    def term():
        outputs = deductive_outputs(decoder, inputs)
        return sum(mean(outputs, name) for name in ("a_lm", "a_p", "g"))

    parameters, before = list(decoder.parameters()), term()
    gradients = torch.autograd.grad(before, parameters, allow_unused=True)
    squared_norm = sum(gradient.square().sum() for gradient in gradients if gradient is not None)
    with torch.no_grad():
        for parameter, gradient in zip(parameters, gradients, strict=True):
            if gradient is not None:
                parameter.sub_(1e-6 * before / squared_norm * gradient)
        after = term()
    assert float((before - after).detach() / before.detach()) == pytest.approx(1e-6, rel=0.01)


def test_a_run_with_it_logs_its_three_terms(tmp_path, tiny_run):
    for name, penalties in (("with", {"dag": {}}), ("without", {})):
        train_run(tiny_run("plga", penalties=penalties), tmp_path / name)
    last = {
        name: json.loads((tmp_path / name / "metrics.jsonl").read_text().splitlines()[-1])
        for name in ("with", "without")
    }
    assert last["with"]["terms"].keys() == {"dag_a_lm", "dag_a_p", "dag_g"}
    assert "terms" not in last["without"]


def test_nonfinite_values_end_the_run_with_one_line(tmp_path, tiny_run):
    run = tiny_run("plga", penalties={"dag": {}}, optimizer={"lr": 1e30}, clip={"by": "none"})
    with pytest.raises(DivergedError, match="not finite, stopped at step"):
        train_run(run, tmp_path)


def test_a_model_without_an_operator_is_refused(tmp_path, tiny_run):
    with pytest.raises(UserError, match=r"training\.penalties\.dag: no layer of the model has it; expected none"):
        train_run(tiny_run("ted", penalties={"dag": {}}), tmp_path)
