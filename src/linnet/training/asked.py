"""The run that a caller asks for: described anew, or the one that its folder holds."""

from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

from linnet.core.errors import UserError
from linnet.core.spec import read_assignment
from linnet.model.spec import ModelSpec
from linnet.training.recipe import merged
from linnet.training.record.folder import CONFIG, RunFolder
from linnet.training.spec import RunSpec, read_run, run_of


def asked_run(
    out: str | Path,
    config: str | Path | None = None,
    model: str | Path | ModelSpec | None = None,
    data: str | Path | None = None,
    assignments: Sequence[str] = (),
    recipe: str | Path | None = None,
    start_from: str | Path | None = None,
    training: Mapping[str, Any] | None = None,
) -> RunSpec:
    """As `read_run`; where nothing says what to train, and `out` holds a run, that one.

    `data` is where its data lies now; `training` and `assignments` change its fields (more steps prolong it, all else
    is refused when it is trained). `UserError` names what is wrong.
    """
    described = any(given is not None for given in (config, model, recipe, start_from))
    if described or not (Path(out) / CONFIG).is_file():
        return read_run(config, model, data, list(assignments), recipe, start_from, training)
    plain = RunFolder(out).configuration().plain()
    fields = dict(training or {})
    if "recipe" in fields or "training.recipe" in {read_assignment(given)[0] for given in assignments}:
        raise UserError("a run that has begun keeps its fields", field="training.recipe", accepted="another `out`")
    if "tokens" in fields or "training.tokens" in {read_assignment(given)[0] for given in assignments}:
        plain["training"]["steps"] = None  # the other way to say how long
    plain["training"] = merged(plain["training"], fields)
    if data is not None:
        plain["data"] = str(data)
    return run_of(plain, list(assignments), str(Path(out) / CONFIG))
