"""Generated questions: rows of tokens, items of one split, and the answers that independent solvers find."""

import dataclasses
import hashlib
import json
import math
import re
from collections import Counter
from collections.abc import Callable, Sequence
from itertools import islice, permutations, product

import pytest
from hypothesis import given
from hypothesis import strategies as st

from linnet.core.errors import UserError
from linnet.data.tokenizer import Tokenizer
from linnet.evaluation.abilities.contract import Ability, AbilityItem, Question, SymbolEncoder, SymbolItem
from linnet.evaluation.abilities.symbols import (
    NUMBERS,
    Brackets,
    Copying,
    Counting,
    Induction,
    Recall,
    Rules,
    SelectiveCopying,
    Sorting,
    Tracking,
)
from linnet.evaluation.abilities.texts import SPOTS, Arithmetic, Needle, StoryFacts, Whereabouts
from linnet.ops.cross_entropy import IGNORE_INDEX
from linnet.stories.vocabulary.places import OUTDOORS

BYTES = SymbolEncoder(Tokenizer.train("bytes", []))
NO = IGNORE_INDEX


def test_an_answer_is_read_symbol_by_symbol_behind_its_prompt():
    item = SymbolItem.prompt_and_answer("ab|", "xy")
    tokens, targets = item.row(BYTES)
    assert tokens == [256, *b"ab|x"]
    assert targets == [NO, NO, NO, *b"xy"]
    assert item.identity == "ab|x"


def test_targets_need_not_be_read_afterwards():
    tokens, targets = SymbolItem("pq", (None, "7")).row(BYTES)
    assert (tokens, targets) == ([256, *b"pq"], [NO, NO, *b"7"])


def test_a_question_is_encoded_in_its_two_parts():
    tokens, targets = Question("how?", " so").row(BYTES)
    assert tokens == [256, *b"how? s"] and targets == [NO] * 4 + [*b" so"]
    assert len(tokens) == len(targets)


def test_symbols_can_be_encoded_if_each_is_one_token():
    assert BYTES.can_encode("ab|") and not BYTES.can_encode("ab\u4e00")
    own = SymbolEncoder(Tokenizer.train("char", ["ab\u4e00"]))
    assert own.can_encode("ab\u4e00") and not own.can_encode("\u4e01")


SMALL: list[Ability] = [
    Copying(length=6), SelectiveCopying(length=3, noise=5), Sorting(length=5, symbols=9),
    Counting(length=12, max_count=5), Brackets(length=9, max_depth=3), Recall(pairs=6, queries=4, distance=7),
    Induction(length=9), Rules(examples=4),
    Tracking(group="s3", length=5), Tracking(group="s5", length=5), Arithmetic(shots=2, instruction=True, steps=True),
    StoryFacts(shots=1), Needle(words=50), Whereabouts(steps=True),
]  # fmt: skip


def content(items: Sequence[AbilityItem]) -> str:
    """A hash of the items' data, whatever their classes and fields are called."""
    data = [dataclasses.astuple(item) for item in items]  # type: ignore[call-overload]
    return hashlib.sha256(json.dumps(data).encode()).hexdigest()[:12]


@pytest.mark.parametrize("ability", SMALL, ids=lambda one: one.kind)
def test_items_depend_on_sizes_seed_and_split_alone(ability: Ability):
    first = list(ability.items(3, seed=7))
    assert first == list(ability.items(3, seed=7)) == list(islice(ability.items(5, seed=7), 3))
    assert len({item.identity for item in first}) > 1
    assert first != list(ability.items(3, seed=8)) and first != list(ability.items(3, seed=7, split="train"))


def test_items_are_the_same_on_every_machine():
    found = {f"{one.kind} {number}": content(list(one.items(2, 7))) for number, one in enumerate(SMALL)}
    assert found == GOLDEN


@pytest.mark.parametrize(
    "ability", [Arithmetic(max_value=9), Counting(length=4, max_count=2), Rules(examples=2, modulus=5)]
)
def test_no_question_is_in_both_splits_whatever_the_seeds(ability: Ability):
    trained = {item.identity for seed in (0, 1) for item in ability.items(300, seed, "train")}
    held_out = {item.identity for seed in (0, 2) for item in ability.items(50, seed)}
    assert trained and held_out and not trained & held_out


def test_a_kind_with_too_few_questions_says_so():
    with pytest.raises(UserError, match="brackets length=1 max_depth=8: too few different questions to hold some out"):
        for split in ("train", "validation"):
            list(Brackets(length=1).items(1, split=split))


def answers(item: AbilityItem) -> list[str]:
    assert isinstance(item, SymbolItem)
    return [wanted for wanted in item.targets if wanted is not None]


def read(item: AbilityItem) -> str:
    assert isinstance(item, SymbolItem)
    return "".join(item.symbols)


@given(st.integers(0, 1 << 40), st.integers(1, 12), st.integers(0, 9))
def test_copies_are_what_stood_before_the_bar(seed: int, length: int, noise: int):
    for item in (
        next(Copying(length=length, symbols=26).items(1, seed, "train")),
        next(SelectiveCopying(length=length, noise=noise + 1, symbols=26).items(1, seed, "train")),
    ):
        said, _, again = read(item).partition("|")
        assert "".join(answers(item)) == said.replace(".", "") == again + answers(item)[-1]


def test_sorting_counting_induction():
    for item in Sorting(length=6, symbols=20).items(20):
        assert "".join(answers(item)) == "".join(sorted(read(item).partition("|")[0]))
    for item in Counting(length=20, max_count=12).items(20):
        assert answers(item) == [NUMBERS[read(item).count("a")]] and len(read(item)) == 21
    for item in Induction(length=20).items(20):
        assert answers(item) == [read(item)[read(item).index("!") + 1]] and len(read(item)) == 22


def test_the_depth_is_the_number_of_open_brackets():
    for item in Brackets(length=40, max_depth=4).items(20):
        depths = [read(item)[: n + 1].count("(") - read(item)[: n + 1].count(")") for n in range(40)]
        assert answers(item) == [NUMBERS[depth] for depth in depths] and max(depths) <= 4 and min(depths) >= 0


@given(st.integers(0, 1 << 40), st.integers(2, 20), st.integers(0, 30), st.data())
def test_recall_finds_the_neighbor_of_each_key(seed: int, pairs: int, distance: int, data: st.DataObject):
    queries = data.draw(st.integers(1, pairs))
    item = next(Recall(pairs=pairs, distance=distance, queries=queries).items(1, seed, "train"))
    text = read(item)
    assert len(text) == 2 * pairs + distance + queries and len(set(text[: 2 * pairs])) == 2 * pairs
    assert answers(item) == [text[text.index(key) + 1] for key in text[-queries:]]
    assert len(set(text[-queries:])) == queries and item.targets[:-queries] == (None,) * (2 * pairs + distance)


def test_recall_at_its_largest():
    item = next(Recall(pairs=256, key_symbols=512, value_symbols=512, distance=1 << 14).items(1))
    assert len(read(item)) == 256 * 3 + 16384 and len(answers(item)) == 256


@pytest.mark.parametrize(("group", "points"), [("s3", 3), ("s5", 5)])
def test_tracking_targets_are_products_of_permutations(group: str, points: int):
    ability = Tracking.model_validate({"group": group, "length": 12})
    things = dict(zip(ability.alphabet, permutations(range(points)), strict=True))
    for item in ability.items(10):
        at = list(range(points))
        for symbol, wanted in zip(read(item), answers(item), strict=True):
            at = [things[symbol][place] for place in at]
            assert things[wanted] == tuple(at)


def test_two_examples_determine_a_rule():
    ability = Rules(examples=6, modulus=7)
    for item in ability.items(20):
        numbers = [ability.alphabet.index(symbol) for symbol in read(item) + answers(item)[-1]]
        x, y = numbers[::2], numbers[1::2]
        factor = (y[1] - y[0]) * pow(x[1] - x[0], -1, 7) % 7
        assert factor and [(y[0] + factor * (other - x[0])) % 7 for other in x] == y and len(set(x)) == 6
        assert answers(item) == [ability.alphabet[number] for number in y]


def value(expression: str) -> int:
    first, *rest = re.findall(r"[+-]? ?\d+", expression)
    return int(first) + sum(int(term.replace(" ", "")) for term in rest)


def test_arithmetic_with_steps_and_examples():
    for item in Arithmetic(shots=2, instruction=True, steps=True, max_value=30).items(20):
        assert isinstance(item, Question)
        told, *lines = (item.prompt + item.answer).split("\n")
        assert told == "Add and subtract from left to right." and len(lines) == 3
        for line in lines:
            whole, step, answer = line.split(" = ")
            between = int(step.split()[0])
            assert value(whole) == value(step) == int(answer) and min(between, int(answer)) >= 0
            assert between == value(" ".join(whole.split()[:3])) <= 30 >= int(answer)


def place_by_facts(told: str, thing: str) -> list[str]:
    """The facts that lead from a thing to a place, found by reading: each by the last word that it is about."""
    facts = re.findall(r"[A-Z][^.?]*\.", told)
    path, sought = [], thing
    while True:
        fact = next(
            fact for fact in facts
            if re.fullmatch(rf"(The {sought} is .*|\w+ has the {sought}\.|{sought} is .*)", fact)
        )  # fmt: skip
        path.append(fact)
        if (found := re.fullmatch(r"The .* is inside the (.*)\.", fact)) or (
            found := re.fullmatch(r"(\w+) has the .*\.", fact)
        ):
            sought = found[1]
        else:
            return path


@pytest.mark.parametrize("hops", [1, 2, 3])
def test_facts_lead_to_the_place(hops: int):
    direct, written = (list(StoryFacts(hops=hops, people=5, steps=steps).items(20)) for steps in (False, True))
    for item, with_steps in zip(direct, written, strict=True):
        assert isinstance(item, Question) and isinstance(with_steps, Question) and item.prompt == with_steps.prompt
        told, asked = item.prompt.split(" Where is ")
        path = place_by_facts(told, asked.removeprefix("the ").removesuffix("?"))
        assert len(path) == hops and with_steps.answer == "".join(f" {fact}" for fact in path)
        assert path[-1].endswith(item.answer) and re.fullmatch(r" (in|at|on|by) the \w+\.", item.answer)


def parse_world(lines: Sequence[str]) -> tuple[dict[str, str], dict[str, str]]:
    """Who is where and who holds what in the end, by reading one sentence after another."""
    place_of, holder_of = dict[str, str](), dict[str, str]()
    for line in lines:
        if found := re.fullmatch(r"(\w+) is (\w+ the \w+) with the ([\w ]+)", line):
            place_of[found[1]], holder_of[found[3]] = found[2], found[1]
        elif found := re.fullmatch(r"(\w+) went to the (\w+)", line):
            assert not place_of[found[1]].endswith(f" {found[2]}"), "somewhere else"
            (place_of[found[1]],) = {place for place in ALL_PLACES if place.endswith(f" {found[2]}")}
        else:
            found = re.fullmatch(r"(\w+) gave the ([\w ]+) to (\w+)", line)
            assert found and holder_of[found[2]] == found[1] and place_of[found[1]] == place_of[found[3]]
            holder_of[found[2]] = found[3]
    return place_of, holder_of


ALL_PLACES = {place.at for place in OUTDOORS}


@pytest.mark.parametrize("hops", [1, 2])
def test_whereabouts_are_those_after_all_that_happened(hops: int):
    asked_for = set()
    both = [list(Whereabouts(hops=hops, people=4, moves=9, steps=steps).items(30)) for steps in (False, True)]
    for item, with_steps in zip(*both, strict=True):
        assert isinstance(item, Question) and isinstance(with_steps, Question) and item.prompt == with_steps.prompt
        *lines, asked = item.prompt.split(". ")
        place_of, holder_of = parse_world(lines)
        assert len(lines) == 4 + 9 and set(place_of.values()) <= ALL_PLACES
        subject = asked.removeprefix("Who has ").removeprefix("Where is ").removeprefix("the ").removesuffix("?")
        who = holder_of.get(subject, subject)
        if asked.startswith("Who has"):
            expected = [f" The {subject} is held by {who}."], f" {who}."
        else:
            held = [f" The {subject} is held by {who}."] if subject in holder_of else []
            expected = [*held, f" {who} is {place_of[who]}."], f" {place_of[who]}."
        assert (with_steps.answer, with_steps.final) == ("".join(expected[0]), expected[1]) and len(expected[0]) == hops
        assert item.answer == item.final == with_steps.final and with_steps.answer.endswith(expected[1])
        asked_for.add((asked.split()[0], subject in holder_of))
    assert asked_for == ({("Who", True), ("Where", False)} if hops == 1 else {("Where", True)})


def test_the_needle_occurs_once_at_any_line():
    places = []
    for item in Needle(words=150).items(15):
        assert isinstance(item, Question)
        *lines, asked = item.prompt.split("\n")
        (line,) = (number for number, line in enumerate(lines) if "key" in line)
        assert lines[line] == f"The silver key is{item.answer}" and asked.endswith("It is")
        assert sum(len(line.split()) for line in lines) >= 150 and item.answer[1:-1] in SPOTS
        places.append(line / (len(lines) - 1))
    assert min(places) < 0.3 and max(places) > 0.7


@pytest.mark.parametrize("ability", [one for one in SMALL if one.alphabet], ids=lambda one: one.kind)
def test_symbols_are_of_the_alphabet_and_each_once_in_it(ability: Ability):
    assert len(set(ability.alphabet)) == len(ability.alphabet)
    for item in ability.items(5):
        assert set(read(item)) | set(answers(item)) <= set(ability.alphabet)


def best_guesses(cases: Sequence[tuple[float, Sequence[str]]], told: bool) -> tuple[float, float]:
    """The best that who has read nothing can do: of one symbol, given the true ones before it if `told`; of all."""
    length, right = len(cases[0][1]), 0.0
    for place in range(length):
        seen: dict[object, Counter[str]] = {}
        for weight, answer in cases:
            seen.setdefault(tuple(answer[:place]) if told else None, Counter())[answer[place]] += weight  # type: ignore[assignment]
        right += sum(max(counts.values()) for counts in seen.values())
    whole: Counter[tuple[str, ...]] = Counter()
    for weight, answer in cases:
        whole[tuple(answer)] += weight  # type: ignore[assignment]
    return right / length, max(whole.values())


def bracket_cases(length: int, max_depth: int) -> list[tuple[float, list[str]]]:
    cases: list[tuple[float, list[int]]] = [(1.0, [0])]
    for _ in range(length):
        cases = [
            (weight / len(ways), [*depths, way])
            for weight, depths in cases
            for ways in [[way for way in (depths[-1] - 1, depths[-1] + 1) if 0 <= way <= max_depth]]
            for way in ways
        ]
    return [(weight, [NUMBERS[depth] for depth in depths[1:]]) for weight, depths in cases]


def rule_cases(examples: int, modulus: int) -> list[tuple[float, list[str]]]:
    drawn = [
        [str((factor * x + shift) % modulus) for x in numbers]
        for factor in range(1, modulus)
        for shift in range(modulus)
        for numbers in permutations(range(modulus), examples)
    ]
    return [(1 / len(drawn), answer) for answer in drawn]


def tracking_cases(length: int) -> list[tuple[float, list[str]]]:
    cases = []
    for changes in product(permutations(range(3)), repeat=length):
        state, states = (0, 1, 2), []
        for change in changes:
            state = tuple(state[point] for point in change)
            states.append(str(state))
        cases.append((6.0**-length, states))
    return cases


def choices(symbols: str, length: int, draw: Callable[[str, int], object]) -> list[tuple[float, Sequence[str]]]:
    drawn = list(draw(symbols, length))  # type: ignore[call-overload]
    return [(1 / len(drawn), sorted(letters)) for letters in drawn]


@pytest.mark.parametrize(
    ("ability", "cases", "told"),
    [
        (Sorting(length=3, symbols=7), choices("abcdefg", 3, permutations), True),
        (Sorting(length=5, symbols=6), choices("abcdef", 5, permutations), True),
        (Copying(length=3, symbols=4), [(4.0**-3, answer) for answer in product("abcd", repeat=3)], True),
        (SelectiveCopying(length=2, symbols=5), [(5.0**-2, answer) for answer in product("abcde", repeat=2)], True),
        (Brackets(length=7, max_depth=3), bracket_cases(7, 3), False),
        (Brackets(length=10, max_depth=9), bracket_cases(10, 9), False),
        (Rules(examples=3, modulus=5), rule_cases(3, 5), True),
        (Tracking(length=3), tracking_cases(3), True),
        (Recall(pairs=4, queries=3), [(1 / 24, answer) for answer in permutations("abcd", 3)], False),
    ],
    ids=lambda one: one.label if isinstance(one, Ability) else "",
)  # fmt: skip
def test_chance_equals_the_best_guess_over_all_cases(
    ability: Ability, cases: Sequence[tuple[float, Sequence[str]]], told: bool
):
    assert ability.chance == pytest.approx(best_guesses(cases, told), rel=1e-12)


@pytest.mark.parametrize(
    "ability",
    [Counting(length=12, max_count=3), Induction(length=5, symbols=4), Arithmetic(max_value=3),
     Arithmetic(max_value=2, steps=True),
     StoryFacts(people=2, hops=3), Whereabouts(people=3, moves=3)],
    ids=lambda one: one.label,
)  # fmt: skip
def test_chance_of_one_answer_is_the_share_of_the_most_frequent(ability: Ability):
    """Drawn without sides: within four standard errors."""
    from random import Random

    rng, drawn, found = Random(0), 4000, Counter[str]()
    for _ in range(drawn):
        item = ability.draw(rng)
        if isinstance(item, Question) and ability.kind == "facts":  # a guess among the places that are told, in order
            told = re.findall(r"is ((?:in|at|on|by) the \w+)\.", item.prompt)
            found[str(told.index(item.answer[1:-1]))] += 1
        elif isinstance(item, Question) and ability.kind == "whereabouts":
            told = sorted(re.findall(r"is (\w+ the \w+) with", item.prompt))
            found[str(told.index(item.answer[1:-1]))] += 1
        elif isinstance(item, Question):
            found[" ".join(re.findall(r"(?:^|= ?)? ?(\d+)(?: [+-]|$)", item.answer))] += 1
        else:
            found["".join(answers(item))] += 1
    chance = ability.chance.answer
    assert max(found.values()) / drawn == pytest.approx(chance, abs=4 * math.sqrt(chance * (1 - chance) / drawn))
    assert len(found) == round(1 / chance)


@pytest.mark.parametrize(
    ("plain", "said"),
    [
        ({"kind": "recall", "pairs": 40}, "key_symbols: 32: expected at least `pairs`, 40"),
        ({"kind": "recall", "pairs": 8, "queries": 9}, "queries: 9: expected at most `pairs`, 8"),
        ({"kind": "sorting", "length": 16}, "length: 16: expected fewer than `symbols`, 16"),
        ({"kind": "counting", "length": 5}, "max_count: 9: expected at most `length`, 5"),
        ({"kind": "rules", "modulus": 9}, "modulus: 9: expected a prime"),
        ({"kind": "rules", "examples": 12}, "examples: 12: expected at most `modulus`, 11"),
        ({"kind": "recal"}, "did you mean recall"),
        ({"kind": "tracking", "group": "s4"}, "group: 's4': must be 's3' or 's5'"),
    ],
)
def test_impossible_sizes_are_refused_by_name(plain: dict[str, object], said: str):
    from linnet.evaluation.abilities.suite import AbilitySuiteSpec

    with pytest.raises(UserError, match=re.escape(said)) as refused:
        AbilitySuiteSpec.parse({"abilities": [plain]}, "suite.yaml")
    assert str(refused.value).startswith("suite.yaml: abilities[0].")


GOLDEN = {
    "copying 0": "ab5730c5b07e",
    "selective_copying 1": "c89db0b29432",
    "sorting 2": "f33d0c4f999e",
    "counting 3": "1fbb0990f7f7",
    "brackets 4": "3359c2caac52",
    "recall 5": "4289c12292b1",
    "induction 6": "00e69f8f8bce",
    "rules 7": "7f17565c4a3c",
    "tracking 8": "24722e5e5686",
    "tracking 9": "1718b2323451",
    "arithmetic 10": "0262c3f995a4",
    "facts 11": "7c5525d1e5f4",
    "needle 12": "e1736227557a",
    "whereabouts 13": "469fb5a289dc",
}
"""Hashes of the first two items of seed 7: what was measured on them stays comparable."""
