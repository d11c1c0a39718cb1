"""The space around a plain shape holds it, and shapes to all sides of it, at every size."""

import pytest

from linnet.design.space import SpaceSpec, build_space
from linnet.scaling.candidate import candidate, search_space


@pytest.mark.parametrize("parameters", [2e4, 1e5, 1e6, 3e6, 1e7, 3e7, 3e8, 2e9])
def test_it_holds_the_plain_shape_and_smaller_and_larger_ones(parameters: float):
    plain = candidate(parameters, "total", 300, 64)
    space = build_space(SpaceSpec.parse(search_space(plain), "around"), "around")
    assert space.left_out[0] == 0
    blocks = [(block.width, block.repeat, block.feed_forward.hidden) for block in space.described]
    widths, repeats = {width for width, _, _ in blocks}, {repeat for _, repeat, _ in blocks}
    hidden = plain.blocks[0].feed_forward.hidden
    assert any(width == plain.d_model and abs(own / hidden - 1) < 0.1 for width, _, own in blocks)
    assert min(widths) <= max(16, 0.6 * plain.d_model) and max(widths) >= 1.9 * plain.d_model
    most = space.spec.blocks * max(repeats)
    assert 0.7 * plain.layers <= space.spec.blocks * min(repeats) <= plain.layers <= most
    model = space.model([0] * space.spec.blocks)
    assert (model.vocab_size, model.context_length, model.d_model) == (300, 64, plain.d_model)
