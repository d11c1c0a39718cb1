import datetime
import json
from pathlib import Path
from types import SimpleNamespace

import pytest
import torch

from linnet.core.atomic import file_lock
from linnet.core.errors import UserError
from linnet.data.loader import Batch
from linnet.data.tokenizer import Tokenizer
from linnet.model.cost import model_cost
from linnet.model.decoder import Decoder
from linnet.model.store import write_model
from linnet.training import machine
from linnet.training.checkpoint import optimizer_tensors
from linnet.training.machine import (
    check_memory,
    is_plausible,
    kept_peak,
    peak_flops_per_s,
    peak_memory_bytes,
    threads,
)
from linnet.training.objectives.language_modelling import next_token_loss
from linnet.training.optimizers import build_optimizer
from linnet.training.sections import OptimizerSpec
from linnet.training.spec import TrainingSpec

CPU, CUDA = torch.device("cpu"), torch.device("cuda")


def test_threads_are_restored():
    before = torch.get_num_threads()
    with threads(before + 1):
        assert torch.get_num_threads() == before + 1
    with threads(None):
        assert torch.get_num_threads() == before
    assert torch.get_num_threads() == before


@pytest.mark.parametrize("count", [0, 33, 10**6])
def test_too_many_threads_are_refused(monkeypatch, count: int):
    monkeypatch.setattr(machine.os, "cpu_count", lambda: 2)
    message = f"training.threads: {count}: expected at least 1 and, on 2 processors, at most 32"
    monkeypatch.setattr(torch, "set_num_threads", lambda count: pytest.fail("made"))
    with pytest.raises(UserError, match=message), threads(count):
        pass


def test_the_peak_is_two_flops_for_each_multiply_add_of_the_fastest_product(monkeypatch):
    monkeypatch.setattr(machine, "PEAK_WIDTHS", {"cpu": 64})
    monkeypatch.setattr(machine, "fastest_product_s", lambda width, device, dtype: 0.5)
    assert peak_flops_per_s(CPU, torch.float32) == 2 * 64**3 / 0.5


@pytest.fixture
def measured(monkeypatch, tmp_path):
    """The number of measurements of 50 GFLOP/s, of which the process had all of one thread's time."""
    count = []

    def measure(device, dtype):
        count.append(dtype)
        return 5e10

    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path))
    monkeypatch.setattr(machine, "peak_flops_per_s", measure)
    monkeypatch.setattr(machine.torch, "get_num_threads", lambda: 1)
    monkeypatch.setattr(machine.torch.backends.cpu, "get_cpu_capability", lambda: "AVX2")
    monkeypatch.setattr(machine.psutil, "cpu_freq", lambda: SimpleNamespace(current=2000.0, max=3000.0))
    monkeypatch.setattr(machine.time, "process_time", iter(range(100)).__next__)
    monkeypatch.setattr(machine.time, "perf_counter", iter(range(100)).__next__)
    return count


def test_a_peak_is_measured_once_per_precision_and_kept_with_its_date(measured, tmp_path):
    first = kept_peak(CPU, torch.float32)
    assert first is not None and first.flops_per_s == 5e10 and first.measured == datetime.date.today().isoformat()
    assert kept_peak(CPU, torch.float32) == first and kept_peak(CPU, torch.bfloat16) == first
    assert measured == [torch.float32, torch.bfloat16]
    kept = json.loads((tmp_path / "linnet" / "peak-speeds.json").read_text())
    assert len(kept) == 2 and all("1 threads, torch." in key for key in kept)
    (tmp_path / "linnet" / "peak-speeds.json").write_text("no JSON")
    assert kept_peak(CPU, torch.float32) == first and len(measured) == 3


def test_peaks_that_others_keep_meanwhile_are_not_lost(measured, tmp_path, monkeypatch):
    """Of another process, which is measuring at the same time; a file that it is just writing is left alone."""
    kept, measure = tmp_path / "linnet" / "peak-speeds.json", machine.peak_flops_per_s

    def other_first(device, dtype):
        kept.parent.mkdir(exist_ok=True)
        kept.write_text(json.dumps({"other": {"flops_per_s": 1.0, "measured": "2026-01-01"}}))
        return measure(device, dtype)

    monkeypatch.setattr(machine, "peak_flops_per_s", other_first)
    assert kept_peak(CPU, torch.float32) is not None
    assert len(json.loads(kept.read_text())) == 2
    with file_lock(kept.with_suffix(".lock"), "{}"):
        assert kept_peak(CPU, torch.bfloat16) is not None
    assert list(json.loads(kept.read_text())) == ["other"] and len(measured) == 2


def test_without_a_home_a_peak_is_measured_and_not_kept(measured, monkeypatch):
    monkeypatch.delenv("XDG_CACHE_HOME")
    monkeypatch.setattr(Path, "home", no_home)
    assert kept_peak(CPU, torch.float32) == kept_peak(CPU, torch.float32) and len(measured) == 2


def no_home():
    raise RuntimeError("Could not determine home directory.")


def test_a_peak_on_a_busy_machine_is_not_kept(measured, monkeypatch, tmp_path):
    monkeypatch.setattr(machine.time, "process_time", (0.7 * number for number in range(100)).__next__)
    assert kept_peak(CPU, torch.float32) is None and kept_peak(CPU, torch.float32) is None
    assert len(measured) == 2 and not list(tmp_path.iterdir())


@pytest.mark.parametrize(("flops_per_s", "plausible"), [(9e9, False), (1e10, True), (1e11, True), (1.2e11, False)])
def test_a_speed_is_checked_against_what_the_processor_can_compute(measured, flops_per_s, plausible, monkeypatch):
    """One thread of 3 GHz with two multiply-adds of 8 numbers in a cycle: 96 GFLOP/s."""
    assert is_plausible(flops_per_s, torch.float32) == plausible
    assert is_plausible(flops_per_s, torch.bfloat16)
    monkeypatch.setattr(machine.psutil, "cpu_freq", lambda: None)
    assert is_plausible(flops_per_s, torch.float32)


def test_a_product_takes_time(monkeypatch):
    monkeypatch.setattr(machine, "PEAK_BUDGET_S", 1e-3)
    assert 1e7 < peak_flops_per_s(CPU, torch.float32) < 1e15


def test_memory_is_in_bytes():
    before = peak_memory_bytes(CPU)
    held = torch.ones(1 << 24)
    assert peak_memory_bytes(CPU) >= before and held.nbytes < peak_memory_bytes(CPU) < 1 << 42


def test_memory_is_measured_where_the_system_has_no_resource_usage(monkeypatch):
    monkeypatch.setattr(machine, "resource", None)
    held = torch.ones(1 << 24)
    assert held.nbytes < peak_memory_bytes(CPU) < 1 << 42


def test_a_step_that_fits_is_accepted(tiny_run, monkeypatch):
    monkeypatch.setattr(machine, "available_bytes", lambda device: 1 << 40)
    check_memory(tiny_run().resolved(), CPU, torch.float32)


def test_a_batch_that_does_not_fit_names_the_size_that_would(tiny_run, monkeypatch):
    monkeypatch.setattr(machine, "available_bytes", lambda device: 10_000_000)
    with pytest.raises(UserError, match=r"^training\.batch_size: 60000: .* for a step, 10 MB are free") as refused:
        check_memory(tiny_run(batch_size=60_000).resolved(), CPU, torch.float32)
    most = int(str(refused.value).split("about ")[1].split()[0])
    assert most > 1
    check_memory(tiny_run(batch_size=most).resolved(), CPU, torch.float32)
    with pytest.raises(UserError):
        check_memory(tiny_run(batch_size=2 * most).resolved(), CPU, torch.float32)


def _least_bytes(run, monkeypatch, precision=torch.float32, mean_lengths=None):
    """The least memory with which a run is begun."""
    low, high = 0, 1 << 30
    while high - low > 1:
        middle = (low + high) // 2
        monkeypatch.setattr(machine, "available_bytes", lambda device, free=middle: free)
        try:
            check_memory(run.resolved(), CPU, precision, mean_lengths=mean_lengths)
            high = middle
        except UserError:
            low = middle
    return high


def test_memory_of_optimizer_and_average_is_counted(tiny_run, monkeypatch):
    """To the byte: the tensors of their states, but for the counts of steps."""
    plain = _least_bytes(tiny_run(), monkeypatch)
    adamw = 2 * 4 * sum(parameter.numel() for parameter in Decoder(tiny_run().model).parameters())
    for every in (1, 2):
        optimizer = {"kind": "muon", "muon": {"every": every}}
        decoder = Decoder(tiny_run().model)
        made = build_optimizer(OptimizerSpec(**optimizer), decoder)
        for parameter in decoder.parameters():
            parameter.grad = torch.ones_like(parameter)
        made.step()
        held = sum(t.nbytes for t in optimizer_tensors(made, decoder).values() if t.dim())
        assert _least_bytes(tiny_run(optimizer=optimizer), monkeypatch) - plain == held - adamw
    assert _least_bytes(tiny_run(averaging={}), monkeypatch) - plain == adamw // 2


def _started(run, **fields):
    """The run with other fields of training, from the weights of a model."""
    training = TrainingSpec.parse({**run.training.model_dump(), **fields}, "test")
    return run.model_copy(update={"training": training, "start_from": Path("model")})


def test_answers_of_a_group_and_of_a_pair_are_counted(tiny_run, monkeypatch):
    """As so many sequences, of their own length, as are read by a pass."""
    rows = {size: _least_bytes(tiny_run(batch_size=size), monkeypatch) for size in (4, 8, 16)}
    for fields, number in (({"grpo": {"group": 4}}, 4), ({"preference": {}}, 2)):
        run = _started(tiny_run(batch_size=4), **fields)
        assert _least_bytes(run, monkeypatch, mean_lengths=(6.0 * number, 10.0 * number)) == rows[4 * number]
        assert _least_bytes(run, monkeypatch, mean_lengths=(6.0 * number, 2.0 * number)) < rows[4 * number]
    monkeypatch.setattr(machine, "available_bytes", lambda device: 10_000)
    told = r"of memory for a group of 4 answers of 16 tokens each, .* or a smaller training\.grpo\.group or max_tokens"
    with pytest.raises(UserError, match=told):
        check_memory(_started(tiny_run(), grpo={"group": 4}).resolved(), CPU, torch.float32)
    with pytest.raises(UserError, match="of memory for a group of 2 answers of 16 tokens each"):
        check_memory(_started(tiny_run(), grpo={"group": 2}).resolved(), CPU, torch.float32)
    with pytest.raises(UserError, match="of memory for both answers of a pair of 16 tokens each"):
        check_memory(_started(tiny_run(), preference={}).resolved(), CPU, torch.float32)


def test_models_that_are_held_besides_are_counted(tiny_run, tiny_model, tmp_path, monkeypatch):
    own = 4 * sum(parameter.numel() for parameter in Decoder(tiny_run().model).parameters())
    plain, alone = (_least_bytes(_started(tiny_run(), grpo=grpo), monkeypatch) for grpo in ({"kl": 0.1}, {}))
    assert plain - alone == own
    parts = [_least_bytes(_started(tiny_run(), grpo={"kl": kl}, lora={}), monkeypatch) for kl in (0.1, 0.0)]
    assert parts[0] == parts[1]
    write_model(tmp_path / "teacher", Decoder(tiny_model()), Tokenizer.train("bytes", []), {})
    taught = _least_bytes(tiny_run(distillation={"teacher": tmp_path / "teacher"}), monkeypatch)
    assert taught - _least_bytes(tiny_run(), monkeypatch) == own


@pytest.mark.parametrize("mixer", ["attention", "ted", "plga"])
def test_predicted_bfloat16_memory_is_a_lower_bound(mixer, tiny_model, tiny_run, monkeypatch):
    """Autocast keeps float32 beside bfloat16: more than half, and of these models no less than is counted."""
    model = tiny_model(mixer)
    decoder, tokens, held = Decoder(model), torch.randint(257, (32, 16)), {}
    own = {parameter.data_ptr() for parameter in decoder.parameters()}

    def hold(tensor):
        if tensor.untyped_storage().data_ptr() not in own:
            held[tensor.untyped_storage().data_ptr()] = tensor
        return tensor

    with torch.autograd.graph.saved_tensors_hooks(hold, lambda x: x), torch.autocast("cpu", torch.bfloat16):
        loss = next_token_loss(decoder, Batch(tokens, tokens))
    kept, of_float32 = sum(x.untyped_storage().nbytes() for x in held.values()), activations(model, 32)
    assert loss.total.isfinite() and machine.BFLOAT16_SHARE["cpu"] * of_float32 <= kept < of_float32
    run = tiny_run(mixer, batch_size=32)
    full, low = (_least_bytes(run, monkeypatch, precision) for precision in (torch.float32, torch.bfloat16))
    counted = machine.PEAK_SHARE["cpu"] * (1 - machine.BFLOAT16_SHARE["cpu"]) * of_float32
    assert full - low == pytest.approx(counted, abs=2)


def activations(model, sequences):
    """Bytes that float32 keeps for the backward pass."""
    return model_cost(model).training_memory(sequences, 16).activations


def test_a_model_of_which_not_one_sequence_fits_is_refused(tiny_run, monkeypatch):
    monkeypatch.setattr(machine, "available_bytes", lambda device: 1000)
    with pytest.raises(UserError, match=r"^model: tiny-attention: .* for one sequence of 16 tokens, 1,?.* are free"):
        check_memory(tiny_run().resolved(), CPU, torch.float32)
