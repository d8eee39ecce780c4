"""Runs tests of the APIs with the openai engine too, in front of a scripted server of ours.

`upstream_tests.yaml` lists the files and tests that cannot hold there, each with its reason, and
the tests that `make test` runs; `make test-long` runs the rest.
"""

from __future__ import annotations

import json
from collections.abc import Iterator, Mapping, Set
from dataclasses import dataclass
from itertools import chain
from pathlib import Path
from typing import Any

import pytest
import yaml

from handler.models.model_list import ModelEntry

FOLDER = Path(__file__).parent
TABLE = FOLDER / "upstream_tests.yaml"
UPSTREAM = "upstream"
# The name of a scripted model that has none.
_DEFAULT_NAME = "scripted"


@dataclass(frozen=True)
class UpstreamTests:
    """The table: names by the reason why they are left out, and the tests of `make test`.

    The name of a file is its path in this folder; that of a test has `::` and its function after
    it, and `[case]` if only this case is meant.
    """

    files_left_out: Mapping[str, Set[str]]
    tests_left_out: Mapping[str, Set[str]]
    short: Set[str]

    def has_file(self, path: Path) -> bool:
        """Return whether the tests of a file run with an upstream server."""
        name = str(path.relative_to(FOLDER))
        return not any(name in names for names in self.files_left_out.values())

    def has_test(self, names: Set[str]) -> bool:
        """Return whether a test with these names runs with an upstream server."""
        return not any(names & left_out for left_out in self.tests_left_out.values())

    def is_short(self, names: Set[str]) -> bool:
        """Return whether `make test` runs a test with these names."""
        return bool(names & self.short)


def read_table() -> UpstreamTests:
    """Read the table."""
    table = yaml.safe_load(TABLE.read_text())
    return UpstreamTests(
        files_left_out=_by_reason(table["files_left_out"]),
        tests_left_out=_by_reason(table["tests_left_out"]),
        short=frozenset(table["short"]),
    )


def _by_reason(groups: list[dict[str, Any]]) -> dict[str, Set[str]]:
    return {group["reason"]: frozenset(group["names"]) for group in groups}


def names_of(item: pytest.Item) -> Set[str]:
    """Return the two names of a test in the table: of its function, and of this case."""
    function, _, case = item.name.partition("[")
    name = f"{item.path.relative_to(FOLDER)}::{function}"
    cases = [each for each in case.removesuffix("]").split("-") if each != UPSTREAM]
    return {name, f"{name}[{'-'.join(cases)}]"}


def choose_tests(items: list[pytest.Item], table: UpstreamTests) -> Iterator[pytest.Item]:
    """Yield the tests without those that cannot hold with an upstream, and mark the long ones.

    Raises UsageError if the table names a case that a test does not have.
    """
    _check_cases(items, table)
    for item in items:
        if not has_upstream(item):
            yield item
        elif table.has_test(names := names_of(item)):
            if not table.is_short(names):
                item.add_marker(pytest.mark.long)
            yield item


def _check_cases(items: list[pytest.Item], table: UpstreamTests) -> None:
    cases: dict[str, set[str]] = {}
    for item in filter(has_upstream, items):
        function, case = sorted(names_of(item))
        cases.setdefault(function, set()).add(case)
    for name in chain(table.short, *table.tests_left_out.values()):
        known = cases.get(name.partition("[")[0], set())
        # A session for one case does not have the others.
        if "[" in name and len(known) > 1 and name not in known:
            raise pytest.UsageError(f"{TABLE.name} names no case: {name}")


def has_upstream(item: pytest.Item) -> bool:
    """Return whether a test runs with an upstream server."""
    params: dict[str, Any] = getattr(getattr(item, "callspec", None), "params", {})
    return params.get("serve") == UPSTREAM


def upstream_values(script: Path | None, settings: Mapping[str, Any]) -> dict[str, Any]:
    """Return the settings of the server with the models, for the settings of a test.

    A script that crashes its engine would end the tests too, so it has a process of its own; and
    each of several models has one.
    """
    needs_process = "models" in settings or b'"signal"' in _read(script)
    values: dict[str, Any] = {
        "engine": "scripted",
        "engine_isolation": "process" if needs_process else "thread",
        "model_path": script,
        "max_queue": 10_000,
    }
    if "models" in settings:
        return values | {"models": settings["models"]}
    return values | {"model_name": settings.get("model_name", _DEFAULT_NAME)}


def front_values(script: Path | None, url: str, settings: Mapping[str, Any]) -> dict[str, Any]:
    """Return the settings of the server under test, which has its models from a URL."""
    values: dict[str, Any] = {"model_name": _DEFAULT_NAME, **settings}
    values |= {"engine": "openai", "upstream_url": url, "model_path": None}
    if slots := json.loads(_read(script)).get("slots"):
        values.setdefault("max_concurrency", slots)
    if "models" in settings:
        del values["model_name"]
        values["models"] = [
            ModelEntry(path=Path(each.served_names[0]), name=each.name)
            for each in settings["models"]
        ]
    return values


def _read(script: Path | None) -> bytes:
    """Return a script; an empty one for none, or for one that cannot be read yet."""
    return script.read_bytes() if script is not None and script.is_file() else b"{}"
