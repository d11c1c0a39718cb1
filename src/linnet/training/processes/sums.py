"""Sums of gradients over processes, begun while the backward pass is still at the layers before.

The backward pass makes the gradients of the last layers first, so buckets are filled in the reverse order of the
weights, and each is summed in the background as soon as it is full and those before it are under way (Li et al.,
PyTorch Distributed, arXiv 2006.15704).

No process may wait for a sum that another one begins in another order. So all have the same buckets and begin them in
the same order, with zeros where a gradient is missing; one that misses some begins later, behind its backward pass.
Buckets hold steady weights alone, of which every process had a gradient in every step so far; what is left (the maps of
experts whom not every process asked) is summed in the end, when all know who has which.
"""

from collections.abc import Iterator, Sequence

import torch
import torch.distributed as dist
from torch import Tensor, nn

from linnet.training.processes.many import ManyProcesses
from linnet.training.processes.shards import as_shard, local

BUCKET_ELEMENTS = 1 << 20
"""So many gradients are summed in one operation: 4 MiB of float32, so that also a small model has several."""


class GradientSums:
    """The sums of some weights' gradients over one group of processes.

    group: its own, for what else the processes say to each other in the midst of a backward pass (FSDP; a layer that is
    computed anew) comes in an order of its own between the buckets.
    """

    def __init__(self, parameters: Sequence[nn.Parameter], group: dist.ProcessGroup, processes: ManyProcesses) -> None:
        self._parameters = [parameter for parameter in reversed(parameters) if parameter.requires_grad]
        self._group, self._processes = group, processes
        self._steady: list[nn.Parameter] | None = None
        self._buckets: list[Bucket] = []
        self._begun, self._place = 0, dict[nn.Parameter, int]()
        for parameter in self._parameters:
            parameter.register_post_accumulate_grad_hook(self._arrived)  # type: ignore[no-untyped-call]

    def last_pass(self) -> None:
        """The next backward pass is the last of its step: what it leaves is no longer added to."""
        self._fill(self._steady or [])

    def give_up(self) -> None:
        """Forget what was begun, and is no longer waited for."""
        self._fill([])

    def _fill(self, parameters: Sequence[nn.Parameter]) -> None:
        self._buckets, self._begun = list(_buckets(parameters)), 0
        self._place = {p: number for number, bucket in enumerate(self._buckets) for p in bucket.parameters}

    def _arrived(self, parameter: nn.Parameter) -> None:
        """A gradient is complete. (A weight that is used many times accumulates once in a pass, when all is summed.)"""
        if parameter not in self._place:  # not the last pass, or not steady
            return
        place = self._place[parameter]
        if place < self._begun:
            raise RuntimeError("a gradient that comes after its sum was begun")
        self._buckets[place].missing.discard(parameter)
        while self._begun < len(self._buckets) and not self._buckets[self._begun].missing:
            self._begin_next()

    def _begin_next(self) -> None:
        self._buckets[self._begun].begin(self._group, self._processes)
        self._begun += 1

    def begin_all(self) -> None:
        """Behind the last pass: begin what had to wait for a gradient that did not come."""
        while self._begun < len(self._buckets):
            self._begin_next()

    def finish(self, holders: dict[nn.Parameter, int]) -> None:
        """Sum what is left, and wait for all. holders: of how many processes each weight has a gradient."""
        self.begin_all()
        early = set(self._place)
        late = list(_buckets([p for p in self._parameters if holders[p] and p not in early]))
        for bucket in late:
            bucket.begin(self._group, self._processes)
        for bucket in (*self._buckets, *late):
            bucket.finish(self._processes, holders)
        before = self._parameters if self._steady is None else self._steady
        self._steady = [p for p in before if holders[p] == self._processes.count]
        self.give_up()


class Bucket:
    """Gradients that lie in one tensor, and are summed together. missing: whose gradients are not yet complete."""

    def __init__(self, parameters: Sequence[nn.Parameter]) -> None:
        self.parameters, self.missing = parameters, set(parameters)
        self.sum: dist.Work | None = None
        self.flat = torch.empty(0)
        self._views: list[Tensor] = []

    @torch.no_grad()
    def begin(self, group: dist.ProcessGroup, processes: ManyProcesses) -> None:
        """Lay the gradients side by side, where they stay, and begin to sum them."""
        parts = [local(parameter) for parameter in self.parameters]
        self.flat = parts[0].new_zeros(sum(part.numel() for part in parts))
        cut = torch.split(self.flat, [part.numel() for part in parts])
        self._views = [view.view_as(part) for view, part in zip(cut, parts, strict=True)]
        found = [(p, view) for p, view in zip(self.parameters, self._views, strict=True) if p.grad is not None]
        if found:
            torch._foreach_copy_([view for _, view in found], [local(p.grad) for p, _ in found])
        for parameter, view in found:
            parameter.grad = as_shard(view, parameter)
        self.sum = processes.begin_sum(self.flat, group)

    def finish(self, processes: ManyProcesses, holders: dict[nn.Parameter, int]) -> None:
        """Wait for the sum; a weight whose gradient others had alone has theirs, one that nobody had has none."""
        with processes.waiting(self.flat.device):
            if self.sum is not None:
                self.sum.wait()
        for parameter, view in zip(self.parameters, self._views, strict=True):
            if parameter.grad is None and holders[parameter]:
                parameter.grad = as_shard(view, parameter)


def _buckets(parameters: Sequence[nn.Parameter]) -> Iterator[Bucket]:
    """The weights in their order, so many together that they have about `BUCKET_ELEMENTS` here."""
    together, elements = list[nn.Parameter](), 0
    for parameter in parameters:
        together.append(parameter)
        elements += local(parameter).numel()
        if elements >= BUCKET_ELEMENTS:
            yield Bucket(together)
            together, elements = [], 0
    if together:
        yield Bucket(together)
