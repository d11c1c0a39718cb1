"""Model folders of other weights than fresh ones, whose answers depend on their operators; and questions for them."""

import json
from pathlib import Path
from typing import Any

import torch
from set_rows import ROWS
from torch import nn

from linnet.data.tokenizer import Tokenizer
from linnet.model.decoder import Decoder
from linnet.model.spec import ModelSpec
from linnet.model.store import save_decoder

MIXERS: dict[str, dict[str, Any]] = {
    "attention": {"kind": "attention", "heads": 2},
    "plga": {"kind": "plga", "heads": 2, "metric_hidden": 8, "residual_units": 1},
}


def save_models(folder: Path) -> dict[str, Path]:
    """By mixer; they read bytes."""
    for name, mixer in MIXERS.items():
        torch.manual_seed(0)
        block = {"repeat": 2, "mixer": mixer}
        plain = {"vocab_size": 257, "d_model": 16, "context_length": 512, "blocks": [block], "head": {"tied": False}}
        decoder = Decoder(ModelSpec.parse(plain, "test"))
        for parameter in decoder.parameters():
            nn.init.normal_(parameter, mean=float(parameter.dim() == 1), std=0.4)
        save_decoder(decoder, folder / name)
        Tokenizer.train("bytes", []).save(folder / name / "tokenizer.json")
    return {name: folder / name for name in MIXERS}


def save_questions(folder: Path) -> Path:
    """A file for each task of the suites."""
    folder.mkdir(exist_ok=True)
    for name, rows in ROWS.items():
        (folder / f"{name}.jsonl").write_text("".join(f"{json.dumps(row)}\n" for row in rows))
    return folder
