"""Results of tests as JUnit XML, which CI systems read."""

from __future__ import annotations

import re
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from xml.etree import ElementTree

from common.setting_error import SettingError

# XML 1.0 has no way to write any other character.
_NOT_XML = re.compile("[^\t\n\r\x20-\ud7ff\ue000-\ufffd\U00010000-\U0010ffff]")


@dataclass(frozen=True, slots=True, kw_only=True)
class JUnitCase:
    """One test: `failure` is one sentence, None if it has passed, and `details` says more."""

    name: str
    duration_s: float
    failure: str | None = None
    failure_type: str = "TestFailed"
    details: str = ""


def check_junit_file(path: Path) -> None:
    """Raise SettingError if no file can be created at the path: sooner than after all tests."""
    if not path.parent.is_dir():
        raise SettingError(f"--junit-xml: there is no folder {path.parent}")
    if path.is_dir():
        raise SettingError(f"--junit-xml: {path} is a folder")


def write_junit_file(path: Path, suite_name: str, cases: Sequence[JUnitCase]) -> None:
    """Write the tests of one suite. Raises SettingError if the disk refuses it."""
    try:
        path.write_bytes(format_junit(suite_name, cases))
    except OSError as error:
        raise SettingError(f"--junit-xml: {path} cannot be written: {error.strerror}") from None


def format_junit(suite_name: str, cases: Sequence[JUnitCase]) -> bytes:
    """Return the XML: one testsuite, with a testcase for each test."""
    failed = sum(each.failure is not None for each in cases)
    counts = {
        "name": _clean(suite_name),
        "tests": str(len(cases)),
        "failures": str(failed),
        "errors": "0",
        "skipped": "0",
        "time": f"{sum(each.duration_s for each in cases):.3f}",
    }
    root = ElementTree.Element("testsuites", {**counts})
    suite = ElementTree.SubElement(root, "testsuite", {**counts})
    for case in cases:
        element = ElementTree.SubElement(
            suite,
            "testcase",
            {
                "classname": _clean(suite_name),
                "name": _clean(case.name),
                "time": f"{case.duration_s:.3f}",
            },
        )
        if case.failure is not None:
            failure = ElementTree.SubElement(
                element, "failure", {"message": _clean(case.failure), "type": case.failure_type}
            )
            failure.text = _clean(case.details)
    ElementTree.indent(root)
    xml: bytes = ElementTree.tostring(root, encoding="utf-8", xml_declaration=True)
    return xml + b"\n"


def _clean(text: str) -> str:
    return _NOT_XML.sub("", text)
