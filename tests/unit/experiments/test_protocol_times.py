"""Ways of generating are checked, then timed in turn."""

from dataclasses import replace

import pytest
import torch
from protocol_models import save_models

from linnet.core.errors import UserError
from linnet.experiments.measures import CacheTimes
from linnet.experiments.protocol import (
    Contestant,
    ProtocolResult,
    Timed,
    check,
    contestants,
    time_in_turn,
    times_table,
)
from linnet.experiments.suite import Suite
from linnet.inference.language_model import load
from linnet.inference.readers import Caches

SPEC = CacheTimes(prompt_tokens=3, tokens=6, runs=2)
CPU = torch.device("cpu")


@pytest.fixture(scope="module")
def models(tmp_path_factory):
    return {name: load(path) for name, path in save_models(tmp_path_factory.mktemp("times")).items()}


def test_cache_settings_depend_on_the_model(models):
    said = {name: [one.caches.label for one in contestants(model, name, SPEC)] for name, model in models.items()}
    assert said == {"plga": ["none", "KV", "calibration", "KV and calibration"], "attention": ["none", "KV"]}


@pytest.mark.parametrize("name", ["plga", "attention"])
def test_every_cache_setting_is_checked(models, name):
    for one in contestants(models[name], name, SPEC):
        check(one, SPEC.tokens)
        ids = one.generate()
        wrong = [*ids[:-1], (ids[-1] + 1) % 257]
        with pytest.raises(UserError, match=f"{name}, caches {one.caches.label}: not timed: a token is"):
            check(replace(one, generate=lambda wrong=wrong: wrong), SPEC.tokens)
        with pytest.raises(UserError, match="not timed: 5 tokens; expected 6"):
            check(replace(one, generate=lambda ids=ids: ids[1:]), SPEC.tokens)


def test_wrong_output_is_not_timed(models):
    one = contestants(models["attention"], "a", SPEC)[0]
    nan = replace(one, logits_NV=lambda ids: torch.full((len(ids), 257), torch.nan))
    with pytest.raises(UserError, match="not timed"):
        time_in_turn([one, nan], SPEC)


def test_all_take_turns():
    turns = []

    def way(name):
        return Contestant(name, 1, Caches(), lambda: turns.append(name) or [0, 0], lambda ids: torch.eye(2)[[0, 0]])

    found = time_in_turn([way("a"), way("b")], CacheTimes(tokens=2, runs=2))
    assert turns == ["a", "b"] * 3 and [len(one.runs_s) for one in found] == [2, 2]


def timed(name, caches, *runs_s):
    return Timed(Contestant(name, 1234, caches, list, lambda ids: torch.zeros(1)), [*runs_s])


def test_milliseconds_by_setting_and_ratios_of_the_same_turn():
    found = [
        timed("ours", Caches(False, False), 4.0, 9.0, 8.0),
        timed("ours", Caches(), 1.0, 3.0, 2.0),
        timed("theirs", Caches(False, False), 5.0, 5.0, 5.0),
        timed("theirs", Caches(True, False), 2.0, 3.0, 8.0),
    ]
    spec = CacheTimes(runs=3, against=[{"name": "theirs", "folder": "x"}])
    table = times_table(found, spec, CPU)
    assert table.columns == [
        "model",
        "parameters",
        "none",
        "KV",
        "calibration",
        "KV and calibration",
        "none / all",
        "theirs / model",
    ]
    ours, theirs = table.rows
    assert ours == [
        "ours", "1,234", "8,000.0\n4,000.0 to 9,000.0", "–", "–", "2,000.0\n1,000.0 to 3,000.0", "4.00", "2.00",
    ]  # fmt: skip
    assert theirs[-1] == "1.00" and "The machine was busy" in table.meaning
    suite = Suite(name="t", measures={"cache_times": spec.model_dump()})
    told = ProtocolResult(suite, [], {}, found, CPU).to_dict()["cache_times"]["models"]["ours"]
    assert told["none_over_all"] == 4.0 and told["settings"][1]["runs_s"] == [1.0, 3.0, 2.0]
