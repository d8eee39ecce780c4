"""`python tools/module_names.py FOLDER...`: report names of modules that mislead a reader.

Two things are reported: a constant that nothing reads, and a parameter or variable with the name of
a function of its module, which is then not the function that a reader expects.
"""

from __future__ import annotations

import re
import sys
from collections import Counter
from collections.abc import Iterator, Sequence
from pathlib import Path
from symtable import SymbolTable, symtable

_WORD = re.compile(r"[A-Za-z_]\w*")
# A test has the name of a fixture as its parameter.
_FIXTURE = re.compile(r"^@pytest(?:_asyncio)?\.fixture(?:.*\n)+?(?:async )?def (\w+)", re.MULTILINE)
# Names that Python, pytest and unittest read.
_READ_BY_NAME = re.compile(r"_|__\w+__|pytestmark|test_\w+")
_NOT_CHECKED = {"node_modules", ".venv", ".sdks", "programs"}
# Modules whose variables still have the names of functions.
_HIDING_MODULES = {
    "benchmarks/deltas.py",
    "benchmarks/render.py",
    "engine/backends/rkllm/prompts.py",
}


def find_unread_constants(table: SymbolTable, counts: Counter[str]) -> Iterator[str]:
    """Yield the constants of a module whose name stands nowhere else."""
    for symbol in table.get_symbols():
        name = symbol.get_name()
        is_constant = symbol.is_assigned() and not (symbol.is_imported() or symbol.is_namespace())
        if is_constant and counts[name] == 1 and not _READ_BY_NAME.fullmatch(name):
            yield f"nothing reads {name}"


def find_shadowed_functions(table: SymbolTable, text: str) -> Iterator[str]:
    """Yield the functions of a module whose names are those of variables in other functions."""
    functions = {
        child.get_name() for child in table.get_children() if child.get_type() == "function"
    }
    functions -= {*_FIXTURE.findall(text)}
    scopes = list(table.get_children()) if functions else []
    # The list grows during the loop.
    for scope in scopes:
        scopes += scope.get_children()
        if scope.get_type() == "function":
            for symbol in scope.get_symbols():
                if symbol.is_local() and symbol.get_name() in functions:
                    place = f"{scope.get_name()} (line {scope.get_lineno()})"
                    yield f"{symbol.get_name()} in {place} hides the function of the module"


def check(roots: Sequence[Path]) -> list[str]:
    """Return the findings below some folders, in order."""
    paths = [path for root in roots for path in sorted(root.rglob("*.py"))]
    texts = {path: path.read_text() for path in paths if not _NOT_CHECKED & {*path.parts}}
    words = {path: Counter(_WORD.findall(text)) for path, text in texts.items()}
    total: Counter[str] = Counter()
    for counts in words.values():
        total.update(counts)
    findings = []
    for path, text in texts.items():
        table = symtable(text, str(path), "exec")
        findings += [f"{path}: {each}" for each in find_unread_constants(table, total)]
        if path.as_posix() not in _HIDING_MODULES:
            findings += [f"{path}: {each}" for each in find_shadowed_functions(table, text)]
    return findings


def main(arguments: Sequence[str]) -> int:
    """Print the findings, one a line. Return 1 if there are any, else 0."""
    findings = check([Path(argument) for argument in arguments])
    for finding in findings:
        print(finding)
    return int(bool(findings))


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
