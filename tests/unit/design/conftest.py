from typing import Any

import pytest

from linnet.design.space import Space, SpaceSpec, build_space


def plain_space(**changes: Any) -> dict[str, Any]:
    block = {
        "width": [8, 16, 24],
        "ratio": [1, 2],
        "repeat": [1, 2, 3],
        "share_weights": True,
        "head_width": 4,
        "mixer": {"kind": "attention"},
        "feed_forward": {"kind": "mlp"},
        **changes.pop("block", {}),
    }
    model = {"vocab_size": 31, "d_model": 16, "context_length": 64, **changes.pop("model", {})}
    return {"name": "small", "model": model, "blocks": 2, "block": block, **changes}


@pytest.fixture(scope="session")
def small_space():
    """`small_space(**changes)`: 18 blocks, two of them a model; `block` and `model` are merged, the rest replaced."""

    def make(**changes: Any) -> Space:
        return build_space(SpaceSpec.parse(plain_space(**changes), "small"), "small")

    return make
