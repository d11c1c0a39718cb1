"""Small models of the shapes that llama.cpp has, every weight away from its start, and tokenizers of every kind."""

import json
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import tokenizers
import torch
from small_llamas import merging_pieces, plain_model
from tokenizers import AddedToken, Regex, decoders, models, pre_tokenizers, trainers

from linnet.data.tokenizer import Tokenizer
from linnet.interop.gguf import export
from linnet.interop.gguf.vocabulary import PRE_TOKENIZERS
from linnet.interop.sentencepiece import tokenizer_from_sentencepiece
from linnet.model.decoder import Decoder
from linnet.model.spec import ModelSpec
from linnet.model.store import write_model
from linnet.stories import story

UNIGRAM = {"model_type": "unigram", "byte_fallback": False, "vocab_size": 300, "normalization_rule_name": "nmt_nfkc"}
MadeModel = Callable[..., Path]


@pytest.fixture(scope="session")
def texts() -> list[str]:
    return [story(0, index).text for index in range(40)]


@pytest.fixture(scope="session")
def tokenizer_of(texts: list[str], tmp_path_factory: pytest.TempPathFactory) -> Callable[[str], Tokenizer]:
    """By kind, or by the name of a pre-tokenizer of llama.cpp; `sentencepiece`: one that merges, or has unigrams."""
    known: dict[str, Tokenizer] = {}

    def make(kind: str) -> Tokenizer:
        if kind.startswith("sentencepiece"):
            fields: dict[str, Any] = UNIGRAM if kind.endswith("unigram") else {}
            model = merging_pieces(tmp_path_factory.mktemp("pieces"), texts, **fields)
            known[kind] = tokenizer_from_sentencepiece(model)
        elif kind not in known:
            trained = kind in ("bytes", "char", "bpe", "unigram")
            size = 300 if kind in ("bpe", "unigram") else None
            known[kind] = Tokenizer.train(kind, texts, size) if trained else _as_elsewhere(kind, texts)
        return known[kind]

    return make


def _as_elsewhere(pre: str, texts: list[str]) -> Tokenizer:
    """Byte pairs within the words of another pre-tokenizer, a word that they do not make, a token that no text cuts."""
    cuts, whole_words = PRE_TOKENIZERS[pre]
    library = tokenizers.Tokenizer(models.BPE(ignore_merges=whole_words))
    steps: list[Any] = [pre_tokenizers.Split(Regex(cut), "isolated") for cut in cuts]
    if pre == "smollm":
        steps = [pre_tokenizers.Digits(individual_digits=True)]
    steps.append(pre_tokenizers.ByteLevel(add_prefix_space=False, use_regex=pre == "smollm"))
    library.pre_tokenizer, library.decoder = pre_tokenizers.Sequence(steps), decoders.ByteLevel()
    alphabet = pre_tokenizers.ByteLevel.alphabet()
    trainer = trainers.BpeTrainer(
        vocab_size=330, special_tokens=["<|endoftext|>"], initial_alphabet=alphabet, show_progress=False
    )
    library.train_from_iterator(texts, trainer)
    definition = json.loads(library.to_str())
    definition["model"]["vocab"]["Ġupon"] = len(definition["model"]["vocab"])  # which no merges make
    library = tokenizers.Tokenizer.from_str(json.dumps(definition))
    library.add_tokens([AddedToken("<b>", normalized=False)])
    return Tokenizer(json.loads(library.to_str()), pre)


@pytest.fixture
def made_model(tmp_path: Path, tokenizer_of: Callable[[str], Tokenizer]) -> MadeModel:
    """A model folder: fields of mixer, feed-forward, head and model, and the tokenizer's kind."""

    def make(kind: str = "bpe", mixer: Any = None, feed_forward: Any = None, head: Any = None, **fields: Any) -> Path:
        tokenizer = tokenizer_of(kind)
        plain = plain_model(tokenizer.vocab_size, mixer or {}, feed_forward or {}, head or {}) | fields
        torch.manual_seed(0)
        decoder = Decoder(ModelSpec.parse(plain, "small"))
        with torch.no_grad():
            for parameter in decoder.parameters():
                parameter.add_(0.2 * torch.randn_like(parameter))
        write_model(tmp_path / "model", decoder, tokenizer, {})
        return tmp_path / "model"

    return make


@pytest.fixture
def alone(monkeypatch: pytest.MonkeyPatch) -> None:
    """As if llama.cpp were not installed: what is fast, and the same everywhere."""
    monkeypatch.setattr(export, "llama_cpp_is_installed", lambda: False)
