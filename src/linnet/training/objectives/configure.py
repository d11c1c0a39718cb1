"""From the description of a run to its objective."""

from collections.abc import Callable
from functools import partial

from linnet.data.token_data import TokenData
from linnet.model.decoder import Decoder
from linnet.training.objectives import Loss, Objective
from linnet.training.objectives.language_modelling import check_penalties
from linnet.training.objectives.teacher import Teacher
from linnet.training.spec import TrainingSpec


def configure_objective(
    objective: Callable[..., Loss], spec: TrainingSpec, decoder: Decoder, data: TokenData
) -> Objective:
    """The objective with the run's settings; `UserError` for a penalty or a teacher that does not fit the model."""
    teacher = None if spec.distillation is None else Teacher.load(spec.distillation, decoder, data)
    settings = {"penalties": check_penalties(decoder, spec.penalties), "z_loss": spec.z_loss, "teacher": teacher}
    return partial(objective, **{name: value for name, value in settings.items() if value})
