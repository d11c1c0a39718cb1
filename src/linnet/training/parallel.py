"""What is done to a model from outside so that it trains in less memory, or in many processes; here in one.

`Parallel` holds what differs between one process and several: how gradients become those of all tokens, which tensors
are whole, how checkpoints are written and read. `processes.sharded.Sharded` is the form for several.
"""

from collections.abc import Callable, Sequence
from dataclasses import replace
from pathlib import Path

import torch
from torch import Tensor, nn
from torch.utils.checkpoint import checkpoint

from linnet.core.errors import UserError
from linnet.data.tokenizer import Tokenizer
from linnet.layers.batch_layout import AuxiliaryOutputs, BatchLayout
from linnet.model.decoder import Decoder
from linnet.model.stack import Layer
from linnet.model.state import LayerStates
from linnet.model.store import check_tensors, shapes_of
from linnet.training.checkpoint import Checkpoint, load_newest, save_checkpoint
from linnet.training.distributed import ALONE, Processes
from linnet.training.objective import Objective
from linnet.training.sections import ClipSpec, ParallelSpec
from linnet.training.spec import TrainingSpec
from linnet.training.train_state import TrainState


class Parallel:
    """A decoder in one process: its tensors are whole, its gradients those of all tokens.

    processes: those that take part.
    """

    processes: Processes = ALONE

    def __init__(self, decoder: Decoder) -> None:
        self.decoder = decoder

    def compiled(self, objective: Objective) -> Objective:
        """What is minimized, compiled."""
        return torch.compile(objective)

    def last_pass(self) -> None:
        """The next backward pass is the last of its step."""

    def reduce_gradients(self) -> None:
        """Make gradients of this process's tokens those of all tokens."""

    def give_up_step(self) -> None:
        """Let go of what a step that failed on its way holds, but for gradients."""

    def norm(self, tensors: Sequence[Tensor]) -> Tensor:
        """The joint norm of gradients or weights."""
        return torch.nn.utils.get_total_norm(list(tensors), foreach=True)

    def clip(self, parameters: list[nn.Parameter], clip: ClipSpec, norm: Tensor) -> None:
        """Clip the gradients, whose joint norm is known."""
        if clip.by == "norm":
            torch.nn.utils.clip_grads_with_norm_(parameters, clip.at, norm, foreach=True)
        elif clip.by == "value":
            torch.nn.utils.clip_grad_value_(parameters, clip.at, foreach=True)

    def whole(self) -> Decoder:
        """A decoder with whole weights, to evaluate and to write."""
        return self.decoder

    def take(self, weights: dict[str, Tensor]) -> None:
        """Go on with these weights, which are whole."""
        self.decoder.load_state_dict(weights)

    def save(
        self,
        folder: Path,
        moments: dict[str, Tensor],
        tokenizer: Tokenizer,
        standing: TrainState,
        then: Callable[[], None],
    ) -> None:
        """Write a checkpoint with these tensors beside the weights; `then` comes when it stands."""
        save_checkpoint(folder, standing.step, self.decoder, tokenizer, moments, standing)
        then()

    def settle(self) -> None:
        """Wait until what is being written stands."""

    def newest(self, folder: Path, note: Callable[[str], None]) -> Checkpoint | None:
        """The newest whole checkpoint, or None; `UserError` for one of another model."""
        found = load_newest(folder, note)
        if found is not None:
            check_tensors(found.weights, shapes_of(self.decoder), found.path, "the run's model")
        return found

    def load(self, found: Checkpoint) -> dict[str, Tensor]:
        """Go on with a checkpoint's weights; the tensors that it has beside them."""
        self.decoder.load_state_dict(found.weights)
        return found.moments


def parallelize(decoder: Decoder, spec: TrainingSpec, precision: torch.dtype, processes: Processes) -> Parallel:
    """Do to a decoder what `training.parallel` asks for; before its optimizer is made."""
    if spec.parallel.checkpointing:
        for layer in {layer for block in decoder.all_blocks for layer in block.unique_layers()}:
            recompute(layer)
    if processes.count == 1:
        check_shard(spec.parallel, processes)
        return Parallel(decoder)
    from linnet.training.processes.sharded import Sharded  # torch.distributed, where it is needed

    return Sharded(decoder, spec, precision, processes)


def check_shard(spec: ParallelSpec, processes: Processes) -> None:
    """`UserError` unless copies of the weights can be shared by so many of the processes."""
    count = processes.count
    if count % spec.shard:
        accepted = f"a divisor of the number of processes, {count}"
        if count == 1:
            one = "1 in one process (`set` training.parallel.shard=1)"
            accepted = f"{one}, or torchrun --nproc-per-node {spec.shard}, which starts as many"
        raise UserError(field="training.parallel.shard", value=spec.shard, accepted=accepted)


def shared_by_these(spec: TrainingSpec, processes: Processes, note: Callable[[str], None]) -> TrainingSpec:
    """For a run that goes on with so many processes: where `shard` does not divide them, the next smaller that does.

    What comes out is the same, so it is no mistake but noted.
    """
    asked, count = spec.parallel.shard, processes.count
    if count % asked == 0:
        return spec
    shard = max(each for each in range(1, min(asked, count) + 1) if count % each == 0)
    there = "one process" if count == 1 else f"{count} processes"
    note(f"note: training.parallel.shard: {shard} instead of {asked} in {there}; what comes out is the same")
    return with_shard(spec, shard)


def with_shard(spec: TrainingSpec, shard: int) -> TrainingSpec:
    """The same training with copies of the weights that so many processes share."""
    return spec.model_copy(update={"parallel": spec.parallel.model_copy(update={"shard": shard})})


def recompute(layer: Layer) -> None:
    """Let a layer keep what it reads alone, and compute the rest anew in the backward pass.

    Chen et al., arXiv 1604.06174. What it leaves in the pass's record it leaves once.
    """
    forward = layer.forward

    def run(x_BTW: Tensor, states: LayerStates, layout: BatchLayout, embedded_BTW: Tensor | None = None) -> Tensor:
        if not torch.is_grad_enabled() or any(state is not None for state in states):
            return forward(x_BTW, states, layout, embedded_BTW)
        before = None if layout.record is None else dict(layout.record.values)

        def from_the_same(x_BTW: Tensor, embedded_BTW: Tensor | None) -> tuple[Tensor, AuxiliaryOutputs | None]:
            own = None if before is None or layout.record is None else layout.record.own(before)
            return forward(x_BTW, states, replace(layout, record=own), embedded_BTW), own

        out_BTW, own = checkpoint(from_the_same, x_BTW, embedded_BTW, use_reentrant=False)
        if own is not None and layout.record is not None:
            _add(layout.record, own)
        made: Tensor = out_BTW
        return made

    layer.forward = run  # type: ignore[method-assign]


def _add(record: AuxiliaryOutputs, own: AuxiliaryOutputs) -> None:
    record.losses.extend(own.losses)
    record.values.update(own.values)
    if record.outputs is not None and own.outputs is not None:
        record.outputs.extend(own.outputs)
