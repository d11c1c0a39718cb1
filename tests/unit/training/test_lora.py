import pytest
import torch
from runs_alike import same, weights_of
from safetensors.torch import load_file

from linnet.core.errors import UserError
from linnet.core.files import sha256_of
from linnet.model.store import load_decoder
from linnet.nn.low_rank import round_to_few_bits
from linnet.ops.low_rank import dense
from linnet.training.callbacks import Callback
from linnet.training.lora import adapted_maps, add_lora, few_bit_maps, merged_state_dict
from linnet.training.run import train_run
from linnet.training.sections import LoraSpec
from linnet.training.spec import RunSpec


@pytest.fixture
def adapting_run(tiny_run, tmp_path):
    """`adapting_run(**training)`: a run that adapts a trained one, which is in the folder `base`."""
    train_run(tiny_run("ted", steps=4), tmp_path / "base")

    def make(**training) -> RunSpec:
        settings = {"lora": {"rank": 2}, "optimizer": {"lr": 0.02}, **training}
        plain = tiny_run("ted").to_dict()
        changed = {**plain, "start_from": str(tmp_path / "base"), "training": plain["training"] | settings}
        return RunSpec.parse(changed, "test")

    return make


class StopAfter(Callback):
    """Stops a run after step 7."""

    def after_step(self) -> None:
        self.context.stop.requested = self.context.state.step == 7


def test_a_run_trains_the_parts_and_saves_their_sum(adapting_run, tmp_path):
    result = train_run(adapting_run(), tmp_path / "run")
    before, after = (load_file(tmp_path / name / "model" / "model.safetensors") for name in ("base", "run"))
    assert before.keys() == after.keys()
    changed = {name for name in before if not torch.equal(before[name], after[name])}
    decoder = load_decoder(result.model)
    maps = {id(linear) for linear in adapted_maps(decoder, LoraSpec())}
    assert changed == {f"{name}.weight" for name, module in decoder.named_modules() if id(module) in maps}
    assert all(torch.linalg.matrix_rank(after[name] - before[name], rtol=1e-3) <= 2 for name in changed)
    parts = sum(2 * sum(before[name].shape) for name in changed)
    settings = {"rank": 2, "alpha": 16.0, "parts": "all", "precision": "float32"}
    assert result.summary["lora"] == {**settings, "parameters": parts, "few_bit_weights": 0, "few_bit_bytes": 0}
    assert result.summary["parameters"] == sum(tensor.numel() for tensor in before.values())


def test_the_adapter_is_the_model_of_the_run_and_begins_another(adapting_run, tmp_path):
    run = adapting_run()
    train_run(run, tmp_path / "run")
    adapter, merged = (load_decoder(tmp_path / "run" / name).state_dict() for name in ("adapter", "model"))
    assert adapter.keys() == merged.keys() and all(torch.equal(adapter[name], merged[name]) for name in merged)
    found = {}
    for name in ("adapter", "model"):
        plain = {**run.to_dict(), "start_from": str(tmp_path / "run" / name)}
        found[name] = train_run(RunSpec.parse(plain, "test"), tmp_path / name)
    assert weights_of(found["adapter"].folder) == weights_of(found["model"].folder)
    assert found["adapter"].summary["started_from"]["sha256"] == sha256_of(tmp_path / "run/adapter/adapter.safetensors")
    nested, merged = (load_decoder(tmp_path / "adapter" / name).state_dict() for name in ("adapter", "model"))
    assert all(torch.equal(nested[name], merged[name]) for name in merged)


@pytest.mark.parametrize("precision", ["int8", "int4"])
def test_a_base_in_few_bits_is_rounded_once(precision, adapting_run, tmp_path):
    result = train_run(adapting_run(lora={"rank": 2, "precision": precision}), tmp_path / "run")
    base, adapter, merged = (load_decoder(tmp_path / name) for name in ("base/model", "run/adapter", "run/model"))
    tensors = merged.state_dict()
    assert all(torch.equal(tensor, tensors[name]) for name, tensor in adapter.state_dict().items())
    rounded = few_bit_maps(base, LoraSpec(precision=precision))
    for name, module in base.named_modules():
        if module in rounded:
            found = tensors[f"{name}.weight"] - dense(round_to_few_bits(module.weight, precision))
            assert torch.linalg.matrix_rank(found, rtol=1e-3) <= 2 and found.abs().max() > 1e-4
    lora, weights = result.summary["lora"], sum(linear.weight.numel() for linear in rounded)
    assert lora["few_bit_weights"] == weights and 0 < lora["few_bit_bytes"] < 4 * weights
    assert result.summary["parameters"] == sum(tensor.numel() for tensor in tensors.values())


@pytest.mark.parametrize("precision", ["float32", "int8", "int4"])
def test_it_resumes_bit_for_bit(precision, adapting_run, tmp_path):
    run = adapting_run(lora={"rank": 2, "precision": precision}, averaging={"kind": "ema", "decay": 0.9})
    train_run(run, tmp_path / "whole")
    assert not train_run(run, tmp_path / "cut", callbacks=[StopAfter()]).finished
    train_run(run, tmp_path / "cut")
    assert same(tmp_path / "cut", tmp_path / "whole")


def test_the_parts_of_one_kind_of_sublayer(decoder_with_weights):
    found = {parts: adapted_maps(decoder_with_weights(), LoraSpec(parts=parts)) for parts in ("all", "mixers")}
    assert 0 < len(found["mixers"]) < len(found["all"])
    decoder = decoder_with_weights()
    add_lora(decoder, LoraSpec(parts="feed_forwards"), seed=0)
    trained = {name for name, parameter in decoder.named_parameters() if parameter.requires_grad}
    assert trained and all(".feed_forward." in name for name in trained)
    assert merged_state_dict(decoder).keys() == decoder_with_weights().state_dict().keys()


def test_the_scale_is_alpha_by_rank(decoder_with_weights):
    decoder = decoder_with_weights()
    add_lora(decoder, LoraSpec(rank=4, alpha=2.0), seed=0)
    (linear, *_) = adapted_maps(decoder, LoraSpec())
    part = linear.parametrizations.weight[0]
    with torch.no_grad():
        part.up_OR.normal_()
    expected = linear.parametrizations.weight.original + 0.5 * part.up_OR @ part.down_RI
    torch.testing.assert_close(linear.weight, expected)


@pytest.mark.parametrize(
    ("training", "expected"),
    [
        ({"optimizer": {"kind": "muon"}}, "optimizer.kind: muon: cannot be combined with lora"),
        ({"compile": True}, "compile: True: cannot be combined with lora"),
        ({"parallel": {"shard": 2}}, "parallel.shard: 2: cannot be combined with lora"),
        ({"lora": {"rank": 0}}, "training.lora.rank"),
    ],
)
def test_what_it_cannot_be_combined_with_is_named(training, expected, tiny_run):
    with pytest.raises(UserError, match=expected):
        tiny_run(**{"lora": {}, **training})


def test_a_run_that_starts_from_no_model_is_refused(tiny_run):
    with pytest.raises(UserError, match=r"training\.lora: .*`start_from` is missing"):
        tiny_run(lora={})
