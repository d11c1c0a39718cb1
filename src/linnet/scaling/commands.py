"""The commands that follow from a plan, ready for a shell."""

import shlex
from pathlib import Path

from linnet.model.cost import model_cost
from linnet.present import numbers
from linnet.scaling.plan import Plan

DESCRIBED, DESIGNED, ANY_DATA = Path("planned.yaml"), Path("designed.yaml"), "DIR"


def commands(plan: Plan, out: Path | None) -> dict[str, str]:
    """By what they do: keep the plain shape's description (unless it is in `out`), train it; search for a better shape
    of the same cost, train that.
    """
    described = out or DESCRIBED
    found = {} if out is not None else {"describe": describe_command(plan)}
    found["train"] = train_command(plan, described)
    return found | {"search": design_command(plan, described), "train_found": train_command(plan, DESIGNED)}


def describe_command(plan: Plan) -> str:
    """This plan again, its size and tokens given: nothing is measured anew, so nothing comes out otherwise."""
    options = {
        "parameters": round(plan.allocation.parameters),
        "tokens": plan.tokens,
        "law": plan.law.name,
        "vocab-size": plan.model.vocab_size,
        "context-length": plan.setting.context_length,
        "batch-size": plan.setting.batch_size,
        "throughput": numbers.scientific(plan.throughput.flops_per_s),
        "out": DESCRIBED,
    }
    return shlex.join(
        ["linnet", "plan", *(part for name, value in options.items() for part in (f"--{name}", str(value)))]
    )


def space_file(out: Path) -> Path:
    """Where the search space around a plan's shape lies: beside its description."""
    return out.with_name(f"{out.stem}-space.yaml")


def design_command(plan: Plan, described: Path) -> str:
    """The search for a better shape that has no more parameters and takes no more FLOPs than the plan's plain one."""
    cost, tokens, space = model_cost(plan.model), plan.model.context_length, str(space_file(described))
    limits = {"max-flops": cost.flops(tokens, with_head=False), "tokens": tokens, "max-parameters": cost.parameters}
    options = [part for name, value in limits.items() for part in (f"--{name}", str(value))]
    return shlex.join(["linnet", "design", "--space", space, *options, "--out", str(DESIGNED)])


def train_command(plan: Plan, model: Path) -> str:
    """The run itself, with a model's description; its folder is named like it."""
    folder = ANY_DATA if plan.data is None else str(plan.data.folder)
    fields = {
        "tokens": plan.tokens,
        "batch_size": plan.setting.batch_size,
        "context_length": plan.setting.context_length,
    }
    run = f"runs/{model.stem}"
    changes = [part for name, value in fields.items() for part in ("--set", f"training.{name}={value}")]
    return shlex.join(["linnet", "train", "--model", str(model), "--data", folder, "--out", run, *changes])
