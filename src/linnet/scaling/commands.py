"""The commands that follow from a plan, ready for a shell."""

import shlex
from pathlib import Path

from linnet import numbers
from linnet.model.cost import model_cost
from linnet.scaling.plan import Plan

DESIGN_TOKENS = 1024
"""Over which `linnet design` counts FLOPs, forward and without the head."""

SPACE, DESIGNED, RUN, ANY_DATA = "merino.yaml", "designed.yaml", "runs/planned", "DIR"


def design_command(plan: Plan) -> str:
    """The search for a better shape that has no more parameters and takes no more FLOPs than the plan's plain one."""
    cost = model_cost(plan.model)
    flops = DESIGN_TOKENS * cost.flops_per_token(DESIGN_TOKENS, with_head=False)
    limits = ["--max-flops", numbers.compact(flops), "--max-parameters", numbers.compact(cost.parameters)]
    return shlex.join(["linnet", "design", "--space", SPACE, *limits, "--score", "entropy", "--out", DESIGNED])


def train_command(plan: Plan, model: str | Path) -> str:
    """The run itself, with a model's description."""
    folder = ANY_DATA if plan.data is None else str(plan.data.folder)
    fields = {
        "tokens": plan.tokens,
        "batch_size": plan.setting.batch_size,
        "context_length": plan.setting.context_length,
    }
    changes = [part for name, value in fields.items() for part in ("--set", f"training.{name}={value}")]
    return shlex.join(["linnet", "train", "--model", str(model), "--data", folder, "--out", RUN, *changes])
