"""What was written down is done again for other tokens and positions; what cannot be is refused before it is done."""

import threading

import pytest
import torch
from torch._C import _len_torch_dispatch_stack
from torch.utils._python_dispatch import TorchDispatchMode, _pop_mode

from linnet.ops.native import ARGUMENTS, library
from linnet.ops.native.attention import attention_row
from linnet.ops.native.elementwise import activation_row, norm_row, rotate_row, scale_add_row
from linnet.ops.native.gemv import float32_gemv, float_lookup
from linnet.ops.native.program import MAX_ARGUMENTS, Recording, UnrecordableError

COMPILED = library(torch.device("cpu"))
pytestmark = pytest.mark.skipif(COMPILED is None, reason="no compiler, or another processor")

HEADS, WIDTH, CAPACITY, TOKENS = 3, 6, 9, 11


class Step:
    """Embedding, norm, joint map, rotation, attention, gate, output map added to the row."""

    def __init__(self) -> None:
        draw = torch.Generator().manual_seed(0)

        def drawn(*shape: int) -> torch.Tensor:
            return torch.randn(shape, generator=draw)

        self.keys, self.values, wide = torch.zeros(HEADS, CAPACITY, WIDTH), torch.zeros(HEADS, CAPACITY, WIDTH), 18
        self.look_up, self.norm = (
            float_lookup(COMPILED, drawn(TOKENS, wide)),
            norm_row(COMPILED, drawn(wide), None, 1e-5),
        )
        self.joint = float32_gemv(COMPILED, drawn(3 * wide, wide), drawn(3 * wide))
        self.up, self.down = (float32_gemv(COMPILED, drawn(*shape), None) for shape in ((32, wide), (wide, 16)))
        self.turn = rotate_row(COMPILED, drawn(CAPACITY, 3), drawn(CAPACITY, 3), "halves")
        self.attend, self.gate = (
            attention_row(COMPILED, self.keys, self.values, 0.4),
            activation_row(COMPILED, "silu", gated=True),
        )
        self.place = scale_add_row(COMPILED, 1.5, drawn(CAPACITY, wide))

    def __call__(self, token: int, position: int) -> torch.Tensor:
        x = self.place(self.look_up(token), position)
        joint = self.joint(self.norm(x)).view(3 * HEADS, WIDTH)
        turned = self.turn(joint[: 2 * HEADS], position)
        read = self.attend(turned[:HEADS, None], turned[HEADS:], joint[2 * HEADS :], position)
        return self.down(self.gate(self.up(read)), x)


@pytest.mark.parametrize("threads", [1, 2, 5])
@torch.inference_mode()
def test_a_program_equals_the_step_bit_for_bit(threads: int):
    plain, written = Step(), Step()
    before = torch.get_num_threads()
    torch.set_num_threads(threads)
    try:
        assert torch.equal(plain(3, 0), written(3, 0))
        with Recording(token=4, position=1) as recording:
            out = written(4, 1)
        program = recording.program(COMPILED)
        assert torch.equal(plain(4, 1), out)
        program._max_threads = threads
        for position, token in enumerate((7, 0, 10, 4), start=2):
            program.run(token, position)
            assert torch.equal(out, plain(token, position))
    finally:
        torch.set_num_threads(before)
    assert torch.equal(plain.keys, written.keys)
    assert torch.equal(plain.values, written.values)


@torch.inference_mode()
def test_tokens_and_positions_out_of_range_are_refused():
    step = Step()
    with Recording(token=4, position=0) as recording:
        step(4, 0)
    program = recording.program(COMPILED)
    for token, position, said in ((11, 1, "token 11 of 11"), (-1, 1, "token -1"), (1, 9, "position 9 of 9")):
        with pytest.raises(IndexError, match=said):
            program.run(token, position)


@torch.inference_mode()
def test_an_operation_of_pytorch_is_refused_before_it_runs():
    state, scaled = torch.ones(3), scale_add_row(COMPILED, 2.0)
    with pytest.raises(UnrecordableError, match="add"), Recording(0, 0):
        scaled(state[None], 0)
        state.add_(1)
    assert state.tolist() == [1, 1, 1]
    for wrong in (
        state.double,
        state[:2].repeat(2).view(2, 2).t().contiguous,
        lambda: state.max().item(),
        lambda: torch.cat([state, state]),
        lambda: torch.as_tensor([1.0, 2.0]),
    ):
        with pytest.raises(UnrecordableError), Recording(0, 0):
            wrong()
    with Recording(0, 0) as recording:
        assert state[None].view(3)[1:].detach().shape == (2,)
    assert not recording.operations


@torch.inference_mode()
def test_calls_of_another_thread_and_after_the_recording_are_not_recorded():
    scaled, x = scale_add_row(COMPILED, 2.0), torch.ones(1, 3)
    with Recording(0, 0) as recording:
        other = threading.Thread(target=scaled, args=(x, 0))
        other.start()
        other.join()
        assert not recording.operations
        scaled(x, 0)
    scaled(x, 0)
    assert len(recording.operations) == 1


@pytest.mark.parametrize("method", ["__enter__", "__exit__"])
@pytest.mark.parametrize("late", [False, True])
@torch.inference_mode()
def test_an_interrupt_while_entering_or_leaving_a_recording_is_harmless(method: str, late: bool, monkeypatch):
    plain = getattr(TorchDispatchMode, method)
    scaled, x = scale_add_row(COMPILED, 2.0), torch.ones(1, 3)

    def interrupted(mode: TorchDispatchMode, *problem: object) -> None:
        if late:
            plain(mode, *problem)
        raise KeyboardInterrupt

    stack = _len_torch_dispatch_stack()
    recording = Recording(0, 0)
    with monkeypatch.context() as patched:
        patched.setattr(TorchDispatchMode, method, interrupted)
        with pytest.raises(KeyboardInterrupt), recording:
            pass
    try:
        scaled(x, 0)
        assert (x + 1).tolist() == [[2.0] * 3]
        with Recording(0, 0) as again:
            scaled(x, 0)
        assert not recording.operations
        assert len(again.operations) == 1
    finally:
        while _len_torch_dispatch_stack() > stack:
            _pop_mode()


def test_every_function_has_an_index():
    places = [COMPILED.linnet_function_index(name.encode()) for name in ARGUMENTS]
    assert sorted(places) == list(range(len(ARGUMENTS)))
    assert COMPILED.linnet_function_index(b"linnet_run") == -1
    assert max(map(len, ARGUMENTS.values())) <= MAX_ARGUMENTS
