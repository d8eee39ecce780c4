"""The table of the tests in front of another server names tests that there are."""

from __future__ import annotations

import ast
import functools
from itertools import chain

from tests.integration.emulator.upstream import FOLDER, UpstreamTests, read_table

TABLE = read_table()


@functools.cache
def functions_of(file: str) -> set[str]:
    tree = ast.parse((FOLDER / file).read_text())
    kinds = (ast.FunctionDef, ast.AsyncFunctionDef)
    return {node.name for node in ast.walk(tree) if isinstance(node, kinds)}


def test_table_names_files_and_tests_that_exist() -> None:
    for file in chain.from_iterable(TABLE.files_left_out.values()):
        assert (FOLDER / file).is_file(), file
    for name in chain(TABLE.short, *TABLE.tests_left_out.values()):
        file, _, test = name.partition("::")
        assert test.partition("[")[0] in functions_of(file), name


def test_table_gives_each_test_one_form() -> None:
    left_out = [*chain.from_iterable(TABLE.tests_left_out.values())]
    assert len(left_out) == len(set(left_out))
    for name in (*left_out, *TABLE.short):
        assert TABLE.has_file(FOLDER / name.partition("::")[0]), name
    for name in TABLE.short:
        assert TABLE.has_test({name, name.partition("[")[0]}), name


def test_table_tells_a_left_out_case_from_the_others() -> None:
    table = UpstreamTests({}, {"why": {"test_a.py::test_b[one]"}}, {"test_a.py::test_c"})
    assert not table.has_test({"test_a.py::test_b", "test_a.py::test_b[one]"})
    assert table.has_test({"test_a.py::test_b", "test_a.py::test_b[two]"})
    assert table.is_short({"test_a.py::test_c", "test_a.py::test_c[one]"})
