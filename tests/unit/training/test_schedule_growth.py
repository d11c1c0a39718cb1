import json

import pytest
from hypothesis import given
from hypothesis import strategies as st

from linnet.core.errors import UserError
from linnet.model.spec import ModelSpec
from linnet.training.run import train_run
from linnet.training.schedule import Growth, steps_for
from linnet.training.sections import GrowthSpec

SPEC = GrowthSpec(context_length=((0.25, 4), (0.5, 8)), batch_size=((0.4, 2),))


def test_a_stage_begins_at_each_entry_of_either_list():
    stages = Growth(SPEC, 20, 6, 16, 3).stages
    assert [(stage.begins, stage.ends, stage.batch_size, stage.context_length) for stage in stages] == [
        (0, 5, 2, 4), (5, 8, 2, 8), (8, 10, 6, 8), (10, 20, 6, 16),
    ]  # fmt: skip
    growth = Growth(SPEC, 20, 6, 16, 3)
    for step in range(1, 30):
        assert growth.stage(step) == next((s for s in stages if s.begins < step <= s.ends), stages[-1])
    each = [growth.stage(step).step_tokens for step in range(1, 21)]
    assert each[0] == 3 * 2 * 4 and each[-1] == 3 * 6 * 16
    for first in range(21):
        for last in range(first, 21):
            assert growth.tokens(first, last) == sum(each[first:last])


def test_a_mean_over_tokens_weighs_the_stages():
    growth = Growth(SPEC, 20, 6, 16, 3)
    tokens = [5 * 8, 3 * 16, 2 * 48, 10 * 96]
    expected = sum(count * length for count, length in zip(tokens, (4, 8, 8, 16), strict=True)) / sum(tokens)
    assert growth.mean(float, 0, 20) == pytest.approx(expected)
    assert growth.mean(float, 4, 5) == 4 and growth.mean(float, 5, 10) == 8 and growth.mean(float, 0, 0) == 4


@given(
    st.integers(1, 5000),
    st.lists(st.floats(0.01, 0.99), max_size=3, unique=True),
    st.lists(st.floats(0.01, 0.99), max_size=3, unique=True),
)
def test_tokens_become_the_smallest_sufficient_number_of_steps(tokens, lengths, batches):
    spec = GrowthSpec(
        context_length=tuple(zip(sorted(lengths), (1, 2, 4), strict=False)),
        batch_size=tuple(zip(sorted(batches), (1, 3, 5), strict=False)),
    )
    steps = steps_for(tokens, spec, 7, 8, 2)
    assert Growth(spec, steps, 7, 8, 2).tokens(0, steps) >= tokens
    assert steps == 1 or Growth(spec, steps - 1, 7, 8, 2).tokens(0, steps - 1) < tokens


def test_short_windows_may_keep_the_tokens_of_a_batch():
    stages = Growth(SPEC.model_copy(update={"keep_tokens": True}), 20, 6, 16, 3).stages
    assert [(stage.batch_size, stage.context_length) for stage in stages] == [(8, 4), (4, 8), (12, 8), (6, 16)]
    assert [stage.step_tokens for stage in stages] == [96, 96, 288, 288]
    with pytest.raises(UserError, match="keep_tokens: True: needs shorter windows"):
        GrowthSpec.parse({"keep_tokens": True}, "test")


def test_without_growth_there_is_one_stage():
    growth = Growth(GrowthSpec(), 20, 6, 16, 3)
    assert growth.tokens(0, 20) == 20 * 3 * 6 * 16 and len(growth.stages) == 1
    assert steps_for(20 * 96 + 1, GrowthSpec(), 6, 16, 1) == 21


def test_shares_become_numbers_of_steps_once(tiny_run):
    run = tiny_run(steps=200, growth={"context_length": [[0.25, 4]], "batch_size": [[0.5, 1]]}).resolved()
    assert run.training.growth == GrowthSpec(context_length=((50, 4),), batch_size=((100, 1),))
    assert run.resolved() == run
    assert type(run).parse(json.loads(json.dumps(run.to_dict())), "again") == run


@pytest.mark.parametrize(
    ("growth", "part"),
    [
        ({"context_length": [[0.5, 16]]}, "training.growth.context_length: 16: must be below training.context_length"),
        ({"context_length": [[0.5, 5]]}, "training.growth.context_length: 5: .*16, and divide it"),
        ({"batch_size": [[0.5, 2]]}, "training.growth.batch_size: 2: must be below training.batch_size, 2"),
        ({"context_length": [[0.5, 8], [0.6, 4]]}, r"context_length: \[0.6, 4\] after \[0.5, 8\]: must ascend"),
        ({"context_length": [[0.5, 4], [0.4, 8]]}, r"context_length: \[0.4, 8\] after \[0.5, 4\]: must ascend"),
        ({"context_length": [[1.5, 4]]}, "until 1.5: must be a share below 1, or a whole number of steps"),
        ({"context_length": [[0.5, 4], [9, 8]]}, "shares and numbers of steps: give all ends in one"),
        ({"batch_size": [[-1, 2]]}, "greater than 0"),
        (
            {"context_length": [[2, 4], [5000, 8]]},
            r"growth.context_length: until step 5,000: must be at most \d+",
        ),
    ],
)
def test_growth_must_ascend(growth, part, tiny_run):
    with pytest.raises(UserError, match=part):
        tiny_run(growth=growth).resolved()


POSITIONS = {
    **{kind: ({}, {"rotary": None, "positions": {"kind": kind}}) for kind in ("alibi", "t5", "shaw")},
    **{kind: ({"positions": kind}, {"rotary": None}) for kind in ("none", "learned", "sinusoidal")},
    **{
        kind: ({}, {"rotary": {"scaling": {"kind": kind, "factor": 2.0, **more}}})
        for kind, more in (("linear", {}), ("ntk", {}), ("yarn", {"trained": 8}))
    },
}


@pytest.mark.parametrize("kind", POSITIONS)
def test_windows_grow_whatever_the_positions(kind, tmp_path, tiny_run, tiny_model, quick):
    embedding, mixer = POSITIONS[kind]
    run = tiny_run(steps=4, growth={"context_length": [[1, 4], [2, 8]]}, evaluate={"every": 4, "tokens": 64})
    model = tiny_model(embedding=embedding).model_dump()
    model["blocks"][0]["mixer"] |= mixer
    summary = train_run(run.model_copy(update={"model": ModelSpec.parse(model, kind)}), tmp_path).summary
    assert summary["tokens"] == 2 * (4 + 8 + 2 * 16)
    losses = [
        line["loss"]
        for line in map(json.loads, (tmp_path / "metrics.jsonl").read_text().splitlines())
        if "loss" in line
    ]
    assert losses and all(3 < loss < 8 for loss in losses)
