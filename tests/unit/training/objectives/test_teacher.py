import json
import re
import shutil

import pytest
import torch
from runs_alike import same

from linnet.core.errors import UserError
from linnet.data.loader import Batch
from linnet.data.token_data import TokenData
from linnet.model.decoder import Decoder
from linnet.model.store import write_model
from linnet.training.callbacks import Callback
from linnet.training.objectives.language_modelling import next_token_loss
from linnet.training.objectives.teacher import Teacher
from linnet.training.run import train_run
from linnet.training.sections import DistillationSpec


@pytest.fixture
def setup(tiny_model):
    def make(mixer="attention"):
        torch.manual_seed(0)
        return Decoder(tiny_model(mixer)), *torch.randint(257, (2, 3, 16)).unbind()

    return make


def _taught(teacher: Decoder, weight: float, temperature: float) -> Teacher:
    return Teacher(teacher, DistillationSpec(teacher="unread", weight=weight, temperature=temperature))


@pytest.mark.parametrize("mixer", ["attention", "ted"])
def test_the_divergence_from_a_teacher_is_minimized_and_logged(mixer, setup):
    decoder, inputs, targets = setup(mixer)
    teacher = Decoder(decoder.spec)
    batch = Batch(inputs, targets, document_starts=((5,), (), (0, 9)))
    found = next_token_loss(decoder, batch, teacher=_taught(teacher, 0.3, 2.0))
    ours, theirs = (
        (each(inputs, documents=batch.document_starts) / 2.0).log_softmax(-1).double() for each in (decoder, teacher)
    )
    divergence = 4 * (theirs.exp() * (theirs - ours)).sum()
    nats = next_token_loss(decoder, batch).nats
    torch.testing.assert_close(found.terms["distillation"], divergence.detach(), rtol=1e-5, atol=0.0)
    torch.testing.assert_close(found.total, 0.7 * nats + 0.3 * divergence, rtol=1e-5, atol=0.0)
    torch.testing.assert_close(found.nats, nats)
    found.total.backward()
    assert all(parameter.grad is None for parameter in teacher.parameters())


@pytest.fixture
def teacher_run(tiny_run, tmp_path):
    """The folder of a trained run, and `taught(**distillation)`: a run that learns from it."""
    folder = tmp_path / "teacher"
    train_run(tiny_run(steps=4), folder)
    return folder, lambda mixer="attention", **more: tiny_run(mixer, distillation={"teacher": str(folder), **more})


def test_a_taught_run_comes_closer_to_its_teacher_and_resumes_bit_for_bit(teacher_run, tmp_path):
    _, taught = teacher_run
    run = taught("ted", weight=1.0)
    summary = train_run(run, tmp_path / "whole").summary
    divergences = [json.loads(line)["terms"]["distillation"] for line in (tmp_path / "whole/metrics.jsonl").open()]
    assert divergences[-1] < divergences[0]
    assert summary["distillation"]["weight"] == 1.0 and len(summary["distillation"]["sha256"]) == 64

    class StopAfter(Callback):
        def after_step(self):
            self.context.stop.requested = self.context.state.step == 7

    assert not train_run(run, tmp_path / "cut", callbacks=[StopAfter()]).finished
    train_run(run, tmp_path / "cut")
    assert same(tmp_path / "cut", tmp_path / "whole")


def test_another_teacher_is_refused_by_a_run_that_has_begun(teacher_run, tiny_run, tmp_path):
    folder, taught = teacher_run
    train_run(taught(), tmp_path / "run")
    shutil.rmtree(folder)
    train_run(tiny_run(steps=4, seed=1), folder)
    with pytest.raises(UserError, match=r"training\.distillation\.teacher: .*SHA-256"):
        train_run(taught(), tmp_path / "run")


@pytest.mark.parametrize(
    ("model", "expected"),
    [
        ({"vocab_size": 300}, "its vocab_size is 300; expected that of the run's model, 257"),
        (
            {"embedding": {"positions": "learned"}, "context_length": 8},
            "its learned positions end at 8; expected at least 16, the context of the run's model",
        ),
        ("plga", "a causal model"),
    ],
)
def test_a_teacher_that_does_not_fit_is_named(model, expected, tiny_run, tiny_model, tiny_data, tmp_path):
    spec = tiny_model(model) if isinstance(model, str) else tiny_model(**model)
    write_model(tmp_path / "teacher", Decoder(spec), TokenData.open(tiny_data).tokenizer, {})
    with pytest.raises(UserError, match=re.escape(expected)) as caught:
        train_run(tiny_run(distillation={"teacher": str(tmp_path / "teacher")}), tmp_path / "run")
    assert "training.distillation.teacher" in str(caught.value)
    assert not (tmp_path / "run").exists()
