"""What the demo trains and how: the one place to tune it.

The three models differ in their preset alone. All else is shared: the stories, the batches and their order, the number
of tokens, the optimizer and its learning rate.
"""

from dataclasses import dataclass, replace

from linnet.inference.sampling import Sampling
from linnet.model.spec import ModelSpec
from linnet.training.sections import (
    CheckpointSpec,
    ClipSpec,
    EvaluateSpec,
    LogSpec,
    OptimizerSpec,
    ScheduleSpec,
)
from linnet.training.spec import TrainingSpec

STORIES = 6000
NAMES = 3
VOCAB_SIZE = 1024

STEPS = 2700
BATCH_SIZE = 4
LEARNING_RATE, SENSITIVE_RATE = 4e-3, 8e-5
WARMUP_SHARE = 0.05
"""By how names persist after the minute that a model has (see `experiments/LOG.md`)."""

PROMPT = "Once upon a time"
TEMPERATURE, TOP_P = 0.4, 0.95

EVALUATIONS, LINES, VALIDATION_TOKENS = 12, 100, 8192
"""Points of a validation curve, points of a training curve, and how much text each validation point is measured on."""

_TRAINING = TrainingSpec(
    batch_size=BATCH_SIZE,
    steps=STEPS,
    windows="documents",
    optimizer=OptimizerSpec(kind="muon", lr=LEARNING_RATE, low_lr=SENSITIVE_RATE, betas=(0.9, 0.99)),
    schedule=ScheduleSpec(kind="linear", warmup_share=WARMUP_SHARE, final_fraction=0.0),
    clip=ClipSpec(by="norm", at=1.0),
)


@dataclass(frozen=True)
class Recipe:
    """One model of the demo. `key` names its folder; `idea` says how it looks back, for people."""

    key: str
    title: str
    preset: str
    idea: str
    training: TrainingSpec = _TRAINING

    @property
    def model(self) -> ModelSpec:
        """The description of the model."""
        return ModelSpec.load(self.preset)

    @property
    def tokens_per_step(self) -> int:
        """Tokens predicted in a step."""
        training = self.training
        context_length = training.context_length or self.model.context_length
        return training.batch_size * training.gradient_accumulation * context_length


RECIPES = (
    Recipe(
        key="attention",
        title="attention",
        preset="tiny-attention",
        idea="compares a query with the key of every earlier token, and takes most from those that match best.",
    ),
    Recipe(
        key="pldr",
        title="PLDR-LLM",
        preset="tiny-pldr",
        idea="is attention through an operator that a small net deduces from the text; once deduced from the prompt,"
        " the operator is kept and the net is not run again.",
    ),
    Recipe(
        key="ted",
        title="TED",
        preset="tiny-ted",
        idea="compares nothing: every token leaves a quantity that fades at a rate that it chose itself.",
    ),
)


def planned(steps: int | None, seed: int, device: str) -> list[Recipe]:
    """The recipes for one run of the demo; `steps` None keeps theirs."""
    recipes = [replace(recipe, training=_planned(recipe.training, steps, seed, device)) for recipe in RECIPES]
    assert len({(recipe.training.steps, recipe.tokens_per_step) for recipe in recipes}) == 1, "unequal tokens"
    return recipes


def sampling(seed: int) -> Sampling:
    """How the stories are sampled."""
    return Sampling(TEMPERATURE, top_p=TOP_P, seed=seed)


def _planned(training: TrainingSpec, steps: int | None, seed: int, device: str) -> TrainingSpec:
    steps = steps or training.steps
    assert steps is not None, "a recipe has a number of steps"
    return training.model_copy(
        update={
            "steps": steps,
            "seed": seed,
            "device": device,
            "evaluate": EvaluateSpec(every=max(1, steps // EVALUATIONS), tokens=VALIDATION_TOKENS),
            "log": LogSpec(every=max(1, steps // LINES)),
            "checkpoint": CheckpointSpec(every=steps, keep=1),
        }
    )
