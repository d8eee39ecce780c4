"""The catalogue of known clients, and the page about how they read broken streams."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest
from pydantic import ValidationError

from tests.clients.torture import catalogue
from tests.clients.torture.catalogue import FOLDER, KNOWN_CLIENTS, KnownClient, read_version
from tests.long.clients_page import WRONG_VERDICTS, ClientRow, TortureReport, write_page


def result(shape: str, verdict: str) -> dict[str, Any]:
    return {
        "shape": shape,
        "verdict": verdict,
        "expected": "must fail",
        "exit_code": 0,
        "printed": "one",
        "detail": "It printed one.",
    }


def read_report(*results: dict[str, Any], version: int = 1) -> TortureReport:
    wrong = sum(each["verdict"] != "right" for each in results)
    fields = {"client": "python x.py", "api": "chat", "version": version}
    return TortureReport.model_validate_json(
        json.dumps(fields | {"results": results, "wrong": wrong})
    )


def written_rows(*rows: ClientRow) -> list[str]:
    lines = write_page(rows).splitlines()
    start = lines.index("|---|---|---|---|---|") + 1
    return lines[start : start + len(rows)]


def test_page_groups_wrong_shapes_by_verdict_and_counts_the_right_ones() -> None:
    report = read_report(
        result("bom", "lost text"),
        result("end-in-text", "half answer taken for whole"),
        result("slow", "right"),
        result("end-in-tool", "half answer taken for whole"),
    )
    assert written_rows(ClientRow("openai-python", "3.51.0", "chat", report)) == [
        "| openai-python | 3.51.0 | chat | 1/4 | **half answer taken for whole**: "
        "`end-in-text`, `end-in-tool`<br>**lost text**: `bom` |"
    ]


def test_page_keeps_the_order_of_the_clients() -> None:
    report = read_report(result("slow", "right"))
    rows = [ClientRow(name, "1", "chat", report) for name in ("b", "a")]
    assert written_rows(*rows) == [
        "| b | 1 | chat | 1/1 | none |",
        "| a | 1 | chat | 1/1 | none |",
    ]


def test_page_explains_every_wrong_verdict() -> None:
    page = write_page([])
    for verdict, meaning in WRONG_VERDICTS.items():
        assert read_report(result("any", verdict)).wrong == 1
        assert f"- **{verdict}**: {meaning}\n" in page


def test_report_with_an_unknown_verdict_is_refused() -> None:
    with pytest.raises(ValidationError, match="verdict"):
        read_report(result("bom", "odd"))


def test_report_of_another_version_is_refused() -> None:
    with pytest.raises(ValidationError, match="version"):
        read_report(version=2)


def test_catalogue_starts_every_program_of_the_folder() -> None:
    assert len({client.label for client in KNOWN_CLIENTS}) == len(KNOWN_CLIENTS)
    started = {Path(client.command[1]) for client in KNOWN_CLIENTS}
    programs = {path for path in FOLDER.iterdir() if path.suffix in {".py", ".mjs"}}
    assert started == programs - {FOLDER / "catalogue.py"}


def test_version_of_npm_packages_is_that_of_the_installed_ones(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(catalogue, "NODE_MODULES", tmp_path)
    for name, version in {"ai": "6.0.1", "@ai-sdk/openai": "3.0.2"}.items():
        (tmp_path / name).mkdir(parents=True)
        (tmp_path / name / "package.json").write_text(json.dumps({"version": version}))
    one = KnownClient("one", ("ai",), "npm", ("node", "x.mjs"), "chat")
    assert read_version(one) == "ai 6.0.1"
    both = KnownClient("both", ("ai", "@ai-sdk/openai"), "npm", ("node", "x.mjs"), "chat")
    assert read_version(both) == "ai 6.0.1, @ai-sdk/openai 3.0.2"
    with pytest.raises(FileNotFoundError):
        read_version(KnownClient("none", ("none",), "npm", ("node", "x.mjs"), "chat"))


def test_version_of_pypi_packages_is_that_of_the_interpreter() -> None:
    command = (catalogue.PYTHON, "x.py")
    client = KnownClient("pytest", ("pytest",), "pypi", command, "chat")
    assert read_version(client) == f"pytest {pytest.__version__}"


def test_version_of_a_program_without_packages_is_that_of_node() -> None:
    (client,) = (client for client in KNOWN_CLIENTS if not client.distributions)
    assert read_version(client).startswith("Node.js v")
