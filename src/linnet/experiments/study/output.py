"""What a study found: its models, and the worth of every score in each group of them."""

from collections.abc import Sequence
from dataclasses import replace
from typing import Any

from linnet.design.scores import ScoreSettings
from linnet.design.validation.trained import TrainedModel
from linnet.design.validation.validate import worth_figures, worth_pictures, worth_table
from linnet.experiments.study.run import Studied
from linnet.present import numbers
from linnet.present.report import Picture
from linnet.present.table import Table


def study_figures(groups: Sequence[Studied]) -> dict[str, Any]:
    """Ready for JSON: every model's losses, and what `linnet design validate` would say of each group."""
    return {
        "shapes": [_plain(model) for model in groups[0].trained.models] if groups else [],
        "groups": {group.name: worth_figures(group.trained, group.worth, group.band) for group in groups},
    }


def _plain(model: TrainedModel) -> dict[str, Any]:
    return {
        "name": model.name,
        "layers": sum(part.depth for part in model.parts),
        "widths": [part.width for part in model.parts if part.depth],
        "decoder_parameters": model.decoder_parameters,
        "losses": list(model.losses),
    }


def study_tables(groups: Sequence[Studied]) -> list[Table]:
    """The models, from the best; then the scores, group by group."""
    return [_model_table(groups[0].trained.models), *(_group_table(group) for group in groups)] if groups else []


def _model_table(models: Sequence[TrainedModel]) -> Table:
    rows = [
        [
            plain["name"],
            str(plain["layers"]),
            "/".join(map(str, plain["widths"])),
            numbers.metric(plain["decoder_parameters"]),
            f"{model.loss:.4f}",
            " ".join(f"{loss:.4f}" for loss in model.losses),
        ]
        for model, plain in ((model, _plain(model)) for model in sorted(models, key=lambda model: model.loss))
    ]
    columns = ["model", "layers", "widths", "decoder parameters", "bits per byte", "seed by seed"]
    return Table("Models", columns, rows, "Trained on the same text with the same recipe; held-out text, causal.")


def _group_table(group: Studied) -> Table:
    return replace(worth_table(group.trained, group.worth, group.band), title=f"Scores: {group.name}")


def study_pictures(groups: Sequence[Studied]) -> list[Picture]:
    """The loss over each score, over all models."""
    return worth_pictures(groups[0].trained, groups[0].worth, ScoreSettings()) if groups else []
