"""The shares of a mixture's sources, fitted from small runs: a design of mixtures, a law of each source's loss.

Legend: `N` runs, `S` sources, `T` sources with held-out text.
"""

import hashlib
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
import yaml

from linnet.core.errors import UserError, did_you_mean, note
from linnet.core.files import write_json, write_text
from linnet.data.mixed_batches import given_shares, source_parts
from linnet.data.mixture import MixtureSpec, SourceSpec
from linnet.data.token_data import TokenData
from linnet.design.validation import correlations, signs
from linnet.evaluation.text import evaluate
from linnet.experiments.executors import Executor
from linnet.experiments.jobs import Runner
from linnet.experiments.results import TRAINING, read_rows
from linnet.experiments.run import run_suite
from linnet.experiments.suite import RESULTS, Suite
from linnet.present import numbers
from linnet.present.progress import progress
from linnet.present.result import Part, Result
from linnet.present.table import MISSING, Table
from linnet.scaling.mixture_law import Floats, fewest_runs, fit_mixture_law, mixture_design, predictions_without

MIXTURE, FIGURES = "mixture.yaml", "search.json"

RELIABLE_PARAMETERS = 15_000_000
"""Below it ranks of mixtures transfer weakly to larger models."""

CAVEAT = (
    "the runs have {parameters} parameters: below 15 M the ranks of mixtures transfer weakly to larger models (rank"
    " correlation 0.73 at 1 M); compare the best ones at a larger size before a long training"
)


@dataclass(frozen=True)
class MixtureSearchSettings:
    """runs: small trainings of the design. targets: the weight of each source's held-out loss; none: all the same.
    confirm: train the best mixture, and the one that was given, and measure them.
    """

    model: str = "tiny-attention"
    runs: int = 12
    seed: int = 0
    targets: Mapping[str, float] | None = None
    confirm: bool = False


@dataclass(frozen=True)
class MeasuredMixture:
    """Shares `[S]` and bits per byte of each target `[T]`, predicted and (None: not) measured."""

    name: str
    shares_S: Floats
    predicted_T: Floats
    measured_T: Floats | None = None


@dataclass(frozen=True)
class MixtureFindings(Result):
    """The mixture with the lowest predicted loss, and how well the law predicts runs that it was not fitted to.

    parameters: of the runs. weights_T: of the targets. error: root mean square of the errors in the weighted mean for
    each run by a law that was fitted to the others, in bits per byte; rank_correlation: Spearman's, of the same.
    skipped: runs that diverged.
    """

    sources: tuple[str, ...]
    targets: tuple[str, ...]
    weights_T: Floats
    by: str
    parameters: int
    runs: tuple[MeasuredMixture, ...]
    best: MeasuredMixture
    given: MeasuredMixture
    error: float
    spread: float
    rank_correlation: float
    skipped: int
    file: Path

    def title(self) -> str:
        return "Shares of a mixture"

    def facts(self) -> dict[str, str]:
        of_runs = f"{len(self.runs)} of {numbers.metric(self.parameters)} parameters"
        return {"runs": of_runs, "shares of": self.by, "written to": str(self.file)}

    def mean(self, losses_T: Floats) -> float:
        """The weighted mean over the targets."""
        return float(losses_T @ self.weights_T / self.weights_T.sum())

    def to_dict(self) -> dict[str, Any]:
        def plain(one: MeasuredMixture) -> dict[str, Any]:
            found: dict[str, Any] = {"shares": dict(zip(self.sources, one.shares_S.tolist(), strict=True))}
            for kind, losses_T in (("predicted", one.predicted_T), ("measured", one.measured_T)):
                if losses_T is not None:
                    by_source = dict(zip(self.targets, losses_T.tolist(), strict=True))
                    found[f"{kind}_bits_per_byte"] = {"mean": self.mean(losses_T), **by_source}
            return found

        law = {"error": self.error, "spread": self.spread, "rank_correlation": self.rank_correlation}
        return {
            "file": str(self.file),
            "by": self.by,
            "parameters": self.parameters,
            "targets": dict(zip(self.targets, self.weights_T.tolist(), strict=True)),
            "left_out": law,
            "skipped": self.skipped,
            "best": plain(self.best),
            "given": plain(self.given),
            "runs": [plain(run) for run in self.runs],
        }

    def tables(self) -> list[Part]:
        """Shares of the given mixture and the best; bits per byte of each target under both; the runs."""
        both = (self.given, self.best)
        shares = zip(self.sources, *(one.shares_S for one in both), strict=True)
        rows = [(name, *(f"{share:.1%}" for share in own)) for name, *own in shares]
        parts: list[Part] = [Table("Shares", ("source", "given", "best"), rows)]
        rows = []
        for index, name in enumerate((*self.targets, "mean")):

            def cell(losses_T: Floats | None, index: int = index) -> str:
                if losses_T is None:
                    return MISSING
                return f"{self.mean(losses_T) if index == len(self.targets) else losses_T[index]:.4f}"

            rows.append((name, *(cell(losses_T) for one in both for losses_T in (one.predicted_T, one.measured_T))))
        columns = ("held-out text of", "given, predicted", "given, measured", "best, predicted", "best, measured")
        meaning = (
            f"bits per byte. Of runs that the law was not fitted to, it predicts the mean to within {self.error:.4f}"
            f" (the runs spread by {self.spread:.4f}), their order with a rank correlation of"
            f" {self.rank_correlation:.2f}"
        )
        return [*parts, Table("Bits per byte", columns, rows, meaning)]

    def conclusion(self) -> str:
        lines = [f"linnet train with --set training.mixture={self.file} reads the best shares"]
        if self.error > self.spread / 2:
            lines.append(
                "note: the law's error is not small beside the spread of the runs: more --runs, or longer ones"
            )
        if self.parameters < RELIABLE_PARAMETERS:
            lines.append(f"note: {CAVEAT.format(parameters=numbers.metric(self.parameters))}")
        return "\n".join(lines)


def search_mixture(
    mixture: MixtureSpec,
    data: Path,
    out: Path,
    settings: MixtureSearchSettings,
    assignments: Sequence[str],
    runner: Runner,
    executor: Executor,
) -> MixtureFindings:
    """Train a model on each mixture of a design, fit the law of each source's held-out loss, write the best mixture.

    data: prepared with the mixture. out: gets the runs, `mixture.yaml` and `search.json`; the same command goes on
    where it was stopped. assignments: fields of model and training for all runs. The best shares lie, source by source,
    within those that were tried. `UserError` for one source, a curriculum, and a target without held-out text.
    """
    centre_S, names, targets = _check(mixture, data, settings)
    weights_T = np.array([1.0 if settings.targets is None else settings.targets[name] for name in targets])
    search = _Search(mixture, names, targets, data, settings, assignments, runner, executor)
    design_NS = mixture_design(centre_S, settings.runs, settings.seed)
    losses, parameters = search.train({f"mixture {n}": shares_S for n, shares_S in enumerate(design_NS)}, out)
    kept = [number for number in range(len(design_NS)) if f"mixture {number}" in losses]
    if len(kept) < (fewest := fewest_runs(len(names))):
        raise UserError(f"{out}: {len(kept)} runs did not diverge; a law of {len(names)} sources needs {fewest}")
    shares_NS, losses_NT = design_NS[kept], np.stack(list(losses.values()))
    law, left_out_NT = fit_mixture_law(shares_NS, losses_NT), predictions_without(shares_NS, losses_NT)
    best_S = law.best_shares(weights_T, shares_NS.min(0), shares_NS.max(0)).round(4)
    runs = zip(losses, shares_NS, law.predict(shares_NS), losses_NT, strict=True)
    measured_S = None
    if settings.confirm:  # more runs change the best shares, which name its folder
        name = hashlib.sha256(best_S.tobytes()).hexdigest()[:8]
        measured_S = search.train({"best": best_S}, out / f"best-{name}")[0].get("best")
    means_N, left_out_N = (losses @ weights_T / weights_T.sum() for losses in (losses_NT, left_out_NT))
    found = MixtureFindings(
        tuple(names), tuple(targets), weights_T, mixture.by, parameters,
        runs=tuple(MeasuredMixture(*run) for run in runs),
        best=MeasuredMixture("best", best_S, law.predict(best_S[None])[0], measured_S),
        given=MeasuredMixture("given", centre_S, law.predict(centre_S[None])[0], losses.get("mixture 0")),
        error=float(np.sqrt(np.square(left_out_N - means_N).mean())), spread=float(means_N.std(ddof=1)),
        rank_correlation=correlations(signs(left_out_N), signs(means_N)).spearman,
        skipped=settings.runs - len(kept), file=out / MIXTURE,
    )  # fmt: skip
    best = search.with_shares(best_S)
    write_text(out / MIXTURE, yaml.safe_dump(_plain(best), sort_keys=False, allow_unicode=True))
    write_json(out / FIGURES, found.to_dict())
    return found


@dataclass(frozen=True)
class _Search:
    """What all trainings of a search have in common."""

    mixture: MixtureSpec
    names: Sequence[str]
    targets: Sequence[str]
    data: Path
    settings: MixtureSearchSettings
    assignments: Sequence[str]
    runner: Runner
    executor: Executor

    def train(self, mixtures: Mapping[str, Floats], out: Path) -> tuple[dict[str, Floats], int]:
        """Bits per byte of each target `[T]` after training on each mixture that did not diverge; the parameters."""
        described = [
            {"name": name, "set": {"training.mixture": _plain(self.with_shares(shares_S))}}
            for name, shares_S in mixtures.items()
        ]
        settings = self.settings
        plain: dict[str, Any] = {
            "name": "mixture search",
            "data": str(self.data),
            "model": settings.model,
            "seeds": [settings.seed],
        }
        plain["measures"] = {"likelihood": "recorded"}
        suite = Suite.checked({**plain, "runs": described}, "mixture search", self.assignments)
        run_suite(suite, out, self.runner, "mixture search", self.executor)
        trained = {
            row.run: row for row in read_rows(out / RESULTS) if (row.measure, row.status) == (TRAINING, "measured")
        }
        losses = dict[str, Floats]()
        with progress("measure sources", len(trained), "runs") as advance:
            for run in (run for run in suite.runs if run.name in trained):
                losses[run.name] = self._losses(suite.run_folder(out, run, settings.seed))
                advance(1)
        return losses, next((int(row.values["parameters"]) for row in trained.values()), 0)

    def with_shares(self, shares_S: Floats) -> MixtureSpec:
        """The mixture with these weights, of the sources that the data have."""
        sources: dict[str, SourceSpec] = {
            name: self.mixture.sources[name].model_copy(update={"weight": float(share), "epochs": None})
            for name, share in zip(self.names, shares_S, strict=True)
        }
        return self.mixture.model_copy(update={"sources": sources, "preset": None})

    def _losses(self, run: Path) -> Floats:
        found = evaluate(run, self.data)
        by_name = {one.name: one.losses.bits_per_byte.value for one in found.sources}
        return np.array([by_name[name] for name in self.targets])


def _plain(mixture: MixtureSpec) -> dict[str, Any]:
    plain: dict[str, Any] = mixture.model_dump(mode="json", exclude_defaults=True)
    return plain


def _check(mixture: MixtureSpec, data: Path, settings: MixtureSearchSettings) -> tuple[Floats, list[str], list[str]]:
    """The given shares `[S]`, the sources, and the targets, all in the order of the data folder."""
    if mixture.curriculum:
        raise UserError("a search finds one share for each source", field="mixture.curriculum", accepted="none")
    found = TokenData.open(data)
    parts = source_parts(found, mixture)
    names = [part.name for part in parts]
    if len(names) < 2:
        raise UserError(field="mixture.sources", value=names[0], accepted="two sources or more")
    if settings.runs < fewest_runs(len(names)):
        accepted = f"at least {fewest_runs(len(names))} for {len(names)} sources"
        raise UserError(field="runs", value=settings.runs, accepted=accepted)
    held_out_D = found.sources("validation")
    assert held_out_D is not None, "the splits of a folder are described alike"
    with_text = {found.source_names[place] for place in set(held_out_D.tolist())}
    for name in settings.targets or {}:
        if name not in with_text:
            known = f"expected sources with held-out text: {', '.join(sorted(with_text))}"
            raise UserError(did_you_mean(name, with_text, known), field="target", value=name)
    wanted = with_text & set(names) if settings.targets is None else settings.targets
    targets = [name for name in found.source_names if name in wanted]
    if missing := [name for name in names if name not in with_text]:
        note(f"note: {data}: no held-out documents of {', '.join(missing)}, whose loss is not measured")
    if not targets:
        raise UserError(f"{data}: no held-out documents of {', '.join(names)}; prepare it with a larger --validation")
    floor = 0.01  # a source with a share of 0 is part of the design too
    shares_S = np.maximum(given_shares(mixture, parts), floor)
    return shares_S / shares_S.sum(), names, targets
