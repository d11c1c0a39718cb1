"""Muon for the matrices between hidden vectors, AdamW for the rest (Jordan et al., kellerjordan.github.io/posts/muon).

The momentum of each matrix is orthogonalized, so that a step changes all directions equally. Joined maps are split, and
matrices of one shape (tall ones transposed) go through the iteration together.
"""

import math
from collections.abc import Callable, Iterator, Sequence
from typing import NamedTuple

import torch
from torch import Tensor

from linnet.layers.contract import MuonParameter
from linnet.ops.orthogonal import orthogonal
from linnet.training.distributed import as_shard, local, part_of, whole
from linnet.training.optimizers.adamw import AdamW, Group, Optimizer, cautious_decay

ELEMENTS_AT_ONCE = 1 << 26
"""In one call of the iteration, which needs a few times as many."""


class SingleMatrix(NamedTuple):
    """A matrix within a joined parameter: `rows` rows from `first` on."""

    parameter: Tensor
    first: int
    rows: int

    def of(self, tensor: Tensor) -> Tensor:
        """These rows of a tensor of the parameter's shape as a view `[m, n]`, transposed if necessary to `m <= n`."""
        part = tensor.narrow(0, self.first, self.rows)
        return part if part.shape[0] <= part.shape[1] else part.T


class Muon(Optimizer):
    """`w -= lr * scale(w) * O`, where `O` is the orthogonal factor of the momentum, with Nesterov's look-ahead.

    The momentum is a mean of gradients that fade by `momentum` per step. scale: by the shape of a matrix
    (`adamw_scale`). With `every` n the iteration is made at every n-th step; between them the latest `O` is used again.
    state: `step`, `momentum`, and `direction` (if it is used again) of each matrix; for other parameters that of AdamW.
    """

    def __init__(
        self,
        groups: Sequence[Group],
        matrices: Sequence[MuonParameter],
        adamw: AdamW,
        momentum: float,
        iterations: int,
        every: int,
        scale: Callable[[int, int], float],
        dtype: torch.dtype,
        cautious: bool,
    ) -> None:
        """matrices: how the parameters of `groups` are split. dtype: of the iteration only."""
        super().__init__([*groups, *adamw.param_groups])
        self._own, self._adamw, self.state = list(groups), adamw, adamw.state
        self._rows = {matrix.parameter: matrix.rows for matrix in matrices}
        self._momentum, self._iterations, self._every = momentum, iterations, every
        self._scale, self._dtype, self._cautious = scale, dtype, cautious

    @torch.no_grad()
    def step(self) -> None:
        self._adamw.step()
        groups = [(group, [p for p in group["params"] if p.grad is not None]) for group in self._own]
        parameters = [parameter for _, with_gradients in groups for parameter in with_gradients]
        if not parameters:
            return
        with self.orthogonalizing.running(parameters[0].device):
            directions = self._directions(parameters)
        for group, with_gradients in groups:
            amount = group["lr"] * group["weight_decay"]
            for parameter in with_gradients:
                weight, direction = local(parameter), directions[parameter]
                if amount and self._cautious:
                    cautious_decay(weight, direction, amount)
                elif amount:
                    weight.mul_(1 - amount)
                weight.add_(direction, alpha=-group["lr"])

    def _directions(self, parameters: Sequence[Tensor]) -> dict[Tensor, Tensor]:
        """The scaled direction in which each parameter, or this process's shard of it, moves."""
        due, found = [], {}
        for parameter in parameters:
            state, own = self.state[parameter], local(parameter.grad)
            if not state:
                state["step"], state["momentum"] = torch.zeros((), dtype=torch.int64), torch.zeros_like(parameter)
            momentum = local(state["momentum"])
            momentum.lerp_(own, 1 - self._momentum)
            if int(state["step"]) % self._every == 0:
                # A direction is that of a whole matrix: each process computes it from the shards of all.
                found[parameter] = whole(as_shard(own.lerp(momentum, self._momentum), parameter))
                due.append(parameter)
            else:
                found[parameter] = local(state["direction"])
            state["step"] += 1
        for batch in self._batches(due):
            stacked = torch.stack([piece.of(found[piece.parameter]) for piece in batch]).to(self._dtype)
            for piece, made in zip(batch, orthogonal(stacked, self._iterations), strict=True):
                scale = self._scale(piece.rows, piece.parameter.shape[1])
                piece.of(found[piece.parameter]).copy_(made).mul_(scale)
        for parameter in due:
            found[parameter] = part_of(found[parameter], parameter)
            if self._every > 1:
                self.state[parameter]["direction"] = as_shard(found[parameter], parameter)
        return found

    def _batches(self, parameters: list[Tensor]) -> Iterator[list[SingleMatrix]]:
        """Matrices of one shape, at most `ELEMENTS_AT_ONCE`."""
        shapes: dict[tuple[int, int], list[SingleMatrix]] = {}
        for parameter in parameters:
            first, columns = 0, parameter.shape[1]
            for rows in self._rows[parameter]:
                shape = min(rows, columns), max(rows, columns)
                shapes.setdefault(shape, []).append(SingleMatrix(parameter, first, rows))
                first += rows
        for (m, n), pieces in shapes.items():
            at_once = max(1, ELEMENTS_AT_ONCE // (m * n))
            yield from (pieces[first : first + at_once] for first in range(0, len(pieces), at_once))


def adamw_scale(rows: int, columns: int) -> float:
    """`0.2 sqrt(max(rows, columns))`: elements move as far as AdamW's, so that its `lr` can be used (Liu et al., Muon
    is Scalable for LLM Training, arXiv 2502.16982, equation 4).
    """
    return 0.2 * math.sqrt(max(rows, columns))


def spectral_scale(rows: int, columns: int) -> float:
    """`sqrt(max(1, rows / columns))`: outputs move equally at any width (Jordan et al.); `lr` is about 0.02."""
    return math.sqrt(max(1.0, rows / columns))
