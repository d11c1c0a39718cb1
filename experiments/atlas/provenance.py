"""What a figure was made with, as hashes, and where: its commit, its day, its machine.

A description is hashed as it is resolved, so that another default counts as another value. What says nothing (null,
false, an empty list) is left out: a field that is new, and off, makes no figure old.
"""

import json
from collections.abc import Mapping, Sequence
from functools import cache
from typing import Any

from harness import machine
from linnet.core.checksum import digest
from linnet.model.spec import ModelSpec
from linnet.training.recipe import has_low_lr_parameters
from linnet.training.spec import RunSpec

Made = Mapping[str, Any]
"""Hashes of parts of a description by their names, and `origin`, where the record has it; None: not known."""

NO_MATTER = {"seed", "threads", "device", "parallel", "evaluate", "checkpoint", "log", "trackers"}
"""Fields of a training that do not decide what comes out; the seed is kept in plain."""

OF_A_STEP = ("batch_size", "accumulate", "context_length", "windows", "precision", "clip")
"""Fields that decide how long a step takes, beside the kind of optimizer."""

_DIGITS = 12


def hashed(plain: Any) -> str:
    """Of plain data, whatever the order of its fields."""
    return digest(json.dumps(saying(plain), sort_keys=True).encode())[:_DIGITS]


def saying(plain: Any) -> Any:
    """Without the fields that say nothing."""
    if isinstance(plain, Mapping):
        parts = {name: saying(value) for name, value in plain.items()}
        return {name: value for name, value in parts.items() if not _says_nothing(value)}
    return [saying(value) for value in plain] if isinstance(plain, list | tuple) else plain


def _says_nothing(value: Any) -> bool:
    return value is None or value is False or value == [] or value == {}


def of_model(model: ModelSpec) -> Made:
    """What its bytes of state depend on."""
    return {"model": hashed(model.model_dump(mode="json", exclude={"name"}))}


def of_run(run: RunSpec, text: str | None) -> Made:
    """What a trained model depends on, but for its seed. text: that one's hash; None where it is not at hand."""
    run = run.resolved()
    training = run.training.model_dump(mode="json", exclude=NO_MATTER)
    if training["optimizer"]["low_lr"] is not None and not _has_sensitive(run.model.model_dump_json()):
        del training["optimizer"]["low_lr"]  # moves nothing
    of_text = {} if text is None else {"text": text}
    return {**of_model(run.model), "training": hashed(training), **of_text}


@cache
def _has_sensitive(model: str) -> bool:
    return has_low_lr_parameters(ModelSpec.model_validate_json(model))


def of_speed(run: RunSpec) -> Made:
    """What the time of a step, and of a decoded token, depends on beside the machine."""
    training = run.resolved().training.model_dump(mode="json")
    step = {name: training[name] for name in OF_A_STEP} | {"optimizer": training["optimizer"]["kind"]}
    return {**of_model(run.model), "step": hashed(step)}


def why(made: Made | None, now: Made) -> str | None:
    """Why a figure has to be made (anew); None where it need not: it was made with the same, as far as is known."""
    if made is None:
        return "missing"
    parts = [part for part, own in now.items() if made.get(part) not in (None, own)]
    return f"made with another {' and '.join(parts)}" if parts else None


def is_unknown(made: Made | None, now: Made) -> bool:
    """Whether a figure is there, and not known what it was made with."""
    return made is not None and any(made.get(part) is None for part in now)


def here() -> dict[str, Any]:
    """This machine and the commit that runs."""
    return machine()


def plan_said(title: str, reasons: Mapping[str, str | None], unknown: Sequence[str]) -> str:
    """One line: what is made now, each with its reason, and what is kept. reasons: None for what is kept."""
    wanted = [f"{name} ({reason})" for name, reason in reasons.items() if reason is not None]
    kept = len(reasons) - len(wanted)
    said = f"{title}: " + (f"to make: {', '.join(wanted)}" if wanted else "nothing to make")
    said += f"; {kept} in the record" if kept else ""
    doubt = ", kept, though nothing tells what they were made with (take them out of the record to make them anew)"
    return said + (f"; {', '.join(unknown)}{doubt}" if unknown else "")
