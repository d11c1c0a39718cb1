"""Runs whose law is known, in memory and as the folders that `linnet train` would leave."""

import json
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import numpy as np
import yaml

from linnet.model.spec import ModelSpec
from linnet.scaling.candidate import Counting, parameter_counts
from linnet.scaling.law import ParametricLaw
from linnet.scaling.runs import Run
from linnet.training.spec import RunSpec

TRUTH = ParametricLaw(E=1.6, A=150.0, B=400.0, alpha=0.32, beta=0.36)
SIZES = np.geomspace(2e5, 2e7, 7)
TOKENS_PER_PARAMETER = (4.0, 10.0, 25.0, 60.0)
CURVE = 12


def known_runs(noise: float = 0.0, seed: int = 0) -> list[Run]:
    """Seven sizes, four lengths each, with curves; the loss scatters by the share `noise`."""
    random = np.random.default_rng(seed)
    runs = []
    for size in SIZES:
        for ratio in TOKENS_PER_PARAMETER:
            tokens = size * ratio * np.geomspace(0.1, 1, CURVE)
            loss = TRUTH.loss(size, tokens) * np.exp(noise * random.standard_normal(CURVE))
            # Ways of counting that change the small models most, as embeddings do.
            parameters = {"total": size, "without_embedding": size - 1.5e5, "matrices_and_head": 0.99 * size}
            runs.append(Run(f"{size:.0f} x {ratio:.0f}", parameters, tokens, 6 * size * tokens, loss))
    return runs


def small_model(width: int, layers: int = 2) -> ModelSpec:
    """A decoder of a few thousand parameters and more."""
    block = {
        "repeat": layers,
        "mixer": {"kind": "attention", "heads": 2},
        "feed_forward": {"kind": "glu", "hidden": 2 * width},
    }
    plain = {"vocab_size": 257, "d_model": width, "context_length": 16, "blocks": [block]}
    return ModelSpec.parse(plain, "test")


def write_run_folder(
    folder: Path, model: ModelSpec, tokens: Sequence[int], counted: Counting = "total", **changes: Any
) -> Path:
    """A run folder with evaluations after `tokens`, whose losses follow the law; `changes` are of `run.json`."""
    size = parameter_counts(model).by_name()[counted]
    run = RunSpec.parse({"model": model, "data": "data", "training": {"tokens": tokens[-1]}}, "test").resolved()
    lines = [{"step": n, "tokens": seen, "validation": _figures(size, seen)} for n, seen in enumerate(tokens, 1)]
    summary = {
        "finished": True,
        "step": len(tokens),
        "steps": len(tokens),
        "tokens": tokens[-1],
        "validation": lines[-1]["validation"],
        "data": {"path": "data", "manifest_sha256": "d" * 64, "tokenizer_hash": "t" * 64},
        **changes,
    }
    (folder / "model").mkdir(parents=True)
    (folder / "config.yaml").write_text(yaml.safe_dump(run.to_dict()))
    (folder / "metrics.jsonl").write_text(
        "".join(json.dumps(line) + "\n" for line in [{"step": 0, "tokens": 1}, *lines])
    )
    (folder / "model" / "run.json").write_text(json.dumps(summary))
    return folder


def _figures(size: float, tokens: int) -> dict[str, float]:
    """What an evaluation of 100 tokens, 250 bytes, would say."""
    return {"nats_per_token": float(TRUTH.loss(size, tokens)), "tokens": 100, "bytes": 250}
