"""Sums of gradients over processes, begun while the backward pass is still computing earlier layers.

The backward pass produces the gradients of the last layers first. Buckets are therefore filled in the reverse order of
the weights, and each is summed in the background when it is full and those before it are on their way (Li et al.,
PyTorch Distributed, arXiv 2006.15704).

All processes must begin their sums in the same order. They have the same buckets, with zeros for missing gradients; a
process that misses some begins the bucket after its backward pass. Buckets hold steady weights only: those of which
every process had a gradient in every step so far. The rest (maps of experts that not every process used) is summed
after the pass, when all processes know who has which gradient.
"""

from collections.abc import Iterator, Sequence

import torch
import torch.distributed as dist
from torch import Tensor, nn

from linnet.training.distributed import Processes, as_shard, local

BUCKET_ELEMENTS = 1 << 20
"""Gradients summed in one operation: 4 MiB of float32, so that a small model has several buckets as well."""


class GradientSums:
    """The sums of the gradients of some parameters over one group of processes.

    The group is used for nothing else: other messages in the middle of a backward pass (FSDP, recomputed layers) come
    between the buckets in an order of their own.
    """

    def __init__(
        self, parameters: Sequence[nn.Parameter], group: dist.ProcessGroup | None, processes: Processes
    ) -> None:
        self._parameters = [parameter for parameter in reversed(parameters) if parameter.requires_grad]
        self._group, self._processes = group, processes
        self._steady: list[nn.Parameter] | None = None
        self._buckets: list[Bucket] = []
        self._begun, self._bucket_of = 0, dict[nn.Parameter, int]()
        for parameter in self._parameters:
            parameter.register_post_accumulate_grad_hook(self._arrived)  # type: ignore[no-untyped-call]

    def reset(self, last_pass: bool) -> None:
        """Prepare the buckets for the last backward pass of a step (`last_pass`), or forget what was begun."""
        parameters = self._steady or [] if last_pass else []
        self._buckets, self._begun = list(_buckets(parameters)), 0
        self._bucket_of = {p: number for number, bucket in enumerate(self._buckets) for p in bucket.parameters}

    def _arrived(self, parameter: nn.Parameter) -> None:
        """Hook: a gradient is complete. A weight that is used several times accumulates once per pass."""
        if parameter not in self._bucket_of:  # not the last pass, or not steady
            return
        number = self._bucket_of[parameter]
        if number < self._begun:
            raise RuntimeError("a gradient arrived after its sum was begun")
        self._buckets[number].missing.discard(parameter)
        self.begin()

    def begin(self, incomplete: bool = False) -> None:
        """Begin the next buckets that are complete; after the last pass also those that miss a gradient."""
        while self._begun < len(self._buckets) and (incomplete or not self._buckets[self._begun].missing):
            self._buckets[self._begun].begin(self._group, self._processes)
            self._begun += 1

    def finish(self, holders: dict[nn.Parameter, int]) -> None:
        """Sum the rest and wait for everything. holders: in how many processes each parameter has a gradient."""
        self.begin(incomplete=True)
        late = list(_buckets([p for p in self._parameters if holders[p] and p not in self._bucket_of]))
        for bucket in late:
            bucket.begin(self._group, self._processes)
        for bucket in (*self._buckets, *late):
            bucket.finish(self._processes, holders)
        before = self._parameters if self._steady is None else self._steady
        self._steady = [p for p in before if holders[p] == self._processes.count]
        self.reset(last_pass=False)


class Bucket:
    """Gradients that are laid out in one tensor and summed together. missing: parameters without a gradient yet."""

    def __init__(self, parameters: Sequence[nn.Parameter]) -> None:
        self.parameters, self.missing = parameters, set(parameters)
        self.sum: dist.Work | None = None
        self.flat = torch.empty(0)
        self._views: list[Tensor] = []

    @torch.no_grad()
    def begin(self, group: dist.ProcessGroup | None, processes: Processes) -> None:
        """Copy the gradients into one tensor, where they stay, and begin to sum it."""
        parts = [local(parameter) for parameter in self.parameters]
        self.flat = parts[0].new_zeros(sum(part.numel() for part in parts))
        pieces = torch.split(self.flat, [part.numel() for part in parts])
        self._views = [view.view_as(part) for view, part in zip(pieces, parts, strict=True)]
        found = [(p, view) for p, view in zip(self.parameters, self._views, strict=True) if p.grad is not None]
        if found:
            torch._foreach_copy_([view for _, view in found], [local(p.grad) for p, _ in found])
        for parameter, view in found:
            parameter.grad = as_shard(view, parameter)
        self.sum = None if processes.left_group else dist.all_reduce(self.flat, group=group, async_op=True)

    def finish(self, processes: Processes, holders: dict[nn.Parameter, int]) -> None:
        """Wait for the sum. A parameter without a gradient here gets that of the others, if any has one."""
        with processes.waits.running(self.flat.device):
            if self.sum is not None:
                self.sum.wait()
        for parameter, view in zip(self.parameters, self._views, strict=True):
            if parameter.grad is None and holders[parameter]:
                parameter.grad = as_shard(view, parameter)


def _buckets(parameters: Sequence[nn.Parameter]) -> Iterator[Bucket]:
    """The parameters in their order, in buckets of about `BUCKET_ELEMENTS` local elements."""
    together, elements = list[nn.Parameter](), 0
    for parameter in parameters:
        together.append(parameter)
        elements += local(parameter).numel()
        if elements >= BUCKET_ELEMENTS:
            yield Bucket(together)
            together, elements = [], 0
    if together:
        yield Bucket(together)
