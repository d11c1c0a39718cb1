"""The description of a suite: one text, model and recipe; runs that differ from it; seeds; measures.

Every experiment is one: `linnet compare`, `design study`, a scaling ladder, `train --sweep`, the demo, the atlas.
"""

import itertools
import json
import re
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any, Literal, Self

from pydantic import Field, model_validator

from linnet.core.checksum import MANIFEST
from linnet.core.errors import UserError, note
from linnet.core.spec import Amount, Count, Seed, Spec, Vocabulary, override, read_assignment, read_yaml
from linnet.data.token_data import read_manifest
from linnet.evaluation.abilities.contract import Ability, TextAbility
from linnet.evaluation.abilities.suite import AnyAbility
from linnet.experiments.measures import NGRAM, Measures, check_types
from linnet.model.cost import model_cost
from linnet.model.folder import RUNS, read_description
from linnet.model.spec import ModelSpec
from linnet.present import numbers
from linnet.training.spec import RunSpec, run_of

SUITE, RESULTS, CURVES, DATA, CALIBRATIONS = "suite.json", "results.jsonl", "curves.png", "data", "calibrations"
"""Names in the folder of a suite."""

MAX_BASES = 3
"""Files that may be based on each other in a row."""

BUILT_IN = {"text": {"stories": 6000}, "tokenizer": {"kind": "bpe", "vocab_size": 1024}}
"""The text of a suite that is given by its models alone."""

HIDDEN = "feed_forward.hidden"
"""The end of the field that `match` decides."""

MAX_FACTOR = 64
"""Of a hidden width that `match` tries."""

MATCHED_WITHIN = 0.05
"""A larger difference of parameters is noted."""

TEXT_SOURCES = ("stories", "files", "ability", "instructions")
"""Fields of a text of which one is given."""

Form = Literal["answer", "steps"]
"""The answer alone, or the steps that lead to it and then the answer."""


class TextSpec(Spec):
    """The text: `stories` of the built-in corpus (`names` of each kind), `files` as `linnet prepare` takes them,
    `items` questions of an `ability`, of which only the answers are learned and measured, or so many `instructions` of
    the story world as conversations, of the `types` that are named or of all.

    parts: the text is cut into that many parts, document by document; each run trains on one part. The held-out
    documents are the same for all. forms: the forms in which the questions of an ability in words are answered; each
    form is a part, with the same questions.
    """

    stories: Amount | None = None
    names: Count = 3
    files: list[str] | None = Field(None, min_length=1)
    ability: AnyAbility | None = None
    items: Amount = 20_000
    instructions: Amount | None = None
    types: tuple[str, ...] = ()
    parts: Count = 1
    forms: tuple[Form, ...] = ()

    @property
    def is_generated(self) -> bool:
        """True for rows that are made for what is measured; false for a text of documents."""
        return self.ability is not None or self.instructions is not None

    @property
    def part_count(self) -> int:
        return max(self.parts, len(self.forms))

    def ability_of(self, part: int) -> Ability:
        """The ability that a run on that part (counted from 1) learns; only for a text that is an ability."""
        assert self.ability is not None
        steps = {"steps": self.forms[part - 1] == "steps"} if self.forms else {}
        return self.ability.model_copy(update=steps)

    @model_validator(mode="after")
    def _one_source(self) -> Self:
        sources = [name for name in TEXT_SOURCES if getattr(self, name) is not None]
        if len(sources) != 1:
            field = sources[1] if sources else "stories"
            raise ValueError(f"{field}: give one of {', '.join(TEXT_SOURCES)}; the others null")
        if self.is_generated and self.parts > 1:
            raise ValueError(f"parts: {self.parts}: expected 1 with {sources[0]}, of which there can be any number")
        if self.types and self.instructions is None:
            raise ValueError(f"types: {', '.join(self.types)}: go with instructions")
        check_types(self.types)
        if self.forms and not isinstance(self.ability, TextAbility):
            raise ValueError(f"forms: {', '.join(self.forms)}: need an ability in words, whose steps can be written")
        if len(set(self.forms)) < len(self.forms):
            raise ValueError(f"forms: {', '.join(self.forms)}: expected each once")
        return self


class TokenizerSpec(Spec):
    """The tokenizer of all runs: a kind that is trained on the whole text, or a tokenizer.json."""

    kind: str = "bpe"
    vocab_size: Vocabulary | None = None


class SuiteRun(Spec):
    """One run: the ways in which it differs from the suite.

    part: the part of the text that it trains on. model: a model in place of the suite's. set: fields of `model` and
    `training` by their paths. calibration_of: the name of an earlier run, whose calibration (from the empty prompt,
    same seed) becomes the fixed one of this run. shown: false keeps it out of tables and plots.
    """

    name: str = Field(pattern=r"^\w+([ .+-]+\w+)*$")
    part: Count = 1
    model: str | dict[str, Any] | None = None
    set: dict[str, Any] = Field(default_factory=dict)
    calibration_of: str | None = None
    shown: bool = True

    @property
    def folder(self) -> str:
        return self.name.replace(" ", "-")


class MoreSeeds(Spec):
    """Further `seeds` for the `best` runs by bits per byte, which are trained after all others."""

    best: Count
    seeds: tuple[Seed, ...] = Field(min_length=1)


def _expanded(runs: list[Any], grid: dict[str, Any]) -> list[Any]:
    """Each run with each combination of the grid's values, named after both: `small lr 0.001 batch_size 8`."""
    for field, values in grid.items():
        if not isinstance(values, list) or not values:
            raise ValueError(f"grid.{field}: {values!r}: expected a list of values")
    expanded = []
    for run, values in itertools.product(runs or [{}], itertools.product(*grid.values())):
        if not isinstance(run, dict):
            return runs  # refused where runs are parsed
        assignment = dict(zip(grid, values, strict=True))
        words = [run["name"]] if "name" in run else []
        words += [
            _name_of(value) if field == "model" else _name_of({field: value}) for field, value in assignment.items()
        ]
        model = {"model": assignment.pop("model")} if "model" in assignment else {}
        expanded.append({**run, **model, "name": " ".join(words), "set": {**run.get("set", {}), **assignment}})
    return expanded


def _name_of(value: Any) -> str:
    """A value of a grid as words of a run's name: `optimizer.betas: [0.9, 0.95]` is `betas 0.9-0.95`."""
    if isinstance(value, dict):
        words = [f"{name.rpartition('.')[2]} {_name_of(each)}" for name, each in value.items() if name != "kind"]
        return " ".join([_name_of(value["kind"]), *words] if "kind" in value else words)
    if isinstance(value, list):
        return "-".join(map(_name_of, value))
    return re.sub(r"[^\w.+-]+", "-", str(value)).strip("-.+") or "empty"


class Suite(Spec):
    """A whole suite: every run is trained with every seed, then measured. A protocol has no runs.

    source: the paper that it repeats. text: the data, which is prepared once; or data: a data folder that exists.
    start_from: a model folder whose weights all runs begin with. runs: a list; with `grid` (fields and their values)
    each run with every combination of values. match: `parameters`: the other runs get as many parameters as the first
    one, by the hidden width of their feed-forwards. equal_time_as: the name of a run; every other run gets as many
    steps as fit into the time of that run's training, by measured times of a step.
    flat: run folders lie directly in the suite's folder, without their seed; for suites of one seed.
    """

    name: str = "suite"
    source: str = ""
    text: TextSpec | None = None
    data: str | None = None
    tokenizer: TokenizerSpec = TokenizerSpec()
    model: str | dict[str, Any] | None = None
    start_from: str | None = None
    training: dict[str, Any] = Field(default_factory=dict)
    seeds: tuple[Seed, ...] = Field((0, 1, 2), min_length=1)
    more_seeds: MoreSeeds | None = None
    runs: list[SuiteRun] = Field(default_factory=list)
    match: Literal["parameters"] | None = None
    equal_time_as: str | None = None
    measures: Measures = Measures()
    flat: bool = False

    @model_validator(mode="before")
    @classmethod
    def _expand_grid(cls, plain: Any) -> Any:
        if isinstance(plain, dict) and isinstance(plain.get("grid"), dict):
            runs = _expanded(plain.get("runs") or [], plain["grid"])
            plain = {name: value for name, value in plain.items() if name != "grid"} | {"runs": runs}
        return plain

    @model_validator(mode="after")
    def _is_complete(self) -> Self:
        if not self.runs:
            if self.measures.scores is None and self.measures.cache_times is None and not self.measures.inspections:
                raise ValueError("runs: missing; expected runs to train, or measures of finished models (scores, ...)")
            return self
        if (self.text is None) == (self.data is None):
            raise ValueError("text: give either text or data, a data folder that exists already")
        if self.model is None and any(run.model is None for run in self.runs):
            raise ValueError("model: missing; expected one here, or one in each run")
        ability = None if self.text is None else self.text.ability
        if ability is not None and ability.alphabet and self.tokenizer != TokenizerSpec():
            raise ValueError("tokenizer: is decided by text.ability, whose symbols are tokens; leave it out")
        if self.measures.name_recall is not None and (self.text is None or self.text.stories is None):
            raise ValueError("measures.name_recall: needs text.stories, whose names are known")
        if self.measures.ngram is not None and (
            self.text is None or self.text.is_generated or self.text.part_count > 1
        ):
            raise ValueError("measures.ngram: needs a text of one part, of stories or files")
        if self.flat and len(self.seeds) > 1:
            raise ValueError(f"flat: goes with one seed; the suite has {len(self.seeds)}")
        return self

    @model_validator(mode="after")
    def _runs_fit(self) -> Self:
        earlier: list[str] = []
        for index, run in enumerate(self.runs):
            if run.name == NGRAM and self.measures.ngram is not None:
                raise ValueError(f"runs[{index}].name: {run.name}: is that of measures.ngram; expected another")
            if run.folder in {other.folder for other in self.runs[:index]}:
                raise ValueError(f"runs[{index}].name: {run.name}: another run has that name; expected a new one")
            decided = {"data": "text and part", "training.seed": "seeds"}
            decided |= {} if run.calibration_of is None else {"model.calibration": "calibration_of"}
            decided |= {field: "match" for field in run.set if self.match is not None and field.endswith(f".{HIDDEN}")}
            for field, decided_by in decided.items():
                if field in run.set:
                    raise ValueError(f"runs[{index}].set: {field}: is decided by {decided_by}; leave it out")
            parts = 1 if self.text is None else self.text.part_count
            if run.part > parts:
                of = "the number of text.forms" if self.text is not None and self.text.forms else "text.parts"
                raise ValueError(f"runs[{index}].part: {run.part}: expected at most {of}, {parts}")
            if run.calibration_of is not None and run.calibration_of not in earlier:
                known = ", ".join(earlier) or "there is none"
                where = f"runs[{index}].calibration_of: {run.calibration_of}"
                raise ValueError(f"{where}: expected an earlier run: {known}")
            earlier.append(run.name)
        if len(set(self.seeds)) < len(self.seeds):
            raise ValueError(f"seeds: {self.seeds}: expected each once")
        if self.runs and not any(run.shown for run in self.runs):
            raise ValueError("runs: none is shown; expected at least one")
        if self.equal_time_as is not None and self.equal_time_as not in earlier:
            raise ValueError(f"equal_time_as: {self.equal_time_as}: expected one of the runs: {', '.join(earlier)}")
        return self

    @classmethod
    def load(cls, path: str | Path, assignments: Sequence[str] = ()) -> Self:
        """Read a YAML file; `UserError` names the field that is wrong, in any of its runs.

        A field `base` names another such file, whose fields are taken where this one has none. assignments:
        `training.steps=200` or `model.d_model=64`, for all runs, as if the file said so.
        """
        return cls.checked(_read_suites(Path(path))[Path(path).stem], str(path), assignments)

    @classmethod
    def checked(cls, plain: dict[str, Any], origin: str, assignments: Sequence[str] = ()) -> Self:
        """The suite of plain data, with every run checked; `UserError` as from `load`, after `origin`."""
        suite = cls.parse(plain, origin)
        if assignments:
            suite = suite.changed(assignments, origin)
        for run in suite.runs:
            try:
                suite.run_spec(run, suite.seeds[0], Path("data")).resolved()
            except UserError as error:
                raise UserError(f"{origin}: runs: {run.name}: {error}") from None
        return suite if suite.match is None else suite._matched()

    def _matched(self) -> Self:
        """A copy whose runs have as many parameters as the first; a note for those that hidden widths cannot match."""
        first, *others = self.runs
        expected, runs = model_cost(self._model_of(first)).parameters, [first]
        for run in others:
            matched = run.model_copy(update={"set": run.set | hidden_widths(self._model_of(run), expected)})
            if abs(model_cost(self._model_of(matched)).parameters - expected) > MATCHED_WITHIN * expected:
                matched, count = run, model_cost(self._model_of(run)).parameters
                difference = f"{numbers.metric(count)} parameters, {count / expected - 1:+.1%} against {first.name}"
                note(f"match: {run.name}: {difference}: hidden widths cannot make up for that, and stay as they are")
            runs.append(matched)
        return self.model_copy(update={"runs": runs})

    def _model_of(self, run: SuiteRun) -> ModelSpec:
        """The model of a run, with the vocabulary of the suite's tokenizer as far as that is known."""
        model = self.run_spec(run, self.seeds[0], Path("data")).model
        size = self.tokenizer.vocab_size
        if self.data is not None and (Path(self.data) / MANIFEST).is_file():
            size = read_manifest(Path(self.data)).tokenizer.vocab_size
        return model if size is None or self.start_from is not None else model.replace(vocab_size=size)

    def changed(self, assignments: Sequence[str], origin: str) -> Self:
        """A copy with fields of `model` and `training` set for all runs; `UserError` names the assignment at fault.

        A field that a run sets itself is refused, because it is not clear which value is meant.
        """
        for assignment in assignments:
            self._check_assignment(assignment)
        first = self.runs[0]
        model = self.model if first.model is None else first.model
        plain = {"model": read_description(model) if isinstance(model, str) else model, "training": dict(self.training)}
        own = [f"{field}={json.dumps(value)}" for field, value in first.set.items()]
        changed = run_of({**override(plain, own), "data": "data"}, list(assignments), origin)
        try:
            changed.resolved()
        except UserError as error:
            raise UserError(f"{origin}: {error}") from None
        of_model = [assignment for assignment in assignments if assignment.startswith("model.")]
        of_training = [assignment for assignment in assignments if assignment not in of_model]
        update = override({"training": dict(self.training)}, of_training)
        if of_model and self.model is not None:
            common = read_description(self.model) if isinstance(self.model, str) else self.model
            update |= override({"model": common}, of_model)
        fields = dict(map(read_assignment, of_model))  # models of single runs
        update["runs"] = [
            run if run.model is None else run.model_copy(update={"set": run.set | fields}) for run in self.runs
        ]
        return self.model_copy(update=update)

    def _check_assignment(self, assignment: str) -> None:
        field, _ = read_assignment(assignment)
        if not field.startswith(("model.", "training.")):
            raise UserError(field="set", value=assignment, accepted="a field of all runs, model.* or training.*")
        if field == "training.seed":
            raise UserError("is decided by seeds; leave it out", field="set", value=assignment)
        for run in self.runs:
            if field == "model.calibration" and run.calibration_of is not None:
                raise UserError(f"run {run.name!r} has calibration_of; change it there", field="set", value=assignment)
            for own in run.set:
                if f"{own}.".startswith(f"{field}.") or f"{field}.".startswith(f"{own}."):
                    message = f"run {run.name!r} sets {own} itself; change it there"
                    raise UserError(message, field="set", value=assignment)

    def run(self, name: str) -> SuiteRun:
        """The run of that name."""
        return next(run for run in self.runs if run.name == name)

    def run_spec(self, run: SuiteRun, seed: int, data: Path, calibration: Path | None = None) -> RunSpec:
        """The training of a run with a seed; `calibration`: the file that `calibration_of` stands for."""
        assignments = [f"{field}={json.dumps(value)}" for field, value in run.set.items()]
        assignments.append(f"training.seed={seed}")
        if calibration is not None:
            assignments.append(f"model.calibration={json.dumps(str(calibration))}")
        model = self.model if run.model is None else run.model
        plain: dict[str, Any] = {"model": model, "data": str(data), "training": dict(self.training)}
        if self.start_from is not None:
            plain["start_from"] = self.start_from
        found = run_of(plain, assignments, self.name, "set: ")
        name = run.set.get("model.name", run.name)  # runs of one model have different names
        return found.model_copy(update={"model": found.model.model_copy(update={"name": name})})

    def run_folder(self, out: Path, run: SuiteRun, seed: int) -> Path:
        return out / run.folder if self.flat else out / RUNS / f"{run.folder}-seed-{seed}"

    def data_folders(self, out: Path) -> list[Path]:
        """The data folder of each part of the text."""
        if self.text is None:
            assert self.data is not None
            return [Path(self.data)]
        count = self.text.part_count
        return [out / DATA] if count == 1 else [out / DATA / f"part-{part}" for part in range(1, count + 1)]

    def calibration_file(self, out: Path, teacher: SuiteRun, seed: int) -> Path:
        """The calibration file that a run passes on to others."""
        return out / CALIBRATIONS / f"{teacher.folder}-seed-{seed}.safetensors"


def hidden_widths(model: ModelSpec, expected: int) -> dict[str, int]:
    """The fields of hidden widths, all times one factor, with which a model has nearest to `expected` parameters."""
    sizes = {
        f"blocks.{index}.{HIDDEN}": int(hidden)
        for index, block in enumerate(model.blocks)
        if (hidden := getattr(block.feed_forward, "hidden", None))
    }

    def widths(factor: float) -> dict[str, int]:
        return {field: max(1, round(factor * size)) for field, size in sizes.items()}

    def parameters(factor: float) -> int:
        changes = [f"{field}={width}" for field, width in widths(factor).items()]
        return model_cost(ModelSpec.parse(override(model.model_dump(), changes), "match")).parameters

    low, high = 0.0, 1.0
    while sizes and parameters(high) < expected and high < MAX_FACTOR:
        low, high = high, 2 * high
    while widths(low) != widths(middle := (low + high) / 2) != widths(high):
        low, high = (low, middle) if parameters(middle) >= expected else (middle, high)
    nearest = min((low, high), key=lambda factor: abs(parameters(factor) - expected))
    return {f"model.{field}": width for field, width in widths(nearest).items()}


def suite_of_models(models: Sequence[str], data: Sequence[str] = ()) -> dict[str, Any]:
    """The plain data of a suite with one run for each model: the name of a preset, or a file that describes one.

    data: one data folder, or files of text; none: the built-in stories.
    """
    is_prepared = len(data) == 1 and Path(data[0]).is_dir()
    source = {"data": data[0]} if is_prepared else {**BUILT_IN, **({"text": {"files": list(data)}} if data else {})}
    runs = [{"name": _name_of(Path(model).stem), "model": model} for model in models]
    return {"name": " ".join(run["name"] for run in runs), **source, "runs": runs}


def load_suites(
    path: str | Path, assignments: Sequence[str] = (), fields: Mapping[str, Any] | None = None
) -> dict[str, Suite]:
    """The suites of a YAML file by name: the file's own, under the name of the file, then its `variants`.

    A variant has the fields of the file's suite, or of the one that its `base` names, except those that it gives
    itself. Each needs a `name` of its own, under which its results are recorded. assignments: as in `Suite.load`.
    fields: of all suites, such as `seeds`, in place of the file's; those of `grid` join the file's.
    """
    path = Path(path)
    suites = {
        key: Suite.checked(with_fields(plain, fields or {}), str(path), assignments)
        for key, plain in _read_suites(path).items()
    }
    names = [suite.name for suite in suites.values()]
    for number, (key, suite) in enumerate(suites.items()):
        if suite.name in names[:number]:
            raise UserError(f"{path}: variants.{key}.name: {suite.name}: is that of another suite; expected a new one")
    return suites


def with_fields(plain: Mapping[str, Any], fields: Mapping[str, Any]) -> dict[str, Any]:
    """The plain data of a suite with `fields` in place of its own; a `grid` is joined with its own."""
    grid = {**(plain.get("grid") or {}), **fields.get("grid", {})}
    return {**plain, **fields, **({"grid": grid} if grid else {})}


def _read_suites(path: Path, depth: int = 0) -> dict[str, dict[str, Any]]:
    """The plain data of the suites of a file, each complete."""
    plain = read_yaml(path)
    if not isinstance(plain, dict):
        raise UserError(f"{path}: expected a mapping with text, model, runs, found {type(plain).__name__}")
    variants = plain.pop("variants", None) or {}
    if not isinstance(variants, dict):
        raise UserError(f"{path}: variants: expected a mapping of names, found {type(variants).__name__}")
    suites = {path.stem: _with_base(plain, path, {}, depth)}
    for key, own in variants.items():
        if not isinstance(own, dict) or key in suites:
            raise UserError(f"{path}: variants.{key}: expected a mapping of fields, under a name of its own")
        suites[key] = _with_base({"base": path.stem, **own}, path, suites, depth)
    return suites


def _with_base(own: dict[str, Any], path: Path, known: dict[str, dict[str, Any]], depth: int) -> dict[str, Any]:
    """Own fields, and those of the suite that `base` names: one of this file, or another file beside it."""
    if "base" not in own:
        return own
    base = own["base"]
    if not isinstance(base, str) or depth > MAX_BASES:
        raise UserError(f"{path}: base: {base!r}: expected the path of another suite, at most {MAX_BASES} in a row")
    below = known[base] if base in known else _read_suites(path.parent / base, depth + 1)[Path(base).stem]
    own = {name: value for name, value in own.items() if name != "base"}
    for section in ("training", "model"):  # the fields of these are replaced one by one
        if isinstance(own.get(section), dict) and isinstance(below.get(section), dict):
            own[section] = {**below[section], **own[section]}
    return {**below, **own}
