"""A model in one process or several: each process reads its rows of a batch and holds its shard of the weights.

In several processes `training.parallel.shard` of them share one copy of the model (FSDP2,
`torch.distributed.fsdp.fully_shard`): the weights of linear maps, the embedding and the head are gathered for a layer
when it is needed. Small parameters (norms, biases, rates) are whole in every process, in float32. Gradients are summed
in float32 and are those of the mean over all tokens. With bfloat16 products, shards are gathered in bfloat16.
"""

import warnings
from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from datetime import timedelta
from itertools import chain
from typing import Any

import torch
import torch.distributed as dist
from torch import Tensor, nn
from torch.utils.checkpoint import checkpoint

from linnet.core.errors import UserError
from linnet.layers.batch_layout import AuxiliaryOutputs, BatchLayout
from linnet.layers.contract import linear_maps
from linnet.model.decoder import Decoder, decoder_with_weights
from linnet.model.stack import Layer
from linnet.model.state import LayerStates
from linnet.training.distributed import (
    SINGLE_PROCESS,
    TIMEOUT_S,
    Processes,
    all_gather,
    is_sharded,
    local,
    part_of,
    reduce_scatter,
    whole,
)
from linnet.training.gradient_sums import GradientSums
from linnet.training.sections import ClipSpec, ParallelSpec
from linnet.training.spec import TrainingSpec


class ParallelModel:
    """A decoder and everything that depends on the number of processes that train it.

    Building one changes the decoder as `spec.parallel` says (recomputation, shards); do so before the optimizer is
    made. precision: of the products in the forward pass.
    """

    def __init__(
        self,
        decoder: Decoder,
        spec: TrainingSpec | None = None,
        precision: torch.dtype = torch.float32,
        processes: Processes = SINGLE_PROCESS,
    ) -> None:
        spec = spec or TrainingSpec()
        self.decoder, self.processes, self.shard = decoder, processes, spec.parallel.shard
        check_shard(spec.parallel, processes)
        layers = {layer for block in decoder.all_blocks for layer in block.unique_layers()}
        if spec.parallel.checkpointing:
            for layer in layers:
                recompute(layer)
        self.copies, self._sums = 1, list[GradientSums]()
        if processes.count == 1:
            return
        for sublayer in decoder.sublayers:
            sublayer.total = processes.total
        with torch.no_grad():  # another processor may have drawn weights that differ in the last bit
            for tensor in chain(decoder.parameters(), decoder.buffers()):
                dist.broadcast(tensor.data, src=0)
        if spec.compile:  # the layers only, not what gathers weights
            for layer in layers:
                layer.forward = torch.compile(layer.forward)  # type: ignore[method-assign]
        from torch.distributed.device_mesh import init_device_mesh

        self.copies = processes.count // self.shard
        mesh = init_device_mesh(decoder.device.type, (self.copies, self.shard), mesh_dim_names=("copies", "shards"))
        if self.shard > 1:
            _fully_shard(decoder, mesh["shards"], precision, processes)
        # Shards are summed over their copies (FSDP sums within a copy), whole tensors over all processes.
        parameters = list(decoder.parameters())
        group = dist.new_group(timeout=timedelta(seconds=TIMEOUT_S))
        self._sums = [GradientSums([p for p in parameters if not is_sharded(p)], group, processes)]
        if self.copies > 1 and self.shard > 1:
            copies = mesh.get_group("copies")
            self._sums.append(GradientSums([p for p in parameters if is_sharded(p)], copies, processes))

    def begin_last_pass(self) -> None:
        """Called before the last backward pass of a step: sums of gradients begin while it runs."""
        for sums in self._sums:
            sums.reset(last_pass=True)

    def reduce_gradients(self) -> None:
        """Replace the gradients of this process's tokens by those of all tokens."""
        if self.processes.count == 1:
            return
        for sums in self._sums:
            sums.begin(incomplete=True)
        parameters = list(self.decoder.parameters())
        counts = torch.tensor([parameter.grad is not None for parameter in parameters], dtype=torch.int32)
        self.processes.sum_in_place(counts, self.processes.control)
        for sums in self._sums:
            sums.finish(dict(zip(parameters, counts.tolist(), strict=True)))

    def abandon_step(self) -> None:
        """Release what a failed step holds except gradients: sums, and layers that FSDP has gathered."""
        for sums in self._sums:
            sums.reset(last_pass=False)
        if self.shard > 1:  # older versions of PyTorch keep gathered weights, and less memory is measured to fit
            getattr(self.decoder, "reset_iter_state", lambda: None)()

    @torch.no_grad()
    def norm(self, tensors: Sequence[Tensor]) -> Tensor:
        """The joint norm of gradients or weights, the same in all processes (summed in float64 over several)."""
        if self.processes.count == 1:
            return torch.nn.utils.get_total_norm(list(tensors), foreach=True)
        squares = torch.zeros((), dtype=torch.float64, device=self.decoder.device)
        for tensor in tensors:
            held_by = 1 if is_sharded(tensor) else self.shard
            squares += torch.linalg.vector_norm(local(tensor)).double() ** 2 / held_by
        return (self.processes.total(squares) / self.copies).sqrt().to(self.decoder.dtype)

    @torch.no_grad()
    def clip(self, parameters: list[nn.Parameter], clip: ClipSpec, norm: Tensor) -> None:
        """Clip the gradients, whose joint norm is known, as `torch.nn.utils.clip_grads_with_norm_` does."""
        gradients = [local(parameter.grad) for parameter in parameters if parameter.grad is not None]
        if clip.by == "norm" and gradients:
            torch._foreach_mul_(gradients, (clip.at / (norm + 1e-6)).clamp(max=1.0))
        elif clip.by == "value" and gradients:
            torch._foreach_clamp_min_(gradients, -clip.at)
            torch._foreach_clamp_max_(gradients, clip.at)

    @torch.no_grad()
    def whole(self) -> Decoder:
        """A decoder with whole weights, to evaluate and to save: the decoder itself unless it is sharded."""
        if self.shard == 1:
            return self.decoder
        with self.processes.waits.running(self.decoder.device):
            tensors = {name: whole(tensor) for name, tensor in self.decoder.state_dict().items()}
        return decoder_with_weights(self.decoder.spec, tensors)

    @torch.no_grad()
    def load(self, weights: dict[str, Tensor]) -> None:
        """Replace the weights by these, which are whole."""
        if self.processes.count == 1:
            self.decoder.load_state_dict(weights)
            return
        for name, tensor in self.decoder.state_dict().items():
            local(tensor).copy_(part_of(weights[name].to(self.decoder.device), tensor))


def check_shard(spec: ParallelSpec, processes: Processes) -> None:
    """`UserError` unless `shard` divides the number of processes."""
    count = processes.count
    if count % spec.shard:
        accepted = f"a divisor of the number of processes, {count}"
        if count == 1:
            one = "1 in one process (`set` training.parallel.shard=1)"
            accepted = f"{one}, or torchrun --nproc-per-node {spec.shard}, which starts as many"
        raise UserError(field="training.parallel.shard", value=spec.shard, accepted=accepted)


def with_fitting_shard(spec: TrainingSpec, processes: Processes, note: Callable[[str], None]) -> TrainingSpec:
    """For a resumed run: `shard` reduced to the next smaller number that divides the processes.

    The result of the run is the same, so this is noted and is no error.
    """
    configured, count = spec.parallel.shard, processes.count
    if count % configured == 0:
        return spec
    shard = max(each for each in range(1, min(configured, count) + 1) if count % each == 0)
    there = "one process" if count == 1 else f"{count} processes"
    note(f"note: training.parallel.shard: {shard} instead of {configured} in {there}; the result is the same")
    return spec.model_copy(update={"parallel": spec.parallel.model_copy(update={"shard": shard})})


def recompute(layer: Layer) -> None:
    """Let a layer save only its input, and compute the rest again in the backward pass (Chen et al., arXiv 1604.06174).

    Auxiliary outputs of the pass are recorded once.
    """
    forward = layer.forward

    def run(x_BTW: Tensor, states: LayerStates, layout: BatchLayout, embedded_BTW: Tensor | None = None) -> Tensor:
        if not torch.is_grad_enabled() or any(state is not None for state in states):
            return forward(x_BTW, states, layout, embedded_BTW)
        record = layout.record
        before = None if record is None else dict(record.values)

        def from_saved(x_BTW: Tensor, embedded_BTW: Tensor | None) -> tuple[Tensor, AuxiliaryOutputs | None]:
            own = None if before is None or record is None else record.own(before)
            return forward(x_BTW, states, replace(layout, record=own), embedded_BTW), own

        out_BTW, own = checkpoint(from_saved, x_BTW, embedded_BTW, use_reentrant=False)
        if own is not None and record is not None:
            record.losses.extend(own.losses)
            record.values.update(own.values)
            if record.outputs is not None and own.outputs is not None:
                record.outputs.extend(own.outputs)
        found: Tensor = out_BTW
        return found

    layer.forward = run  # type: ignore[method-assign]


def _fully_shard(decoder: Decoder, mesh: Any, precision: torch.dtype, processes: Processes) -> None:
    """Shard the layers one by one (those of shared weights together), then the rest: embedding and head."""
    from torch.distributed.fsdp import (
        FSDPModule,
        MixedPrecisionPolicy,
        fully_shard,
        register_fsdp_forward_method,
    )

    low = precision is torch.bfloat16
    policy = MixedPrecisionPolicy(
        param_dtype=precision if low else None,
        reduce_dtype=torch.float32 if low else None,
        cast_forward_inputs=False,  # the residual stream is in float32, as in one process
    )
    modules = (module for sublayer in decoder.sublayers for module in sublayer.skip_quantization())
    not_in_bfloat16 = {id(module) for module in modules} if low else set()
    small = set[nn.Parameter]()
    blocks = decoder.all_blocks
    units: list[nn.Module] = [
        unit for block in blocks for unit in ([block] if block.repeat > len(block.layers) else block.layers)
    ]
    for unit in units:
        # Whole stay the parameters that are not weights of linear maps, and weights that bfloat16 would harm.
        excluded = {id(m.weight) for part in unit.modules() if id(part) in not_in_bfloat16 for m in linear_maps(part)}
        sharded = {id(linear.weight) for linear in linear_maps(unit)} - excluded
        kept = {parameter for parameter in unit.parameters() if id(parameter) not in sharded}
        small |= kept
        fully_shard(unit, mesh=mesh, mp_policy=policy, ignored_params=kept)
        _hide_layout(unit)
    fully_shard(decoder, mesh=mesh, ignored_params=small)
    # The output of `hidden` may be a view. It is read, and never changed in place, of which FSDP warns.
    warnings.filterwarnings("ignore", message="FSDP2-wrapped module .* returned a view tensor", category=UserWarning)
    for method in ("encode", "hidden"):  # an objective may call these instead of `forward`
        register_fsdp_forward_method(decoder, method)
    for module in decoder.modules():
        if isinstance(module, FSDPModule):
            module.set_gradient_divide_factor(1.0)  # sums: the loss is divided by all tokens already
            module.set_force_sum_reduction_for_comms(True)
            module.set_custom_all_gather(AllGather(processes))  # type: ignore[arg-type]
            module.set_custom_reduce_scatter(ReduceScatter(processes))  # type: ignore[arg-type]


class Hidden:
    """Hides the layout from FSDP, which would copy its auxiliary outputs and lose those that are added.

    FSDP looks into dataclasses, so this is none.
    """

    def __init__(self, layout: BatchLayout) -> None:
        self.layout = layout


def _hide_layout(unit: nn.Module) -> None:
    """Wrap the layout in a hook that runs before FSDP's, and unwrap it in `forward`."""
    forward = unit.forward

    def hide(_: nn.Module, arguments: tuple[Any, ...]) -> tuple[Any, ...]:
        x, states, layout, *rest = arguments
        return x, states, Hidden(layout), *rest

    unit.register_forward_pre_hook(hide, prepend=True)
    unit.forward = lambda x, states, hidden, *rest: forward(x, states, hidden.layout, *rest)


@dataclass(frozen=True)
class _TimedCollective:
    """A collective operation of FSDP whose time counts as waiting."""

    processes: Processes

    def allocate(self, size: Any, *, dtype: torch.dtype, device: torch.device) -> Tensor:
        """FSDP's interface: memory for the result."""
        return torch.empty(size, dtype=dtype, device=device)


class AllGather(_TimedCollective):
    """Gathers weights before a layer needs them."""

    def __call__(
        self, output_tensor: Tensor, input_tensor: Tensor, group: dist.ProcessGroup, async_op: bool = False
    ) -> dist.Work | None:
        """FSDP's interface."""
        if self.processes.left_group:  # as much memory; its own shard stands for those of the others
            output_tensor.view(-1, input_tensor.numel()).copy_(input_tensor.clone())
            return None
        with self.processes.waits.running(output_tensor.device):
            work: dist.Work | None = all_gather(output_tensor, input_tensor, group, async_op)
        return work


class ReduceScatter(_TimedCollective):
    """Sums and scatters the gradients of a layer."""

    def __call__(
        self, output_tensor: Tensor, input_tensor: Tensor, group: dist.ProcessGroup, op: Any, async_op: bool = False
    ) -> dist.Work | None:
        """FSDP's interface."""
        if self.processes.left_group:
            output_tensor.copy_(input_tensor.view(group.size(), *output_tensor.shape)[group.rank()])
            return None
        with self.processes.waits.running(output_tensor.device):
            work: dist.Work | None = reduce_scatter(output_tensor, input_tensor, op, group, async_op)
        return work
