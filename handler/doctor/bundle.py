"""The doctor's option `--bundle`: everything that one needs to know about a board, in one file.

It has the report, the findings as JSON, a recording of each process without texts, and what each of
them printed at the library's log level 2. There is no prompt and no answer of a user in it: the
doctor asks its own questions.
"""

from __future__ import annotations

import json
import zipfile
from collections.abc import Iterator
from dataclasses import dataclass, replace
from io import BytesIO
from pathlib import Path

from common.atomic_files import replace_file
from common.setting_error import SettingError
from common.terminal_text import escape_controls
from engine import BackendConfig
from engine.backends.options import RkllmOptions
from engine.backends.rkllm.recording.recording_file import find_write_error
from handler.doctor.report import Examination, hide_homes

SUFFIX = ".zip"
# With this level the library explains what it loads, and measures each run.
LOG_LEVEL = {"RKLLM_LOG_LEVEL": "2"}
# How much of each process's output is kept, at its start and again at its end.
_MAX_PRINTED_BYTES = 64_000


def check_path(path: Path) -> None:
    """Raise SettingError if no bundle can be written there; before the model is loaded."""
    if path.suffix != SUFFIX:
        raise SettingError(f"--bundle: the file's name must end in {SUFFIX}, as board{SUFFIX}")
    if (error := find_write_error(path)) is not None:
        raise SettingError(f"--bundle: {error}")


@dataclass(frozen=True, slots=True)
class Bundle:
    """A folder in which the processes of the doctor leave what goes into the file."""

    folder: Path

    def record(self, backend: BackendConfig) -> BackendConfig:
        """Return the backend with a recording in this folder; without texts, whatever it had."""
        if not isinstance(backend.options, RkllmOptions):
            return backend
        path = str(self.folder / "recording.jsonl")
        return replace(backend, options=replace(backend.options, record=path, record_text=False))

    def next_printed(self, name: str) -> Path:
        """Return a new file for what a process prints."""
        number = len([*self.folder.glob("printed-*")]) + 1
        return self.folder / f"printed-{number}-{name.replace(' ', '-')}.txt"

    def add(self, report: str, examination: Examination) -> None:
        """Add the report of one copy of a model, and its findings."""
        number = len([*self.folder.glob("report*")]) + 1
        suffix = "" if number == 1 else f".{number}"
        (self.folder / f"report{suffix}.md").write_text(report, encoding="utf-8")
        findings = [
            {"step": step, "name": name, "value": value}
            for step, name, value in (*examination.findings, *examination.trials)
        ]
        content = {"ended": examination.ended, "findings": findings}
        text = hide_homes(json.dumps(content, indent=1, ensure_ascii=False))
        (self.folder / f"findings{suffix}.json").write_text(text + "\n", encoding="utf-8")

    def write(self, path: Path) -> None:
        """Write the file. Raises OSError."""
        made = BytesIO()
        with zipfile.ZipFile(made, "w", zipfile.ZIP_DEFLATED, compresslevel=9) as archive:
            for file in sorted(self.folder.iterdir()):
                content = file.read_bytes()
                if file.name.startswith("printed-"):
                    content = "".join(_clean_lines(content)).encode()
                else:
                    # A recording has the library's errors, which may name files.
                    content = hide_homes(content.decode("utf-8", "replace")).encode()
                archive.writestr(file.name, content)
        replace_file(path, [made.getvalue()])


def _clean_lines(content: bytes) -> Iterator[str]:
    """Yield the first and the last lines, without control characters and names of users."""
    parts = [content]
    if len(content) > 2 * _MAX_PRINTED_BYTES:
        parts = [content[:_MAX_PRINTED_BYTES], b"...", content[-_MAX_PRINTED_BYTES:]]
    for part in parts:
        for line in part.decode("utf-8", "replace").splitlines():
            yield escape_controls(hide_homes(line)) + "\n"
