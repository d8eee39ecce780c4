"""Output during a load: it is passed on, kept, and searched for errors."""

from __future__ import annotations

import ctypes
import os
import shutil
import subprocess
import sys

import pytest

from engine.backends.rkllm.printed import library_output
from engine.backends.rkllm.printed.library_output import CapturedOutput, LibraryOutput


def test_output_of_both_streams_is_kept_and_passed_on(capfd: pytest.CaptureFixture[str]) -> None:
    with LibraryOutput().capture() as output:
        os.write(1, b"I rkllm: loading\n\n")
        os.write(2, b"E rkllm: bad \xff\n")
        # The C library holds it back.
        ctypes.CDLL(None).puts(b"held back")
    os.write(2, b"afterwards\n")
    assert output.lines == ("I rkllm: loading", "E rkllm: bad \ufffd", "held back")
    assert output.errors == ["E rkllm: bad \ufffd"]
    assert output.reason == "E rkllm: bad \ufffd"
    printed = "".join(capfd.readouterr())
    for line in (*output.lines, "afterwards"):
        assert line in printed


def test_last_words_of_a_process_that_dies_are_passed_on() -> None:
    program = (
        "import os\n"
        "from engine.backends.rkllm.printed.library_output import LibraryOutput\n"
        "with LibraryOutput().capture():\n"
        "    os.write(1, b'E rkllm: GGML_ASSERT failed\\n')\n"
        "    os.abort()\n"
    )
    done = subprocess.run(
        [sys.executable, "-c", program], capture_output=True, text=True, timeout=30, check=False
    )
    assert done.returncode < 0
    assert "E rkllm: GGML_ASSERT failed" in done.stderr


def test_output_that_is_not_waited_for_is_read_if_there_is_any() -> None:
    printer = LibraryOutput()
    for number in range(15):
        with printer.capture() as output:
            output.is_needed = False
            # `tee` may have taken the line from the pipe, and not have written it yet.
            os.write(2, b"E rkllm: failed %d\n" % number)
            assert output.has_output()
        assert output.errors == [f"E rkllm: failed {number}"]
    with printer.capture() as output:
        output.is_needed = False
    assert output.lines == ()
    printer.close()


def test_first_lines_errors_and_last_lines_of_a_long_output_are_kept() -> None:
    with LibraryOutput().capture() as output:
        for start in range(0, 3000, 100):
            lines = [f"I rkllm: {number}" for number in range(start, start + 100)]
            os.write(1, "\n".join([*lines, "E rkllm: failed\n" if start == 1000 else ""]).encode())
    assert output.lines[:2] == ("I rkllm: 0", "I rkllm: 1")
    assert output.errors == ["E rkllm: failed"]
    assert output.lines[-1] == "I rkllm: 2999"
    assert len(output.lines) == 1001


@pytest.mark.parametrize(
    ("line", "is_error"),
    [
        ("E RKNN: [15:17:49.122] 6, 1", True),
        ("E rkllm: invalid rkllm model!", True),
        ("Query platform error!", True),
        ("max_context[16384] must be less than the model's max_context_limit[4096]", True),
        ("rknn_init fail! ret=-1", True),
        ("invalid rknn llm model magic", True),
        ("I rkllm: rkllm-runtime version: 1.3.1, rknpu driver version: 0.9.8", False),
        ("W rkllm: Warning: the rknpu driver is too old", False),
        ("E is for Engine", False),
    ],
)
def test_error_lines_are_recognized(line: str, is_error: bool) -> None:
    output = CapturedOutput()
    output.lines = ("I rkllm: before", line)
    assert (output.errors == [line]) is is_error


def test_nothing_is_captured_without_tee(
    monkeypatch: pytest.MonkeyPatch, capfd: pytest.CaptureFixture[str]
) -> None:
    assert shutil.which("tee")
    monkeypatch.setattr(library_output, "which", lambda name: "/no/such/tee")
    with LibraryOutput().capture() as output:
        os.write(1, b"as before\n")
    assert output.lines == ()
    assert "as before" in capfd.readouterr().out
