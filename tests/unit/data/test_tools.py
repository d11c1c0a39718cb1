"""Calls of tools are found in answers and run; what goes wrong is told to the model."""

import json
from pathlib import Path

import pytest

from linnet.core.errors import UserError
from linnet.data.tools import CALCULATOR_ALONE, Tools, calculate, describe_function, load_tools
from linnet.stories.instructions import examples

OWN = '''"""Tools of a test."""
import json
from math import sqrt

FACTOR = 3


def temperature(city: str, days: int = 1, exact: float | None = None, *, names: list[str] = ()) -> dict:
    """The temperature of a city."""
    if city == "Nowhere":
        raise LookupError("no such\\ncity")
    return {"city": city, "degrees": FACTOR * days}


def _hidden():
    return 1


def shout(text):
    return text.upper()
'''


@pytest.fixture
def own(tmp_path: Path) -> Path:
    (tmp_path / "own.py").write_text(OWN)
    return tmp_path / "own.py"


def contents(tools: Tools, answer: str) -> list[str]:
    return [message["content"] for message in tools.results(answer)]


@pytest.mark.parametrize(
    ("expression", "value"),
    [
        ("12 * 3", "36"), ("(2 + 3) * -4", "-20"), ("7 / 2", "3.5"), ("6 / 2", "3"), ("2 ** 10", "1024"),
        ("1,000 + 1", "1001"), ("3 × 4", "12"), ("2^3", "8"), ("17 // 5 + 17 % 5", "5"), (7, "7"),
        ("1 / 3", "0.3333333333"),
    ],
)  # fmt: skip
def test_the_calculator_knows_arithmetic(expression: str, value: str):
    assert calculate(expression) == value


@pytest.mark.parametrize(
    "expression", ["__import__('os')", "a + 1", "'a' * 3", "1 if 2 else 3", "2 +", "9 ** 9 ** 9", "1+" * 200 + "1", ""]
)
def test_the_calculator_knows_nothing_else(expression: str):
    with pytest.raises(ValueError, match=r"not an expression|too large|more than 300 characters"):
        calculate(expression)


def test_what_a_function_raises_or_returns_ends_no_conversation(tmp_path: Path):
    def ends() -> None:
        raise SystemExit(3)

    tools = Tools({"ends": ends, "pairs": lambda: {(1, 2): 3}})
    assert contents(tools, "ends()") == ["error: SystemExit: 3"]
    assert contents(tools, "pairs()")[0].startswith("error: TypeError: keys must be")
    (tmp_path / "ends.py").write_text("def f(): pass\nraise SystemExit(3)\n")
    with pytest.raises(UserError, match=r"ends\.py: SystemExit: 3"):
        load_tools([tmp_path / "ends.py"])


def test_what_goes_wrong_is_told_to_the_model():
    assert contents(CALCULATOR_ALONE, "calculator(1 / 0)") == ["error: ZeroDivisionError: division by zero"]
    assert contents(CALCULATOR_ALONE, "calculator(2 +)") == ["error: ValueError: 2 +: not an expression of numbers"]
    unknown = '<tool_call>{"name": "calcultor", "arguments": {}}</tool_call>'
    assert contents(CALCULATOR_ALONE, unknown) == ["error: calcultor: no such tool; did you mean calculator?"]
    assert contents(CALCULATOR_ALONE, "<tool_call>{</tool_call>")[0].startswith("error: not a JSON object")
    assert contents(CALCULATOR_ALONE, '<tool_call>{"name": 3}</tool_call>')[0].startswith("error: expected {")


def test_a_call_is_a_whole_answer_or_stands_between_marks(own: Path):
    tools = load_tools(["calculator", own])
    assert contents(tools, " calculator(12 * 3)\n") == ["36"]
    for answer in ("It is calculator(12 * 3).", "36", "other(3)", "calculator", "", "calculator(1) and more"):
        assert tools.calls(answer) == [] == tools.results(answer)
    both = (
        'Let me see. <tool_call>{"name": "shout", "arguments": {"text": "hi"}}</tool_call>'
        '<tool_call>\n{"name": "temperature", "arguments": "{\\"city\\": \\"Ulm\\", \\"days\\": 2}"}\n</tool_call>'
    )
    assert tools.results(both) == [
        {"role": "tool", "name": "shout", "content": "HI"},
        {"role": "tool", "name": "temperature", "content": '{"city": "Ulm", "degrees": 6}'},
    ]
    assert contents(tools, 'temperature("Ulm", days=3)') == ['{"city": "Ulm", "degrees": 9}']
    assert contents(tools, 'temperature("Nowhere")') == ["error: LookupError: no such city"]


def test_the_functions_of_a_file_are_described_by_their_annotations(own: Path, tmp_path: Path):
    tools = load_tools(["calculator", own])
    assert list(tools.functions) == ["calculator", "temperature", "shout"]
    described = tools.described[0]["function"]
    assert described["name"] == "temperature" and described["description"] == "The temperature of a city."
    types = {name: each["type"] for name, each in described["parameters"]["properties"].items()}
    assert types == {"city": "string", "days": "integer", "exact": "number", "names": "array"}
    assert described["parameters"]["required"] == ["city"]
    assert json.loads(json.dumps(tools.described[1]))["function"]["parameters"]["properties"] == {
        "text": {"type": "string"}
    }

    def late(one: "list[int]", two: "bool" = True, *rest: int, **others: int) -> None: ...

    assert describe_function("late", late)["function"]["parameters"]["properties"] == {
        "one": {"type": "array"}, "two": {"type": "boolean"},
    }  # fmt: skip
    (tmp_path / "empty.py").write_text("from math import sqrt\n")
    (tmp_path / "wrong.py").write_text("1 / 0\n")
    for named, expected in (
        (["calc"], "tools: calc: no such file; expected calculator, or a Python file"),
        ([tmp_path], f"tools: {tmp_path}: expected calculator, or a Python file"),
        ([tmp_path / "empty.py"], "empty.py: defines no function"),
        ([tmp_path / "wrong.py"], "wrong.py: ZeroDivisionError: division by zero"),
        ([own, own], "temperature: another tool has this name"),
    ):
        with pytest.raises(UserError, match=expected):
            load_tools(named)


def test_the_results_of_the_story_world_are_those_of_the_calculator():
    rows = examples(0, "train", ["calculator"])
    for _ in range(40):
        messages = next(rows)["messages"]
        assert CALCULATOR_ALONE.results(messages[-3]["content"]) == [messages[-2]]
