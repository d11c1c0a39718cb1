"""Errors on a device other than the CPU, found on a machine without one.

Tensors without values (`FakeTensorMode`) have the device of a backend that does not exist; PyTorch checks for every
operation, including backward passes, that its tensors are on one device, as a GPU does. Code that reads a value gets 1.
The backend affects the whole process, so this is a separate program, which prints the errors by the name of each check:
`python pretended_device.py first|every`, for the first example of each kind or for every one.
"""

import json
import sys
import traceback
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from functools import partial
from typing import Any

import torch
from examples import ALL, PLACE, WIDTH, first_of_its_kind, name_of
from torch import Tensor
from torch._subclasses.fake_tensor import FakeTensor, FakeTensorMode
from torch.overrides import TorchFunctionMode
from torch.utils._python_dispatch import TorchDispatchMode
from torch.utils.backend_registration import _DummyBackendModule, _setup_privateuseone_for_python_backend

from linnet.data.loader import Batch
from linnet.data.pieces import ByteCounts
from linnet.evaluation.documents import WindowBatch
from linnet.evaluation.evaluator import WindowEvaluator
from linnet.inference import cuda_graphs
from linnet.inference.cuda_graphs import GraphSteps, RecordedGraph
from linnet.inference.decode import decode
from linnet.inference.sampling import Sampling
from linnet.layers.batch_layout import BatchLayout, layout_at
from linnet.layers.cache_policy import FULL, CachePolicy, RecalibratingCache
from linnet.layers.contract import Mixer, MixerSpec, SublayerSpec
from linnet.layers.mixers.ted.module import TedSpec
from linnet.layers.registry import CACHE_POLICIES
from linnet.model.decoder import Decoder
from linnet.model.spec import ModelSpec
from linnet.ops.decay.rates import rate_bank
from linnet.ops.decay.sums import default_chunk
from linnet.training import distributed
from linnet.training.objectives.language_modelling import next_token_loss
from linnet.training.optimizers import build_optimizer
from linnet.training.parallel import ParallelModel
from linnet.training.sections import ClipSpec, OptimizerSpec
from linnet.training.step import Stepper

NAME = "pretended"
MISTAKE = "a mistake"
LENGTH, SHORT, VOCABULARY = 70, 5, 50
"""Of rows: long enough for mixers to use chunks, and short, for what lies around the mixers."""

OPTIMIZERS = {"adamw": 1, "muon": 2}
"""The steps, of which the second uses optimizer state; Muon sees matrices alone, and takes long."""

PAIR = 2
"""Of how many kinds of mixer whole models are made, unless every example is asked for: each kind passes alone, too."""

NUMBERLESS = FakeTensorMode(allow_non_fake_inputs=True)
"""One device for all checks: sources cache tables between calls."""


class Backend(_DummyBackendModule):
    """The functions that PyTorch requires of a backend."""

    def get_amp_supported_dtype(self) -> list[torch.dtype]:
        return [torch.bfloat16]


class EveryNumberIsOne(TorchDispatchMode):
    """A tensor without values cannot return any."""

    def __torch_dispatch__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        if func in (torch.ops.aten._local_scalar_dense.default, torch.ops.aten.item.default):
            return {torch.bool: True}.get(args[0].dtype, 1.0 if args[0].is_floating_point() else 1)
        return func(*args, **(kwargs or {}))


class TensorsComeFromTheProcessor(TorchFunctionMode):
    """Tensors lose their values when they are copied to the device, which has no memory."""

    def __torch_function__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        kwargs = dict(kwargs or {})
        if func in (torch.tensor, torch.as_tensor) and kwargs.get("device") is not None:
            device = kwargs.pop("device")
            return self.without_numbers(func(*args, **kwargs)).to(device)
        if func is Tensor.backward:
            with self:  # which is off while it handles a call
                return torch.autograd.backward(args[0])
        if func is Tensor.to:
            args = (self.without_numbers(args[0]), *args[1:])
        return func(*args, **kwargs)

    def without_numbers(self, tensor: Tensor) -> Tensor:
        if not isinstance(tensor, FakeTensor):
            tensor = NUMBERLESS.from_tensor(tensor)
        tensor.constant = None
        return tensor


@contextmanager
def pretending() -> Iterator[torch.device]:
    one_thread = torch.autograd.set_multithreading_enabled(False)  # modes are a thread's own
    with one_thread, NUMBERLESS, EveryNumberIsOne(), TensorsComeFromTheProcessor():
        yield torch.device(NAME)


def check_sublayer(spec: SublayerSpec, every: bool, device: torch.device) -> None:
    """Forward and backward in both precisions; every kind of state, with equal and different positions of rows."""
    with device:
        sublayer = spec.build(PLACE)
    short = LENGTH if every else SHORT
    for narrow, length in ((True, short), (False, LENGTH)):
        x_BTD = torch.randn(2, length, WIDTH, device=device, requires_grad=True)
        with torch.autocast(device.type, torch.bfloat16, enabled=narrow):
            out = sublayer(x_BTD)
        out.float().sum().backward()
        assert all(p.grad is None or p.grad.device == p.device for p in sublayer.parameters())
    if not isinstance(sublayer, Mixer):
        return
    kept = [kind() for kind in CACHE_POLICIES.values() if kind in sublayer.cache_policies]
    for cache_policy in kept:
        state = sublayer.initial_state(2, 2 * LENGTH, device, torch.float32, cache_policy)
        views = (
            (BatchLayout(0), short),
            (BatchLayout(short), 1),
            (layout_at([short + 1, short - 3]), 1),
            (layout_at([short + 2] * 2), 3),
        )
        with torch.no_grad():
            for layout, length in views:
                if sublayer.supports(layout, length, state):
                    sublayer(x_BTD[:, :length], state, layout)
            state.fork().join([state.forget()]).select(torch.tensor([1]))


def decoder_on(device: torch.device, *mixers: MixerSpec) -> Decoder:
    feed_forward = {"kind": "glu", "hidden": 24}
    blocks = [{"mixer": mixer, "feed_forward": feed_forward} for mixer in mixers]
    settings = {"vocab_size": VOCABULARY, "d_model": WIDTH, "context_length": 4 * LENGTH, "blocks": blocks}
    spec = ModelSpec.parse({**settings, "embedding": {"positions": "learned"}}, "test")
    with device:
        return Decoder(spec)


def check_training(kind: str, steps: int, mixers: list[MixerSpec], device: torch.device) -> None:
    """Whole training steps from a batch on the CPU."""
    decoder = decoder_on(device, *mixers)
    optimizer = build_optimizer(OptimizerSpec(kind=kind, cautious_decay=True), decoder)
    counts = ByteCounts.create([1] * VOCABULARY).to(device)
    step = Stepper(ParallelModel(decoder), next_token_loss, optimizer, ClipSpec(), torch.bfloat16, counts)
    tokens_BT = torch.ones(2, SHORT, dtype=torch.int64)
    for _ in range(steps):
        step([Batch(tokens_BT, tokens_BT)], 1e-3)


def check_evaluation(mixers: list[MixerSpec], device: torch.device) -> None:
    """Evaluation of causal layers; calibration needs values, which this device does not have."""
    decoder = decoder_on(device, *(spec for spec in mixers if spec.build(PLACE).traits.causal))
    tokens_BT = torch.ones(2, LENGTH, dtype=torch.int64)
    batch = WindowBatch(tokens_BT, tokens_BT, tokens_BT).to(device)
    WindowEvaluator.create(decoder, None, LENGTH, LENGTH).losses(batch)


def check_decoding(mixers: list[MixerSpec], device: torch.device) -> None:
    """Several streams with all these mixers, one with the first; greedy and random sampling."""
    one, several = [[1, 2, 3]], [[1, 2, 3], [4, 5, 6]]
    greedily, by_chance = (Sampling(temperature, top_k=5, top_p=0.9, seed=0) for temperature in (0.0, 1.0))
    every, first = decoder_on(device, *mixers), decoder_on(device, mixers[0])
    for decoder, prompts, sampling in (
        (every, several, by_chance),
        (first, one, by_chance),
        (first, several, greedily),
    ):
        list(decode(decoder, prompts, 3, sampling))


class AsRecorded(TorchDispatchMode):
    """A graph cannot wait for values of the device, nor copy tensors to it that are elsewhere."""

    def __torch_dispatch__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        name = func.name().removeprefix("aten::").partition(".")[0]
        if name in ("_local_scalar_dense", "item", "nonzero", "masked_select", "_unique2"):
            raise AssertionError(f"{name} waits for the device in a step that is recorded")
        out = func(*args, **(kwargs or {}))
        if name in ("_to_copy", "copy_"):
            source = args[1] if name == "copy_" else args[0]
            if source.device != out.device and source.dim() > 0:
                raise AssertionError("a tensor is copied between devices in a step that is recorded")
        return out


def record(function: Callable[[], Tensor], _: RecordedGraph | None) -> RecordedGraph:
    """A recorder that watches the second run: the first may make tables that are kept."""
    function()
    with AsRecorded():
        out = function()
    return RecordedGraph(lambda: None, out)


def check_recorded_steps(mixers: list[MixerSpec], device: torch.device) -> None:
    """Two steps of three rows at different positions, behind their prompts, as for a GPU."""
    decoder = decoder_on(device, *mixers)

    def ordinary(tokens_B1: Tensor) -> Tensor:
        raise AssertionError(f"an ordinary step: {cuda_graphs._POOLS[decoder].problem}")

    kinds: list[type[CachePolicy]] = [type(FULL), *decoder.mixers[0].cache_policies]
    for policy in {kind: kind() for kind in kinds if kind is not RecalibratingCache}.values():
        state = decoder.initial_state(3, LENGTH, [policy] * len(mixers))
        with torch.no_grad():
            decoder.hidden(torch.ones(3, 4, dtype=torch.int64, device=device), state)
            state.positions = (4, 2, 3)
            steps = GraphSteps(decoder, state, ordinary)
            for _ in range(2):
                assert steps.logits(torch.ones(3, 1, dtype=torch.int64, device=device)).device.type == device.type
            steps.release()


def check_mistake(device: torch.device) -> None:
    """Faults that must be found."""
    torch.ones(3, device=device) + torch.ones(3)


def checks(which: str) -> dict[str, Callable[[torch.device], None]]:
    first = list(filter(first_of_its_kind, ALL))
    mixers = [spec for spec in first if isinstance(spec, MixerSpec)]
    every = which == "every"
    whole = mixers if every else mixers[:PAIR]
    return {
        **{name_of(spec): partial(check_sublayer, spec, every) for spec in (ALL if every else first)},
        **{
            f"training-{kind}": partial(check_training, kind, steps, whole if kind == "adamw" else whole[:1])
            for kind, steps in OPTIMIZERS.items()
        },
        "evaluation": partial(check_evaluation, whole),
        "decoding": partial(check_decoding, whole),
        **{f"recorded-{name_of(spec)}": partial(check_recorded_steps, [spec]) for spec in mixers},
        MISTAKE: check_mistake,
    }


def problem_of(check: Callable[[torch.device], None]) -> str | None:
    """The error and its location in the sources."""
    try:
        with pretending() as device:
            check(device)
    except Exception as error:
        places = [f"{frame.filename}:{frame.lineno}" for frame in traceback.extract_tb(error.__traceback__)]
        ours = [place for place in places if "linnet" in place]
        return f"{type(error).__name__}: {error} ({ours[-1] if ours else places[-1]})"
    return None


def main() -> None:
    cuda_graphs.RECORDERS[NAME], cuda_graphs.RECORD_AFTER_TOKENS, cuda_graphs.BUILDS.enabled = record, 0, True
    distributed.is_sharded = lambda tensor: False  # it goes by the class, which is another here
    _setup_privateuseone_for_python_backend(NAME, backend_module=Backend())
    library = torch.library.Library("_", "IMPL")
    library.fallback(torch.library.fallthrough_kernel, "AutocastPrivateUse1")  # no operation is cast
    for spec in ALL:  # a bank of rates is real, and made by numbers
        if isinstance(spec, TedSpec):
            chunk = spec.chunk or default_chunk(spec.key_width is not None)
            for length in (128, 256, 512):
                rate_bank(spec.tolerance, chunk, length)
    print(json.dumps({name: problem_of(check) for name, check in checks(sys.argv[1]).items()}))


if __name__ == "__main__":
    main()
