"""The table of verdicts, the JSON and the JUnit file."""

from __future__ import annotations

import io
from pathlib import Path
from xml.etree import ElementTree

import orjson
import pytest

from common.setting_error import SettingError
from emulator.handler_tests.junit import format_junit
from emulator.torture.answer import ANSWER
from emulator.torture.client_process import ClientCommand
from emulator.torture.report import (
    VerdictReport,
    build_json,
    junit_case,
    print_shapes,
    write_json_file,
)
from emulator.torture.run import ShapeResult, Subject
from emulator.torture.shape import Api, list_all_shapes, list_shapes
from emulator.torture.verdict import ClientRun, judge

SUBJECT = Subject(command=ClientCommand("my-client", 30), api=Api.CHAT, is_call=False)


def result(name: str, printed: str, exit_code: int, errors: str = "") -> ShapeResult:
    [shape] = [each for each in list_shapes(Api.CHAT) if each.name == name]
    run = ClientRun(printed=printed, errors=errors, exit_code=exit_code, duration_s=0.5, requests=1)
    return ShapeResult(shape=shape, run=run, judgement=judge(shape, run, ANSWER))


RESULTS = [
    result("plain", ANSWER, 0),
    result("end-in-text", "Gr\x1b[31m\n"[:2], 0),
    result("crlf", "", 1, "Traceback\nValueError: \x1b[2J no"),
]


def test_table_has_all_shapes_and_explains_wrong_verdicts() -> None:
    out = io.StringIO()
    report = VerdictReport(out, io.StringIO(), 3)
    with report.showing_progress():
        report.start(RESULTS[0].shape)
        report.add(RESULTS[0])
    report.print_results(SUBJECT, RESULTS)
    text = out.getvalue()
    assert text.startswith("SHAPE        VERDICT\nplain        right\nend-in-text  half answer ")
    assert "end-in-text: half answer taken for whole\n  The response ends after the first" in text
    assert "  The client must fail: it succeeded on a broken answer, and printed 2 of " in text
    assert "  Printed: 'Gr'\n  By hand: x-fault: end-after=2\n" in text
    assert "  Last error line: 'ValueError: \\x1b[2J no'\n" in text
    counts = "1 right, 1 half answer taken for whole, 1 crashed"
    assert text.endswith(f"\nstreams of chat completions: {counts}\n")


def test_json_has_each_verdict(tmp_path: Path) -> None:
    path = tmp_path / "verdicts.json"
    write_json_file(path, SUBJECT, RESULTS)
    body = orjson.loads(path.read_bytes())
    assert body == build_json(SUBJECT, RESULTS)
    assert (body["version"], body["client"], body["api"], body["wrong"]) == (
        1,
        "my-client",
        "chat",
        2,
    )
    assert body["results"][1] == {
        "shape": "end-in-text",
        "faults": ["end-after=2"],
        "expected": "failure",
        "verdict": "half answer taken for whole",
        "detail": f"it succeeded on a broken answer, and printed 2 of {len(ANSWER)} characters",
        "exit_code": 0,
        "requests": 1,
        "printed": "Gr",
        "duration_s": 0.5,
    }
    with pytest.raises(SettingError, match=r"--json: .* cannot be written"):
        write_json_file(tmp_path, SUBJECT, RESULTS)


def test_wrong_verdict_is_a_failure_of_junit() -> None:
    xml = format_junit("chat", [junit_case(each) for each in RESULTS])
    suite = ElementTree.fromstring(xml)[0]  # noqa: S314 - it was written by this process
    assert suite.attrib["failures"] == "2"
    failure = suite[1][0]
    assert failure.attrib["type"] == "HalfAnswerTakenForWhole"
    assert failure.attrib["message"].startswith("half answer taken for whole: it succeeded on a")


def test_list_has_each_shape_with_its_rule() -> None:
    out = io.StringIO()
    print_shapes(out)
    for name, reason, rule, apis in list_all_shapes():
        assert f"{name}\n  {reason}\n  {rule}\n  {', '.join(apis)}\n" in out.getvalue()
