"""Whether a model has what a learning rate of its own, `optimizer.low_lr`, is for."""

from collections.abc import Mapping
from typing import Any

from linnet.core.errors import note
from linnet.model.skip_init import meta_decoder, without_calibration_file
from linnet.model.spec import ModelSpec

SENSITIVE = "optimizer.low_lr"
"""The field, by its path below `training`."""

IN_VAIN = "no layer of the model has sensitive parameters, as the net behind the operator of plga is"


def has_sensitive(model: ModelSpec) -> bool:
    """Whether a layer calls some of its parameters sensitive; found without drawing their numbers."""
    decoder = meta_decoder(without_calibration_file(model))
    return any(True for sublayer in decoder.sublayers for _ in sublayer.low_lr_parameters())


def note_what_is_in_vain(training: Mapping[str, Any], model: ModelSpec) -> None:
    """A note where a run names the field itself, and the model has nothing to which it applies.

    training: the fields that the run names, without those of its recipe, which fits many models.
    """
    value = (training.get("optimizer") or {}).get("low_lr")
    if value is not None and not has_sensitive(model):
        note(f"training.{SENSITIVE}: {value}: {IN_VAIN}; it changes nothing")
