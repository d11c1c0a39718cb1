"""`linnet.design`: the shape of a model under a budget, from Python."""

from collections.abc import Mapping
from pathlib import Path
from typing import Any

from linnet.data.manifest import read_manifest
from linnet.design.budget import Budget
from linnet.design.metrics import CostCounts
from linnet.design.search import DesignSettings, Method, SearchResult, SearchTask, search
from linnet.design.space import load_space
from linnet.model.cost import WeightType

FLOPS_TOKENS = 1024
"""FLOPs are counted over so many tokens where nothing is said; over fewer where the models' context is shorter."""


def design(
    space: str | Path,
    *,
    max_flops: float | None = None,
    max_parameters: float | None = None,
    max_active_parameters: float | None = None,
    max_weights: float | None = None,
    max_state: Mapping[int, float] | None = None,
    max_training_memory: float | None = None,
    data: str | Path | None = None,
    vocab_size: int | None = None,
    score: str = "penalized_parameters",
    method: Method = "auto",
    tokens: int | None = None,
    with_head: bool = False,
    dtype: WeightType = "float32",
    batch: int = 8,
    settings: Mapping[str, Any] | None = None,
    name: str | None = None,
) -> SearchResult:
    """The model of the highest score in a search space, within every budget; `.model` of the result is its description.

    space: one that comes with linnet (hybrid, merino, mixed, patterned, study), or a YAML file. max_flops: forward
    FLOPs of a sequence of `tokens` tokens. max_active_parameters: those that one token uses. max_weights,
    max_training_memory: bytes. max_state: bytes of the decode state by the tokens of the stream, `{4096: 2e6}`. data: a
    data folder, whose vocabulary the models get. settings: of the search and its score,
    `{"search": {"seed": 1}, "score": {"beta": 2}}`. Raises `UserError` where nothing meets the budgets, with the
    smallest that could be met.
    """
    of_data = None if data is None else read_manifest(Path(data)).tokenizer.vocab_size
    found_space = load_space(space, (), vocab_size or of_data)
    context = found_space.model([0] * found_space.spec.blocks).context_length
    counting = CostCounts(tokens or min(FLOPS_TOKENS, context), with_head, dtype, batch)
    limits = {"flops": max_flops, "parameters": max_parameters, "weights": max_weights}
    limits |= {"active_parameters": max_active_parameters, "training_memory": max_training_memory}
    limits |= {f"state@{length}": most for length, most in (max_state or {}).items()}
    budgets = [_budget(counting, metric, most) for metric, most in limits.items() if most is not None]
    parsed = DesignSettings.parse(settings or {}, "settings")
    return search(SearchTask(found_space, budgets, score, parsed, method), name)


def _budget(counting: CostCounts, name: str, most: float) -> Budget:
    metric = counting.metric(name)
    assert metric is not None
    return Budget(metric, most, f"max_{name}: {most:g}")
