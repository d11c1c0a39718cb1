"""GGUF files compute what the models compute; where a check finds a difference there is no file."""

import json
import math
from collections.abc import Callable
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import gguf
import numpy as np
import pytest
import tokenizers
import torch
from small_llamas import LLAMA3, SHAPES
from torch import Tensor

import linnet
from linnet.core.errors import UserError
from linnet.data.tokenizer import Tokenizer
from linnet.inference.language_model import load
from linnet.interop.gguf import export, file
from linnet.interop.gguf.export import export_gguf
from linnet.interop.gguf.file import GgufFile
from linnet.model.store import write_model

pytestmark = pytest.mark.usefixtures("alone")
MadeModel = Callable[..., Path]


@pytest.mark.parametrize("shape", SHAPES)
def test_the_file_computes_what_the_model_computes(tmp_path: Path, made_model: MadeModel, shape: str):
    found = export_gguf(load(made_model(**SHAPES[shape]), device="cpu"), tmp_path / "small.gguf")
    said = found.figures
    assert said["architecture"] == ("qwen3" if "qwen3" in shape else "llama")
    assert said["read_back"]["same_tokens"] == 200 and 0 < said["read_back"]["logits_error"] < 1e-4
    assert said["rounding"] is None and said["llama_cpp"] is None and said["same_ids"] > 500
    assert found.path == tmp_path / "small.gguf" and found.weights_bytes == found.path.stat().st_size
    reader = gguf.GGUFReader(tmp_path / "small.gguf")
    names = {tensor.name for tensor in reader.tensors}
    types = {name: field.types[0] for name, field in reader.fields.items() if not name.startswith("GGUF.")}
    counts = [kind for name, kind in types.items() if name.endswith(("_count", "_length", "_id"))]
    assert len(counts) >= 10 and {*counts} == {gguf.GGUFValueType.UINT32}  # llama.cpp takes no other
    assert ("output.weight" in names) == ("untied" in shape)


def test_factors_of_llama_3_are_those_of_llama_cpp_s_conversion(tmp_path: Path, made_model: MadeModel):
    """As `convert_hf_to_gguf.py` computes them, pair by pair; of 16 pairs here some are kept, mixed and divided."""
    export_gguf(load(made_model(**SHAPES["llama3"]), device="cpu"), tmp_path / "small.gguf")
    reader, expected = gguf.GGUFReader(tmp_path / "small.gguf"), []
    for pair in range(16):
        wavelength = 2 * math.pi * 5e5 ** (2 * pair / 32)
        turns = LLAMA3["trained"] / wavelength
        smooth = (turns - LLAMA3["slow"]) / (LLAMA3["fast"] - LLAMA3["slow"])
        mixed = 1 / ((1 - smooth) / LLAMA3["factor"] + smooth)
        expected.append(1.0 if turns > LLAMA3["fast"] else LLAMA3["factor"] if turns < LLAMA3["slow"] else mixed)
    (found,) = [tensor for tensor in reader.tensors if tensor.name == "rope_freqs.weight"]
    assert found.data.dtype == np.float32 and found.data.tolist() == pytest.approx(expected, rel=1e-5)
    assert len({*expected}) > 2 and not [key for key in reader.fields if "rope.scaling" in key]


def test_ends_and_templates_stand_in_the_file(tmp_path: Path, made_model: MadeModel, caplog: pytest.LogCaptureFixture):
    model = load(made_model("bytes", vocab_size=264), device="cpu")
    library = tokenizers.Tokenizer.from_str(json.dumps(dict(model.tokenizer.definition)))
    names = ["<|eot|>", "<|eom|>", "<|more|>"]
    library.add_special_tokens(names)
    ends = dict.fromkeys(["<|end|>", *names], "")
    tokenizer = Tokenizer(json.loads(library.to_str()), "tokenizer", ends)
    kept = {"chat_template.jinja": "{{ 1 }}", "additional_chat_templates/tool.jinja": "{{ 2 }}"}
    for name, template in kept.items():
        (tmp_path / name).parent.mkdir(exist_ok=True)
        (tmp_path / name).write_text(template)
    published = {name: tmp_path / name for name in kept}
    write_model(tmp_path / "chat", model.decoder, tokenizer, {}, published)
    export_gguf(load(tmp_path / "chat", device="cpu"), tmp_path / "small.gguf")
    fields = gguf.GGUFReader(tmp_path / "small.gguf").fields
    found = [fields[f"tokenizer.ggml.{name}_token_id"].contents() for name in ("eos", "eot", "eom")]
    assert found == list(tokenizer.end_ids[:3])
    assert fields["tokenizer.chat_template"].contents() == "{{ 1 }}"
    assert fields["tokenizer.chat_template.tool"].contents() == "{{ 2 }}"
    assert "<|more|> ends a text; a GGUF file names three such tokens at most" in caplog.text
    (tmp_path / "chat" / "chat_template.jinja").write_text("{{ 3 }}")
    export_gguf(load(tmp_path / "chat", device="cpu"), tmp_path / "own.gguf")
    fields = gguf.GGUFReader(tmp_path / "own.gguf").fields
    assert fields["tokenizer.chat_template"].contents() == "{{ 3 }}" and "tokenizer.chat_template.tool" not in fields


def test_unigrams_and_their_rules_stand_in_the_file(tmp_path: Path, made_model: MadeModel):
    found = export_gguf(load(made_model("sentencepiece unigram"), device="cpu"), tmp_path / "small.gguf")
    assert found.figures["tokenizer"] == "t5" and found.figures["same_ids"] > 500
    field = gguf.GGUFReader(tmp_path / "small.gguf").fields["tokenizer.ggml.precompiled_charsmap"]
    assert field.types == [gguf.GGUFValueType.ARRAY, gguf.GGUFValueType.UINT8]


def test_fewer_bits_cost_what_is_measured(tmp_path: Path, made_model: MadeModel):
    found = {
        kind: export_gguf(load(made_model(), device="cpu"), tmp_path / f"{kind}.gguf", precision=kind)
        for kind in ("bf16", "q4_0")
    }
    for each in found.values():
        read_back = each.figures["read_back"]
        assert read_back["same_tokens"] == 200 and read_back["logits_error"] < 1e-4
    bf16, q4_0 = found["bf16"].figures["rounding"], found["q4_0"].figures["rounding"]
    assert 0 < 5 * bf16["logits_error"] < q4_0["logits_error"]
    assert q4_0["greedy_tokens_kept"] < bf16["greedy_tokens_kept"] <= 200
    assert bf16["bits_per_byte"] == q4_0["bits_per_byte"] != q4_0["bits_per_byte_stored"]
    assert found["q4_0"].weights_bytes < found["bf16"].weights_bytes
    said = "\n".join(found["q4_0"].messages)
    assert "q4_0 moves logits by" in said and "not compared with llama.cpp itself" in said


def unturned(tensors_: dict[str, Tensor], spec: Any) -> dict[str, Tensor]:
    return file.GGUF.to_published(tensors_, spec)


def without_end(metadata: Any) -> Any:
    return SimpleNamespace(encode=lambda text: [*range(len(text))])


def in_other_order(path: Path) -> GgufFile:
    found = READ(path)
    found.metadata["llama.rope.freq_base"] *= 1.01
    return found


READ = export.read_gguf


@pytest.mark.parametrize(
    ("module", "name", "broken", "said"),
    [
        (file, "named_tensors", unturned, "logits by the file's own metadata differ by"),
        (export, "read_gguf", in_other_order, "logits by the file's own metadata differ by"),
        (export, "GgufTokenizer", without_end, "from token 0 on [0, 1, 2, 3, 4] by the file's own vocabulary"),
    ],
)
def test_a_gate_that_fails_leaves_nothing(
    tmp_path: Path,
    made_model: MadeModel,
    monkeypatch: pytest.MonkeyPatch,
    module: Any,
    name: str,
    broken: Any,
    said: str,
):
    folder = made_model()
    monkeypatch.setattr(module, name, broken)
    with pytest.raises(UserError) as refused:
        export_gguf(load(folder, device="cpu"), tmp_path / "out" / "small.gguf")
    assert str(refused.value).startswith(str(tmp_path / "out" / "small.gguf")) and said in str(refused.value)
    assert not (tmp_path / "out").exists()


def test_an_existing_file_is_not_overwritten(tmp_path: Path, made_model: MadeModel):
    (tmp_path / "small.gguf").write_text("mine")
    with pytest.raises(UserError, match="exists already"):
        linnet.export(made_model(), tmp_path / "small.gguf", to="gguf")
    assert (tmp_path / "small.gguf").read_text() == "mine"


def test_linnet_export_returns_the_measurements(tmp_path: Path, made_model: MadeModel):
    made = linnet.export(made_model(), tmp_path / "small.gguf", to="gguf", precision="q8_0")
    assert made.weights_bytes == (tmp_path / "small.gguf").stat().st_size
    assert made.figures["weights"] == "q8_0" and made.figures["same_ids"] > 0
    assert "200 of 200 greedy tokens the same" in made.messages[0]


def test_weights_that_are_no_numbers_do_not_pass(tmp_path: Path, made_model: MadeModel):
    """What is too large for 16 bits is infinite there."""
    model = load(made_model(), device="cpu")
    with torch.no_grad():
        model.decoder.embedding.tokens.weight.mul_(1e6)
    with pytest.raises(UserError, match="differ by nan of their spread"):
        export_gguf(model, tmp_path / "small.gguf", precision="f16")
    assert [path.name for path in tmp_path.iterdir()] == ["model"]
