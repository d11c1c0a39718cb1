from collections.abc import Iterator

import pytest
from known_laws import known_runs

from linnet.scaling import fit as fit_module
from linnet.scaling import parametric
from linnet.scaling.runs import Points, Run


@pytest.fixture(scope="session")
def runs() -> list[Run]:
    return known_runs()


@pytest.fixture(scope="session")
def noisy_runs() -> list[Run]:
    return known_runs(noise=0.005)


@pytest.fixture(scope="session")
def points(noisy_runs) -> Points:
    return Points.of(noisy_runs, "total")


@pytest.fixture(scope="module")
def few_starts() -> Iterator[int]:
    """Use every 100th start of the grid, for tests of the code around the fit; yields their number."""
    some = parametric.grid()[::100]
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(fit_module, "grid", lambda: some)
        yield len(some)
