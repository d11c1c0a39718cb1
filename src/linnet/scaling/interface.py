"""`linnet.plan`: what a training budget buys, from Python."""

from pathlib import Path

from linnet.inference.device import resolve_device
from linnet.scaling.allocate import TrainingBudget
from linnet.scaling.data_at_hand import read_data_at_hand
from linnet.scaling.law_file import laws_to_plan_with
from linnet.scaling.plan import Plan, PlanSetting, make_plan
from linnet.scaling.throughput import Throughput


def plan(
    *,
    flops: float | None = None,
    hours: float | None = None,
    parameters: float | None = None,
    tokens: float | None = None,
    law: str | Path = "replication",
    data: str | Path | None = None,
    device: str = "auto",
    throughput: float | None = None,
    batch_size: int = 8,
    context_length: int = 1024,
    vocab_size: int | None = None,
) -> Plan:
    """The best size and its tokens for a budget, what laws expect of it, and how long it takes (`.wall_s`, seconds).

    Give flops, hours, parameters or tokens; or two of them that fix size and tokens. law: chinchilla, replication,
    kaplan, or a file of `linnet plan fit`. data: a data folder, the text at hand. throughput: training FLOPs per
    second; None: measured by a few steps. Losses are nats per token. `.model` is a plain shape of that size.
    Raises `UserError` where the budget buys no model.
    """
    chosen, laws = laws_to_plan_with(str(law))
    at_hand = None if data is None else read_data_at_hand(Path(data))
    vocabulary = vocab_size or (at_hand.vocab_size if at_hand else None)
    speed = None if throughput is None else Throughput(throughput)
    setting = PlanSetting(vocabulary, context_length, batch_size, resolve_device(device), speed)
    return make_plan(TrainingBudget(flops, hours, parameters, tokens), chosen, laws, setting, at_hand)
