"""How a worker's process ended, as a sentence."""

from __future__ import annotations

import pytest

from emulator.autoscaling.worker_exit import (
    describe_worker_exit,
    explain_failed_start,
    explain_worker_exit,
    last_printed_line,
)


@pytest.mark.parametrize(
    ("code", "ended"),
    [
        (0, "exited with code 0"),
        (1, "exited with code 1"),
        (127, "exited with code 127"),
        (255, "exited with code 255"),
        (134, "was killed by SIGABRT"),
        (139, "was killed by SIGSEGV"),
        (137, "was killed by SIGKILL, as the kernel does when memory runs out"),
    ],
)
def test_describe_worker_exit_names_the_code_or_the_signal(code: int, ended: str) -> None:
    assert describe_worker_exit(code) == ended


def test_last_printed_line_skips_the_frames_of_a_traceback() -> None:
    assert last_printed_line(["Traceback", "ValueError: x", "  detail"]) == "ValueError: x"
    assert last_printed_line(["  a", ""]) == last_printed_line([]) == ""


def test_last_printed_line_is_the_message_of_the_sdk_and_not_its_exit_notice() -> None:
    failure = "Fitness check failed: model_is_loaded | RuntimeError: no NPU\\nsecond line"
    output = [
        f'{{"requestId": null, "message": "{failure}", "level": "ERROR"}}',
        '{"requestId": null, "message": "Worker is unhealthy, exiting.", "level": "ERROR"}',
    ]
    assert last_printed_line(output) == (
        "Fitness check failed: model_is_loaded | RuntimeError: no NPU second line"
    )


def test_last_printed_line_skips_lines_of_the_sdk_about_jobs() -> None:
    messages = ["loading", "Jobs in queue: 1", "Started."]
    output = [f'{{"requestId": "a", "message": "{each}", "level": "INFO"}}' for each in messages]
    assert last_printed_line(output) == "loading"
    assert last_printed_line(output[1:]) == ""


def test_explain_worker_exit_is_never_empty() -> None:
    assert explain_worker_exit(1, []) == "exited with code 1 and printed nothing"
    assert explain_worker_exit(1, ["a", "b"]) == "exited with code 1; its last line: b"


def test_explain_failed_start_names_the_missing_call_of_a_script() -> None:
    assert explain_failed_start(0, ["x"]) == (
        "exited with code 0 without starting a worker; it must call "
        'runpod.serverless.start({"handler": handler})'
    )
    assert explain_failed_start(3, []) == "exited with code 3 and printed nothing"
