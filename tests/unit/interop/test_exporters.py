"""The one function of export, and its table."""

from pathlib import Path

import pytest
import torch

from linnet.core.errors import UserError
from linnet.data.tokenizer import Tokenizer
from linnet.inference.language_model import LanguageModel, load
from linnet.interop.exporters import EXPORTERS, Exporter, ExportOptions, ExportResult, export, leaves_as
from linnet.model.decoder import Decoder
from linnet.model.spec import ModelSpec
from linnet.model.store import write_model


@pytest.fixture
def pldr(tmp_path: Path) -> Path:
    tokenizer = Tokenizer.train("bytes", [])
    torch.manual_seed(0)
    write_model(
        tmp_path / "model",
        Decoder(ModelSpec.load("tiny-pldr").replace(vocab_size=tokenizer.vocab_size, d_model=16)),
        tokenizer,
        {},
    )
    return tmp_path / "model"


@pytest.mark.parametrize("name", EXPORTERS)
def test_every_way_leads_to_a_function_and_takes_known_options(name: str):
    assert callable(EXPORTERS[name].write)
    assert set(EXPORTERS[name].options) <= ExportOptions.__optional_keys__


def elsewhere(model: LanguageModel, out: Path, **options: object) -> ExportResult:
    out.write_text(f"{[block.mixer.operator for block in model.spec.blocks]} {options}")
    return ExportResult(out, "there", 1, 2)


def test_a_new_way_is_one_line(pldr: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch):
    """It gets the model, frozen before where that was asked for, and those options that were given."""
    monkeypatch.setitem(EXPORTERS, "elsewhere", Exporter(f"{__name__}:elsewhere", ("precision",)))
    made = export(pldr, tmp_path / "a", to="elsewhere")
    assert made == ExportResult(tmp_path / "a", "there", 1, 2)
    assert (tmp_path / "a").read_text() == "['learned'] {}"
    export(pldr, tmp_path / "b", to="elsewhere", freeze=True, precision="float16")
    assert (tmp_path / "b").read_text() == "['fixed'] {'precision': 'float16'}"


def test_an_option_that_no_way_was_asked_with(pldr: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch):
    monkeypatch.setitem(EXPORTERS, "elsewhere", Exporter(f"{__name__}:elsewhere"))
    with pytest.raises(
        UserError, match="precision: float16: expected `to` transformers or gguf or onnx or web beside it"
    ):
        export(pldr, tmp_path / "a", to="elsewhere", precision="float16")


def test_exporters_that_record_the_command_get_the_origin(pldr: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch):
    monkeypatch.setitem(EXPORTERS, "elsewhere", Exporter(f"{__name__}:elsewhere", records_command=True))
    export(pldr, tmp_path / "a", to="elsewhere", command="linnet export")
    assert (tmp_path / "a").read_text() == f"['learned'] {{'origin': '{pldr}', 'command': 'linnet export'}}"


def test_what_is_in_the_way_of_a_file(pldr: Path):
    with pytest.raises(UserError, match=r"exists already.*a new file"):
        export(pldr, pldr, to="gguf")


def test_a_prefix_is_not_left_behind(tmp_path: Path):
    spec = ModelSpec.load("tiny-prefix").replace(vocab_size=257)
    write_model(tmp_path / "model", Decoder(spec), Tokenizer.train("bytes", []), {})
    for way in EXPORTERS:
        with pytest.raises(UserError, match=f"model.prefix: true: {way} has no prefix"):
            export(tmp_path / "model", tmp_path / "out", to=way)


def test_a_reward_model_stays(tmp_path: Path):
    spec = ModelSpec.load("tiny-ted").replace(vocab_size=257, head={"value": True})
    write_model(tmp_path / "model", Decoder(spec), Tokenizer.train("bytes", []), {})
    assert leaves_as(spec)[0] == {} and set(leaves_as(spec)[1]) == set(EXPORTERS)
    for way in EXPORTERS:
        with pytest.raises(UserError, match=f"model.head.value: true: {way} has no reward models"):
            export(tmp_path / "model", tmp_path / "out", to=way)


def test_a_prompt_that_nothing_is_inferred_from(pldr: Path, tmp_path: Path):
    with pytest.raises(UserError, match="prompt: 'Once': expected `freeze` beside it"):
        export(pldr, tmp_path / "a", to="gguf", prompt="Once")


def test_the_result_describes_the_export(pldr: Path, tmp_path: Path):
    made = export(pldr, tmp_path / "frozen", freeze=True)
    decoder = load(tmp_path / "frozen").decoder
    assert made.parameters == sum(parameter.numel() for parameter in decoder.parameters())
    assert made.weights_bytes == (tmp_path / "frozen" / "model.safetensors").stat().st_size
    assert (made.path, made.name, made.messages) == (tmp_path / "frozen", "tiny-pldr", ())


def test_what_a_description_leaves_as():
    forms, refusals = leaves_as(ModelSpec.load("tiny-llama"))
    graphs = {"onnx": "graphs", "web": "graphs"}
    assert (forms, refusals) == ({"transformers": "LlamaForCausalLM", "gguf": "llama", **graphs}, {})
    forms, refusals = leaves_as(ModelSpec.load("tiny-attention"))
    assert forms.keys() == {"transformers", *graphs} and forms["transformers"].startswith("linnet's own class, after")
    assert "blocks[0].mixer.value_residual: one" in forms["transformers"]
    assert refusals == {
        "gguf": "tiny-attention: blocks[0].mixer.value_residual: one: a GGUF file (qwen3) cannot express it;"
        " expected none"
    }
    forms, _ = leaves_as(ModelSpec.load("tiny-pldr"))
    assert forms["onnx"] == forms["web"] == "graphs, with --freeze"
    assert leaves_as(ModelSpec.load("tiny-encoder-decoder"))[0] == leaves_as(ModelSpec.load("tiny-prefix"))[0] == {}
