"""A decode state on disk: what is read goes on exactly as what was written."""

import os
import re
from pathlib import Path

import pytest
import torch
from safetensors.torch import load_file, save_file
from small_models import CASES, EXAMPLES, in_turn, small_decoder

from linnet.core.errors import UserError
from linnet.inference.state import load_state, read_metadata, save_state, with_room
from linnet.layers.contract import MixerSpec
from linnet.model.decoder import Decoder
from linnet.model.state import DecoderState

PLGA = next(mixer for mixer in EXAMPLES if mixer.kind == "plga")
every_mixer = pytest.mark.parametrize("mixer", CASES)


def state_after(decoder: Decoder, padding: tuple[int, ...] | None = None, tokens: int = 5) -> DecoderState:
    state = decoder.initial_state(2, 12)
    if tokens:
        with torch.no_grad():
            decoder(torch.arange(2 * tokens).reshape(2, tokens), state, padding=padding)
    return state


@pytest.mark.parametrize(("mixer", "padding"), in_turn(whole=None, padded=(0, 3)))
@torch.no_grad()
def test_going_on_after_loading_gives_identical_logits(
    mixer: MixerSpec, padding: tuple[int, ...] | None, tmp_path: Path
):
    decoder, path = small_decoder(mixer), tmp_path / "state.safetensors"
    state = state_after(decoder, padding)
    save_state(state, path)
    loaded = load_state(decoder, path)
    assert (loaded.positions, loaded.capacity, loaded.nbytes) == (state.positions, 12, state.nbytes)
    for tokens_BT in (torch.tensor([[1], [2]]), torch.tensor([[3, 4, 5], [6, 7, 8]])):
        expected = decoder(tokens_BT, state)
        torch.testing.assert_close(decoder(tokens_BT, loaded), expected, rtol=0, atol=0)


@every_mixer
@torch.no_grad()
def test_an_empty_state_can_be_saved(mixer: MixerSpec, tmp_path: Path):
    decoder, path, tokens_BT = small_decoder(mixer), tmp_path / "state.safetensors", torch.tensor([[1, 2], [3, 4]])
    save_state(state_after(decoder, tokens=0), path)
    expected = decoder(tokens_BT, decoder.initial_state(2, 12))
    torch.testing.assert_close(decoder(tokens_BT, load_state(decoder, path)), expected, rtol=0, atol=0)


@torch.no_grad()
def test_a_frozen_operator_can_be_saved_without_tokens(tmp_path: Path):
    decoder, path = small_decoder(PLGA), tmp_path / "state.safetensors"
    state = state_after(decoder)
    frozen = state.forget()
    save_state(frozen, path)
    loaded = load_state(decoder, path)
    tokens_BT = torch.tensor([[1, 2], [3, 4]])
    torch.testing.assert_close(decoder(tokens_BT, loaded), decoder(tokens_BT, frozen), rtol=0, atol=0)


def test_what_advances_later_does_not_change_the_file(tmp_path: Path):
    decoder, path = small_decoder(), tmp_path / "state.safetensors"
    state = state_after(decoder)
    save_state(state, path)
    before = path.read_bytes()
    with torch.no_grad():
        decoder(torch.tensor([[1], [2]]), state)
    assert path.read_bytes() == before
    assert [file.name for file in tmp_path.iterdir()] == ["state.safetensors"]


def refused(decoder: Decoder, path: Path, message: str) -> None:
    with pytest.raises(UserError, match=re.escape(str(path)) + ".*" + message) as error:
        load_state(decoder, path)
    assert "\n" not in str(error.value)


def changed(tmp_path: Path, decoder: Decoder, **tensors: torch.Tensor | None) -> Path:
    """A saved state with some tensors replaced, added, or (None) left out."""
    path = tmp_path / "state.safetensors"
    save_state(state_after(decoder), path)
    named = {**load_file(path), **{name.replace("__", "."): tensor for name, tensor in tensors.items()}}
    save_file({name: tensor for name, tensor in named.items() if tensor is not None}, path)
    return path


def test_a_file_that_is_no_state_is_refused(tmp_path: Path):
    decoder = small_decoder()
    refused(decoder, tmp_path / "missing", "no such file")
    (tmp_path / "text").write_text("once upon a time")
    refused(decoder, tmp_path / "text", "not a safetensors file")
    save_file({"weight": torch.zeros(2)}, tmp_path / "weights")
    refused(decoder, tmp_path / "weights", "not a decode state, it has no tensors of layers")
    save_file({"positions": torch.tensor([0]), "capacity": torch.tensor(4)}, tmp_path / "empty")
    refused(decoder, tmp_path / "empty", "no tensors of layers")


def test_nobody_waits_at_a_pipe(tmp_path: Path):
    os.mkfifo(tmp_path / "state.safetensors")
    assert read_metadata(tmp_path / "state.safetensors") == {}


def test_what_does_not_fit_the_model_is_named(tmp_path: Path):
    decoder = small_decoder()
    keys = torch.zeros(2, 2, 12, 8, dtype=torch.float64)
    refused(decoder, changed(tmp_path, decoder, layer__1__keys=None), "tensor layer.1.keys is missing")
    refused(decoder, changed(tmp_path, decoder, layer__2__keys=keys), "tensor layer.2.keys does not belong")
    refused(decoder, changed(tmp_path, decoder, layer__1__keys=keys[:1]), r"tensor layer.1.keys: shape \[1, ")
    refused(decoder, changed(tmp_path, decoder, padding=torch.zeros(2)), "tensor padding does not belong")
    refused(decoder, changed(tmp_path, decoder, positions=torch.tensor([5])), "it has no 'positions' of its 2 rows")
    refused(decoder, changed(tmp_path, decoder, capacity=None), "it has no count 'capacity'")
    positions = torch.tensor([5, 13])
    refused(decoder, changed(tmp_path, decoder, positions=positions), "position 13: expected 0 to the capacity")
    refused(decoder, changed(tmp_path, decoder, capacity=torch.tensor(-1)), "position 5: expected 0 to the capacity")
    refused(decoder.float(), changed(tmp_path, small_decoder()), "float64: this model's has shape .* float32")


def test_a_state_of_another_mixer_is_refused(tmp_path: Path):
    ted = next(mixer for mixer in EXAMPLES if mixer.kind == "ted")
    path = tmp_path / "state.safetensors"
    save_state(state_after(small_decoder(ted)), path)
    refused(small_decoder(PLGA), path, "tensor layer.* is missing")


def test_an_operator_of_another_shape_or_none_after_tokens_is_refused(tmp_path: Path):
    decoder = small_decoder(PLGA)
    operator = state_after(decoder).layers[0].operator
    path = changed(tmp_path, decoder, layer__0__operator=operator[:, :1].contiguous())
    refused(decoder, path, "tensor layer.0.operator: shape")
    refused(decoder, changed(tmp_path, decoder, layer__0__operator=None), "tensor layer.0.operator is missing")


def test_a_count_of_tokens_beyond_all_memory_is_refused_without_taking_it(tmp_path: Path):
    decoder = small_decoder()
    refused(decoder, changed(tmp_path, decoder, capacity=torch.tensor(2**50)), "this model's has shape")


@torch.no_grad()
def test_a_file_with_one_position_for_all_rows_is_read(tmp_path: Path):
    """As they were written before rows had positions of their own."""
    decoder = small_decoder()
    path = changed(tmp_path, decoder, positions=None, position=torch.tensor(5))
    assert load_state(decoder, path).positions == (5, 5)


def test_a_state_that_cannot_grow_for_lack_of_memory_says_so(monkeypatch: pytest.MonkeyPatch):
    decoder = small_decoder()
    state, message = decoder.initial_state(1, 8), r"^max_tokens: no memory for the state of \d+ tokens$"
    assert with_room(state, 8) is state and with_room(state, 9).capacity == 12
    for tokens in (10**13, 10**18, 10**30):  # beyond memory, beyond the count of elements, beyond 64 bits
        with pytest.raises(UserError, match=message):
            with_room(state, tokens)
    raised: list[Exception] = []

    def fails(*_: object) -> None:
        raise raised[-1]

    monkeypatch.setattr(DecoderState, "grown", fails)
    for error in (torch.OutOfMemoryError("CUDA out of memory"), MemoryError(), OverflowError("int too large")):
        raised.append(error)
        with pytest.raises(UserError, match=message):
            with_room(state, 9)
    for error in (RuntimeError("the device is lost"), TypeError("a wrong argument")):
        raised.append(error)
        with pytest.raises(type(error)) as passed:
            with_room(state, 9)
        assert passed.value is error
