"""`make mutate`: edits layers and operations, one place at a time, in a copy of the tree; prints what the tests miss.

mutmut leaves out constants of modules and decorated functions, which hold what matters here; cosmic-ray starts a new
process for each edit, which takes seconds to import PyTorch. This one forks a process that has imported it.
"""

import argparse
import ast
import hashlib
import json
import os
import random
import shutil
import signal
import subprocess
import sys
import time
from collections.abc import Iterator
from pathlib import Path
from typing import NamedTuple

ROOT = Path(__file__).resolve().parents[2]
ROOMS = ("src/linnet/layers", "src/linnet/ops")
LEFT_OUT = ("/native/", "/kernels/", "/files.py", "/inspect.py", "__init__.py")
"""Tested with compilers and GPUs; no part of a layer's arithmetic."""
COPY, RESULTS = ROOT / "build/mutants/copy", ROOT / "build/mutants/results.jsonl"
EQUIVALENT = Path(__file__).with_name("equivalent_mutants.json")
"""For each source the edits that change no result, each with its reason."""
SHORTEST_LIMIT_S = 30.0
ARITHMETIC = {ast.Add: "-", ast.Sub: "+", ast.Mult: "/", ast.Div: "*"}
COMPARISONS = {
    ast.Lt: "<=", ast.LtE: "<", ast.Gt: ">=", ast.GtE: ">", ast.Eq: "!=", ast.NotEq: "==", ast.Is: "is not",
    ast.IsNot: "is", ast.In: "not in", ast.NotIn: "in",
}  # fmt: skip
NAMES = {"sin": "cos", "cos": "sin", "amax": "amin", "amin": "amax", "min": "max", "max": "min", "sigmoid": "tanh"}
NAMES |= {"tanh": "sigmoid", "silu": "relu", "tril": "triu", "triu": "tril", "sum": "mean", "mean": "sum"}
SILENT = (ast.Assert, ast.Raise, ast.Import, ast.ImportFrom, ast.JoinedStr, ast.FormattedValue)
NOT_ARITHMETIC = ("examples", "check", "describe", "__repr__")


class Edit(NamedTuple):
    """`old` at a line and between two places of the text becomes `new`."""

    line: int
    begin: int
    end: int
    old: str
    new: str

    def key(self, text: str) -> str:
        """The edit by the words of its line, which other lines may move."""
        start, stop = text.rfind("\n", 0, self.begin) + 1, text.find("\n", self.end)
        return f"{text[start : self.begin]}[{self.old} -> {self.new}]{text[self.end : stop]}".strip()


class Finder(ast.NodeVisitor):
    """The edits of one source."""

    def __init__(self, text: str) -> None:
        self.text, self.edits = text, list[Edit]()
        self.starts = [0]
        for line in text.splitlines(keepends=True):
            self.starts.append(self.starts[-1] + len(line))
        self.visit(ast.parse(text))

    def place(self, line: int, column: int) -> int:
        start = self.starts[line - 1]
        return start + len(self.text[start : self.starts[line]].encode()[:column].decode())

    def span(self, node: ast.expr) -> tuple[int, int]:
        assert node.end_lineno is not None and node.end_col_offset is not None
        return self.place(node.lineno, node.col_offset), self.place(node.end_lineno, node.end_col_offset)

    def add(self, node: ast.expr, begin: int, end: int, new: str) -> None:
        self.edits.append(Edit(self.text.count("\n", 0, begin) + 1, begin, end, self.text[begin:end], new))

    def visit(self, node: ast.AST) -> None:
        """Everything but messages, annotations, docstrings and checks of what a user gave."""
        if isinstance(node, SILENT) or (isinstance(node, ast.FunctionDef) and node.name in NOT_ARITHMETIC):
            return
        if isinstance(node, ast.FunctionDef | ast.ClassDef):
            defaults = node.args.defaults if isinstance(node, ast.FunctionDef) else []
            for part in (*node.body, *defaults):
                self.visit(part)
        elif isinstance(node, ast.AnnAssign):
            if node.value is not None:
                self.visit(node.value)
        elif not (isinstance(node, ast.Assign) and "Literal" in ast.unparse(node.value)):
            super().visit(node)

    def visit_Constant(self, node: ast.Constant) -> None:
        if isinstance(node.value, bool):
            self.add(node, *self.span(node), str(not node.value))
        elif isinstance(node.value, int | float):
            new = node.value + 1 if isinstance(node.value, int) else node.value * 1.25 or 0.25
            self.add(node, *self.span(node), repr(new))

    def visit_UnaryOp(self, node: ast.UnaryOp) -> None:
        if isinstance(node.op, ast.USub | ast.Not):
            self.add(node, self.span(node)[0], self.span(node.operand)[0], "")
        self.visit(node.operand)

    def visit_BinOp(self, node: ast.BinOp) -> None:
        left, right = self.span(node.left), self.span(node.right)
        new = ARITHMETIC.get(type(node.op))
        if new is not None:
            between = self.text[left[1] : right[0]]
            sign = next(c for c in between if c in "+-*/")
            place = left[1] + between.index(sign)
            self.add(node, place, place + 1, new)
            self.add(node, left[1], self.span(node)[1], ")" * between.count(")"))
        self.generic_visit(node)

    def visit_Compare(self, node: ast.Compare) -> None:
        if len(node.ops) == 1:
            left, right = self.span(node.left)[1], self.span(node.comparators[0])[0]
            between = self.text[left:right].strip("() \n")
            begin = left + self.text[left:right].index(between)
            self.add(node, begin, begin + len(between), COMPARISONS[type(node.ops[0])])
        self.generic_visit(node)

    def visit_BoolOp(self, node: ast.BoolOp) -> None:
        word = "and" if isinstance(node.op, ast.And) else "or"
        for left, right in zip(node.values, node.values[1:], strict=False):
            begin = self.text.index(word, self.span(left)[1], self.span(right)[0])
            self.add(node, begin, begin + len(word), "or" if word == "and" else "and")
        self.generic_visit(node)

    def visit_Attribute(self, node: ast.Attribute) -> None:
        end = self.span(node)[1]
        if node.attr.rstrip("_") in NAMES:
            name = node.attr.rstrip("_")
            self.add(node, end - len(node.attr), end, NAMES[name] + node.attr[len(name) :])
        self.visit(node.value)

    def visit_If(self, node: ast.If | ast.IfExp) -> None:
        if isinstance(node.test, ast.Name | ast.Attribute | ast.Call):
            begin, end = self.span(node.test)
            self.add(node.test, begin, end, f"(not {self.text[begin:end]})")
        self.generic_visit(node)

    visit_IfExp = visit_If


def edits_of(text: str) -> list[Edit]:
    """The edits whose text is still Python."""
    found = []
    for edit in Finder(text).edits:
        try:
            compile(text[: edit.begin] + edit.new + text[edit.end :], "edited", "exec")
        except SyntaxError:
            continue
        found.append(edit)
    return found


def commands_of(source: str, contracts: bool = True) -> list[list[str]]:
    """What to run for a source: the mirrored files and those that import it, then the contracts of its kind."""
    path, unit = Path(source).relative_to("src/linnet").with_suffix(""), ROOT / "tests/unit"
    package = path if (unit / path).is_dir() else path.parent
    mirrored = [*unit.glob(f"{package}/test_{path.name}.py"), *unit.glob(f"{package}/test_{path.name}_*.py")]
    if path.parent.name not in ("ops", "layers", "mixers", "feed_forwards"):
        mirrored += (unit / path.parent).glob("test_*.py")  # of the whole package
    module, parent = ".".join(("linnet", *path.parts)), ".".join(("linnet", *path.parent.parts))
    folders = ("unit/ops/**", "unit/nn", "unit/layers", "golden")
    importing = [
        file
        for folder in folders
        for file in ROOT.glob(f"tests/{folder}/test_*.py")
        if f"{module} import" in (text := file.read_text()) or f"{parent} import {path.name}\n" in text
    ]
    commands = [[str(file.relative_to(ROOT)) for file in dict.fromkeys([*sorted(mirrored), *sorted(importing)])]]
    if contracts and ("mixers" in path.parts or "feed_forwards" in path.parts):
        names = ("costs", "sublayers", "states", "decoder", "prefixes", "captured_steps", "native_steps")
        files = [f"tests/contracts/test_{name}.py" for name in names]
        commands.append([*files, "-m", "not slow", "-k", f"[{path.parts[2]}- and not compile"])
        commands.append(["tests/unit/model/test_cost.py"])  # values that layers share
    elif contracts:  # predicted FLOPs and memory of the kinds that call the operation
        layers = [*(ROOT / "src/linnet/layers/mixers").rglob("*.py"), *(ROOT / "src/linnet/layers").glob("feed*/*.py")]
        calling = {
            file.relative_to(ROOT / "src/linnet/layers").parts[1] for file in layers if module in file.read_text()
        }
        names = sorted(f"[{name.removesuffix('.py')}-" for name in calling)
        files = ["tests/contracts/test_costs.py", "tests/contracts/test_sublayers.py"]
        commands += [[*files, "-k", f"({' or '.join(names)}) and (flops or memory)"]] if names else []
    return [command for command in commands if command]


def forked(tests: list[str], limit_s: float) -> bool | None:
    """Whether tests pass in the copy; None after the limit."""
    child = os.fork()
    if child == 0:
        os.setsid()
        os.chdir(COPY)
        output = os.open("output.txt", os.O_WRONLY | os.O_CREAT | os.O_TRUNC)
        os.dup2(output, 1)
        os.dup2(output, 2)
        os.environ["PYTHONPATH"] = str(COPY / "src")
        sys.path[:0] = [str(COPY / "src")]
        try:
            import pytest

            os._exit(int(pytest.main(["-x", "-q", "-n", "0", "--tb=line", "--hypothesis-profile=thorough", *tests])))
        finally:
            os._exit(1)
    end = time.monotonic() + limit_s
    while (status := os.waitpid(child, os.WNOHANG)) == (0, 0):
        if time.monotonic() > end:
            os.killpg(child, signal.SIGKILL)
            os.waitpid(child, 0)
            return None
        time.sleep(0.02)
    return os.waitstatus_to_exitcode(status[1]) in (0, 5)  # 5: no test is selected


def digest(*paths: Path) -> str:
    return hashlib.sha256(b"".join(path.read_bytes() for path in paths)).hexdigest()[:16]


def copied() -> None:
    """The tracked tree as it stands, with compiled sources that are recognized by their content, not by their time."""
    shutil.rmtree(COPY, ignore_errors=True)
    listed = subprocess.run(["git", "ls-files", "-z"], cwd=ROOT, capture_output=True, check=True).stdout.decode()
    for name in listed.split("\0"):
        needed = name.startswith(("src/", "tests/", "benchmarks/", "docs/", "experiments/atlas/", "pyproject"))
        if needed and (ROOT / name).is_file():
            (COPY / name).parent.mkdir(parents=True, exist_ok=True)
            shutil.copy2(ROOT / name, COPY / name)
    compile_all = [sys.executable, "-m", "compileall", "-q", "--invalidation-mode", "checked-hash", str(COPY / "src")]
    subprocess.run(compile_all, check=True)


def mutated(source: str, options: argparse.Namespace, done: dict[str, str]) -> Iterator[tuple[Edit, str, str]]:
    """The edits of a source, their keys, and what became of each: killed, late or survived."""
    text, commands = (ROOT / source).read_text(), commands_of(source, not options.without_contracts)
    edits = edits_of(text)
    if options.sample is not None and options.sample < len(edits):
        edits = sorted(random.Random(f"{options.seed} {source}").sample(edits, options.sample))
    tests = [ROOT / word for command in commands for word in command if word.endswith(".py")]
    state, tests_state = digest(ROOT / source), digest(*tests)
    limits_s: list[float] = []
    for edit in edits:
        key = f"{source}: {edit.key(text)}"
        known = done.get(f"{key} {state}", done.get(f"{key} {state} {tests_state}"))
        if known is not None:
            yield edit, key, known
            continue
        if not limits_s:
            for command in commands:
                begin = time.monotonic()
                if not forked(command, 600.0):
                    print(f"fails unchanged: pytest {' '.join(command)} ({COPY / 'output.txt'})", flush=True)
                    return
                limits_s.append(max(SHORTEST_LIMIT_S, 5 * (time.monotonic() - begin)))
        (COPY / source).write_text(text[: edit.begin] + edit.new + text[edit.end :])
        outcome = "survived"
        for command, limit_s in zip(commands, limits_s, strict=True):
            passed = forked(command, limit_s)
            if not passed:
                outcome = "late" if passed is None else "killed"
                break
        (COPY / source).write_text(text)
        identity = f"{key} {state}" + ("" if outcome != "survived" else f" {tests_state}")
        with RESULTS.open("a") as file:
            file.write(json.dumps([identity, outcome]) + "\n")
        yield edit, key, outcome


def main(arguments: list[str]) -> int:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--only", action="append", default=[], help="a part of the path of sources, such as mamba2")
    parser.add_argument("--sample", type=int, help="the number of edits drawn for each source (default: all)")
    parser.add_argument("--seed", type=int, default=0, help="of the draw")
    parser.add_argument("--without-contracts", action="store_true", help="first try unit and golden tests alone")
    parser.add_argument("--list", action="store_true", help="print edits and tests; run nothing")
    options = parser.parse_args(arguments)
    names = [str(path.relative_to(ROOT)) for room in ROOMS for path in sorted((ROOT / room).rglob("*.py"))]
    sources = [
        name
        for name in names
        if not any(part in name for part in LEFT_OUT) and (not options.only or any(o in name for o in options.only))
    ]
    if options.list:
        for source in sources:
            text = (ROOT / source).read_text()
            print(source, *(" ".join(command) for command in commands_of(source)), sep="\n  tested by ")
            print(*(f"  {edit.line}: {edit.key(text)}" for edit in edits_of(text)), sep="\n")
        return 0
    RESULTS.parent.mkdir(parents=True, exist_ok=True)
    done = dict(json.loads(line) for line in RESULTS.read_text().splitlines()) if RESULTS.exists() else {}
    equivalent = {f"{source}: {key}" for source, keys in json.loads(EQUIVALENT.read_text()).items() for key in keys}
    copied()
    import hypothesis  # noqa: F401
    import numpy  # noqa: F401
    import torch

    torch.set_num_threads(1)
    total, survivors = 0, list[str]()
    for source in sources:
        for number, (edit, key, outcome) in enumerate(mutated(source, options, done), 1):
            total += 1
            if outcome == "survived" and key not in equivalent:
                survivors.append(f"{source}:{edit.line}: {key.removeprefix(source + ': ')}")
                print("survived", survivors[-1], flush=True)
            print(f"\r{source} {number}", end=" ", file=sys.stderr, flush=True)
        print(file=sys.stderr)
    print(f"{len(survivors)} of {total} edits survived ({len(survivors) / max(total, 1):.1%}), equivalent ones apart")
    return 0


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
