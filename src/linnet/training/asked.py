"""The run that a caller asks for: described anew, or the one that its folder holds."""

from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

from linnet.core.checksum import MANIFEST
from linnet.core.errors import UserError
from linnet.core.files import sha256_of
from linnet.core.spec import read_assignment
from linnet.data.manifest import read_manifest
from linnet.data.prepare import prepare_pairs
from linnet.data.shards import PAIRS as SOURCE
from linnet.model.spec import ModelSpec
from linnet.model.store import TOKENIZER, model_folder
from linnet.training.recipe import merged
from linnet.training.run_folder import CONFIG, PAIRS, RunFolder
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
    pairs: str | Path | None = None,
) -> RunSpec:
    """As `read_run`; where nothing says what to train, and `out` holds a run, that one.

    `pairs`: a file of these, of which `prepare_asked` makes the run's data. `data` is where its data lies now;
    `training` and `assignments` change its fields (more steps prolong it, all else is refused when it is trained).
    `UserError` names what is wrong.
    """
    if pairs is not None:
        if data is not None:
            raise UserError("does not go with `data`; give one of the two", field="pairs", value=pairs)
        data = Path(out) / PAIRS
    described = any(given is not None for given in (config, model, recipe, start_from))
    if described or not (Path(out) / CONFIG).is_file():
        return read_run(config, model, data, list(assignments), recipe, start_from, training)
    plain = RunFolder(out).configuration().to_dict()
    fields = dict(training or {})
    if "recipe" in fields or "training.recipe" in {read_assignment(given)[0] for given in assignments}:
        raise UserError("a run that has begun keeps its fields", field="training.recipe", accepted="another `out`")
    if "tokens" in fields or "training.tokens" in {read_assignment(given)[0] for given in assignments}:
        plain["training"]["steps"] = None  # the other way to say how long
    plain["training"] = merged(plain["training"], fields)
    if data is not None:
        plain["data"] = str(data)
    return run_of(plain, list(assignments), str(Path(out) / CONFIG))


def prepare_asked(run: RunSpec, pairs: str | Path) -> None:
    """Make the data folder of a run of a file of pairs, unless it is there; `UserError` where it is of another file.

    The tokenizer is that of the model whose weights the run begins with, or made from the pairs, as large as the
    model's vocabulary.
    """
    if (run.data / MANIFEST).is_file():
        if read_manifest(run.data).settings.get(SOURCE) != sha256_of(pairs):
            raise UserError(
                f"not the file that {run.data} was made of; choose another `out`", field="pairs", value=pairs
            )
        return
    if run.start_from is None:
        prepare_pairs(pairs, run.data, "bpe", run.model.vocab_size)
    else:
        prepare_pairs(pairs, run.data, str(model_folder(run.start_from) / TOKENIZER))
