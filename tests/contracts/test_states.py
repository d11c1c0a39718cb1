"""What a state is for every sublayer and cache policy: a value of the caller that holds tensors and no graph."""

from collections.abc import Callable, Iterator
from functools import partial
from itertools import pairwise
from types import CellType, FunctionType, MethodType
from typing import Any

import pytest
import torch
from examples import inputs
from torch import Tensor
from torch.utils._python_dispatch import TorchDispatchMode

from linnet.layers.batch_layout import BatchLayout
from linnet.layers.cache_policy import FULL, CachePolicy
from linnet.layers.contract import Sublayer
from linnet.layers.passes import run
from linnet.layers.state import CachePolicyState, State
from on_device import DEVICE

PROMPT, LENGTH = 5, 14
YOUNG, OLD = 16, 16 + 2048
"""Ages of a stream; a bank of sums is at the same place of a chunk in both."""


def empty_state(sublayer: Sublayer, policy: CachePolicy, batch: int = 2, capacity: int = LENGTH) -> State:
    return sublayer.initial_state(batch, capacity, DEVICE, torch.float64, policy)


def read_on(sublayer: Sublayer, x_BTD: Tensor, state: State, position: int, sizes: tuple[int, ...] = ()) -> Tensor:
    """The outputs of tokens at `position` and later, in chunks of these sizes and one of the rest."""
    bounds = [0, *(sum(sizes[: index + 1]) for index in range(len(sizes))), x_BTD.shape[1]]
    return torch.cat(
        [run(sublayer, x_BTD[:, a:b], state, BatchLayout(position + a)) for a, b in pairwise(bounds)], dim=1
    )


def storages(state: State) -> set[int]:
    return {tensor.untyped_storage().data_ptr() for tensor in state.tensors().values() if tensor.numel()}


def test_copies_of_a_state_share_no_storage(sublayer: Sublayer, policy: CachePolicy):
    state = empty_state(sublayer, policy)
    run(sublayer, inputs(2, PROMPT), state, BatchLayout())
    own, all_rows = storages(state), torch.arange(2, device=DEVICE)
    copies = {
        "fork": state.fork(),
        "select": state.select(all_rows),
        "join": state.join([]),
        "grown": state.grown(2 * LENGTH),
        "grown to its own capacity": state.grown(LENGTH),
        "forget": state.forget(),
    }
    for name, copy in copies.items():
        assert copy.tensors().keys() == state.tensors().keys(), name
        assert not storages(copy) & own, name


@torch.no_grad()
@pytest.mark.parametrize("first", [0, 1])
def test_a_fork_and_its_original_are_independent(sublayer: Sublayer, policy: CachePolicy, first: int):
    """Whichever of the two reads first, in turn."""
    x_BTD, texts = inputs(2, PROMPT), inputs(4, LENGTH - PROMPT).view(2, 2, LENGTH - PROMPT, -1)
    alone, bounds = [], (0, 1, 2, 5, LENGTH - PROMPT)
    for text in texts:
        state = empty_state(sublayer, policy)
        run(sublayer, x_BTD, state, BatchLayout())
        alone.append(read_on(sublayer, text, state, PROMPT, (1, 1, 3)))
    state = empty_state(sublayer, policy)
    run(sublayer, x_BTD, state, BatchLayout())
    both, outs = [state, state.fork()], [list[Tensor](), list[Tensor]()]
    for begin, end in pairwise(bounds):
        for which in (first, 1 - first):
            outs[which].append(run(sublayer, texts[which, :, begin:end], both[which], BatchLayout(PROMPT + begin)))
    for out, expected in zip(outs, alone, strict=True):
        torch.testing.assert_close(torch.cat(out, dim=1), expected)


def test_a_state_holds_no_graph_after_a_chunk(sublayer: Sublayer, policy: CachePolicy):
    """Gradients flow within a chunk; those of several chunks are the same after each and after all."""
    x_BTD, parameters = inputs(2, LENGTH), list(sublayer.parameters())

    def losses() -> Iterator[Tensor]:
        state = empty_state(sublayer, policy)
        for begin, end in pairwise((0, PROMPT, PROMPT + 1, PROMPT + 2, LENGTH)):
            yield run(sublayer, x_BTD[:, begin:end], state, BatchLayout(begin)).square().sum()
            assert not any(tensor.requires_grad for tensor in state.tensors().values())

    after_each = [torch.autograd.grad(loss, parameters, allow_unused=True) for loss in losses()]
    after_all = torch.autograd.grad(torch.stack(list(losses())).sum(), parameters, allow_unused=True)
    for parts, whole in zip(zip(*after_each, strict=True), after_all, strict=True):
        found = [part for part in parts if part is not None]
        assert bool(found) == (whole is not None)
        if whole is not None:  # no gradients flow through a bank of sums
            torch.testing.assert_close(torch.stack(found).sum(0), whole)


@torch.no_grad()
def test_a_cache_policy_changes_nothing_before_it_drops_a_token(sublayer: Sublayer, policy: CachePolicy):
    x_BTD, states = inputs(2, LENGTH), [empty_state(sublayer, each) for each in (policy, FULL)]
    for begin, end in pairwise((0, 2, *range(3, LENGTH + 1))):
        chunk, layout = x_BTD[:, begin:end], BatchLayout(begin)
        actual, expected = (run(sublayer, chunk, state, layout) for state in states)
        torch.testing.assert_close(actual, expected, rtol=1e-3, atol=1e-3)  # the error bound of a bank of sums
        if isinstance(states[0], CachePolicyState) and (states[0].sizes(end) < end).any():
            assert end > 2
            break


@torch.no_grad()
def test_the_sizes_of_a_row_are_those_of_its_stream(sublayer: Sublayer, policy: CachePolicy):
    """After padding, and after streams of different lengths have joined."""
    x_BTD, padding, longer = inputs(3, LENGTH), (3, 0, LENGTH - 2), empty_state(sublayer, policy, 1)
    if not isinstance(longer, CachePolicyState):
        pytest.skip("its size does not depend on the cache policy")
    batch = empty_state(sublayer, policy, 3)
    run(sublayer, x_BTD, batch, BatchLayout(0, padding))
    run(sublayer, x_BTD[:1], longer, BatchLayout())
    rows, positions = [longer], [LENGTH]
    for x_TD, pad in zip(x_BTD, padding, strict=True):
        rows.append(empty_state(sublayer, policy, 1))
        positions.append(LENGTH - pad)
        run(sublayer, x_TD[None, pad:], rows[-1], BatchLayout())
    joined, positions_B = longer.join([batch]), torch.tensor(positions, device=DEVICE)
    for sizes in ("sizes", "mean_sizes", "largest_sizes", "mean_nbytes"):
        alone = torch.cat([getattr(row, sizes)(position) for row, position in zip(rows, positions, strict=True)])
        torch.testing.assert_close(getattr(joined, sizes)(positions_B), alone, msg=lambda text, name=sizes: name + text)


def held(value: Any, path: str = "", seen: set[int] | None = None) -> Iterator[tuple[str, Any]]:
    """Everything that can be reached from an object, by path: each tensor with its number of writes, and plain values.

    Functions are entered through their closures and defaults, and classes not at all.
    """
    seen = set() if seen is None else seen
    if isinstance(value, bool | int | float | complex | str | bytes | None | torch.dtype | torch.device | type):
        yield path, value
        return
    if id(value) in seen:
        return
    seen.add(id(value))
    parts: dict[Any, Any] = {}
    if isinstance(value, Tensor):
        yield path, (id(value), value._version, tuple(value.shape))
    elif isinstance(value, dict):
        parts = value
    elif isinstance(value, list | tuple | set | frozenset):
        parts = dict(enumerate(value))
    elif isinstance(value, partial):
        parts = {"function": value.func, "arguments": value.args, "keywords": value.keywords}
    elif isinstance(value, MethodType):
        parts = {"self": value.__self__}
    elif isinstance(value, FunctionType):
        parts = {"closure": value.__closure__, "defaults": value.__defaults__}
    elif isinstance(value, CellType):
        parts = {"cell": value.cell_contents}
    else:
        yield path, type(value)
        parts = getattr(value, "__dict__", {})
    yield f"{path} has", len(parts)
    for name, part in list(parts.items()):
        yield from held(part, f"{path}.{name}", seen)


def test_a_module_keeps_nothing_of_a_pass(sublayer: Sublayer, policy: CachePolicy):
    before = dict(held(sublayer))
    for length in (2, LENGTH):
        run(sublayer, inputs(2, length), None, BatchLayout(0, (0, length // 2)))
        x_BTD, state = inputs(2, LENGTH).requires_grad_(), empty_state(sublayer, policy)
        out_BTD = read_on(sublayer, x_BTD, state, 0, (PROMPT, 1))
        torch.autograd.grad(out_BTD.square().sum(), x_BTD)
    assert dict(held(sublayer)) == before


class Work(TorchDispatchMode):
    """Counts the operations of PyTorch, and the elements that they read and write."""

    def __init__(self) -> None:
        super().__init__()
        self.operations = self.elements = 0

    def __torch_dispatch__(self, function: Callable[..., Any], types: Any, args: Any = (), kwargs: Any = None) -> Any:
        out = function(*args, **(kwargs or {}))
        if not function.is_view:  # type: ignore[attr-defined]
            self.operations += 1
            tensors = [one for one in torch.utils._pytree.tree_leaves((args, kwargs, out)) if isinstance(one, Tensor)]
            self.elements += sum(tensor.numel() for tensor in tensors)
        return out


@torch.no_grad()
def test_a_step_does_not_become_more_expensive_with_age(sublayer: Sublayer, policy: CachePolicy):
    """Nor does the state hold more objects. One that grows with the stream is read as a whole, a few times."""
    works, objects, sizes = [], [], []
    for age in (YOUNG, OLD):
        state = empty_state(sublayer, policy, 1, OLD + 8)
        for begin in range(0, age, 1024):
            run(sublayer, inputs(1, min(1024, age - begin)), state, BatchLayout(begin))
        sizes.append(state.held_nbytes(age) // 8)
        with Work() as work:
            read_on(sublayer, inputs(1, 4), state, age, (1, 1, 1))
        works.append(work)
        objects.append(sum(1 for _ in held(state)))
    assert objects[1] == objects[0]
    assert works[1].operations <= 1.1 * works[0].operations
    assert works[1].elements <= 1.1 * works[0].elements + 32 * (sizes[1] - sizes[0])


@torch.no_grad()
def test_a_state_tells_what_it_holds(sublayer: Sublayer, policy: CachePolicy):
    state = empty_state(sublayer, policy)
    before = state.observe(0)
    run(sublayer, inputs(2, PROMPT), state, BatchLayout())
    held = [state.observe(PROMPT, row) for row in range(2)]
    assert before.ages == () and sum(one.nbytes for one in held) == state.nbytes
    for one in held:
        assert one.held_nbytes == state.held_nbytes(PROMPT) <= one.nbytes
        assert len(one.ages) <= one.entries and set(one.ages) <= set(range(PROMPT))
        assert list(one.ages) == sorted(set(one.ages), reverse=True)
        assert one.relevance is None or (len(one.relevance) == len(one.ages) and min(one.relevance) >= 0)
        assert bool(one.entries) == bool(state.tensors())


@torch.no_grad()
def test_a_state_without_unused_capacity_continues(sublayer: Sublayer, policy: CachePolicy):
    x_BTD, state = inputs(2, LENGTH), empty_state(sublayer, policy)
    run(sublayer, x_BTD[:, :PROMPT], state, BatchLayout())
    small = state.grown(PROMPT)
    assert small.nbytes == 2 * state.held_nbytes(PROMPT) and not storages(small) & storages(state)
    expected = read_on(sublayer, x_BTD[:, PROMPT:], state, PROMPT)
    torch.testing.assert_close(read_on(sublayer, x_BTD[:, PROMPT:], small.grown(LENGTH), PROMPT), expected)
