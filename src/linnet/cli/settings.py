"""Fields that are changed by `--set` and not by an option of their own."""

from collections.abc import Sequence

from linnet.core.spec import field_kinds
from linnet.training.spec import RunSpec

DECIDED = {
    "train": ("model.vocab_size",),
    "compare": ("model.vocab_size", "data", "training.seed"),
}
"""By verb, the fields that something else decides: the data's tokenizer, the comparison's text and seeds."""

FINER = ("training.growth.", "training.optimizer.muon.")
"""Sections with fields that refine another of the same name, which is what somebody means who types that name."""


def hint(verb: str, option: str, arguments: Sequence[str]) -> str | None:
    """How the field is set that an unknown option names: `--device cpu` is `--set training.device=cpu`; or None."""
    wanted = option.lstrip("-").replace("-", "_")
    paths = [
        path for path, _ in field_kinds(RunSpec) if path.rpartition(".")[2] == wanted and path not in DECIDED[verb]
    ]
    paths = [path for path in paths if not path.startswith(FINER)] or paths
    value = _value_of(option, arguments)
    return " or ".join(f"--set {path}={value}" for path in paths) or None


def _value_of(option: str, arguments: Sequence[str]) -> str:
    """What was typed after it, or `VALUE`."""
    for argument, following in zip(arguments, [*arguments[1:], ""], strict=True):
        if argument.startswith(f"{option}="):
            return argument.partition("=")[2]
        if argument == option and following and not following.startswith("-"):
            return following
    return "VALUE"
