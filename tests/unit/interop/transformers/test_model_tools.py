"""Tools of others on our models: `Trainer`, `pipeline`, the harness's `HFLM`; and the folder that they read."""

import copy
from pathlib import Path

import pytest
import torch
from linnet_models import model_of, spec_of, tokens
from transformers import AutoModelForCausalLM, AutoTokenizer, Trainer, TrainingArguments, pipeline

import linnet
from linnet.core.errors import UserError
from linnet.data.loader import Batch
from linnet.data.tokenizer import Tokenizer
from linnet.inference.language_model import load
from linnet.interop.transformers_convert import import_transformers
from linnet.model.decoder import Decoder
from linnet.model.folder import CONFIG, TOKENIZER, WEIGHTS
from linnet.model.store import write_model
from linnet.training.objectives.language_modelling import next_token_loss

TEXT = "A little bird sang to the old tree, and the old tree was glad of it. "


@pytest.fixture(scope="module")
def folders(tmp_path_factory):
    """A model folder, more of its vocabulary than the tokenizer has, and the same for Transformers."""
    root = tmp_path_factory.mktemp("folders")
    torch.manual_seed(0)
    tokenizer = Tokenizer.train("bpe", [TEXT], 280)
    decoder = Decoder(spec_of("gated_delta", vocab_size=tokenizer.vocab_size + 7, initialization={"std": 0.3}))
    write_model(root / "ours", decoder, tokenizer, {})
    return root / "ours", root / "theirs", linnet.export(root / "ours", root / "theirs", to="transformers").figures


def test_the_folder_passes_the_gate_and_comes_back_bit_for_bit(folders, tmp_path):
    ours, theirs, parity = folders
    assert (parity["greedy_tokens"], parity["model_type"]) == (200, "linnet")
    assert parity["logits_error"] < 1e-4  # one stream's products of rows are others than those of a pass
    import_transformers(theirs, tmp_path / "back", check=True)
    for name in (CONFIG, WEIGHTS, TOKENIZER):
        assert (tmp_path / "back" / name).read_bytes() == (ours / name).read_bytes()


def test_a_folder_that_computes_something_else_is_not_written(folders, tmp_path, monkeypatch):
    ours, _, _ = folders
    from linnet.interop.transformers import cache

    right = cache.Chunk.hidden
    monkeypatch.setattr(cache.Chunk, "hidden", lambda *given: right(*given) * 1.001)
    with pytest.raises(UserError, match="logits by Transformers differ"):
        linnet.export(ours, tmp_path / "theirs", to="transformers")
    assert list(tmp_path.iterdir()) == []
    with pytest.raises(UserError, match="exists already"):
        linnet.export(ours, ours, to="transformers")


def test_an_encoder_decoder_is_refused(tmp_path, monkeypatch):
    tokenizer = Tokenizer.train("bytes", [TEXT])
    from linnet.model.spec import ModelSpec

    write_model(tmp_path / "ours", Decoder(ModelSpec.load("tiny-encoder-decoder")), tokenizer, {})
    with pytest.raises(UserError, match="encoder: Transformers' causal models have none"):
        linnet.export(tmp_path / "ours", tmp_path / "theirs", to="transformers")


def test_a_pipeline_generates_the_text_of_the_model(folders):
    ours, theirs, _ = folders
    made = pipeline("text-generation", model=str(theirs))("A little", max_new_tokens=12, do_sample=False)
    assert made[0]["generated_text"] == "A little" + load(ours).generate("A little", 12, temperature=0)


def test_tokenizers_of_generate_reach_what_they_are_for(folders):
    """Stop texts, healing of the prompt's last token, and the stop of a pipeline."""
    ours, theirs, _ = folders
    tokenizer, model = AutoTokenizer.from_pretrained(theirs), AutoModelForCausalLM.from_pretrained(theirs)
    inputs, settings = tokenizer("A little", return_tensors="pt"), {"max_new_tokens": 12, "do_sample": False}
    text = load(ours).generate("A little", 12, temperature=0)
    stop = next(character for character in text[1:] if character.isascii() and character.isprintable())
    made = model.generate(**inputs, **settings, stop_strings=[stop], tokenizer=tokenizer)
    found = tokenizer.decode(made[0], skip_special_tokens=True)
    assert stop in found[len("A little") :] and len(found) < len("A little" + text)
    healed = model.generate(**inputs, **settings, token_healing=True, tokenizer=tokenizer)
    assert tokenizer.decode(healed[0], skip_special_tokens=True).startswith("A little")
    first = tokenizer.decode(made[0, inputs["input_ids"].shape[1]])
    (piped,) = pipeline("text-generation", model=model, tokenizer=tokenizer)(
        "A little", stop_sequence=first, **settings
    )
    assert piped["generated_text"] == "A little" + first


def test_the_name_of_a_special_token_is_ordinary_text(folders):
    ours, theirs, _ = folders
    tokenizer, library = load(ours).tokenizer, AutoTokenizer.from_pretrained(theirs)
    text = f"a{library.eos_token}b"
    assert library(text)["input_ids"] == [tokenizer.end_id, *tokenizer.encode(text)]
    assert tokenizer.end_id not in tokenizer.encode(text)


@pytest.mark.parametrize("kind", ["mlstm"])
def test_a_trainer_takes_the_steps_of_our_objective(kind, tmp_path):
    pytest.importorskip("accelerate")
    model, rows_BT = model_of(kind).float().train(), tokens(2, 9)
    labels_BT = rows_BT.clone()
    labels_BT[1, 6:] = -100
    mask_BT = (labels_BT != -100).long()
    ours = copy.deepcopy(model.decoder)
    columns = {"input_ids": rows_BT, "attention_mask": mask_BT, "labels": labels_BT}
    rows = [{name: column_BT[row] for name, column_BT in columns.items()} for row in range(2)]
    settings = {"max_steps": 2, "per_device_train_batch_size": 2, "optim": "sgd", "learning_rate": 0.5}
    quiet = {"logging_steps": 1, "report_to": "none", "disable_tqdm": True, "save_strategy": "no"}
    plain = {"lr_scheduler_type": "constant", "max_grad_norm": 0.0, "use_cpu": True, "dataloader_pin_memory": False}
    arguments = TrainingArguments(tmp_path, **settings, **quiet, **plain)
    trainer = Trainer(model, arguments, train_dataset=rows, eval_dataset=rows)
    before = trainer.evaluate()["eval_loss"]
    trainer.train()
    assert trainer.evaluate()["eval_loss"] < before
    optimizer = torch.optim.SGD(ours.parameters(), lr=0.5)
    targets_BT = torch.cat([labels_BT[:, 1:], torch.full((2, 1), -100)], dim=1)
    losses = []
    for _ in range(2):
        loss = next_token_loss(ours, Batch.from_labels(rows_BT, targets_BT)).total / 13
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
        losses.append(loss.item())
    assert [log["loss"] for log in trainer.state.log_history if "loss" in log] == pytest.approx(losses, rel=1e-3)
    for theirs, own in zip(model.decoder.parameters(), ours.parameters(), strict=True):
        torch.testing.assert_close(theirs, own, atol=1e-5, rtol=1e-4)


@pytest.mark.slow  # the harness's own model takes seconds to bring in
def test_the_harness_reads_the_folder_as_it_reads_ours(folders):
    pytest.importorskip("lm_eval")
    pytest.importorskip("accelerate")
    from lm_eval.api.instance import Instance
    from lm_eval.models.huggingface import HFLM

    from linnet.evaluation.tasks.harness import HarnessModel

    ours, theirs, _ = folders
    pairs = [("A little bird", " sang"), ("the old", " tree was glad"), ("", "A little")]
    requests = [Instance("loglikelihood", {}, pair, number) for number, pair in enumerate(pairs)]
    harness = HFLM(pretrained=str(theirs), device="cpu", batch_size=3)
    assert harness.max_length == load(ours).spec.context_length
    own = HarnessModel(load(ours, device="cpu")).loglikelihood(requests)
    for (found, greedy), (expected, said) in zip(harness.loglikelihood(requests), own, strict=True):
        assert found == pytest.approx(expected, rel=1e-4) and greedy == said


def test_without_transformers_the_extra_is_named(monkeypatch):
    import sys

    for name in [name for name in sys.modules if name.split(".")[0] == "transformers"]:
        monkeypatch.delitem(sys.modules, name)
    monkeypatch.setitem(sys.modules, "transformers", None)
    for name in [name for name in sys.modules if name.startswith("linnet.interop.transformers")]:
        monkeypatch.delitem(sys.modules, name)
    with pytest.raises(UserError, match=r"pip install 'linnet\[transformers\]'"):
        import linnet.interop.transformers  # noqa: F401


def test_tied_weights_are_stored_once(folders):
    from safetensors.torch import load_file

    _, theirs, _ = folders
    names = load_file(Path(theirs) / "model.safetensors")
    assert "decoder.embedding.tokens.weight" in names and not any("head" in name.split(".") for name in names)
