"""Results of tests as JUnit XML, which CI systems read."""

from __future__ import annotations

import re
from collections.abc import Sequence
from pathlib import Path
from xml.etree import ElementTree

from common.setting_error import SettingError
from emulator.handler_tests.report import format_failure
from emulator.handler_tests.runner import HandlerTestResult

# XML 1.0 has no way to write any other character.
_NOT_XML = re.compile("[^\t\n\r\x20-\ud7ff\ue000-\ufffd\U00010000-\U0010ffff]")


def check_junit_file(path: Path) -> None:
    """Raise SettingError if no file can be created at the path: sooner than after all tests."""
    if not path.parent.is_dir():
        raise SettingError(f"--junit-xml: there is no folder {path.parent}")
    if path.is_dir():
        raise SettingError(f"--junit-xml: {path} is a folder")


def write_junit_file(path: Path, suite_name: str, results: Sequence[HandlerTestResult]) -> None:
    """Write the results of one tests file. Raises SettingError if the disk refuses it."""
    try:
        path.write_bytes(format_junit(suite_name, results))
    except OSError as error:
        raise SettingError(f"--junit-xml: {path} cannot be written: {error.strerror}") from None


def format_junit(suite_name: str, results: Sequence[HandlerTestResult]) -> bytes:
    """Return the XML: one testsuite, with a testcase for each test."""
    failed = sum(not each.has_passed for each in results)
    counts = {
        "name": _clean(suite_name),
        "tests": str(len(results)),
        "failures": str(failed),
        "errors": "0",
        "skipped": "0",
        "time": f"{sum(each.duration_s for each in results):.3f}",
    }
    root = ElementTree.Element("testsuites", {**counts})
    suite = ElementTree.SubElement(root, "testsuite", {**counts})
    for result in results:
        case = ElementTree.SubElement(
            suite,
            "testcase",
            {
                "classname": _clean(suite_name),
                "name": _clean(result.test.name),
                "time": f"{result.duration_s:.3f}",
            },
        )
        if not result.has_passed:
            failure = ElementTree.SubElement(
                case,
                "failure",
                {
                    "message": _clean(result.failure or ""),
                    "type": "HandlerNotStarted" if result.is_start_failure else "TestFailed",
                },
            )
            failure.text = _clean(format_failure(result))
    ElementTree.indent(root)
    xml: bytes = ElementTree.tostring(root, encoding="utf-8", xml_declaration=True)
    return xml + b"\n"


def _clean(text: str) -> str:
    return _NOT_XML.sub("", text)
