"""Instructions of every kind and split: right answers pass, wrong ones fail, and the splits share nothing."""

import json
import re
import subprocess
import sys
from itertools import islice, pairwise

import pytest

from linnet.core.errors import UserError
from linnet.data.prompts import prompt_of
from linnet.stories import signatures
from linnet.stories.instructions import KINDS, SPLITS, examples
from linnet.stories.instructions.example import HELD_OUT_NAMES, SEEN_NAMES

PER_KIND = 40
KIND_NAMES = sorted(KINDS)


def rows(split, kinds=(), seed=3, count=PER_KIND):
    return list(islice(examples(seed, split, kinds), count * (len(kinds) or len(KINDS))))


@pytest.fixture(scope="module")
def by_split():
    return {split: rows(split) for split in SPLITS}


@pytest.mark.parametrize("kind", KIND_NAMES)
def test_the_reference_passes_and_the_rejected_answer_fails(by_split, kind):
    for split in SPLITS:
        found = [row for row in by_split[split] if row["type"] == kind]
        assert len(found) == PER_KIND
        for row in found:
            prompt = prompt_of(row, split)
            assert prompt.checker.score(prompt.reference) == 1, row
            assert prompt.checker.score(row["rejected"]) < 1, row
            assert prompt.checker.score("") < 1 and prompt.checker.score("I am a bird.") < 1, row
            assert 0 <= row["chance"] <= 0.5


@pytest.mark.parametrize("kind", KIND_NAMES)
def test_the_answer_of_another_example_fails(by_split, kind):
    """A checker that accepts nearly everything would teach nothing; short answers may agree by chance."""
    if kind == "impossible":
        pytest.skip("all have the same answer")
    prompts = [prompt_of(row, "") for row in by_split["train"] if row["type"] == kind]
    accepted = sum(one.checker.passes(other.reference) for one, other in pairwise(prompts))
    assert accepted <= PER_KIND // 4


def test_no_setting_of_training_is_in_another_split(by_split):
    settings = {split: {tuple(row["signature"]) for row in found} for split, found in by_split.items()}
    for split in SPLITS[1:]:
        assert not settings["train"] & settings[split], split
    told = [tuple(row["signature"]) for row in by_split["train"] if row["type"] in ("retell", "order", "questions")]
    assert set(told) <= signatures("train")


def test_names_are_held_out(by_split):
    seen, held_out = (re.compile(rf"\b({'|'.join(names)})\b", re.IGNORECASE) for names in (SEEN_NAMES, HELD_OUT_NAMES))
    capital = re.compile(r"[A-Z]\w*")

    def names_in(split, pattern):
        words = {word for row in by_split[split] for word in capital.findall(json.dumps(row))}
        return {word for word in words if pattern.fullmatch(word)}

    for split in SPLITS:
        renamed = split == "held-out-names"
        assert bool(names_in(split, held_out)) == renamed
        assert bool(names_in(split, seen)) != renamed
    assert len(names_in("held-out-names", held_out)) >= len(HELD_OUT_NAMES)


def test_templates_are_held_out(by_split):
    templates = {split: {one for row in found for one in row["templates"]} for split, found in by_split.items()}
    assert all(row["templates"] for row in by_split["train"] if not row["type"].startswith("retell"))
    for split in SPLITS[:3]:
        assert not templates["held-out-templates"] & templates[split], split
    assert len(templates["held-out-templates"]) >= 25


def test_equal_arguments_give_equal_rows_whatever_the_hash_seed():
    code = "from itertools import islice; from linnet.stories.instructions import examples, KINDS\n"
    code += "import json; print(json.dumps(list(islice(examples(5, 'held-out-names'), 2 * len(KINDS)))))"
    printed = [
        subprocess.run([sys.executable, "-c", code], env={"PYTHONHASHSEED": seed, "PYTHONPATH": ":".join(sys.path)},
                       capture_output=True, check=True).stdout
        for seed in ("1", "2")
    ]  # fmt: skip
    assert printed[0] == printed[1]
    assert rows("train", seed=1, count=1) != rows("train", seed=2, count=1)


def test_sums_with_and_without_steps_are_the_same():
    direct, steps = (rows("validation", [kind], count=20) for kind in ("arithmetic", "steps"))
    assert [row["signature"] for row in direct] == [row["signature"] for row in steps]


def test_prompts_are_different():
    found = rows("train", count=60)
    assert len({json.dumps(row["messages"][:-1]) for row in found}) > 0.97 * len(found)


@pytest.mark.parametrize(("split", "kind"), [("test", "retell"), ("train", "retel")])
def test_an_unknown_split_or_kind_is_refused(split, kind):
    with pytest.raises(UserError, match=r"expected one of train|did you mean retell"):
        examples(0, split, [kind])
