"""A study of shapes: a stratified sample is trained as a suite, and every score is compared with the losses."""

from collections.abc import Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

from linnet.core.errors import UserError
from linnet.core.spec import Amount, Count, Extent, Seed, Spec, Vocabulary
from linnet.design.report import ValidationReport
from linnet.design.sample import shares_weights, stratified_sample
from linnet.design.scores import ScoreSettings, parts_of
from linnet.design.space import Candidate, Space
from linnet.design.validation import MIN_MODELS, ScoreQuality, TrainedModel, TrainedSet, validate
from linnet.experiments.executors import Executor
from linnet.experiments.jobs import Runner
from linnet.experiments.run import run_suite
from linnet.experiments.suite import Suite
from linnet.present import numbers
from linnet.present.result import Picture, Result
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
    """shapes: number of models, in `bands` of equal size. seeds: trainings of each. steps: of each training.

    stories: of the built-in text, which is used if there are no `files`. vocab_size: of the tokenizer, which is trained
    on the text. seed: of the sample. resamples: for the intervals.
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
class ModelGroup:
    """A group of the models, and the quality of every score on it. band: models in a window."""

    name: str
    trained: TrainedSet
    band: int
    worth: dict[str, ScoreQuality]

    @property
    def report(self) -> ValidationReport:
        return ValidationReport(self.trained, self.worth, self.band)


@dataclass(frozen=True)
class StudyResult(Result):
    """The groups: all models, those that share weights, and those that do not (if they are large enough)."""

    groups: list[ModelGroup]
    sample: str = ""

    def title(self) -> str:
        return "Study of shapes"

    def facts(self) -> dict[str, str]:
        return {"space": self.sample}

    def to_dict(self) -> dict[str, Any]:
        """Every model's losses, and for each group what `linnet design validate` shows; ready for JSON."""
        shapes = [_model_dict(model) for model in self.groups[0].trained.models] if self.groups else []
        figures = {group.name: group.report.to_dict() for group in self.groups}
        return {"shapes": shapes, "groups": figures}

    def tables(self) -> list[Table]:
        """The models, best first; then the scores, group by group."""
        if not self.groups:
            return []
        rows = []
        for model in sorted(self.groups[0].trained.models, key=lambda model: model.loss):
            plain = _model_dict(model)
            size = numbers.metric(plain["decoder_parameters"])
            losses = " ".join(f"{loss:.4f}" for loss in model.losses)
            widths = "/".join(map(str, plain["widths"]))
            rows.append([plain["name"], str(plain["layers"]), widths, size, f"{model.loss:.4f}", losses])
        columns = ["model", "layers", "widths", "decoder parameters", "bits per byte", "seed by seed"]
        meaning = "Trained on the same text with the same recipe; held-out text, causal."
        scores = [
            replace(table, title=f"Scores: {group.name}") for group in self.groups for table in group.report.tables()
        ]
        return [Table("Models", columns, rows, meaning), *scores]

    def plots(self) -> list[Picture]:
        """The loss over each score, over all models."""
        return self.groups[0].report.plots() if self.groups else []


def _model_dict(model: TrainedModel) -> dict[str, Any]:
    return {
        "name": model.name,
        "layers": sum(part.depth for part in model.parts),
        "widths": [part.width for part in model.parts if part.depth],
        "decoder_parameters": model.decoder_parameters,
        "losses": list(model.losses),
    }


def study(
    space: Space,
    settings: StudySettings,
    training: dict[str, Any],
    out: Path,
    runner: Runner,
    executor: Executor | None = None,
) -> StudyResult:
    """Sample shapes, train them, compare scores with losses. `training` changes fields of the runs.

    Existing results in `out` are not made again. Raises `UserError` and `ExperimentStopped`.
    """
    if settings.shapes < settings.bands * MIN_MODELS:
        least = settings.bands * MIN_MODELS
        raise UserError(field="shapes", value=settings.shapes, accepted=f"at least {least}, {MIN_MODELS} for each band")
    candidates = stratified_sample(space, settings.shapes, settings.bands, settings.seed)
    findings = run_suite(study_suite(space, candidates, settings, training), out, runner, "study", executor)
    models = []
    for candidate, run in zip(candidates, findings.runs, strict=True):
        if run.results:
            losses = tuple(result.bits_per_byte for result in run.results)
            model = TrainedModel(run.name, parts_of(space.model(candidate)), losses)
            models.append((model, shares_weights(space, candidate)))
    members = {
        "all": [model for model, _ in models],
        "shared weights": [model for model, shared in models if shared],
        "no shared weights": [model for model, shared in models if not shared],
    }
    groups = []
    for name, group in members.items():
        if len(group) >= 2 * MIN_MODELS:
            trained, band = TrainedSet(group, "bits per byte", []), max(MIN_MODELS, len(group) // settings.bands)
            worth = validate(trained, ScoreSettings(), band=band, resamples=settings.resamples)
            groups.append(ModelGroup(name, trained, band, worth))
    sample = f"{settings.shapes} shapes of space {space.spec.name}, {settings.seeds} seeds"
    return StudyResult(groups, sample)


def study_suite(
    space: Space, candidates: Sequence[Candidate], settings: StudySettings, training: dict[str, Any]
) -> Suite:
    """The suite of all shapes with all seeds; `linnet compare` could carry it out as well."""
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
    return Suite.parse(plain, "study")
