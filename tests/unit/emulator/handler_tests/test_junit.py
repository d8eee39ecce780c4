"""JUnit XML, parsed as CI systems do."""

from __future__ import annotations

from pathlib import Path
from typing import Any
from xml.etree import ElementTree

import pytest

from common.setting_error import SettingError
from emulator.handler_tests.junit import (
    JUnitCase,
    check_junit_file,
    format_junit,
    write_junit_file,
)
from emulator.handler_tests.report import junit_case
from emulator.handler_tests.runner import HandlerTestResult
from emulator.tests_file.reader import HandlerTest


def result(name: str, **fields: Any) -> JUnitCase:
    return junit_case(HandlerTestResult(test=HandlerTest(name=name, input={}), **fields))


def parse(xml: bytes) -> ElementTree.Element:
    return ElementTree.fromstring(xml)  # noqa: S314 - it was written by this process


def test_results_are_testcases_of_one_testsuite() -> None:
    xml = format_junit(
        "tests",
        [
            result("good", status="COMPLETED", duration_s=1.5),
            result(
                "bad <&>", status="COMPLETED", duration_s=0.25, failure="differs", diff=["-<1>"]
            ),
            result("none", failure="did not start", is_start_failure=True),
        ],
    )
    root = parse(xml)
    (suite,) = root
    counts = {"tests": "3", "failures": "2", "errors": "0", "skipped": "0", "time": "1.750"}
    assert (root.tag, suite.tag) == ("testsuites", "testsuite")
    assert root.attrib == suite.attrib == {"name": "tests", **counts}
    good, bad, none = suite
    assert good.attrib == {"classname": "tests", "name": "good", "time": "1.500"}
    assert list(good) == []
    assert bad.attrib["name"] == "bad <&>"
    (failure,) = bad
    assert failure.attrib == {"message": "differs", "type": "TestFailed"}
    assert failure.text == "differs\n-<1>"
    assert none[0].attrib["type"] == "HandlerNotStarted"


def test_characters_that_xml_lacks_are_removed() -> None:
    text = "".join(map(chr, range(0x20))) + "\x7f\ufffe\ud800é😀"
    xml = format_junit("s\0", [result(text, failure=text, error=text, output_lines=[text])])
    suite = parse(xml)[0]
    assert suite.attrib["name"] == "s"
    name = suite[0].attrib["name"]
    assert name == "\t\n\r\x7fé😀"
    assert "é😀" in (suite[0][0].text or "")


def test_file_is_written(tmp_path: Path) -> None:
    path = tmp_path / "r.xml"
    check_junit_file(path)
    write_junit_file(path, "tests", [result("a")])
    assert path.read_bytes() == format_junit("tests", [result("a")])


def test_path_that_cannot_be_written_is_one_sentence(tmp_path: Path) -> None:
    with pytest.raises(SettingError, match=r"--junit-xml: there is no folder .*missing"):
        check_junit_file(tmp_path / "missing" / "r.xml")
    with pytest.raises(SettingError, match="is a folder"):
        check_junit_file(tmp_path)
    with pytest.raises(SettingError, match="cannot be written: Is a directory"):
        write_junit_file(tmp_path, "tests", [])
