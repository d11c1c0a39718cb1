"""A decoder in several processes: each reads its part of a batch, and holds its shard of the weights.

`training.parallel.shard` processes share one copy (FSDP2, `torch.distributed.fsdp.fully_shard`): the weights of linear
maps, the embedding and the head are gathered for a layer when it is needed. What is small (norms, biases, rates) each
process has whole, in float32. Gradients are summed in float32 and are those of the mean over all tokens. Where products
are in bfloat16, shards are gathered in it.
"""

from collections.abc import Callable, Iterator, Sequence
from datetime import timedelta
from itertools import chain
from pathlib import Path
from typing import Any

import torch
import torch.distributed as dist
from torch import Tensor, nn
from torch.distributed.device_mesh import init_device_mesh
from torch.distributed.fsdp import FSDPModule, MixedPrecisionPolicy, fully_shard
from torch.distributed.tensor import DTensor

from linnet.data.tokenizer import Tokenizer
from linnet.layers.batch_layout import BatchLayout
from linnet.layers.contract import linear_maps
from linnet.model.decoder import Decoder
from linnet.model.skip_init import decoder_with_weights
from linnet.training.checkpoint import Checkpoint
from linnet.training.distributed import Processes
from linnet.training.objective import Objective
from linnet.training.parallel import Parallel, check_shard
from linnet.training.processes.many import TIMEOUT_S, ManyProcesses
from linnet.training.processes.shards import local, part_of, whole
from linnet.training.processes.shared_checkpoint import SharedSaver, fill, newest
from linnet.training.processes.sums import GradientSums
from linnet.training.sections import ClipSpec
from linnet.training.spec import TrainingSpec
from linnet.training.train_state import TrainState

# PyTorch 2.13 has other names for them, and warns of the old ones.
_all_gather = getattr(dist, "all_gather_single", dist.all_gather_into_tensor)
_reduce_scatter = getattr(dist, "reduce_scatter_single", dist.reduce_scatter_tensor)


class Sharded(Parallel):
    """A decoder of which each process holds a shard, or a copy (`shard: 1`)."""

    def __init__(self, decoder: Decoder, spec: TrainingSpec, precision: torch.dtype, processes: Processes) -> None:
        super().__init__(decoder)
        assert isinstance(processes, ManyProcesses)
        self.processes: ManyProcesses = processes
        self.shard = spec.parallel.shard
        check_shard(spec.parallel, processes)
        for sublayer in decoder.sublayers:
            sublayer.total = processes.total
        _same_everywhere(decoder)
        if spec.compile:
            for layer in {layer for block in decoder.all_blocks for layer in block.unique_layers()}:
                layer.forward = torch.compile(layer.forward)  # type: ignore[method-assign]
        shape = (processes.count // self.shard, self.shard)
        self.mesh = init_device_mesh(decoder.device.type, shape, mesh_dim_names=("copies", "shards"))
        if self.shard > 1:
            self._fully_shard(precision)
        self.sums = self._sums()
        self.saver = SharedSaver(processes)

    def compiled(self, objective: Objective) -> Objective:
        """As it is: its layers are compiled each by itself, so that what gathers weights stays between them."""
        return objective

    def _fully_shard(self, precision: torch.dtype) -> None:
        """The layers one by one, those of shared weights together, then what is left: embedding, head."""
        low = precision is torch.bfloat16
        policy = MixedPrecisionPolicy(
            param_dtype=precision if low else None,
            reduce_dtype=torch.float32 if low else None,
            cast_forward_inputs=False,  # the residual stream is in float32, as in one process
        )
        mesh, small = self.mesh["shards"], set[nn.Parameter]()
        precise = (
            {id(part) for sublayer in self.decoder.sublayers for part in sublayer.skip_quantization()} if low else set()
        )
        for unit in self._units():
            kept = _without_maps(unit, precise)
            small |= kept
            fully_shard(unit, mesh=mesh, mp_policy=policy, ignored_params=kept)
            _hide_view(unit)
        fully_shard(self.decoder, mesh=mesh, ignored_params=small)
        for module in self._sharded_modules():
            module.set_gradient_divide_factor(1.0)  # sums: the loss is divided by all tokens already
            module.set_force_sum_reduction_for_comms(True)
            module.set_custom_all_gather(AllGather(self.processes))  # type: ignore[arg-type]
            module.set_custom_reduce_scatter(ReduceScatter(self.processes))  # type: ignore[arg-type]

    def _units(self) -> Iterator[nn.Module]:
        for block in self.decoder.all_blocks:
            yield from [block] if block.repeat > len(block.layers) else list(block.layers)

    def _sharded_modules(self) -> Iterator[FSDPModule]:
        return (module for module in self.decoder.modules() if isinstance(module, FSDPModule))

    def _sums(self) -> list[GradientSums]:
        """Shards are summed over their copies (within a copy FSDP does it), what is whole over all processes."""
        parameters = list(self.decoder.parameters())
        whole = [p for p in parameters if not isinstance(p, DTensor)]
        own = dist.new_group(timeout=timedelta(seconds=TIMEOUT_S))
        sums = [GradientSums(whole, own, self.processes)]
        if self.mesh.size(0) > 1 and self.shard > 1:
            shards = [p for p in parameters if isinstance(p, DTensor)]
            sums.append(GradientSums(shards, self.mesh.get_group("copies"), self.processes))
        return sums

    def last_pass(self) -> None:
        """The next backward pass is the last of its step: sums begin while it runs."""
        for sums in self.sums:
            sums.last_pass()

    def reduce_gradients(self) -> None:
        """Wait for what is under way, and sum what is left."""
        for sums in self.sums:
            sums.begin_all()
        holders = self._holders()
        for sums in self.sums:
            sums.finish(holders)

    def _holders(self) -> dict[nn.Parameter, int]:
        """How many processes have a gradient of each weight."""
        parameters = list(self.decoder.parameters())
        counts = torch.tensor([parameter.grad is not None for parameter in parameters], dtype=torch.int32)
        self.processes.sum(counts, self.processes.talk)
        return dict(zip(parameters, counts.tolist(), strict=True))

    def give_up_step(self) -> None:
        """Let go of what a step that failed on its way holds, but for gradients: sums, layers that FSDP gathered."""
        for sums in self.sums:
            sums.give_up()
        if self.shard > 1:  # older versions of PyTorch leave gathered what was, so that less is measured to fit
            getattr(self.decoder, "reset_iter_state", lambda: None)()

    @torch.no_grad()
    def norm(self, tensors: Sequence[Tensor]) -> Tensor:
        """The joint norm, the same number everywhere: squares are summed in float64 over all processes."""
        squares = torch.zeros((), dtype=torch.float64, device=self.decoder.device)
        for tensor in tensors:
            held_by = 1 if isinstance(tensor, DTensor) else self.shard
            squares += torch.linalg.vector_norm(local(tensor)).double() ** 2 / held_by
        return (self.processes.total(squares) / self.mesh.size(0)).sqrt().to(self.decoder.dtype)

    @torch.no_grad()
    def clip(self, parameters: list[nn.Parameter], clip: ClipSpec, norm: Tensor) -> None:
        """Clip the gradients, whose joint norm is known, as `torch.nn.utils.clip_grads_with_norm_` does."""
        gradients = [local(parameter.grad) for parameter in parameters if parameter.grad is not None]
        if clip.by == "norm":
            torch._foreach_mul_(gradients, (clip.at / (norm + 1e-6)).clamp(max=1.0))
        elif clip.by == "value":
            torch._foreach_clamp_min_(gradients, -clip.at)
            torch._foreach_clamp_max_(gradients, clip.at)

    @torch.no_grad()
    def whole(self) -> Decoder:
        """Another decoder, with the weights of all shards, in every process; the decoder itself where it has them."""
        if self.shard == 1:
            return self.decoder
        tensors = self.decoder.state_dict()
        with self.processes.waiting(self.decoder.device):
            full = {name: whole(tensor) for name, tensor in tensors.items()}
        return decoder_with_weights(self.decoder.spec, full)

    @torch.no_grad()
    def take(self, weights: dict[str, Tensor]) -> None:
        """Go on with these weights, which are whole."""
        for name, tensor in self.decoder.state_dict().items():
            local(tensor).copy_(part_of(weights[name].to(self.decoder.device), tensor))

    def save(
        self,
        folder: Path,
        moments: dict[str, Tensor],
        tokenizer: Tokenizer,
        standing: TrainState,
        then: Callable[[], None],
    ) -> None:
        """Begin to write a checkpoint, each process its shards; `then` comes when it stands, in the first one."""
        self.saver.save(folder, self.decoder, moments, tokenizer, standing, then)

    def settle(self) -> None:
        """Wait until what is being written stands."""
        self.saver.settle()

    def newest(self, folder: Path, note: Callable[[str], None]) -> Checkpoint | None:
        """The newest whole checkpoint, as the first process found it; its tensors are read by `load`."""
        return newest(self.processes, folder, self.decoder, note)

    def load(self, found: Checkpoint) -> dict[str, Tensor]:
        """Read this process's shards of a checkpoint's weights, whoever wrote it; those of the tensors beside them."""
        return fill(self.processes, found, self.decoder)


def _without_maps(unit: nn.Module, precise: set[int]) -> set[nn.Parameter]:
    """The parameters of a layer that are no weights of linear maps, or of such as must not be in few bits."""
    apart = {id(m.weight) for part in unit.modules() if id(part) in precise for m in linear_maps(part)}
    maps = {id(linear.weight) for linear in linear_maps(unit)} - apart
    return {parameter for parameter in unit.parameters() if id(parameter) not in maps}


class Hidden:
    """What FSDP must not look into: it would copy a record that holds tensors, and lose what is left there."""

    def __init__(self, view: BatchLayout) -> None:
        self.view = view


def _hide_view(unit: nn.Module) -> None:
    """Let the view pass unseen: this hook comes before FSDP's."""
    forward = unit.forward

    def hide(_: nn.Module, given: tuple[Any, ...]) -> tuple[Any, ...]:
        x, states, view, *rest = given
        return x, states, Hidden(view), *rest

    unit.register_forward_pre_hook(hide, prepend=True)
    unit.forward = lambda x, states, hidden, *rest: forward(x, states, hidden.view, *rest)


@torch.no_grad()
def _same_everywhere(decoder: Decoder) -> None:
    """Begin with the first process's weights: another processor may draw others in the last bit."""
    for tensor in chain(decoder.parameters(), decoder.buffers()):
        dist.broadcast(tensor.data, src=0)


class _Timed:
    """A collective operation of FSDP, as it is but for its time."""

    def __init__(self, processes: ManyProcesses) -> None:
        self._processes = processes

    def allocate(self, size: Any, *, dtype: torch.dtype, device: torch.device) -> Tensor:
        """Memory for it."""
        return torch.empty(size, dtype=dtype, device=device)


class AllGather(_Timed):
    """Weights, before a layer needs them."""

    def __call__(
        self, output_tensor: Tensor, input_tensor: Tensor, group: dist.ProcessGroup, async_op: bool = False
    ) -> dist.Work | None:
        """Gather."""
        if self._processes.apart:  # in as much memory, its own shard in the place of the others'
            output_tensor.view(-1, input_tensor.numel()).copy_(input_tensor.clone())
            return None
        with self._processes.waiting(output_tensor.device):
            work: dist.Work | None = _all_gather(output_tensor, input_tensor, group, async_op)
        return work


class ReduceScatter(_Timed):
    """Gradients, when a layer has made them."""

    def __call__(
        self, output_tensor: Tensor, input_tensor: Tensor, group: dist.ProcessGroup, op: Any, async_op: bool = False
    ) -> dist.Work | None:
        """Sum and scatter."""
        if self._processes.apart:
            output_tensor.copy_(input_tensor.view(group.size(), *output_tensor.shape)[group.rank()])
            return None
        with self._processes.waiting(output_tensor.device):
            work: dist.Work | None = _reduce_scatter(output_tensor, input_tensor, op, group, async_op)
        return work
