import json
from pathlib import Path

import pytest
import torch

from linnet.data.loader import Batch
from linnet.model.decoder import Decoder
from linnet.model.spec import ModelSpec
from linnet.training import machine
from linnet.training.machine import Precision, configured_precision, measure_precision, pass_s
from linnet.training.objectives.language_modelling import next_token_loss
from linnet.training.reporter import Reporter
from linnet.training.run import train_run
from linnet.training.spec import TrainingSpec

CPU, CUDA = torch.device("cpu"), torch.device("cuda")

TINY = {
    "vocab_size": 40, "d_model": 16, "context_length": 16,
    "blocks": [{"mixer": {"kind": "attention", "heads": 2}, "feed_forward": {"kind": "glu", "hidden": 24}}],
}  # fmt: skip


def test_precision_is_the_configured_one_or_that_of_the_gpu(monkeypatch):
    assert configured_precision(TrainingSpec(precision="bfloat16"), CPU).dtype == torch.bfloat16
    assert configured_precision(TrainingSpec(precision="float32"), CUDA).dtype == torch.float32
    assert configured_precision(TrainingSpec(), CPU) is None
    for native, expected in ((True, "bfloat16"), (False, "float32")):
        monkeypatch.setattr(torch.cuda, "is_bf16_supported", lambda including_emulation, native=native: native)
        assert configured_precision(TrainingSpec(), CUDA).name == expected


def _measured(monkeypatch, product_s: float, pass_s: float) -> tuple[Precision, list[torch.dtype]]:
    """What is chosen where bfloat16 takes so long, float32 a second each; and the passes that it took."""
    passes: list[torch.dtype] = []

    def timed(decoder, objective, batch, dtype: torch.dtype) -> float:
        passes.append(dtype)
        return 1.0 if dtype == torch.float32 else pass_s

    monkeypatch.setattr(machine, "pass_s", timed)
    decoder, batch = Decoder(ModelSpec.parse(TINY, "tiny")), Batch(*(torch.zeros(2, 16, dtype=torch.long),) * 2)
    found = measure_precision(
        decoder, next_token_loss, batch, lambda width, device, dtype: 1.0 if dtype == torch.float32 else product_s
    )
    return found, passes


@pytest.mark.parametrize(("pass_s", "expected"), [(0.5, "bfloat16"), (0.95, "float32"), (1.4, "float32")])
def test_bfloat16_is_chosen_if_it_is_faster_by_a_margin(monkeypatch, pass_s, expected):
    found, passes = _measured(monkeypatch, 0.3, pass_s)
    assert found.name == expected and found.measured and len(passes) == 8
    assert found.reason == f"2 x 16 tokens take {pass_s:.2g} s in bfloat16, 1 s in float32"


def test_no_passes_are_measured_if_bfloat16_products_are_slow(monkeypatch):
    found, passes = _measured(monkeypatch, 40.0, 0.1)
    assert found.name == "float32" and passes == [] and "takes 40 times as long in bfloat16" in found.reason


def test_a_measurement_changes_nothing_and_takes_fewer_sequences_where_a_pass_is_long(monkeypatch):
    torch.manual_seed(0)
    decoder, batch = Decoder(ModelSpec.parse(TINY, "tiny")), Batch(*(torch.zeros(6, 16, dtype=torch.long),) * 2)
    before = {name: tensor.clone() for name, tensor in decoder.state_dict().items()}
    state = torch.get_rng_state()
    sizes: list[int] = []

    def counted(decoder, objective, batch, dtype):
        sizes.append(len(batch))
        return pass_s(decoder, objective, batch, dtype)

    monkeypatch.setattr(machine, "pass_s", counted)
    measure_precision(decoder, next_token_loss, batch, lambda *_: 0.0)
    assert set(sizes) == {6} and len(sizes) == 8
    assert all(torch.equal(before[name], tensor) for name, tensor in decoder.state_dict().items())
    assert all(parameter.grad is None for parameter in decoder.parameters())
    assert torch.equal(state, torch.get_rng_state())
    sizes.clear()
    monkeypatch.setattr(machine, "peak_flops_per_s", lambda device, dtype: 1.0)
    measure_precision(decoder, next_token_loss, batch, lambda *_: 0.0)
    assert set(sizes) == {1}


class Heard(Reporter):
    def __init__(self) -> None:
        self.notes: list[str] = []

    def note(self, text: str) -> None:
        self.notes.append(text)


def test_a_run_resumes_in_its_measured_precision(tiny_run, tmp_path: Path, monkeypatch):
    """Whatever the machine would choose now; a short run is not measured."""
    chosen = Precision(name="bfloat16", reason="here and now", measured=True)
    run = tiny_run(steps=3)
    with monkeypatch.context() as patch:
        patch.setattr(machine, "MEASURED_RUN_FLOPS", 0)
        patch.setattr("linnet.training.trainer.measure_precision", lambda *given: chosen)
        heard = Heard()
        first = train_run(run, tmp_path / "run", heard)
    assert "precision bfloat16: here and now" in heard.notes
    assert json.loads((tmp_path / "run" / "precision.json").read_text())["name"] == "bfloat16"
    told = first.summary["machine"]
    assert (told["precision"], told["precision_reason"]) == ("bfloat16", "here and now")
    again = Heard()
    assert train_run(tiny_run(steps=5), tmp_path / "run", again).summary["machine"]["precision"] == "bfloat16"
    assert not any("precision" in note for note in again.notes)
    short = train_run(run, tmp_path / "short").summary["machine"]
    assert (short["precision"], short["precision_reason"]) == ("float32", "too short a run to measure")


def test_a_run_without_a_measured_precision_resumes_in_float32(tiny_run, tmp_path: Path, monkeypatch):
    run = tiny_run(steps=3)
    train_run(run, tmp_path / "run")
    monkeypatch.setattr(machine, "MEASURED_RUN_FLOPS", 0)
    told = train_run(tiny_run(steps=5), tmp_path / "run").summary["machine"]
    assert (told["precision"], told["precision_reason"]) == ("float32", "the run began before precision was measured")
    assert not (tmp_path / "run" / "precision.json").exists()
