"""Each checker passes what it describes and fails what is close to it; errors name place and field."""

from typing import get_args

import pytest

from linnet.core.errors import UserError
from linnet.data.checkers import UNITS, AnyChecker, LengthUnit, last_number, normalised, parse_checker

EXACT = {"kind": "exact", "answer": "In the park."}
LILY = {"kind": "contains", "words": ["Lily"]}
SHORT = {"kind": "length", "unit": "words", "at_most": 3}
JSON = {"kind": "json", "fields": {"name": "Lily", "age": 7}}
CASES = [
    (EXACT, ["in the park", " In the  park! ", '"In the park."'], ["the park", "in the park with Tom", ""]),
    ({"kind": "exact", "answer": "the ball"}, ["ball", "A ball.", "The ball"], ["balls", "theball"]),
    ({"kind": "one_of", "answers": ["red", "blue"]}, ["Red.", "blue"], ["red or blue", "green", ""]),
    ({"kind": "number", "value": 7}, ["7", "3 + 4 = 7.", "seven", "It is 7.0"], ["8", "77", "7 or 8", "", "x7"]),
    ({"kind": "number", "value": -1200.5}, ["-1,200.5", "−1200.5"], ["1200.5", "-1,200"]),
    ({"kind": "number", "value": 10, "tolerance": 0.5}, ["10.4", "9.5"], ["10.6"]),
    (LILY, ["Lily sang.", "and lily's"], ["Lilys sang", "She sang", ""]),
    ({"kind": "contains", "words": ["a b"], "at_least": 2, "at_most": 2}, ["a b, a  b"], ["a b", "a b a b a b"]),
    ({"kind": "lacks", "words": ["ball", ","]}, ["The balloon is big."], ["the Ball", "big, red", "1,000", "", " "]),
    (
        {"kind": "order", "words": ["Tom", "ball"]},
        ["Tom has a ball."],
        ["a ball of Tom", "Tom", "a ball", "balls, Tom"],
    ),
    ({"kind": "letter", "letter": "e", "at_least": 2}, ["Eve", "see"], ["he"]),
    (SHORT, ["one two three", "don't go"], ["one two three four", ""]),
    (
        {"kind": "length", "unit": "sentences", "at_least": 2, "at_most": 2},
        ['He ran. "Go!" he said.', "A. B"],
        ["One."],
    ),
    ({"kind": "length", "unit": "lines", "at_least": 2}, ["a\nb"], ["a\n\n"]),
    ({"kind": "length", "unit": "paragraphs", "at_least": 2}, ["a\n\nb", "a\n***\nb"], ["a\nb"]),
    ({"kind": "length", "unit": "bullets", "at_least": 2}, ["- a\n* b"], ["- a\n-b", "a - b - c"]),
    ({"kind": "length", "unit": "sections", "at_least": 1}, ["# A\ntext"], ["#A"]),
    (
        {"kind": "length", "unit": "highlights", "at_least": 1, "at_most": 1},
        ["so *big* it"],
        ["**big**", "*", "*a* *b*"],
    ),
    ({"kind": "length", "unit": "placeholders", "at_least": 1}, ["Dear [name]"], ["Dear []"]),
    ({"kind": "length", "unit": "capital_words", "at_least": 1}, ["He is BIG"], ["He is Big", "I am A"]),
    ({"kind": "begins_with", "text": "Once"}, [" Once upon"], ["once upon", "At once"]),
    ({"kind": "begins_with", "text": "Then", "paragraph": 2}, ["One.\n\nThen two."], ["Then", "Then\n\none"]),
    ({"kind": "ends_with", "text": "The end."}, ["... The end. "], ["The end. Or not", "the end."]),
    ({"kind": "form", "form": "quoted"}, ['"Hello."'], ['Say "hello"', '"a" and "b"']),
    ({"kind": "form", "form": "title"}, ["<<A day>>\nText", "<<A>> text"], ["<<>> text", "<A> text"]),
    ({"kind": "form", "form": "postscript"}, ["Text.\nP.S. More", "a\nP. S.: b"], ["Text. P.S. More", "a\nP.S."]),
    ({"kind": "case", "case": "upper"}, ["OH, NO!"], ["Oh, NO", "12"]),
    ({"kind": "case", "case": "lower"}, ["oh, no!"], ["Oh"]),
    ({"kind": "responses"}, ["one ****** two"], ["one", "one ****** One.", "one ******"]),
    (JSON, ['{"name": "lily", "age": 7, "x": 1}', '```json\n{"name": "Lily", "age": 7.0}\n```'], ['{"name": "Lily"}']),
    (JSON, [], ['{"name": "Lily", "age": "7"}', '{"name": "Lily", "age": true}', "[1]", "Lily, 7", '{"name"']),
    ({**JSON, "exactly": True}, ['{"age": 7, "name": "Lily"}'], ['{"age": 7, "name": "Lily", "x": 1}']),
    ({"kind": "json"}, ["[1, 2]"], ["[1, 2", ""]),
    ({"kind": "json", "fields": {"a": [1, {"b": True}]}}, ['{"a": [1, {"b": true}]}'], ['{"a": [1, {"b": 1}]}']),
    ({"kind": "all", "checkers": [LILY, SHORT]}, ["Lily sang."], ["Lily sang in the park.", "Tom sang."]),
    ({"kind": "any", "checkers": [LILY, EXACT]}, ["Lily sang.", "in the park"], ["Tom sang."]),
]
NAMES = [f"{number}-{case[0]['kind']}" for number, case in enumerate(CASES)]


@pytest.mark.parametrize(("plain", "right", "wrong"), CASES, ids=NAMES)
def test_right_answers_pass_and_close_ones_fail(plain, right, wrong):
    checker = parse_checker(plain, "row")
    assert {answer: checker.passes(answer) for answer in right} == dict.fromkeys(right, True)
    assert {answer: checker.passes(answer) for answer in wrong} == dict.fromkeys(wrong, False)


def test_every_kind_and_unit_has_a_case():
    kinds = {get_args(each.model_fields["kind"].annotation)[0] for each in get_args(get_args(AnyChecker)[0])}
    assert kinds == {plain["kind"] for plain, _, _ in CASES}
    assert set(get_args(LengthUnit)) == set(UNITS) == {plain["unit"] for plain, _, _ in CASES if "unit" in plain}


def test_a_part_of_what_is_asked_for_counts():
    checker = parse_checker({"kind": "all", "checkers": [LILY, SHORT, EXACT]}, "row")
    assert checker.score("Lily sang.") == pytest.approx(2 / 3)
    assert checker.score("in the park") == pytest.approx(2 / 3)


def test_what_does_not_count_in_a_short_answer():
    assert normalised(" “The  Red ball.” ") == "red ball"
    assert normalised("A") == "a"
    assert (last_number("1 then 2,500"), last_number("two or three"), last_number("none")) == (2500, 3, None)


@pytest.mark.parametrize(
    ("plain", "expected"),
    [
        ({"kind": "exakt", "answer": "a"}, "row 3: checker.kind: 'exakt': must be one of"),
        ({"answer": "a"}, "row 3: checker.kind: missing"),
        ("exact", "row 3: checker: 'exact': "),
        ({"kind": "exact"}, "row 3: checker.answer: missing"),
        ({"kind": "exact", "answer": "a", "case": 1}, "row 3: checker.case: unknown key"),
        ({"kind": "length", "unit": "words"}, "row 3: checker.at_least: missing, and so is at_most"),
        ({"kind": "length", "unit": "words", "at_least": 3, "at_most": 2}, "checker.at_least: 3: must be at most"),
        ({"kind": "all", "checkers": [{"kind": "number", "value": "x"}]}, "row 3: checker.checkers[0].value: 'x'"),
    ],
)
def test_an_error_names_the_field(plain, expected):
    with pytest.raises(UserError) as caught:
        parse_checker(plain, "row 3")
    assert expected in str(caught.value)
    assert "\n" not in str(caught.value)
