"""`python -m handler doctor` with a real child: on the scripted engine and the fake library."""

from __future__ import annotations

import json
import os
import pty
import signal
import subprocess
import sys
from collections.abc import Callable
from contextlib import suppress
from functools import partial
from pathlib import Path
from typing import Any

import pytest

from engine.backends.rkllm.board.trials import PLAIN_RUN
from handler.doctor.report import ASSUMPTIONS, INTERRUPTED, Examination
from tests.conftest import ScriptFactory
from tests.fake_rkllm import build, write_script
from tests.integration.handler.control_plane import clean_environment
from tests.integration.handler.doctor_runs import (
    WAIT_S,
    DoctorReport,
    DoctorRunner,
    run_doctor_here,
    run_doctor_process,
)
from tests.waiting import wait_until_blocking

MARK = "**not as assumed**"
# If the limit needs an abort, the pause before the next token leaves time for it on a busy machine.
AS_ASSUMED = """
    answer when="walnut walnut"
      prefill_ms 600
      thread caller
      abort ms=0 finish
      say "nut " times=20 us=20000
    answer when="walnut tree"
      thread caller
      abort ms=0 finish
      say "one " times=30 us=150000
    answer
      thread caller
      abort ms=0 finish
      cache told
      say "one " "two " "three " times=10 us=20000
"""
# Tokens follow an abort, and an abort interrupts prefill; only ABI 1.3 receives the limit.
UNUSUAL = """
    prefix_reuse off
    answer when="walnut walnut"
      prefill_ms 600 hears
      thread caller
      abort ms=0 finish
      say "nut " times=20 us=20000
    answer when="twenty"
      thread foreign
      perf generate_tokens=+3
      say "one " "two " "three " times=10 us=1000
    answer
      thread caller
      abort ms=100 finish
      cache more
      say "one " times=300 us=10000
"""


@pytest.fixture
def doctor(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> DoctorRunner:
    """Return a function that runs the doctor with the test's folder as its home."""
    return partial(run_doctor_here, capsys, tmp_path)


@pytest.fixture(scope="session")
def fake_library(fake_rkllm_folder: Path) -> Callable[[str], Path]:
    return lambda abi: build(abi, fake_rkllm_folder)


@pytest.fixture
def rkllm(
    doctor: DoctorRunner, fake_library: Callable[[str], Path], tmp_path: Path
) -> DoctorRunner:
    """Return a function that runs the doctor on the fake library of an ABI, with a script."""

    def run(abi: str, script: str, *arguments: str, **settings: str) -> DoctorReport:
        model = write_script(tmp_path / "model.rkllm", script)
        library = fake_library(abi)
        return doctor(
            *arguments, MODEL_PATH=str(model), **{"RKLLM_LIB_PATH": str(library), **settings}
        )

    return run


@pytest.fixture
def rkllm_without_trials(rkllm: DoctorRunner, monkeypatch: pytest.MonkeyPatch) -> DoctorRunner:
    """Like `rkllm`, without the trials: they take most of the time, and other tests check them."""
    monkeypatch.setattr("handler.doctor.command.run_trials", lambda *_: [])
    return rkllm


@pytest.mark.long
def test_report_needs_no_runpod_package(script: ScriptFactory, tmp_path: Path) -> None:
    (tmp_path / "runpod.py").write_text("raise SystemExit('runpod was imported')")
    path = script({"pieces": ["so "], "repeat": 300, "delay_ms": 1})
    report = run_doctor_process(
        tmp_path, MODEL_PATH=str(path), SOME_API_KEY="s3cret", LOG_LEVEL="DEBUG"
    )
    assert report.code == 0
    assert report.section("What failed") == "Nothing: every step was done."
    assert report.page.startswith("# What the doctor found\n\n## Settings\n\n")
    assert "- callbacks: 5\n" in report.section("Limit of 5 tokens")
    assert f"- path: `~/{path.name}`" in report.section("Model")
    assert "assumed" not in report.page
    assert "s3cret" not in report.page
    assert str(tmp_path) not in report.page
    assert report.stderr == ""


@pytest.mark.long_except("1.3")
@pytest.mark.parametrize("abi", ["1.2", "1.3"])
def test_runtime_that_meets_all_assumptions(rkllm: DoctorRunner, abi: str) -> None:
    report = rkllm(abi, AS_ASSUMED)
    assert report.code == 0, report.page
    assert f"- ABI: `{abi} " in report.section("Library")
    assert "- evidence: `default parameters fit" in report.section("Library")
    assert "- NPU: `no NPU driver" in report.section("Driver")
    assert MARK not in report.page
    assert report.section("What is assumed of RKLLM").count("| so |") == len(ASSUMPTIONS)
    assert "I rkllm: rkllm-runtime version" in report.section("What was printed")
    assert report.section("What failed") == "Nothing: every step was done."


@pytest.mark.long_except("1.2-True")
@pytest.mark.parametrize(("abi", "beyond"), [("1.2", True), ("1.3", False)])
def test_runtime_that_contradicts_assumptions(
    rkllm_without_trials: DoctorRunner, abi: str, beyond: bool
) -> None:
    report = rkllm_without_trials(abi, UNUSUAL)
    assert report.code == 0, report.page
    marked = {line.split(":")[0][2:] for line in report.page.splitlines() if MARK in line}
    assert marked == {
        "callbacks on the calling thread",
        "callbacks beyond the runtime's count",
        "tokens reused",
        "prefill interrupted",
        *(["callbacks beyond the limit"] if beyond else []),
    }


@pytest.mark.long_except("1.3")
@pytest.mark.parametrize("abi", ["1.2", "1.3"])
def test_segfault_ends_the_examination(rkllm_without_trials: DoctorRunner, abi: str) -> None:
    report = rkllm_without_trials(
        abi, 'chatter stdout\nanswer\n  say "a" "b"\n  crash "it hurts"\n'
    )
    assert report.code == 1
    failed = report.section("What failed")
    assert failed.startswith("- first run: the process was killed by SIGSEGV\n")
    # The report also has the library's buffered output on stdout.
    assert "I rkllm: loading rkllm model" in failed
    assert failed.endswith("it hurts\n```")
    assert "- seconds: " in report.section("Loading")
    assert "## Limit" not in report.page


@pytest.mark.long
def test_hang_is_ended_by_its_timeout(rkllm_without_trials: DoctorRunner) -> None:
    report = rkllm_without_trials(
        "1.3", "answer\n  hang\n", PREFILL_TIMEOUT_S="1.5", STALL_TIMEOUT_S="0.5"
    )
    assert report.code == 1
    assert report.section("What failed").startswith(
        "- first run: it was not over after 2 s (PREFILL_TIMEOUT_S + STALL_TIMEOUT_S), "
        "and the process was killed\n"
    )


@pytest.mark.long
def test_load_has_its_own_timeout(rkllm_without_trials: DoctorRunner) -> None:
    report = rkllm_without_trials(
        "1.3", f"init ms={WAIT_S}000\n", LOAD_TIMEOUT_S="6", PREFILL_TIMEOUT_S="0.1"
    )
    assert report.code == 1
    assert "- loading: it was not over after 6 s (LOAD_TIMEOUT_S)" in report.section("What failed")


def test_missing_library_is_reported(rkllm: DoctorRunner, tmp_path: Path) -> None:
    report = rkllm("1.3", "answer\n", RKLLM_LIB_PATH=str(tmp_path / "none.so"))
    assert report.code == 1
    failed = report.section("What failed")
    assert failed.startswith(
        "- library: `ModelLoadFailed: RKLLM_LIB_PATH: there is no file ~/none.so; "
    )
    assert "\n" not in failed
    assert report.stderr == ""


def test_failed_run_does_not_end_the_examination(rkllm_without_trials: DoctorRunner) -> None:
    report = rkllm_without_trials(
        "1.3", 'answer when="twenty"\n  error "no"\nanswer\n  say "so" times=40 us=1000\n'
    )
    assert report.code == 1
    assert report.section("What failed").startswith("- first run: `BackendFailed: ")
    assert report.section("Closing").startswith("- ms: ")


def test_terminal_shows_the_steps_and_ctrl_c_ends_with_a_report(
    script: ScriptFactory, tmp_path: Path
) -> None:
    path = script({"pieces": [{"hang_s": 600, "deaf": True}]})
    terminal, child_terminal = pty.openpty()
    command: list[Any] = [sys.executable, "-m", "handler", "doctor"]
    environment = clean_environment(tmp_path, {"MODEL_PATH": str(path), "TERM": "xterm"})
    with (
        os.fdopen(terminal, "rb", buffering=0) as screen,
        subprocess.Popen(
            command,
            env=environment,
            cwd=tmp_path,
            stdout=subprocess.PIPE,
            stderr=child_terminal,
            text=True,
            # In a background shell, SIGINT is ignored, and child processes inherit that.
            preexec_fn=lambda: signal.signal(signal.SIGINT, signal.SIG_DFL),
        ) as process,
    ):
        os.close(child_terminal)
        recorded = b""
        while b"first run" not in recorded:
            recorded += screen.read(4096)
        process.send_signal(signal.SIGINT)
        page, _ = process.communicate(timeout=WAIT_S)
    assert process.returncode == 1
    assert page.endswith("## What failed\n\n- first run: it was interrupted\n")


def test_ctrl_c_in_a_trial_ends_the_doctor_and_writes_no_profile(
    rkllm: DoctorRunner, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def interrupt(*_: object, **options: object) -> Examination:
        assert options["trial"], "no step follows"
        findings = [("continued chat", "begins", True), ("continued chat", PLAIN_RUN, 8)]
        return Examination(findings, ended=INTERRUPTED)

    monkeypatch.setattr("handler.doctor.trials.examine", interrupt)
    monkeypatch.setattr("handler.doctor.command.examine", interrupt)
    profile = tmp_path / "profile.json"
    report = rkllm("1.3.1", AS_ASSUMED, "--bundle", "board.zip", RKLLM_PROFILE=str(profile))
    assert report.code == 1
    assert report.page.endswith("## What failed\n\n- start: it was interrupted\n")
    assert (tmp_path / "board.zip").exists()
    assert not profile.exists()


def test_killed_doctor_leaves_no_examiner_process(script: ScriptFactory, tmp_path: Path) -> None:
    path = script({"pieces": [{"hang_s": 600, "deaf": True}]})
    with subprocess.Popen(
        [sys.executable, "-m", "handler", "doctor"],
        env=clean_environment(tmp_path, {"MODEL_PATH": str(path), "TMPDIR": str(tmp_path)}),
        cwd=tmp_path,
        stdout=subprocess.DEVNULL,
    ) as process:
        wait_until_blocking(lambda: find_examiners(process.pid) != [], WAIT_S)
        process.kill()
    wait_until_blocking(lambda: find_examiners(process.pid) == [], WAIT_S)


def find_examiners(parent: int) -> list[int]:
    result = []
    for entry in Path("/proc").glob("[0-9]*/cmdline"):
        with suppress(OSError):
            arguments = entry.read_bytes().rstrip(b"\0").split(b"\0")
            if arguments[-2:] == [b"engine.doctor.examiner", str(parent).encode()]:
                result.append(int(entry.parent.name))
    return result


def test_timeout_may_be_infinite(doctor: DoctorRunner, script: ScriptFactory) -> None:
    path = script({"pieces": ["so "], "repeat": 300, "delay_ms": 1})
    report = doctor(MODEL_PATH=str(path), PREFILL_TIMEOUT_S="inf")
    assert (report.code, report.stderr) == (0, "")


# ---- trials of the board ----

TRIAL_SCRIPT = """
    {line}
    vocabulary 260
    answer
      thread caller
      prefill_ms 0 us_per_token=100
      abort ms=0 finish
      cache told
      say "one " "two " "three " times=14 us=5000
"""
# Each line of the script, and its effect on the profile.
OUTCOMES = {
    "prefix_reuse on": ("prefix_reuse", True),
    "prefix_reuse off": ("prefix_reuse", False),
    "history_logits work": ("logits_with_history", True),
    "history_logits crash": ("logits_with_history", False),
}


@pytest.mark.long_except("1.3.1-history_logits crash")
@pytest.mark.parametrize(("line", "outcome"), OUTCOMES.items(), ids=list(OUTCOMES))
@pytest.mark.parametrize("abi", ["1.2", "1.3.1"])
def test_outcome_of_a_trial_is_written(
    rkllm: DoctorRunner,
    tmp_path: Path,
    abi: str,
    line: str,
    outcome: tuple[str, bool | None],
) -> None:
    report = rkllm(
        abi, TRIAL_SCRIPT.format(line=line), RKLLM_PROFILE=str(tmp_path / "profile.json")
    )
    assert report.code == 0, report.page
    assert "- written to: `~/profile.json`" in report.section("Profile")
    (profile,) = json.loads((tmp_path / "profile.json").read_text())["profiles"]
    name, expected = outcome
    assert profile[name] is expected
    assert profile["prefill_ms"]["512"] >= 51
    if profile["logits_with_history"]:
        assert list(profile["logits_run_ms"]) == ["1", "4", "8", "16"]
    if expected is False and name != "prefix_reuse":
        assert "- reason: `the process was killed by SIGSEGV`" in report.page


@pytest.mark.long
def test_engine_uses_the_profile_of_the_doctor(rkllm: DoctorRunner, tmp_path: Path) -> None:
    settings = {"RKLLM_PROFILE": str(tmp_path / "profile.json")}
    report = rkllm("1.3.1", TRIAL_SCRIPT.format(line="prefix_reuse on"), **settings)
    # The examination follows the trials, so it uses the profile.
    assert "- tokens reused: 40" in report.section("Next turn")
    assert "RKLLM_PROFILE" not in report.section("What was printed")


@pytest.mark.long
def test_profile_that_cannot_be_written_is_a_failure(rkllm: DoctorRunner, tmp_path: Path) -> None:
    path = tmp_path / "profile.json"
    path.write_text("[]")
    report = rkllm("1.3.1", TRIAL_SCRIPT.format(line=""), RKLLM_PROFILE=str(path))
    assert report.code == 1
    assert "- profile: `RKLLM_PROFILE: ~/profile.json was not written: it is no rkllm-profile`" in (
        report.section("What failed")
    )


@pytest.mark.long_except("0 ")
@pytest.mark.parametrize(
    "text", ["!", "\\xff", "[PAD151935]", "", "0 ", "walnut ", "one 한국 и 数 two "]
)
def test_garbage_fails_the_doctor(rkllm_without_trials: DoctorRunner, text: str) -> None:
    report = rkllm_without_trials("1.3.1", f'answer\n  say "{text}" times=40 us=1000\n')
    assert report.code == 1
    assert "- first run: `BackendFailed: the " in report.section("What failed")


@pytest.mark.long
def test_load_that_failed_but_returned_0_fails_the_doctor(rkllm: DoctorRunner) -> None:
    words = "invalid rknn llm model magic, rknn_init fail! ret=-1"
    report = rkllm("1.3.1", f'init fails=0 "{words}"\nanswer\n  say "a"\n')
    assert report.code == 1
    assert "- loading: `ModelLoadFailed: MODEL_PATH: " in report.section("What failed")
    assert "Prompts with a common start" not in report.page


@pytest.mark.long
def test_comparison_names_the_faster_engine(
    rkllm_without_trials: DoctorRunner, default_model_path: Path
) -> None:
    # The long prompt does not fit the context with the tokenizer of the generated model.
    # Two tokens a second of an answer, which any machine exceeds with the built-in model.
    slow = """
        answer when="walnut walnut"
          prefill_ms 0 us_per_token=50000
          say "nut " times=2
        answer when="twenty"
          say "one " "two " "three " "four " us=500000
        answer
          abort ms=0
          say "one " times=20 us=20000
    """
    report = rkllm_without_trials(
        "1.3.1", slow, "--compare", str(default_model_path), CONTEXT_LENGTH="256"
    )
    assert report.code == 0, report.page
    section = report.section("Comparison with a GGUF")
    values = dict(line[2:].split(": ", 1) for line in section.splitlines())
    # At most, because the fake library sleeps; a busy machine makes it slower.
    assert 0 < float(values["tokens a second of answers, rkllm"]) < 2.5
    assert 0 < float(values["tokens a second of prompts, rkllm"]) < 25
    for each in ("prompts", "answers"):
        own, other = (float(values[f"tokens a second of {each}, {of}"]) for of in ("rkllm", "GGUF"))
        faster = "GGUF" if other > own else "rkllm"
        ratio = max(own, other) / min(own, other)
        assert values[f"faster for {each}"] == f"`{faster}, {ratio:.1f} times`"
    assert "GGUF" in values["faster for answers"]


@pytest.mark.long
def test_comparison_with_a_damaged_model_is_a_failure(
    rkllm_without_trials: DoctorRunner, tmp_path: Path
) -> None:
    damaged = tmp_path / "damaged.gguf"
    damaged.write_bytes(b"GGUF")
    report = rkllm_without_trials("1.3.1", TRIAL_SCRIPT.format(line=""), "--compare", str(damaged))
    assert report.code == 1
    assert "- comparison with a GGUF: `ModelLoadFailed: " in report.section("What failed")


def test_comparison_with_a_missing_model_is_refused_immediately(doctor: DoctorRunner) -> None:
    report = doctor("--compare", "none.gguf")
    assert report.code == 2
    assert "--compare: there is no file none.gguf" in report.stderr
