"""Four layers in each of several processes, whose gradients are summed; it prints what happened when, as JSON.

`python summing.py`. A step is one list of layers for each of its passes, other ones for the last process if it says so.
"""

import json
import sys
import time

import torch
import torch.distributed as dist
from torch import Tensor, nn
from torch.distributed.device_mesh import init_device_mesh
from torch.distributed.tensor import Shard, distribute_tensor
from torch.distributed.tensor.debug import CommDebugMode

from linnet.training import gradient_sums
from linnet.training.distributed import join_processes, whole

WIDTH = 3
STEPS = {
    "first": [[0, 1, 2, 3]],
    "two passes": [[0, 1, 2, 3], [0, 1, 2, 3]],
    "used twice": [[0, 1, 2, 1, 3]],
    "last misses one": [[0, 1, 2, 3]],
    "then": [[0, 1, 2, 3]],
    "nobody has one": [[1, 2, 3]],
    "nobody had one": [[0, 1, 2, 3]],
    "one pass misses": [[0, 1, 3], [0, 1, 2, 3]],
}
PAUSE_S, TRIALS = 0.3, 10
"""The computing of a step whose waiting is measured, and how often both such steps are taken at most."""

OF_LAST = {"last misses one": [[0, 1, 3]]}


def made(layers: list[nn.Linear], step: str, rank: int, count: int, events: list[str] | None = None) -> list[Tensor]:
    """The loss of each pass of a step, as one process makes it."""
    passes = OF_LAST.get(step, STEPS[step]) if rank == count - 1 else STEPS[step]
    losses = []
    for number, chosen in enumerate(passes):
        x = torch.randn(2, WIDTH, generator=torch.Generator().manual_seed(10 * number + rank), requires_grad=True)
        for layer in chosen:
            x = layers[layer](x).tanh()
            if events is not None:
                x.register_hook(lambda _, layer=layer: events.append(f"layer {layer}"))
        losses.append(x.square().sum())
    return losses


def difference(layers: list[nn.Linear], step: str, count: int) -> float:
    """How far the summed gradients are from those of all losses in one process; inf where one is missing."""
    weights = [layer.weight for layer in layers]
    total = sum(sum(made(layers, step, rank, count)) for rank in range(count))
    expected = torch.autograd.grad(total, weights, allow_unused=True)
    pairs = [(weight.grad, wanted) for weight, wanted in zip(weights, expected, strict=True)]
    if any((found is None) != (wanted is None) for found, wanted in pairs):
        return float("inf")
    return max((found - wanted).abs().max().item() for found, wanted in pairs if wanted is not None)


def gathered(rows: int) -> tuple[bool, list[str]]:
    """Whether a matrix of so many rows comes back from its shards, and the collective operations for that."""
    matrix = torch.arange(rows * WIDTH, dtype=torch.float64).view(rows, WIDTH)
    with CommDebugMode() as operations:
        found = whole(distribute_tensor(matrix, init_device_mesh("cpu", (2,)), [Shard(0)], src_data_rank=None))
    return torch.equal(found, matrix), [str(name) for name in operations.get_comm_counts()]


def main() -> None:
    """Take the steps; then one in which both compute while it is summed, and one to which the last comes late.

    What they wait, in shares of the pause, is that of the first trial that is as it should be, else of the last.
    """
    torch.set_num_threads(1)
    begin, names, events = gradient_sums.Bucket.begin, {}, list[str]()

    def told(bucket: gradient_sums.Bucket, *rest: object) -> None:
        events.append("sum " + ",".join(str(names[parameter]) for parameter in bucket.parameters))
        begin(bucket, *rest)

    gradient_sums.Bucket.begin, gradient_sums.BUCKET_ELEMENTS = told, 1
    with join_processes() as several:
        torch.manual_seed(0)
        layers = [nn.Linear(WIDTH, WIDTH, bias=False) for _ in range(4)]
        names |= {layer.weight: number for number, layer in enumerate(layers)}
        found = gradient_sums.GradientSums(list(names), dist.new_group(), several)

        def take(step: str, before_s: float = 0.0, behind_s: float = 0.0) -> float:
            """How long it waited, seconds."""
            waited_s = several.waits.seconds
            time.sleep(before_s)
            losses = made(layers, step, several.rank, several.count, events)
            for loss in losses[:-1]:
                loss.backward()
            found.reset(last_pass=True)
            losses[-1].backward()
            events.append("end")
            time.sleep(behind_s)
            holders = torch.tensor([weight.grad is not None for weight in names], dtype=torch.int32)
            with several.waits.running(holders.device):
                dist.all_reduce(holders, group=several.control)
            found.finish(dict(zip(names, holders.tolist(), strict=True)))
            return several.waits.seconds - waited_s

        steps = {}
        for step in STEPS:
            take(step)
            steps[step] = {"events": events.copy(), "difference": difference(layers, step, several.count)}
            events.clear()
            for layer in layers:
                layer.weight.grad = None
        is_last = several.rank == several.count - 1
        for _ in range(TRIALS):  # on a busy machine a process may come late that need not
            dist.barrier(several.control)
            both_busy_s = take("then", behind_s=PAUSE_S)
            last_late_s = take("then", before_s=PAUSE_S if is_last else 0.0)
            as_expected = both_busy_s < PAUSE_S / 2 and (last_late_s > PAUSE_S / 2) != is_last
            failures = torch.tensor(not as_expected, dtype=torch.int32)
            dist.all_reduce(failures, group=several.control)
            if not failures:
                break
        waits = {"both_busy": both_busy_s / PAUSE_S, "last_late": last_late_s / PAUSE_S}
        shards = {rows: gathered(rows) for rows in (1, 2, 3, 8)}
        print(json.dumps({"steps": steps, "waits": waits, "gathered": shards}))


if __name__ == "__main__":
    sys.exit(main())
