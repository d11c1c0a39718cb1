"""From the description of a run to its objective."""

from collections.abc import Callable
from functools import partial
from typing import Any

from linnet.data.token_data import TokenData
from linnet.model.decoder import Decoder
from linnet.training.objectives import Loss, Objective
from linnet.training.objectives.grpo import grpo_loss
from linnet.training.objectives.language_modelling import check_penalties
from linnet.training.objectives.preference import preference_loss
from linnet.training.objectives.teacher import Teacher
from linnet.training.spec import TrainingSpec


def configure_objective(
    objective: Callable[..., Loss], spec: TrainingSpec, decoder: Decoder, data: TokenData
) -> Objective:
    """The objective with the run's settings; `UserError` for a penalty or a teacher that does not fit the model.

    objective: that of text; a run that learns from something else has another one.
    """
    settings: dict[str, Any] = {"penalties": check_penalties(decoder, spec.penalties)}
    if spec.grpo is not None:
        objective, settings["spec"] = grpo_loss, spec.grpo
    elif spec.preference is not None:
        objective, settings["spec"] = preference_loss, spec.preference
    else:
        settings["z_loss"] = spec.z_loss
        settings["teacher"] = None if spec.distillation is None else Teacher.load(spec.distillation, decoder, data)
    return partial(objective, **{name: value for name, value in settings.items() if value})
