"""Steps as graphs have them say what the model says: every case, as PyTorch runs them, without the exporter."""

import pytest
import torch
from graph_cases import CASES, decoder_of_case
from small_decoders import block, decoder_with_weights
from torch import Tensor

from linnet.core.errors import UserError
from linnet.inference.cache_policy import cache_policy_state, layer_cache_policies
from linnet.inference.captured_step import GraphBatchLayout, PassFunction, StateTensors
from linnet.interop.onnx.export import _graphs
from linnet.interop.onnx.trace import PIECE
from linnet.layers.batch_layout import BatchLayout
from linnet.layers.cache_policy import FULL
from linnet.layers.feed_forwards.mlp import PlainFeedForward, PlainSpec
from linnet.layers.mixers.attention import Attention
from linnet.layers.mixers.ted import BankCache
from linnet.layers.state import State

LENGTH = PIECE + 8
FEW = 12
"""Read one by one: more than any window, or chunk of a bank, of the cases."""


@torch.no_grad()
@pytest.mark.parametrize("name", CASES)
def test_a_step_with_explicit_states_computes_what_the_model_computes(name: str, monkeypatch: pytest.MonkeyPatch):
    decoder, cache_policy = decoder_of_case(name)
    if isinstance(cache_policy, BankCache):
        cache_policy = BankCache(decoder.spec.context_length)
    cache_policies = layer_cache_policies(decoder, cache_policy)
    tokens_1T = torch.randint(257, (1, LENGTH), generator=torch.Generator().manual_seed(0))
    expected_TV = decoder(tokens_1T, cache_policy_state(decoder, 1, LENGTH, cache_policies))[0]
    step = PassFunction(decoder, StateTensors.of(decoder, LENGTH + 2, cache_policies))
    monkeypatch.setattr("torch.compiler.is_exporting", lambda: True)
    for pieces in _ways(step.flat):
        states, found = [tensor.clone() for tensor in step.flat.tensors.values()], []
        for piece_1T in tokens_1T[:, : sum(pieces)].split(pieces, dim=1):
            logits_1TV, states = step(piece_1T, torch.tensor([sum(map(len, found))]), states)
            found.append(logits_1TV[0])
        torch.testing.assert_close(torch.cat(found), expected_TV[: sum(pieces)], atol=2e-4, rtol=1e-4)


@pytest.mark.parametrize(
    ("mixer", "expected"),
    [
        ({"kind": "attention", "heads": 2, "window": 4, "sink_tokens": 2}, True),
        ({"kind": "attention", "heads": 2, "window": 4}, True),
        ({"kind": "mamba"}, False),
        ({"kind": "retention", "heads": 2}, False),
    ],
)
def test_a_window_is_no_recurrence(mixer: dict[str, object], expected: bool):
    decoder = decoder_with_weights([block(mixer)])
    assert PassFunction(decoder, StateTensors.of(decoder, FEW, FULL)).takes_any_number == expected


def test_a_layer_that_supports_uniform_rows_alone_computes_at_its_position(monkeypatch: pytest.MonkeyPatch):
    """Or its graph is refused, if it needs the position as a number."""
    monkeypatch.setattr(Attention, "supports", lambda self, layout, length, state: layout.uniform)
    decoder = decoder_with_weights([block({"kind": "attention", "heads": 2})])
    tokens_1T, state = torch.arange(6)[None], decoder.initial_state(1, 8)
    expected_1TV = torch.cat([decoder(piece_1T, state) for piece_1T in tokens_1T.split([4, 2], dim=1)], dim=1)
    step = PassFunction(decoder, StateTensors.of(decoder, 8, FULL))
    monkeypatch.setattr("torch.compiler.is_exporting", lambda: True)
    states, found = [tensor.clone() for tensor in step.flat.tensors.values()], []
    for begin, end in ((0, 4), (4, 6)):
        logits_1TV, states = step(tokens_1T[:, begin:end], torch.tensor([begin]), states)
        found.append(logits_1TV)
    torch.testing.assert_close(torch.cat(found, dim=1), expected_1TV, atol=2e-4, rtol=1e-4)
    layout = GraphBatchLayout(position_B=torch.tensor([4]), places=8)
    for read in (lambda: layout.start, lambda: layout.starts_of(1), lambda: list(layout.parts(1, 2))):
        with pytest.raises(NotImplementedError, match="the position is a tensor in a graph"):
            read()


class Branching(PlainFeedForward):
    """A feed-forward that branches on a value, which no graph can."""

    def forward(self, x_BTD: Tensor, state: State | None = None, layout: BatchLayout = BatchLayout()) -> Tensor:
        return super().forward(x_BTD if bool(x_BTD.sum() > 0) else -x_BTD)


@pytest.mark.slow
def test_a_layer_without_a_graph_is_named(monkeypatch: pytest.MonkeyPatch):
    pytest.importorskip("onnxscript")
    monkeypatch.setattr(PlainSpec, "build", lambda self, place: Branching(place.width, self.hidden, False, "relu"))
    decoder = decoder_with_weights([block({"kind": "attention", "heads": 2}, {"kind": "mlp", "hidden": 8})])
    expected = r"^here: blocks\[0\].feed_forward: mlp: PyTorch's exporter cannot follow it \("
    with pytest.raises(UserError, match=expected):
        _graphs(PassFunction(decoder, StateTensors.of(decoder, 8, FULL)), "here")


def _ways(flat: StateTensors) -> list[list[int]]:
    """Lengths of pieces: what layers take."""
    alone = [1] * FEW
    if flat.growing.keys() != flat.has_room:
        return [alone]
    of_a_piece = [PIECE, 1, 1, 1]
    return [alone, of_a_piece] if flat.needs_whole_pieces else [alone, of_a_piece, [2, 3, PIECE, 1, 2]]
