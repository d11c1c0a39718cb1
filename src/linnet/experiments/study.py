"""A study trains a sample of shapes on the same text and compares every score with the measured losses."""

from collections.abc import Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

from linnet.core.errors import UserError
from linnet.core.spec import Amount, Count, Extent, Seed, Spec, Vocabulary
from linnet.design.report import rank_figures, rank_plots, rank_table
from linnet.design.sample import shares_weights, stratified_sample
from linnet.design.scores import ScoreSettings, parts_of
from linnet.design.space import Candidate, Space
from linnet.design.validation import FEWEST, ScoreQuality, TrainedModel, TrainedSet, validate
from linnet.experiments.comparison.run import compare
from linnet.experiments.comparison.spec import ComparisonSpec
from linnet.experiments.runner import Runner
from linnet.present import numbers
from linnet.present.result import Picture
from linnet.present.table import Table

TRAINING = {
    "batch_size": 8,
    "windows": "documents",
    "optimizer": {"lr": 2.0e-3, "betas": [0.9, 0.99]},
    "evaluate": {"every": 250, "tokens": 16384},
    "log": {"every": 50},
    "checkpoint": {"keep": 1},
}


class StudySettings(Spec):
    """shapes: models, in `bands` of equal size. seeds: trainings of each. steps: of each training.

    stories: of the built-in text, used where there are no `files`. vocab_size: of the tokenizer that is trained on the
    text. seed: of the sample. resamples: behind the intervals.
    """

    shapes: Count = 24
    bands: Count = 4
    seeds: Count = 2
    steps: Amount = 1000
    stories: Amount = 6000
    files: tuple[str, ...] = ()
    vocab_size: Vocabulary = 1024
    seed: Seed = 0
    resamples: Extent = 1000


@dataclass(frozen=True)
class Studied:
    """A group of the models, and the worth of every score on it; `band`: models in a window."""

    name: str
    trained: TrainedSet
    band: int
    worth: dict[str, ScoreQuality]


def study(space: Space, settings: StudySettings, training: dict[str, Any], out: Path, runner: Runner) -> list[Studied]:
    """Sample, train, compare; `training` changes fields of the runs. What is in `out` already is not made again.

    The groups are all models, those that share weights, and those that do not. `UserError`, `ExperimentStopped`.
    """
    if settings.shapes < settings.bands * FEWEST:
        raise UserError(
            field="shapes",
            value=settings.shapes,
            accepted=f"at least {settings.bands * FEWEST}, {FEWEST} for each band",
        )
    candidates = stratified_sample(space, settings.shapes, settings.bands, settings.seed)
    findings = compare(comparison(space, candidates, settings, training), out, runner)
    models = []
    for candidate, found in zip(candidates, findings.runs, strict=True):
        if found.outcomes:
            losses = tuple(outcome.bits_per_byte for outcome in found.outcomes)
            model = TrainedModel(found.name, parts_of(space.model(candidate)), losses)
            models.append((model, shares_weights(space, candidate)))
    groups = {
        "all": [model for model, _ in models],
        "shared weights": [model for model, shared in models if shared],
        "no shared weights": [model for model, shared in models if not shared],
    }
    return [_studied(name, members, settings) for name, members in groups.items() if len(members) >= 2 * FEWEST]


def comparison(
    space: Space, candidates: Sequence[Candidate], settings: StudySettings, training: dict[str, Any]
) -> ComparisonSpec:
    """All shapes with all seeds as one comparison, which `linnet compare` could carry out as well."""
    described = [space.describe(candidate) for candidate in candidates]
    runs = [
        {"name": f"shape {number:02}", "set": {"model.blocks": plain["blocks"], **training}}
        for number, plain in enumerate(described, 1)
    ]
    plain = {
        "name": f"study of {space.spec.name}",
        "text": {"files": list(settings.files)} if settings.files else {"stories": settings.stories},
        "tokenizer": {"kind": "bpe", "vocab_size": settings.vocab_size},
        "model": described[0],
        "training": {**TRAINING, "steps": settings.steps},
        "seeds": list(range(settings.seeds)),
        "runs": runs,
    }
    return ComparisonSpec.parse(plain, "study")


def _studied(name: str, members: list[TrainedModel], settings: StudySettings) -> Studied:
    trained = TrainedSet(members, "bits per byte", [])
    band = max(FEWEST, len(members) // settings.bands)
    return Studied(name, trained, band, validate(trained, ScoreSettings(), band=band, resamples=settings.resamples))


def study_figures(groups: Sequence[Studied]) -> dict[str, Any]:
    """Ready for JSON: every model's losses, and what `linnet design validate` would say of each group."""
    return {
        "shapes": [_plain(model) for model in groups[0].trained.models] if groups else [],
        "groups": {group.name: rank_figures(group.trained, group.worth, group.band) for group in groups},
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
    of_groups = [
        replace(rank_table(group.trained, group.worth, group.band), title=f"Scores: {group.name}") for group in groups
    ]
    return [_model_table(groups[0].trained.models), *of_groups] if groups else []


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


def study_pictures(groups: Sequence[Studied]) -> list[Picture]:
    """The loss over each score, over all models."""
    return rank_plots(groups[0].trained, groups[0].worth, ScoreSettings()) if groups else []
