"""`python -m tools.changed_tests [--base REF] [--explain]`: list the test files of a change.

The change is the difference between a commit and the working tree, with untracked files. The list
has, in this order:

1. test files that changed,
2. the tests of changed modules: `tests/unit/<package>/test_<module>.py`, or all tests of the
   package's folder if there is no such file,
3. test files that import a changed module or a changed helper of the tests,
4. the tests of modules that import a changed module, and the unit tests that import such a module,
5. the tests of modules that import those.

The list ends at `--limit` files and at `--distance` imports, except for steps 1 and 2: nearly every
test depends on a module such as `engine.request`, and `make test` runs them all. The list leaves
out tests/long, which needs `make test-long`: stderr names the parts to run. Of tests/acceptance and
tests/security, which start servers, it has files that changed or import a changed helper.

The files go to stdout, one a line. The reasons go to stderr.
"""

from __future__ import annotations

import argparse
import ast
import subprocess
import sys
import tomllib
from collections import defaultdict
from collections.abc import Collection, Iterable, Iterator, Sequence
from dataclasses import dataclass, field
from pathlib import Path, PurePosixPath

import grimp

from tests.long.parts import SUITE, parts_to_run

# About 20 seconds of unit tests.
DEFAULT_LIMIT = 25
# Imports between a changed module and a module whose tests are on the list. Three lead from most
# modules of `engine` and `validation` to `handler.composition` and from there to everything.
DEFAULT_DISTANCE = 2
# Tests of one function or class each; the others start engines and servers.
_FAST = ("tests/unit", "tests/property")
_WITHOUT_SERVERS = (*_FAST, "tests/integration")
_TOOLS = ("tools", "benchmarks")


@dataclass(frozen=True, slots=True)
class Choice:
    """A test file, the reason why it is on the list, and its number of imports from the change.

    The distance is None for changed test files and the tests of changed modules.
    """

    path: str
    reason: str
    distance: int | None = None


@dataclass(slots=True)
class Selection:
    """The test files of a change, and the number of files beyond the limits."""

    changed: list[str]
    choices: list[Choice] = field(default_factory=list)
    left_out: int = 0


def changed_files(root: Path, base: str) -> list[str]:
    """Return the paths that differ from a commit, with deleted and untracked ones.

    Raises:
        subprocess.CalledProcessError: git failed, for example because there is no such commit.
    """
    different = _git(root, "diff", "--name-only", "--no-renames", "-z", base, "--")
    untracked = _git(root, "ls-files", "--others", "--exclude-standard", "-z")
    return sorted({*different, *untracked})


def _git(root: Path, *arguments: str) -> list[str]:
    command = ["git", "-C", str(root), *arguments]
    output = subprocess.run(command, stdout=subprocess.PIPE, text=True, check=True).stdout
    return [path for path in output.split("\0") if path]


def build_graph(root: Path) -> grimp.ImportGraph:
    """Return the imports between the product's packages, the tools and the benchmarks.

    pyproject.toml lists the product's packages for import-linter.
    """
    project = tomllib.loads((root / "pyproject.toml").read_text())
    packages = list(project["tool"]["importlinter"]["root_packages"])
    packages.extend(name for name in _TOOLS if (root / name).is_dir())
    if str(root) not in sys.path:
        sys.path.insert(0, str(root))
    # Without a cache: 0.2 s for all packages.
    return grimp.build_graph(*packages, cache_dir=None)


class TestTree:
    """The Python files of the tests and the modules that each of them imports."""

    __test__ = False  # pytest: not a class of tests

    def __init__(self, root: Path) -> None:
        self._root = root
        self.files: list[str] = []
        self._importers: dict[str, set[str]] = defaultdict(set)
        for path in sorted(root.glob("tests/**/*.py")):
            relative = path.relative_to(root)
            hidden = any(part.startswith(".") for part in relative.parts)
            if hidden or "node_modules" in relative.parts:
                continue
            self.files.append(relative.as_posix())
            for name in imported_names(path.read_text()):
                self._importers[name].add(relative.as_posix())

    def importers(self, module: str) -> set[str]:
        """Return the files that import a module directly."""
        return self._importers[module]

    def tests_of_helper(self, helper: str) -> set[str]:
        """Return the test files that use a helper: through imports, or as a conftest.py."""
        users: set[str] = set()
        pending = [helper]
        while pending:
            path = pending.pop()
            if PurePosixPath(path).name == "conftest.py":
                folder = PurePosixPath(path).parent.as_posix() + "/"
                direct_users = {file for file in self.files if file.startswith(folder)}
            else:
                direct_users = set(self.importers(module_name(path)))
            pending.extend(file for file in direct_users - users if not is_test(file))
            users |= direct_users
        return {file for file in users if is_test(file)}

    def mirrored(self, module: str, siblings: Iterable[str]) -> list[str]:
        """Return the unit tests of a module by their names.

        These are `test_<module>.py` and `test_<module>_<part>.py`, if the part does not make it the
        name of another module. A module without such a file has the tests of its package.
        """
        *packages, name = module.split(".")
        while packages:
            folder = "/".join(("tests/unit", *packages))
            others = {each.rpartition(".")[2] for each in siblings} - {name}
            names = [
                file
                for file in self.files
                if file.rpartition("/")[0] == folder and _is_test_of(file, name, others)
            ]
            if names:
                return names
            name = packages.pop()
        return []

    def tests_of_package(self, module: str) -> list[str]:
        """Return the unit tests in the folder that mirrors the nearest package with tests."""
        *packages, _ = module.split(".")
        while packages:
            folder = "/".join(("tests/unit", *packages))
            files = [file for file in self.files if file.rpartition("/")[0] == folder]
            if tests := [file for file in files if is_test(file)]:
                return tests
            packages.pop()
        return []

    def mentions(self, name: str) -> list[str]:
        """Return the fast tests and the helpers that have a file's name in a string."""
        endings = (f'"{name}"', f'/{name}"')
        return [
            file
            for file in self.files
            if (is_test(file, _FAST) or not is_test(file))
            and not file.startswith("tests/long/")
            and any(ending in (self._root / file).read_text() for ending in endings)
        ]


def _is_test_of(file: str, name: str, other_names: set[str]) -> bool:
    stem = PurePosixPath(file).stem.removeprefix("test_")
    return stem == name or (
        stem.startswith(f"{name}_")
        and not any(
            stem == other or stem.startswith(f"{other}_")
            for other in other_names
            if len(other) > len(name)
        )
    )


def imported_names(source: str) -> Iterator[str]:
    """Yield the modules that a file imports; of `from a import b` both `a` and `a.b`."""
    for node in ast.walk(ast.parse(source)):
        if isinstance(node, ast.Import):
            yield from (alias.name for alias in node.names)
        elif isinstance(node, ast.ImportFrom) and node.module and not node.level:
            yield node.module
            yield from (f"{node.module}.{alias.name}" for alias in node.names)


def is_test(path: str, folders: tuple[str, ...] = SUITE) -> bool:
    """Return whether a path is a test file in one of the folders."""
    name = PurePosixPath(path).name
    return (
        path.startswith(tuple(f"{folder}/" for folder in folders))
        and name.startswith("test_")
        and name.endswith(".py")
    )


def module_name(path: str) -> str:
    """Return the name under which a Python file is imported."""
    return path.removesuffix(".py").removesuffix("/__init__").replace("/", ".")


def modules_of_data(root: Path, path: str, modules: Iterable[str]) -> list[str]:
    """Return the modules that read a data file, judged by their names and texts.

    That is the module of the same name in the folder; else the modules of the nearest package whose
    text has the name of the file, or of its folder in the package; else the package.
    """
    known = set(modules)
    namesake = module_name(PurePosixPath(path).with_suffix(".py").as_posix())
    if namesake in known:
        return [namesake]
    parts = PurePosixPath(path).parts
    for depth in range(len(parts) - 1, 0, -1):
        package = ".".join(parts[:depth])
        if package in known:
            folder = root.joinpath(*parts[:depth])
            texts = {file: file.read_text() for file in sorted(folder.glob("*.py"))}
            for name in (parts[-1], parts[depth]):
                readers = [file for file, text in texts.items() if f'{name}"' in text]
                if readers:
                    return [module_name(file.relative_to(root).as_posix()) for file in readers]
            return [package]
    return []


def levels_of_importers(graph: grimp.ImportGraph, changed: Iterable[str]) -> Iterator[list[str]]:
    """Yield the modules that import the changed ones, then their importers, each module once."""
    visited = set(changed)
    level = sorted(visited & graph.modules)
    while level:
        importers = set().union(*map(graph.find_modules_that_directly_import, level))
        level = sorted(importers - visited)
        visited.update(level)
        if level:
            yield level


@dataclass
class ChangedFiles:
    """Changed files by how tests depend on them."""

    tests: list[str] = field(default_factory=list)
    modules: list[str] = field(default_factory=list)
    helpers: list[str] = field(default_factory=list)
    other: list[str] = field(default_factory=list)


def sort_changes(root: Path, changed: Iterable[str], modules: Collection[str]) -> ChangedFiles:
    """Sort changed files by their kind. A data file changes the modules that read it."""
    files = ChangedFiles()
    packages = {module for module in modules if "." not in module}
    for path in changed:
        if is_test(path):
            files.tests += [path] if (root / path).is_file() else []
        elif path.startswith("tests/"):
            (files.helpers if path.endswith(".py") else files.other).append(path)
        elif path.endswith(".py"):
            files.modules.append(module_name(path))
        else:
            files.other.append(path)
            if PurePosixPath(path).parts[0] in packages:
                files.modules += modules_of_data(root, path, modules)
    files.modules = sorted(set(files.modules))
    return files


class TestSearch:
    """Finds the test files of changed files, the nearest first; a file may come several times."""

    def __init__(self, root: Path, changed: Iterable[str]) -> None:
        self._tree = TestTree(root)
        self._graph = build_graph(root)
        self._files = sort_changes(root, changed, self._graph.modules)

    def candidates(self) -> Iterator[Choice]:
        """Yield the test files."""
        for path in self._files.tests:
            yield Choice(path, "it changed")
        yield from self._tests_of_modules()
        yield from self._tests_that_name_files()
        for folder in SUITE:
            yield from self._users_in(folder)
        for distance, level in enumerate(
            levels_of_importers(self._graph, self._files.modules), start=1
        ):
            yield from self._tests_of_importers(level, distance)

    def _mirrored(self, module: str) -> list[str]:
        package = module.rpartition(".")[0]
        siblings = self._graph.find_children(package) if package in self._graph.modules else ()
        return self._tree.mirrored(module, siblings)

    def _tests_of_modules(self) -> Iterator[Choice]:
        for module in self._files.modules:
            files = self._mirrored(module)
            for file in files:
                yield Choice(file, f"it tests {module}")
            for file in () if files else self._tree.tests_of_package(module):
                yield Choice(file, f"it tests the package of {module}")

    def _tests_that_name_files(self) -> Iterator[Choice]:
        """Yield the tests that name a changed file. A helper that names one has changed with it."""
        for path in self._files.other:
            for file in self._tree.mentions(PurePosixPath(path).name):
                if is_test(file):
                    yield Choice(file, f"it names {path}", 0)
                else:
                    self._files.helpers.append(file)

    def _users_in(self, folder: str) -> Iterator[Choice]:
        """Yield the tests of a folder that import a changed module or use a changed helper."""
        for module in self._files.modules if folder in _WITHOUT_SERVERS else ():
            for file in sorted(self._tree.importers(module)):
                if is_test(file, (folder,)):
                    yield Choice(file, f"it imports {module}", 0)
        for helper in self._files.helpers:
            for file in sorted(self._tree.tests_of_helper(helper)):
                if is_test(file, (folder,)):
                    yield Choice(file, f"it uses {helper}", 0)

    def _tests_of_importers(self, importers: Sequence[str], distance: int) -> Iterator[Choice]:
        reason = f"which imports a changed module (distance {distance})"
        for module in importers:
            for file in self._mirrored(module):
                yield Choice(file, f"it tests {module}, {reason}", distance)
        for module in importers if distance == 1 else ():
            for file in sorted(self._tree.importers(module)):
                # A property test takes many seconds: only for the module that changed.
                if is_test(file, ("tests/unit",)):
                    yield Choice(file, f"it imports {module}, {reason}", distance)


def select(
    root: Path, base: str = "HEAD", limit: int = DEFAULT_LIMIT, distance: int = DEFAULT_DISTANCE
) -> Selection:
    """Return the test files to run for the difference between a commit and the working tree."""
    selection = Selection(changed_files(root, base))
    if not selection.changed:
        return selection
    chosen: set[str] = set()
    left_out: set[str] = set()
    for choice in TestSearch(root, selection.changed).candidates():
        if choice.path in chosen:
            continue
        if choice.distance is not None and (len(chosen) >= limit or choice.distance > distance):
            left_out.add(choice.path)
            continue
        chosen.add(choice.path)
        selection.choices.append(choice)
    selection.left_out = len(left_out)
    return selection


def describe(selection: Selection, base: str) -> str:
    """Return one sentence about what was selected."""
    if not selection.changed:
        return f"Nothing differs from {base}: there is no test to run."
    files = f"{len(selection.changed)} changed file{'s' * (len(selection.changed) != 1)}"
    if not selection.choices:
        return f"No test belongs to the {files} since {base}."
    count = len(selection.choices)
    sentence = f"{count} test file{'s' * (count != 1)} for {files} since {base}"
    if selection.left_out:
        sentence += f"; {selection.left_out} more depend on them (`make test` runs all)"
    return f"{sentence}."


def main(arguments: list[str] | None = None, root: Path = Path()) -> int:
    """Print the test files of a change. Return 0, or 2 if there is no such commit."""
    parser = argparse.ArgumentParser(description="List the test files to run for a change.")
    parser.add_argument("--base", default="HEAD", help="the commit to compare with (default: HEAD)")
    parser.add_argument("--limit", type=int, default=DEFAULT_LIMIT, help="the most test files")
    parser.add_argument(
        "--distance", type=int, default=DEFAULT_DISTANCE, help="the most imports from the change"
    )
    parser.add_argument("--explain", action="store_true", help="print why each file is chosen")
    options = parser.parse_args(arguments)
    try:
        selection = select(root.resolve(), options.base, options.limit, options.distance)
    except subprocess.CalledProcessError:
        print(f"git cannot compare with {options.base!r}: name a commit.", file=sys.stderr)
        return 2
    print(describe(selection, options.base), file=sys.stderr)
    if parts := parts_to_run(selection.changed):
        print(f'`make test-long PART="{" ".join(parts)}"` runs more.', file=sys.stderr)
    for choice in selection.choices:
        if options.explain:
            print(f"{choice.path}: {choice.reason}", file=sys.stderr)
        print(choice.path)
    return 0


if __name__ == "__main__":
    sys.exit(main())
