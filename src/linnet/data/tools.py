"""Tools that a model may call in its answers: they are run, and their results are told to the model as messages.

A call is an answer that is nothing but `name(arguments)`, as the story world writes it, or each
`<tool_call>{"name": ..., "arguments": {...}}</tool_call>` in an answer, as linnet's chat template and those of Hermes
and Qwen do. A result, or what went wrong, becomes a message of the role `tool`. `calculator` is built in; a Python file
brings others, one for each public function.
"""

import ast
import inspect
import json
import re
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, get_args, get_origin

from linnet.core.errors import UserError, did_you_mean, one_line
from linnet.core.files import run_python_file

CALCULATOR = "calculator"

MAX_ROUNDS = 4
"""How often a model may call tools before it has to answer, unless another number is given."""

_CALL = re.compile(r"([A-Za-z_]\w*)\((.*)\)\.?", re.DOTALL)
_JSON_CALL = re.compile(r"<tool_call>(.*?)</tool_call>", re.DOTALL)
_JSON_TYPES = {str: "string", int: "integer", float: "number", bool: "boolean", list: "array", dict: "object"}
_ARITHMETIC: Mapping[type[ast.AST], Callable[..., float]] = {
    ast.Add: lambda a, b: a + b,
    ast.Sub: lambda a, b: a - b,
    ast.Mult: lambda a, b: a * b,
    ast.Div: lambda a, b: a / b,
    ast.FloorDiv: lambda a, b: a // b,
    ast.Mod: lambda a, b: a % b,
    ast.Pow: lambda a, b: a**b,
    ast.USub: lambda a: -a,
    ast.UAdd: lambda a: a,
}
_MAX_POWER, _MAX_DIGITS, _MAX_RESULT = 1000, 300, 2000


@dataclass(frozen=True)
class ToolCall:
    """A call in an answer. values: by position; named: by name. problem: why it cannot be run; None if it can."""

    text: str
    name: str
    values: tuple[Any, ...] = ()
    named: Mapping[str, Any] = field(default_factory=dict)
    problem: str | None = None


@dataclass(frozen=True)
class Tools:
    """Functions by the names under which a model calls them. described: those that the chat template lists."""

    functions: Mapping[str, Callable[..., Any]]
    described: tuple[Mapping[str, Any], ...] = ()

    def calls(self, answer: str) -> list[ToolCall]:
        """The calls of an answer, in order; none in an ordinary one."""
        found = [_json_call(match[1].strip()) for match in _JSON_CALL.finditer(answer)]
        whole = _CALL.fullmatch(answer.strip())
        if found or whole is None or whole[1] not in self.functions:
            return found
        return [_text_call(whole[0], whole[1], whole[2])]

    def results(self, answer: str) -> list[dict[str, Any]]:
        """Run the calls of an answer: a message of the role `tool` for each; none for an ordinary answer."""
        return [result_message(call, self.run(call)) for call in self.calls(answer)]

    def run(self, call: ToolCall) -> str:
        """What a call gives, as text; what went wrong is told to the model, which may try again."""
        if call.problem is not None:
            return f"error: {call.problem}"
        if call.name not in self.functions:
            known = f"expected {', '.join(self.functions)}"
            return f"error: {call.name}: no such tool; {did_you_mean(call.name, self.functions, known)}"
        try:
            found = self.functions[call.name](*call.values, **call.named)
            return found if isinstance(found, str) else json.dumps(found, ensure_ascii=False, default=str)
        except (Exception, SystemExit) as error:  # a function of the user's may raise any, or return what JSON has not
            return f"error: {one_line(f'{type(error).__name__}: {error}')}"


def result_message(call: ToolCall, content: str) -> dict[str, Any]:
    """The message that tells the model what a call gave."""
    return {"role": "tool", "name": call.name, "content": content}


def load_tools(named: Sequence[str | Path]) -> Tools:
    """The tools of these names: `calculator`, or Python files, whose public functions are tools.

    `UserError` for another name, a file that cannot be run or has no function, and two tools of one name.
    """
    functions, described = dict[str, Callable[..., Any]](), list[Mapping[str, Any]]()
    for name in map(str, named):
        found = {CALCULATOR: calculate} if name == CALCULATOR else _functions_of(Path(name))
        for own in found:
            if own in functions:
                raise UserError(f"{name}: {own}: another tool has this name", field="tools")
        functions |= found
        if name != CALCULATOR:
            described += [describe_function(own, function) for own, function in found.items()]
    return Tools(functions, tuple(described))


def calculate(expression: str | float) -> str:
    """The value of an expression of numbers, + - * / // % ** and parentheses; `ValueError` for anything else."""
    text = str(expression).replace(",", "").replace("\u00d7", "*").replace("^", "**").strip()
    if len(text) > _MAX_DIGITS:
        raise ValueError(f"more than {_MAX_DIGITS} characters")
    try:
        tree = ast.parse(text, mode="eval")
    except SyntaxError:
        raise ValueError(f"{text}: not an expression of numbers") from None
    value = _value(tree.body)
    if isinstance(value, float) and value.is_integer() and abs(value) < 1e15:
        return str(int(value))
    return f"{value:.10g}" if isinstance(value, float) else str(value)


CALCULATOR_ALONE = Tools({CALCULATOR: calculate})
"""The tool of the story world."""


def _value(node: ast.expr) -> float:
    if isinstance(node, ast.Constant) and type(node.value) in (int, float):
        return node.value  # type: ignore[return-value]
    if isinstance(node, ast.UnaryOp) and type(node.op) in _ARITHMETIC:
        return _ARITHMETIC[type(node.op)](_value(node.operand))
    if isinstance(node, ast.BinOp) and type(node.op) in _ARITHMETIC:
        left, right = _value(node.left), _value(node.right)
        if isinstance(node.op, ast.Pow) and (abs(right) > _MAX_POWER or abs(left) > 10**_MAX_POWER):
            raise ValueError("a power that is too large")
        value = _ARITHMETIC[type(node.op)](left, right)
        if isinstance(value, complex) or (isinstance(value, int) and value.bit_length() > 4 * _MAX_RESULT):
            raise ValueError("a result that is too large, or no number")
        return value
    raise ValueError("not an expression of numbers")


def _json_call(text: str) -> ToolCall:
    """A call in JSON; the arguments may be JSON text of their own."""
    try:
        plain = json.loads(text)
        arguments = plain.get("arguments", plain.get("parameters", {}))
        arguments = json.loads(arguments) if isinstance(arguments, str) else arguments
    except (ValueError, AttributeError, RecursionError):
        return ToolCall(text, "", problem='not a JSON object {"name": ..., "arguments": {...}}')
    if not isinstance(plain.get("name"), str) or not isinstance(arguments, dict):
        return ToolCall(text, str(plain.get("name", "")), problem='expected {"name": ..., "arguments": {...}}')
    return ToolCall(text, plain["name"], named=arguments)


def _text_call(text: str, name: str, inside: str) -> ToolCall:
    """`name(...)`: values are literals, as Python writes them; anything else is handed on as its text."""
    try:
        tree = ast.parse(f"f({inside})", mode="eval").body
    except (SyntaxError, ValueError, RecursionError):
        return ToolCall(text, name, (inside,))
    if not isinstance(tree, ast.Call):
        return ToolCall(text, name, (inside,))

    def literal(node: ast.expr) -> Any:
        try:
            return ast.literal_eval(node)
        except (ValueError, SyntaxError, TypeError, RecursionError):
            return ast.get_source_segment(f"f({inside})", node)

    named = {each.arg: literal(each.value) for each in tree.keywords if each.arg is not None}
    return ToolCall(text, name, tuple(map(literal, tree.args)), named)


def _functions_of(path: Path) -> dict[str, Callable[..., Any]]:
    """The public functions that a Python file defines itself."""
    if path.suffix != ".py" or not path.is_file():
        problem = "" if path.exists() else "no such file"
        raise UserError(problem, field="tools", value=path, accepted=f"{CALCULATOR}, or a Python file with functions")
    names = run_python_file(path, "tools")
    found: dict[str, Callable[..., Any]] = {
        name: value
        for name, value in names.items()
        if inspect.isfunction(value) and not name.startswith("_") and value.__code__.co_filename == str(path)
    }
    if not found:
        raise UserError(f"{path}: defines no function; expected at least one", field="tools")
    return found


def describe_function(name: str, function: Callable[..., Any]) -> dict[str, Any]:
    """A function as chat templates list it: name, description and parameters as a JSON schema.

    The description is the docstring; the types are those of the annotations, `string` where there is none.
    """
    properties, required = dict[str, Any](), list[str]()
    for parameter in inspect.signature(function).parameters.values():
        if parameter.kind in (parameter.VAR_POSITIONAL, parameter.VAR_KEYWORD):
            continue
        properties[parameter.name] = {"type": _json_type(parameter.annotation)}
        if parameter.default is parameter.empty:
            required.append(parameter.name)
    schema = {"type": "object", "properties": properties, "required": required}
    own = {"name": name, "description": inspect.getdoc(function) or "", "parameters": schema}
    return {"type": "function", "function": own}


def _json_type(annotation: Any) -> str:
    """The JSON type of an annotation; of `int | None` and the like that of the first type."""
    if annotation in _JSON_TYPES:
        return _JSON_TYPES[annotation]
    known = [each for each in (get_origin(annotation), *get_args(annotation)) if each in _JSON_TYPES]
    by_name = {each.__name__: kind for each, kind in _JSON_TYPES.items()}
    return _JSON_TYPES[known[0]] if known else by_name.get(str(annotation).partition("[")[0], "string")
