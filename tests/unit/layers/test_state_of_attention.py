"""The table of the bytes that each kind of attention keeps, on attention's page, says what is allocated."""

from pathlib import Path

import pytest
import torch
import yaml

from linnet.layers.contract import Place
from linnet.layers.registry import MIXERS

PAGE = Path(__file__).resolve().parents[3] / "docs" / "layers" / "attention.md"
PLACE = Place(256, 1024)


def rows() -> list[list[str]]:
    section = PAGE.read_text().split("### Bytes of state")[1].split("\n## ")[0]
    lines = [line for line in section.splitlines() if line.startswith("|")]
    return [[cell.strip() for cell in line.strip("|").split("|")] for line in lines[2:]]


@pytest.mark.parametrize("row", rows(), ids=lambda row: row[0])
def test_a_row_of_the_table_is_what_is_kept(row: list[str]):
    _, description, per_token, *totals = row
    plain = yaml.safe_load(description.strip("`"))
    spec = MIXERS[plain["kind"]].parse(plain, "page")
    said = [int(total.replace(",", "")) for total in totals]
    mixer = spec.build(PLACE)
    allocated = [mixer.initial_state(1, tokens, torch.device("meta"), torch.float32).nbytes for tokens in (100, 10_000)]
    assert said == allocated == [spec.cost(PLACE).state_bytes(tokens) for tokens in (100, 10_000)]
    assert int(per_token.replace(",", "")) * 9_900 == said[1] - said[0]


def test_every_kind_is_there():
    assert len(rows()) >= 6
