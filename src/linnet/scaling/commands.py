"""The commands that follow from a plan, ready for a shell."""

import shlex
from pathlib import Path

from linnet import numbers
from linnet.model.cost import model_cost
from linnet.scaling.plan import Plan

DESIGN_TOKENS = 1024
"""Over which `linnet design` counts FLOPs, forward and without the head."""

SPACE, LEAST_SEARCHED = "merino.yaml", 42e6
"""The space has GPT-2's vocabulary at width 768: no model in it has fewer than 40 M parameters."""

DESCRIBED, DESIGNED, RUN, ANY_DATA = "planned.yaml", "designed.yaml", "runs/planned", "DIR"


def commands(plan: Plan, again: str, out: Path | None) -> dict[str, str]:
    """By what they do: keep the plain shape's description (unless it is in `out`), train it; search for a better shape
    of the same cost, train that. `again`: the command that made the plan.
    """
    found = {} if out is not None else {"describe": f"{again} --out {DESCRIBED}"}
    found["train"] = train_command(plan, out or DESCRIBED)
    if plan.counts.total >= LEAST_SEARCHED:
        found |= {"search": design_command(plan), "train_found": train_command(plan, DESIGNED)}
    return found


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
