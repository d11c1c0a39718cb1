from collections.abc import Callable

import pytest
from small_cast import BALL, BERRIES, HAT

from linnet.stories.language import indefinite, listed


@pytest.mark.parametrize(
    ("function", "argument", "text"),
    [
        (indefinite, HAT, "an old hat"),
        (indefinite, BALL, "a red ball"),
        (indefinite, BERRIES, "some sweet berries"),
        (listed, ["Lily"], "Lily"),
        (listed, ["Lily", "Ben", "Mom"], "Lily, Ben and Mom"),
    ],
)
def test_english(function: Callable[[object], str], argument: object, text: str) -> None:
    assert function(argument) == text
