"""Texts, and folders of tiny models with random weights that read them."""

import torch
from examples import randomized

from linnet.model.decoder import Decoder
from linnet.model.spec import ModelSpec
from linnet.model.store import save_decoder

TEXTS = [f"The {n}th bird, ünlike the others, sang {'la ' * (n % 5)}all day." for n in range(7)]
CONTEXT = 16
MIXERS = {
    "attention": {"kind": "attention", "heads": 2},
    "ted": {"kind": "ted"},
    "plga": {"kind": "plga", "heads": 2, "metric_hidden": 8, "residual_units": 1},
}


def make_model(folder, kind, tokenizer, seed=0, **changes):
    """A model folder with random weights."""
    torch.manual_seed(seed)
    plain = {
        "vocab_size": tokenizer.vocab_size,
        "d_model": 8,
        "context_length": CONTEXT,
        "blocks": [{"mixer": MIXERS[kind], "feed_forward": {"kind": "glu", "hidden": 12}}],
        **changes,
    }
    save_decoder(randomized(Decoder(ModelSpec.parse(plain, "test"))), folder)
    tokenizer.save(folder / "tokenizer.json")
    return folder
