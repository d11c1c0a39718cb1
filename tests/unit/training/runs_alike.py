"""What two runs, and two updates, are compared by."""

import json

import torch

MEASURED = {
    "tokens_per_s", "share_of_peak", "waiting_share", "memory_bytes", "eta_s", "orthogonalizing_share", "checksum",
}  # fmt: skip
"""Figures that differ from run to run."""


def weights_of(folder):
    """The bytes of a run's weights."""
    return (folder / "model" / "model.safetensors").read_bytes()


def metrics_of(folder):
    """Its lines of figures, but for what was measured."""
    lines = [json.loads(text) for text in (folder / "metrics.jsonl").read_text().splitlines()]
    return [{key: value for key, value in line.items() if key not in MEASURED} for line in lines]


def same(one, two):
    """Whether both ended the same, bit for bit."""
    return weights_of(one) == weights_of(two) and metrics_of(one) == metrics_of(two)


def with_gradients(decoder, seed):
    """Give every parameter a random gradient."""
    generator = torch.Generator().manual_seed(seed)
    for parameter in decoder.parameters():
        parameter.grad = torch.randn(parameter.shape, generator=generator)
