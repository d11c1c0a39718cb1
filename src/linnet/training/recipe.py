"""Recipes: the `training` section of published models, and one that is computed for a model and a number of tokens.

`auto` chooses optimizer, batch, learning rate and schedule. It was measured on one attention model of 1.05 M parameters
(4 layers of 128) with 1.66 M tokens, three batches and several learning rates each (`experiments/LOG.md`). How it
continues to other widths and lengths is common practice and not measured.
"""

import math
from pathlib import Path
from typing import Any

from linnet.core.errors import UserError, note
from linnet.core.spec import read_yaml
from linnet.model.cost import model_cost
from linnet.model.decoder import meta_decoder
from linnet.model.initialize import without_calibration_file
from linnet.model.spec import ModelSpec
from linnet.present import numbers

AUTO = "auto"
"""In place of a name: the recipe that `automatic` computes."""

RECIPES = Path(__file__).parent / "recipes"

TOKENS_PER_PARAMETER = 20
"""For a run without a given length (Hoffmann et al., arXiv 2203.15556)."""

WIDTH, TOKENS, STEP_TOKENS, LEARNING_RATE = 128, 1_660_000, 1024, 5.5e-3
"""Where `auto` was measured: the best of the batches and learning rates."""

BATCH_POWER = 0.5
"""Exponent of the number of tokens, for the tokens of a step: common practice, not measured."""

RATE_POWER = 0.5
"""Exponent of the tokens of a step, for the learning rate: measured from 512 to 2,048."""

WIDTH_POWER = -0.5
"""Exponent of the width, for the learning rate: common practice, not measured."""

FINE_TUNING_SHARE = 0.1
"""Of the learning rate, for a model that begins with trained weights: measured from 0.01 to 1 on another text."""

PREFERENCE_SHARE = 0.01
"""Of the learning rate, for DPO and IPO, which begin with a model that answers: measured from 0.001 to 0.1 with DPO."""

LOW_LR_SHARE = 0.02
"""`low_lr` relative to the learning rate: measured from 0.001 to 1 on layers that need it."""

MAX_STEP_TOKENS = 1 << 20
WARMUP_SHARE = 0.05

LOW_LR = "optimizer.low_lr"
"""Path of the field below `training`."""

NO_LOW_LR_PARAMETERS = "no layer of the model has parameters with a low learning rate"


def recipe_names() -> list[str]:
    """The names of the recipes that come with linnet: those of the presets they were made for."""
    return sorted(path.stem for path in RECIPES.glob("*.yaml"))


def read_recipe(source: str | Path) -> dict[str, Any]:
    """The plain fields of `training`, from a recipe's name or a YAML file; `UserError` if there is no such thing."""
    known = RECIPES / f"{source}.yaml"
    path = known if known.parent == RECIPES and known.is_file() else Path(source)
    if not path.is_file():
        raise UserError(
            f"no such file, and no recipe of that name; recipes: {AUTO}, {', '.join(recipe_names())}",
            field="recipe",
            value=source,
        )
    fields = read_yaml(path)
    if not isinstance(fields, dict):
        raise UserError(
            field="recipe", value=source, accepted=f"a mapping of training's fields, found {type(fields).__name__}"
        )
    return fields


def merge_fields(below: dict[str, Any], above: Any) -> Any:
    """The fields of both, sections merged; `above` takes precedence."""
    if not isinstance(above, dict):
        return above
    fields = dict(below)
    for name, value in above.items():
        under = fields.get(name)
        fields[name] = merge_fields(under, value) if isinstance(under, dict) else value
    return fields


def automatic(
    model: ModelSpec, context_length: int, tokens: int | None, step_tokens: int | None, share: float = 1.0
) -> dict[str, Any]:
    """The fields of `training` for a model.

    tokens: of the whole run, in windows of `context_length` (None: 20 for each parameter that one token uses, as
    compute is). step_tokens: of a step, if the run gives them; None: the batch is chosen. share: of the learning rate;
    that of a fresh model would destroy trained weights (`FINE_TUNING_SHARE`, `PREFERENCE_SHARE`).
    """
    fields: dict[str, Any] = {}
    if tokens is None:
        cost = model_cost(model)
        tokens = fields["tokens"] = TOKENS_PER_PARAMETER * cost.active_parameters
        if cost.active_parameters < cost.parameters:
            active, stored = numbers.metric(cost.active_parameters), numbers.metric(cost.parameters)
            note(
                f"recipe auto: {tokens:,} tokens, {TOKENS_PER_PARAMETER} for each of the {active} parameters that one"
                f" token uses, of {stored}"
            )
    if step_tokens is None:
        fields["batch_size"] = batch_size(tokens, context_length)
        step_tokens = fields["batch_size"] * context_length
    lr = peak_learning_rate(model.d_model, step_tokens) * share
    lr = float(f"{lr:.1e}")
    fields["optimizer"] = {"kind": "muon", "lr": lr, "low_lr": float(f"{LOW_LR_SHARE * lr:.1e}")}
    fields["schedule"] = {"kind": "linear", "warmup_share": WARMUP_SHARE, "final_fraction": 0.0}
    return fields


def batch_size(tokens: int, context_length: int) -> int:
    """Sequences of a step: the power of two nearest to the law."""
    step_tokens = min(STEP_TOKENS * (tokens / TOKENS) ** BATCH_POWER, MAX_STEP_TOKENS)
    return 1 << max(0, round(math.log2(step_tokens / context_length)))


def peak_learning_rate(width: int, step_tokens: int) -> float:
    """The learning rate, rounded to two significant digits."""
    rate = LEARNING_RATE * (step_tokens / STEP_TOKENS) ** RATE_POWER * (width / WIDTH) ** WIDTH_POWER
    return float(f"{rate:.1e}")


def has_low_lr_parameters(model: ModelSpec) -> bool:
    """True if a layer has parameters for `optimizer.low_lr`; found without drawing weights."""
    decoder = meta_decoder(without_calibration_file(model))
    return any(True for sublayer in decoder.sublayers for _ in sublayer.low_lr_parameters())
