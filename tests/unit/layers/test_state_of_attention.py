"""The table of state bytes on the page of attention has the allocated bytes."""

from pathlib import Path

import pytest
import torch
import yaml

from linnet.core.errors import UserError
from linnet.layers.batch_layout import BatchLayout
from linnet.layers.contract import Place
from linnet.layers.registry import MIXERS
from linnet.model.spec import ModelSpec

PAGE = Path(__file__).resolve().parents[3] / "docs" / "layers" / "attention.md"
PLACE = Place(256, 1024)


def rows() -> list[list[str]]:
    section = PAGE.read_text().split("### Bytes of state")[1].split("\n## ")[0]
    lines = [line for line in section.splitlines() if line.startswith("|")]
    return [[cell.strip() for cell in line.strip("|").split("|")] for line in lines[2:]]


@pytest.mark.parametrize("row", rows(), ids=lambda row: row[0])
def test_the_documented_sizes_are_the_allocated_ones(row: list[str]):
    _, description, per_token, *totals = row
    plain = yaml.safe_load(description.strip("`"))
    spec = MIXERS[plain["kind"]].parse(plain, "page")
    documented = [int(total.replace(",", "")) for total in totals]
    mixer = spec.build(PLACE)
    allocated = [mixer.initial_state(1, tokens, torch.device("meta"), torch.float32).nbytes for tokens in (100, 10_000)]
    assert documented == allocated == [spec.cost(PLACE).state_bytes(tokens) for tokens in (100, 10_000)]
    assert int(per_token.replace(",", "")) * 9_900 == documented[1] - documented[0]


def test_the_table_has_every_kind():
    assert len(rows()) >= 6


@torch.no_grad()
def test_sink_tokens_stay_with_a_window():
    """At any length, the outputs equal those of a stream without the dropped tokens, except for positions."""
    torch.manual_seed(0)
    plain = {"kind": "attention", "heads": 2, "window": 5, "sink_tokens": 3, "rotary": None}
    mixer = MIXERS["attention"].parse(plain, "test").build(Place(16, 64)).double()
    x_BTD = torch.randn(1, 60, 16, dtype=torch.float64)
    state = mixer.initial_state(1, 60, x_BTD.device, x_BTD.dtype)
    before = state.nbytes
    chunks = [
        mixer(x_BTD[:, a:b], state, BatchLayout(a)) for a, b in ((0, 2), (2, 4), (4, 21), (21, 22), (22, 59), (59, 60))
    ]
    kept_BTD = torch.cat([x_BTD[:, :3], x_BTD[:, 55:]], dim=1)
    torch.testing.assert_close(chunks[-1], mixer(kept_BTD)[:, -1:])
    torch.testing.assert_close(torch.cat(chunks, dim=1), mixer(x_BTD))
    assert state.nbytes == before == 2 * 16 * 8 * 8


@pytest.mark.parametrize("mixer", [{"sink_tokens": 2}, {"sink_tokens": 2, "window": 4, "positions": {"kind": "alibi"}}])
def test_sink_tokens_need_a_window_and_no_positions_by_distance(mixer: dict):
    block = {"mixer": {"kind": "attention", "heads": 2, **mixer}}
    with pytest.raises(UserError, match=r"mixer.sink_tokens: 2: must be null without a window, and with positions"):
        ModelSpec.parse({"vocab_size": 9, "d_model": 16, "context_length": 8, "blocks": [block]}, "test")
