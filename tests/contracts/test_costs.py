"""Memory of a layer to the element (`test_decoder` allows a model 2 %), and FLOPs of rows of several chunks."""

import pytest
import torch
from examples import ALL, PLACE, WIDTH
from torch.nn.attention import SDPBackend, sdpa_kernel
from torch.utils.flop_counter import FlopCounterMode

from linnet.layers.contract import RecurrentMixer, SublayerSpec

NOT_OF_A_LAYER = ("latent_attention", "plga", "retention")
"""Kinds whose passes keep tables that all layers share, and so only approximate sizes."""
ROWS = 3


def kept_elements(spec: SublayerSpec, tokens: int) -> int:
    """float32 elements that a pass of a layer alone saves, without its weights; each storage once."""
    sublayer, kept = spec.build(PLACE), list[torch.Tensor]()
    with torch.autograd.graph.saved_tensors_hooks(lambda x: kept.append(x) or x, lambda x: x):
        sublayer(torch.randn(ROWS, tokens, WIDTH, requires_grad=True)).sum()
    weights = {parameter.untyped_storage().data_ptr() for parameter in sublayer.parameters()}
    sizes = {x.untyped_storage().data_ptr(): x.untyped_storage().nbytes() for x in kept}
    return sum(size for pointer, size in sizes.items() if pointer not in weights) // 4


@pytest.mark.cpu_only("kernels of GPUs keep other tensors")
def test_predicted_memory_of_a_layer_is_exact_for_all_tokens(spec: SublayerSpec):
    """What a pass keeps of the weights themselves, such as rates, does not depend on the tokens and is not counted."""
    if spec.kind in NOT_OF_A_LAYER or (spec.kind == "ted" and getattr(spec, "conv", None)):
        pytest.skip("keeps tables of all layers")
    if getattr(spec, "rotary", None) is not None:
        spec = spec.model_copy(update={"rotary": None})  # all layers share the tables of cosines
    excess = [kept_elements(spec, n) - spec.cost(PLACE).activation_elements(ROWS, n) for n in (5, 24, 70)]
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
