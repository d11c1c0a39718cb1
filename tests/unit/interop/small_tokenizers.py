"""Ranks of tiktoken, and folders of Transformers with and without tokenizer.json, of a few sentences."""

import base64
import json
from pathlib import Path
from typing import Any

import tokenizers
from small_sentencepieces import SENTENCES
from tokenizers import Regex, decoders, models, pre_tokenizers, trainers

from linnet.data.pieces import BYTE_LEVEL
from linnet.interop.tiktoken import ENCODINGS


def byte_level(pattern: str, vocab_size: int = 400, special: tuple[str, ...] = ()) -> tokenizers.Tokenizer:
    """A byte-level byte-pair encoding whose words are the matches of an expression."""
    library = tokenizers.Tokenizer(models.BPE())
    split = pre_tokenizers.Split(Regex(pattern), "isolated")
    plain = pre_tokenizers.ByteLevel(add_prefix_space=False, use_regex=False)
    library.pre_tokenizer = pre_tokenizers.Sequence([split, plain])
    library.decoder = decoders.ByteLevel()
    trainer = trainers.BpeTrainer(
        vocab_size=vocab_size, initial_alphabet=sorted(BYTE_LEVEL), special_tokens=list(special), show_progress=False
    )
    library.train_from_iterator(SENTENCES * 5, trainer)
    return library


def write_ranks(path: Path, encoding: str = "cl100k") -> Path:
    """A file of ranks whose texts are split as in an encoding."""
    pieces = byte_level(ENCODINGS[encoding].pattern).get_vocab()
    spelled = {bytes(BYTE_LEVEL[character] for character in piece): rank for piece, rank in pieces.items()}
    lines = [f"{base64.b64encode(token).decode()} {rank}" for token, rank in spelled.items()]
    path.write_text("\n".join(sorted(lines, key=lambda line: int(line.split()[1]))) + "\n")
    return path


def write_slow_folder(folder: Path, **config: Any) -> Path:
    """vocab.json, merges.txt and a tokenizer_config.json, of GPT-2's class unless `config` names another."""
    folder.mkdir()
    library = byte_level(ENCODINGS["gpt2"].pattern, special=("<|endoftext|>",))
    library.model.save(str(folder))
    config = {"tokenizer_class": "GPT2Tokenizer", "eos_token": "<|endoftext|>", **config}
    (folder / "tokenizer_config.json").write_text(json.dumps(config))
    return folder
