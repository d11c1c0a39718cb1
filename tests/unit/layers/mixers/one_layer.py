"""A single mixer: with random weights, its state in bfloat16, and its activation memory."""

from collections.abc import Iterable, Iterator

import torch
from torch import Tensor, nn

from linnet.layers.batch_layout import BatchLayout
from linnet.layers.contract import Mixer, MixerSpec, Place
from linnet.layers.state import State

CONTEXT = 32


def drawn(spec: MixerSpec, width: int) -> Mixer:
    """A mixer in float64 with random weights."""
    torch.manual_seed(0)
    mixer = spec.build(Place(width, CONTEXT)).double()
    for parameter in mixer.parameters():
        nn.init.normal_(parameter, std=0.5)
    return mixer


@torch.no_grad()
def states_in_bfloat16(spec: MixerSpec, width: int) -> Iterator[State]:
    """The state of three rows of a layer in bfloat16, after four, five and six tokens."""
    mixer = spec.build(Place(width, CONTEXT)).bfloat16()
    state = mixer.initial_state(3, 1000, torch.device("cpu"), torch.bfloat16)
    for start, tokens in ((0, 4), (4, 1), (5, 1)):
        mixer(torch.randn(3, tokens, width).bfloat16(), state, BatchLayout(start))
        yield state


def bytes_kept(mixer: Mixer, width: int, tokens: int, tables: Iterable[Tensor] = ()) -> int:
    """The elements that a forward pass of three rows saves for backward, without weights and `tables`."""
    kept: list[Tensor] = []
    with torch.autograd.graph.saved_tensors_hooks(lambda tensor: kept.append(tensor) or tensor, lambda tensor: tensor):
        mixer(torch.randn(3, tokens, width, requires_grad=True)).sum()
    own = {tensor.untyped_storage().data_ptr() for tensor in (*mixer.parameters(), *tables)}
    storages = {tensor.untyped_storage().data_ptr(): tensor.untyped_storage().nbytes() for tensor in kept}
    return sum(nbytes for pointer, nbytes in storages.items() if pointer not in own)
