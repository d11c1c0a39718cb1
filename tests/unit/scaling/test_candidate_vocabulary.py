"""The vocabulary that suits a size."""

import pytest

from linnet.scaling.candidate import fitted_vocabulary


@pytest.mark.parametrize(
    ("parameters", "published"), [(33e6, 6_144), (2.87e9, 43_000), (7e9, 67_000), (30e9, 154_000), (70e9, 231_000)]
)
def test_it_is_the_papers_where_they_trained_and_beyond(parameters: float, published: int):
    """Rounded to a power of two; the paper's second approach, its models without their tokens."""
    assert 0.6 < fitted_vocabulary(parameters, "without_embedding", 1024) / published < 1.6


def test_it_grows_with_the_size_and_keeps_within_its_bounds():
    found = [fitted_vocabulary(size, "total", 128) for size in (1e4, 1e5, 1e6, 1e7, 1e8, 1e9, 1e10, 1e12)]
    assert found == sorted(found)
    assert (found[0], found[-1]) == (256, 262_144)
