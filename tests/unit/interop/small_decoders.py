"""Small decoders of any sublayers, every weight away from its start, and their folders."""

from pathlib import Path
from typing import Any

import torch

from linnet.data.tokenizer import Tokenizer
from linnet.model.decoder import Decoder
from linnet.model.spec import ModelSpec
from linnet.model.store import write_model

NARROW = 32


def block(mixer: dict[str, Any], feed_forward: dict[str, Any] | None = None) -> dict[str, Any]:
    glu = {"kind": "glu", "hidden": 48}
    return {"repeat": 1, "mixer": mixer, "feed_forward": feed_forward or glu, "norm": {"kind": "rms"}}


def decoder_with_weights(blocks: list[dict[str, Any]], **fields: Any) -> Decoder:
    plain = {"name": "small", "vocab_size": 257, "d_model": NARROW, "context_length": 64, "blocks": blocks}
    plain |= {"embedding": {}, "head": {"tied": True, "norm": {"kind": "rms"}}} | fields
    torch.manual_seed(0)
    decoder = Decoder(ModelSpec.model_validate(plain)).eval().requires_grad_(False)
    for parameter in decoder.parameters():
        parameter.add_(0.2 * torch.randn_like(parameter))
    return decoder


def written(folder: Path, decoder: Decoder) -> Path:
    write_model(folder, decoder, Tokenizer.train("bytes", ["a"]), {})
    return folder
