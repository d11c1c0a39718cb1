"""Memory of a layer to the element (`test_decoder` allows a model 2 %), and FLOPs of rows of several chunks."""

from weakref import WeakSet

import pytest
import torch
from examples import ALL, PLACE, WIDTH
from torch.nn.attention import SDPBackend, sdpa_kernel
from torch.utils.flop_counter import FlopCounterMode

from linnet.layers.contract import RecurrentMixer, SublayerSpec

NOT_OF_A_LAYER = ("latent_attention", "plga")
"""Kinds whose passes keep tables that all layers share, and so only approximate sizes."""
ROWS = 3


class Kept:
    """A tensor that a graph keeps; freed with the part of the graph whose result is not used, such as a last state."""

    def __init__(self, tensor: torch.Tensor) -> None:
        self.tensor = tensor


def kept_elements(spec: SublayerSpec, tokens: int) -> int:
    """float32 elements that the graph of a layer alone holds after a pass, without its weights; each storage once."""
    sublayer, every = spec.build(PLACE), WeakSet[Kept]()

    def keep(tensor: torch.Tensor) -> Kept:
        kept = Kept(tensor)
        every.add(kept)
        return kept

    with torch.autograd.graph.saved_tensors_hooks(keep, lambda kept: kept.tensor):
        out_BTD = sublayer(torch.randn(ROWS, tokens, WIDTH, requires_grad=True))
    assert out_BTD.requires_grad
    weights = {parameter.untyped_storage().data_ptr() for parameter in sublayer.parameters()}
    sizes = {kept.tensor.untyped_storage().data_ptr(): kept.tensor.untyped_storage().nbytes() for kept in every}
    return sum(size for pointer, size in sizes.items() if pointer not in weights) // 4


@pytest.mark.cpu_only("kernels of GPUs keep other tensors")
def test_predicted_memory_of_a_layer_is_exact_for_all_tokens(spec: SublayerSpec):
    """What a pass keeps of the weights themselves, such as rates, does not depend on the tokens and is not counted."""
    if spec.kind in NOT_OF_A_LAYER or (spec.kind == "ted" and getattr(spec, "conv", None)):
        pytest.skip("keeps tables of all layers")
    if getattr(spec, "rotary", None) is not None:
        spec = spec.model_copy(update={"rotary": None})  # all layers share the tables of cosines
    excess = [kept_elements(spec, n) - spec.cost(PLACE).activation_elements(ROWS, n) for n in (5, 24, 61, 70)]
    assert len(set(excess)) == 1 and 0 <= excess[0] <= 2 * WIDTH


@pytest.mark.cpu_only("kernels of GPUs are not counted")
def test_predicted_flops_of_several_chunks_are_the_counted_ones(spec: SublayerSpec):
    """Of recurrences; attention to long rows is computed in blocks, which leave out what a mask hides."""
    sublayer, x_BTD = spec.build(PLACE), torch.randn(1, 150, WIDTH)
    if not isinstance(sublayer, RecurrentMixer):
        pytest.skip("no recurrence")
    sublayer(x_BTD)  # tables are made
    with sdpa_kernel(SDPBackend.MATH), FlopCounterMode(display=False) as counter:
        sublayer(x_BTD.requires_grad_())
    assert spec.cost(PLACE).flops(150) == counter.get_total_flops()


def test_few_kinds_are_left_out():
    assert {spec.kind for spec in ALL} > set(NOT_OF_A_LAYER)
