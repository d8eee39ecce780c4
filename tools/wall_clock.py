"""Find tests that judge the wall clock: `python -m tools.wall_clock tests`.

Such a test fails when another program takes the processor. Two things are reported: an assertion
that the difference of two readings of a clock is small, and a limit below 30 s on a wait that must
succeed.
Tests that are truly about speed have the marker `timing`, and run alone.
"""

from __future__ import annotations

import ast
import sys
from collections.abc import Iterable, Iterator, Sequence
from pathlib import Path
from typing import NamedTuple

MIN_TIMEOUT_S = 30
MARKER = "timing"
# The fixture of tests in which time is virtual.
VIRTUAL_CLOCK = "clock"
_CLOCKS = {"monotonic", "perf_counter", "monotonic_ns", "perf_counter_ns", "time", "time_ns"}
# Calls whose first, or only, number is a limit in seconds.
_LIMITS = {"timeout": 0, "wait_for": 1, "timeout_at": 0}
_LIMIT_KEYWORDS = {"timeout", "timeout_s", "within_s"}
# With one of these as its manager, a `with` statement expects that the limit is reached.
_EXPECTED = {"raises", "suppress"}
Function = ast.FunctionDef | ast.AsyncFunctionDef


class Finding(NamedTuple):
    """A place in a test, and what is wrong there."""

    path: Path
    line: int
    text: str

    def __str__(self) -> str:
        return f"{self.path}:{self.line}: {self.text}"


def find_wall_clock(path: Path) -> list[Finding]:
    """Return the places in a file that judge the wall clock."""
    tree = ast.parse(path.read_text())
    if _has_marker(tree.body):
        return []
    findings: list[Finding] = []
    constants = _read_constants(tree)
    for function in _functions(tree):
        is_virtual = any(each.arg == VIRTUAL_CLOCK for each in function.args.args)
        if not is_virtual and not any(map(_mentions_marker, function.decorator_list)):
            findings += _check_function(path, function, constants)
    return findings


def _functions(tree: ast.Module) -> Iterator[Function]:
    """Yield the outermost functions; those inside them are read as parts of them."""
    pending: list[ast.AST] = list(tree.body)
    while pending:
        node = pending.pop(0)
        if isinstance(node, Function):
            yield node
        elif isinstance(node, ast.ClassDef):
            pending += node.body


def _has_marker(body: Iterable[ast.stmt]) -> bool:
    return any(
        isinstance(node, ast.Assign)
        and any(isinstance(each, ast.Name) and each.id == "pytestmark" for each in node.targets)
        and _mentions_marker(node.value)
        for node in body
    )


def _mentions_marker(node: ast.AST) -> bool:
    return any(isinstance(each, ast.Attribute) and each.attr == MARKER for each in ast.walk(node))


def _read_constants(tree: ast.Module) -> dict[str, float]:
    """Return the numbers of the module by name."""
    return {
        target.id: float(node.value.value)
        for node in tree.body
        if isinstance(node, ast.Assign)
        and isinstance(node.value, ast.Constant)
        and isinstance(node.value.value, int | float)
        for target in node.targets
        if isinstance(target, ast.Name)
    }


def _check_function(
    path: Path, function: Function, constants: dict[str, float]
) -> Iterator[Finding]:
    durations = _names_of_durations(function)
    for node in ast.walk(function):
        if isinstance(node, ast.Assert) and _is_compared_duration(node.test, durations):
            text = "an assertion about a measured duration: use events, counts or virtual time"
            yield Finding(path, node.lineno, text)
    for call in _calls_that_must_succeed(function):
        if (limit := _short_limit(call, constants)) is not None:
            text = f"a limit of {limit:g} s: {MIN_TIMEOUT_S} s at least, for busy machines"
            yield Finding(path, call.lineno, text)


def _names_of_durations(function: Function) -> set[str]:
    """Return the names that hold a difference of two readings, directly or through others."""
    instants: set[str] = set()
    durations: set[str] = set()
    # Twice, for a name that is used above its assignment, as in a loop.
    for _ in range(2):
        for node in ast.walk(function):
            if not isinstance(node, (ast.Assign, ast.AnnAssign, ast.AugAssign, ast.NamedExpr)):
                continue
            if node.value is None:
                continue
            targets = node.targets if isinstance(node, ast.Assign) else [node.target]
            names = {
                each.id
                for target in targets
                for each in ast.walk(target)
                if isinstance(each, ast.Name)
            }
            if _has_duration(node.value, instants, durations):
                durations |= names
            elif _reads_clock(node.value):
                instants |= names
    return durations


def _has_duration(node: ast.AST, instants: set[str], durations: set[str]) -> bool:
    for each in ast.walk(node):
        if isinstance(each, ast.Name) and each.id in durations:
            return True
        if isinstance(each, ast.BinOp) and isinstance(each.op, ast.Sub):
            names = {name.id for name in ast.walk(each) if isinstance(name, ast.Name)}
            if _reads_clock(each) or names & instants:
                return True
    return False


def _reads_clock(node: ast.AST) -> bool:
    return any(
        isinstance(each, ast.Call)
        and not each.args
        and isinstance(each.func, ast.Attribute)
        and each.func.attr in _CLOCKS
        for each in ast.walk(node)
    )


def _is_compared_duration(test: ast.expr, durations: set[str]) -> bool:
    """Return whether a duration must be short; that it has a minimum holds on busy machines too."""

    def is_duration(node: ast.expr) -> bool:
        return _has_duration(node, set(), durations)

    for each in ast.walk(test):
        if isinstance(each, ast.Compare):
            sides = [each.left, *each.comparators]
            for left, operator, right in zip(sides, each.ops, sides[1:], strict=False):
                is_minimum = isinstance(operator, ast.Gt | ast.GtE)
                is_maximum = isinstance(operator, ast.Lt | ast.LtE)
                if (is_duration(left) and not is_minimum) or (
                    is_duration(right) and not is_maximum
                ):
                    return True
    return False


def _calls_that_must_succeed(function: Function) -> Iterator[ast.Call]:
    expected: set[int] = set()
    for node in ast.walk(function):
        if isinstance(node, (ast.With, ast.AsyncWith)) and any(
            isinstance(item.context_expr, ast.Call)
            and _last_name(item.context_expr.func) in _EXPECTED
            for item in node.items
        ):
            expected |= {id(each) for each in ast.walk(node)}
        if isinstance(node, ast.Try) and any(
            isinstance(each, ast.Name) and each.id == "TimeoutError"
            for handler in node.handlers
            for each in ast.walk(handler.type or handler)
        ):
            expected |= {id(each) for statement in node.body for each in ast.walk(statement)}
        if isinstance(node, ast.UnaryOp) and isinstance(node.op, ast.Not):
            # `assert not lock.acquire(timeout=0.1)` shows that something has not happened.
            expected.add(id(node.operand))
    for node in ast.walk(function):
        if isinstance(node, ast.Call) and id(node) not in expected:
            yield node


def _short_limit(call: ast.Call, constants: dict[str, float]) -> float | None:
    name = _last_name(call.func)
    if name == "wait" and len(call.args) == 1:
        # `asyncio.wait` returns at its limit, and so shows that something has not happened.
        return None
    values = [
        each.value for each in call.keywords if each.arg in _LIMIT_KEYWORDS and name in _WAITS
    ]
    position = _LIMITS.get(name)
    is_asyncio = isinstance(call.func, ast.Attribute) and _last_name(call.func.value) == "asyncio"
    if position is not None and is_asyncio and len(call.args) > position:
        values.append(call.args[position])
    for value in values:
        limit = constants.get(value.id) if isinstance(value, ast.Name) else None
        if isinstance(value, ast.Constant) and isinstance(value.value, int | float):
            limit = float(value.value)
        if limit is not None and 0 < limit < MIN_TIMEOUT_S:
            return limit
    return None


def _last_name(node: ast.expr) -> str:
    if isinstance(node, ast.Attribute):
        return node.attr
    return node.id if isinstance(node, ast.Name) else ""


# Functions that wait, and take a keyword with a limit.
_WAITS = {
    *("run", "check_output", "check_call", "communicate", "wait", "join", "get", "result"),
    *("wait_until", "poll_until", "wait_until_blocking", "acquire", "wait_for"),
}


def main(arguments: Sequence[str]) -> int:
    """Print the findings in these folders; return 1 if there are any."""
    files = sorted(
        path
        for folder in arguments
        for path in Path(folder).rglob("*.py")
        if not {".venv", ".sdks", "node_modules", "long"} & set(path.parts)
    )
    findings = [finding for path in files for finding in find_wall_clock(path)]
    for finding in findings:
        print(finding)
    return int(bool(findings))


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
