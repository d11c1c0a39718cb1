"""llama.cpp itself says what the models say: shapes, storage, tokenizers; and is heard where it does not."""

from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
from small_llamas import SHAPES

from linnet.core.errors import UserError
from linnet.inference.language_model import load
from linnet.interop.gguf import export, file
from linnet.interop.gguf.export import TEXTS, export_gguf, llama_cpp_encoder, loaded_in_llama_cpp
from linnet.interop.gguf.vocabulary import PRE_TOKENIZERS
from linnet.interop.parity import Agreement, check_same_ids

pytest.importorskip("llama_cpp", reason="needs llama-cpp-python, built from its source package (docs/gguf.md)")
pytestmark = pytest.mark.slow
MadeModel = Callable[..., Path]


@pytest.mark.parametrize("shape", SHAPES)
def test_llama_cpp_computes_what_the_model_computes(tmp_path: Path, made_model: MadeModel, shape: str):
    found = export_gguf(load(made_model(**SHAPES[shape]), device="cpu"), tmp_path / "small.gguf")
    run = found.figures["llama_cpp"]
    assert 0 < run["logits_error"] < 2e-4 and run["same_tokens"] == 200


@pytest.mark.parametrize(("weights", "same"), [("f16", 199), ("bf16", 190), ("q8_0", 160), ("q4_0", 160)])
def test_what_is_stored_in_fewer_bits(tmp_path: Path, made_model: MadeModel, weights: str, same: int):
    found = export_gguf(load(made_model(), device="cpu"), tmp_path / "small.gguf", precision=weights)
    assert same <= found.figures["llama_cpp"]["same_tokens"] <= 200
    assert found.figures["read_back"]["logits_error"] < 1e-4


@pytest.mark.parametrize("kind", ["bytes", "char", "bpe", "sentencepiece", *PRE_TOKENIZERS])
def test_llama_cpp_makes_the_same_ids(tmp_path: Path, made_model: MadeModel, texts: list[str], kind: str):
    folder = made_model(kind)
    export_gguf(load(folder, device="cpu"), tmp_path / "small.gguf")
    ours = load(folder, device="cpu")
    with loaded_in_llama_cpp(tmp_path / "small.gguf", "small.gguf") as model:
        check_same_ids(ours.tokenizer, llama_cpp_encoder(model), "llama.cpp", kind, TEXTS)
        long = "\n\n".join(texts) + " <b>bold</b> <|end|> 𝔘𝔫𝔦 ¼ \u00a0 ١٢٣ <|endoftext|>"
        assert llama_cpp_encoder(model)(long) == ours.tokenizer.encode(long)
        assert model.tokenize(b"Once upon") == ours.prompt_tokens("Once upon")
        first = " " if kind == "sentencepiece" else ""  # which linnet drops, and llama.cpp after the end token alone
        assert model.detokenize(ours.tokenizer.encode(long)).decode() == first + long


def test_llama_cpp_makes_the_same_ids_of_unigrams(tmp_path: Path, made_model: MadeModel, texts: list[str]):
    """It prints no character that it lacks, so that its texts are not compared."""
    folder = made_model("sentencepiece unigram")
    export_gguf(load(folder, device="cpu"), tmp_path / "small.gguf")
    ours = load(folder, device="cpu")
    with loaded_in_llama_cpp(tmp_path / "small.gguf", "small.gguf") as model:
        check_same_ids(ours.tokenizer, llama_cpp_encoder(model), "llama.cpp", "unigram", [*TEXTS, *texts])


def test_no_file_is_written_if_llama_cpp_differs(
    tmp_path: Path, made_model: MadeModel, monkeypatch: pytest.MonkeyPatch
):
    def unturned(tensors_: Any, spec: Any) -> Any:
        return file.to_published(tensors_, spec, file.GGUF)

    folder = made_model()
    monkeypatch.setattr(file, "named_tensors", unturned)
    monkeypatch.setattr(export, "check_file", lambda *_: Agreement("nobody", 0.0, 1.0, 200, 200))
    with pytest.raises(UserError, match=r"small\.gguf: after \d+ tokens logits by llama\.cpp differ by"):
        export_gguf(load(folder, device="cpu"), tmp_path / "small.gguf")
    assert not (tmp_path / "small.gguf").exists()


def test_a_file_that_llama_cpp_cannot_read(tmp_path: Path):
    (tmp_path / "no.gguf").write_bytes(b"GGUF")
    with (
        pytest.raises(UserError, match=r"no\.gguf: llama\.cpp cannot read it"),
        loaded_in_llama_cpp(tmp_path / "no.gguf", "no.gguf"),
    ):
        pass
