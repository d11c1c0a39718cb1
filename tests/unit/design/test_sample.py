"""Stratified samples: bands of equal size, both kinds of weights, shallow to deep."""

import numpy as np
import pytest

from linnet.core.errors import UserError
from linnet.design.sample import TOLERANCE, shares_weights, stratified_sample
from linnet.design.scores import parts_of
from linnet.design.space import load_space


@pytest.fixture(scope="module")
def space():
    return load_space("study")


def decoder_parameters(space, candidate) -> int:
    return sum(part.parameters for part in parts_of(space.model(candidate)) if not part.outside)


@pytest.mark.parametrize(("shapes", "bands"), [(24, 4), (15, 3), (6, 1)])
def test_each_band_has_its_share_of_both_kinds(space, shapes: int, bands: int):
    chosen = stratified_sample(space, shapes, bands, seed=0)
    assert len(set(chosen)) == shapes
    sizes = np.array([decoder_parameters(space, candidate) for candidate in chosen])
    shared = np.array([shares_weights(space, candidate) for candidate in chosen])
    per_band = shapes // bands
    means = []
    for band in range(bands):
        rows = slice(band * per_band, (band + 1) * per_band)
        means.append(sizes[rows].mean())
        assert sizes[rows].max() / sizes[rows].min() < ((1 + TOLERANCE) / (1 - TOLERANCE))
        assert abs(shared[rows].sum() - per_band / 2) <= 0.5
    ratios = np.array(means[1:]) / np.array(means[:-1])
    assert (ratios > 1.2).all()
    assert np.ptp(np.log(ratios)) < 4 * TOLERANCE if bands > 1 else True


def test_a_band_goes_from_shallow_to_deep(space):
    chosen = stratified_sample(space, 8, 1, seed=1)
    for kind in (chosen[:4], chosen[4:]):
        models = [space.model(candidate) for candidate in kind]
        stretch = [m.layers**2 / sum(block.repeat * block.width for block in m.blocks) for m in models]
        assert stretch == sorted(stretch)
        assert stretch[-1] > 2 * stretch[0]


def test_a_seed_determines_the_sample(space):
    assert stratified_sample(space, 12, 2, seed=3) == stratified_sample(space, 12, 2, seed=3)
    assert stratified_sample(space, 12, 2, seed=3) != stratified_sample(space, 12, 2, seed=4)


def test_a_space_of_one_kind_and_too_few_models(small_space):
    own = small_space(block={"share_weights": False})
    assert not any(shares_weights(own, candidate) for candidate in stratified_sample(own, 3, 1, seed=0))
    with pytest.raises(UserError, match=r"shapes: 60 models of about .* decoder parameters: the space has only"):
        stratified_sample(own, 60, 1, seed=0)
