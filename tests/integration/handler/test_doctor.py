"""`python -m handler doctor` with a real child: on the scripted engine and the RKLLM stand-in."""

from __future__ import annotations

import json
import os
import pty
import signal
import subprocess
import sys
import time
from collections.abc import Callable
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Protocol

import pytest

from handler.doctor.report import ASSUMPTIONS
from tests.conftest import ScriptFactory
from tests.fake_rkllm import build, write_script
from tests.integration.handler.control_plane import clean_environment
from tests.waiting import wait_until_blocking

WAIT_S = 50
MARK = "**not as assumed**"
# Where the limit takes an abort, the next token leaves it time on a machine that stands still.
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
      say "one " times=30 us=20000
"""
# More comes after an abort, and prefill hears it; only 1.3 is told the limit.
OTHERWISE = """
    answer when="walnut walnut"
      prefill_ms 600 hears
      thread caller
      abort ms=0 finish
      say "nut " times=20 us=20000
    answer when="twenty"
      thread foreign
      perf generate_tokens=+3
      say "one " times=30 us=1000
    answer
      thread caller
      abort ms=100 finish
      cache more
      say "one " times=300 us=10000
"""


@dataclass
class Reported:
    code: int
    page: str
    stderr: str

    def section(self, title: str) -> str:
        return self.page.split(f"## {title}\n\n")[1].split("\n\n## ")[0].rstrip()


class Doctor(Protocol):
    def __call__(self, *arguments: str, **settings: str) -> Reported: ...


@pytest.fixture
def doctor(tmp_path: Path) -> Doctor:
    """Runs it in a home that is the test's folder."""

    def run(*arguments: str, **settings: str) -> Reported:
        done = subprocess.run(
            [sys.executable, "-m", "handler", "doctor", *arguments],
            env=clean_environment(tmp_path, settings),
            cwd=tmp_path,
            stdin=subprocess.DEVNULL,
            capture_output=True,
            text=True,
            timeout=WAIT_S,
            check=False,
        )
        return Reported(done.returncode, done.stdout, done.stderr)

    return run


@pytest.fixture(scope="session")
def fake_library(fake_rkllm_folder: Path) -> Callable[[str], Path]:
    return lambda abi: build(abi, fake_rkllm_folder)


@pytest.fixture
def rkllm(
    doctor: Doctor, fake_library: Callable[[str], Path], tmp_path: Path
) -> Callable[..., Reported]:
    """Runs it on the stand-in of an ABI, over a script."""

    def run(abi: str, script: str, *arguments: str, **settings: str) -> Reported:
        model = write_script(tmp_path / "model.rkllm", script)
        library = fake_library(abi)
        return doctor(
            *arguments, MODEL_PATH=str(model), **{"RKLLM_LIB_PATH": str(library), **settings}
        )

    return run


def test_a_report_without_runpod(doctor: Doctor, script: ScriptFactory, tmp_path: Path) -> None:
    (tmp_path / "runpod.py").write_text("raise SystemExit('runpod was imported')")
    path = script({"pieces": ["so "], "repeat": 300, "delay_ms": 1})
    done = doctor(MODEL_PATH=str(path), SOME_API_KEY="s3cret", LOG_LEVEL="DEBUG")
    assert done.code == 0
    assert done.section("What failed") == "Nothing: every step was done."
    assert done.page.startswith("# What `python -m handler doctor` found\n\n## Settings\n\n")
    assert "- callbacks: 5\n" in done.section("Limit of 5 tokens")
    assert f"- path: `~/{path.name}`" in done.section("Model")
    assert "assumed" not in done.page
    assert "s3cret" not in done.page
    assert str(tmp_path) not in done.page
    assert done.stderr == ""


@pytest.mark.long_except("1.3")
@pytest.mark.parametrize("abi", ["1.2", "1.3"])
def test_runtime_that_meets_all_assumptions(rkllm: Callable[..., Reported], abi: str) -> None:
    done = rkllm(abi, AS_ASSUMED)
    assert done.code == 0, done.page
    assert f"- ABI: `{abi} " in done.section("Library")
    assert "- evidence: `default parameters fit" in done.section("Library")
    assert "- NPU: `no NPU driver" in done.section("Driver")
    assert MARK not in done.page
    assert done.section("What is assumed of RKLLM").count("| so |") == len(ASSUMPTIONS)
    assert "I rkllm: rkllm-runtime version" in done.section("What was printed")
    assert done.section("What failed") == "Nothing: every step was done."


@pytest.mark.long_except("1.2-True")
@pytest.mark.parametrize(("abi", "beyond"), [("1.2", True), ("1.3", False)])
def test_runtime_that_contradicts_assumptions(
    rkllm: Callable[..., Reported], abi: str, beyond: bool
) -> None:
    done = rkllm(abi, OTHERWISE)
    assert done.code == 0, done.page
    marked = {line.split(":")[0][2:] for line in done.page.splitlines() if MARK in line}
    assert marked == {
        "callbacks on the calling thread",
        "callbacks beyond the runtime's count",
        "tokens reused",
        "prefill interrupted",
        *(["callbacks beyond the limit"] if beyond else []),
    }


@pytest.mark.long_except("1.3")
@pytest.mark.parametrize("abi", ["1.2", "1.3"])
def test_a_segfault_costs_the_rest(rkllm: Callable[..., Reported], abi: str) -> None:
    done = rkllm(abi, 'chatter stdout\nanswer\n  say "a" "b"\n  crash "it hurts"\n')
    assert done.code == 1
    failed = done.section("What failed")
    assert failed.startswith("- first run: the process was killed by SIGSEGV\n")
    # What the library had said on stdout, in C's buffer, is there too.
    assert "I rkllm: loading rkllm model" in failed
    assert failed.endswith("it hurts\n```")
    assert "- seconds: " in done.section("Loading")
    assert "## Limit" not in done.page


def test_a_hang_ends_with_its_clock(rkllm: Callable[..., Reported]) -> None:
    began = time.monotonic()
    done = rkllm("1.3", "answer\n  hang\n", PREFILL_TIMEOUT_S="1.5", STALL_TIMEOUT_S="0.5")
    assert time.monotonic() - began < WAIT_S / 2
    assert done.code == 1
    assert done.section("What failed").startswith(
        "- first run: it was not over after 2 s (PREFILL_TIMEOUT_S + STALL_TIMEOUT_S), "
        "and the process was killed\n"
    )


@pytest.mark.long
def test_a_load_has_a_clock_of_its_own(rkllm: Callable[..., Reported]) -> None:
    done = rkllm("1.3", f"init ms={WAIT_S}000\n", LOAD_TIMEOUT_S="6", PREFILL_TIMEOUT_S="0.1")
    assert done.code == 1
    assert "- loading: it was not over after 6 s (LOAD_TIMEOUT_S)" in done.section("What failed")


def test_a_missing_library(rkllm: Callable[..., Reported], tmp_path: Path) -> None:
    done = rkllm("1.3", "answer\n", RKLLM_LIB_PATH=str(tmp_path / "none.so"))
    assert done.code == 1
    failed = done.section("What failed")
    assert failed.startswith(
        "- library: `ModelLoadFailed: RKLLM_LIB_PATH: there is no file ~/none.so; "
    )
    assert "\n" not in failed
    assert done.stderr == ""


def test_a_run_that_fails_does_not_end_it(rkllm: Callable[..., Reported]) -> None:
    done = rkllm("1.3", 'answer when="twenty"\n  error "no"\nanswer\n  say "so" times=40 us=1000\n')
    assert done.code == 1
    assert done.section("What failed").startswith("- first run: `BackendFailed: ")
    assert done.section("Closing").startswith("- ms: ")


def test_a_terminal_shows_the_steps_and_ctrl_c_gets_a_report(
    script: ScriptFactory, tmp_path: Path
) -> None:
    path = script({"pieces": [{"hang_s": 600, "deaf": True}]})
    terminal, theirs = pty.openpty()
    command: list[Any] = [sys.executable, "-m", "handler", "doctor"]
    environment = clean_environment(tmp_path, {"MODEL_PATH": str(path), "TERM": "xterm"})
    with (
        os.fdopen(terminal, "rb", buffering=0) as expected,
        subprocess.Popen(
            command,
            env=environment,
            cwd=tmp_path,
            stdout=subprocess.PIPE,
            stderr=theirs,
            text=True,
            # Whoever runs the tests in the background has it ignored, and children inherit that.
            preexec_fn=lambda: signal.signal(signal.SIGINT, signal.SIG_DFL),
        ) as process,
    ):
        os.close(theirs)
        recorded = b""
        while b"first run" not in recorded:
            recorded += expected.read(4096)
        process.send_signal(signal.SIGINT)
        page, _ = process.communicate(timeout=WAIT_S)
    assert process.returncode == 1
    assert page.endswith("## What failed\n\n- first run: it was interrupted\n")


def test_nothing_is_left_when_it_is_killed(script: ScriptFactory, tmp_path: Path) -> None:
    path = script({"pieces": [{"hang_s": 600, "deaf": True}]})
    with subprocess.Popen(
        [sys.executable, "-m", "handler", "doctor"],
        env=clean_environment(tmp_path, {"MODEL_PATH": str(path), "TMPDIR": str(tmp_path)}),
        cwd=tmp_path,
        stdout=subprocess.DEVNULL,
    ) as process:
        wait_until_blocking(lambda: examiners(process.pid) != [], WAIT_S)
        process.kill()
    wait_until_blocking(lambda: examiners(process.pid) == [], WAIT_S)


def examiners(parent: int) -> list[int]:
    result = []
    for entry in Path("/proc").glob("[0-9]*/cmdline"):
        with suppress(OSError):
            arguments = entry.read_bytes().rstrip(b"\0").split(b"\0")
            if arguments[-2:] == [b"engine.doctor.examiner", str(parent).encode()]:
                result.append(int(entry.parent.name))
    return result


def test_clock_without_an_end(doctor: Doctor, script: ScriptFactory) -> None:
    path = script({"pieces": ["so "], "repeat": 300, "delay_ms": 1})
    done = doctor(MODEL_PATH=str(path), PREFILL_TIMEOUT_S="inf")
    assert (done.code, done.stderr) == (0, "")


# ---- what only a board can decide ----

TRIED = """
    {line}
    vocabulary 260
    answer
      thread caller
      prefill_ms 0 us_per_token=100
      abort ms=0 finish
      cache told
      say "one " times=40 us=5000
"""
# Each line of the script, and what the profile has then.
OUTCOMES = {
    "prefix_reuse on": ("prefix_reuse", True),
    "prefix_reuse off": ("prefix_reuse", False),
    "history_logits work": ("logits_with_history", True),
    "history_logits crash": ("logits_with_history", False),
    "aborted_save harmless": ("cache_load_after_abort", True),
    "aborted_save spoils": ("cache_load_after_abort", False),
    "prompt_cache not_saved": ("cache_load_after_abort", None),
}


@pytest.mark.long_except("1.2-prefix_reuse on", "1.3.1-history_logits crash")
@pytest.mark.parametrize(("line", "outcome"), OUTCOMES.items(), ids=list(OUTCOMES))
@pytest.mark.parametrize("abi", ["1.2", "1.3.1"])
def test_outcome_of_a_trial_is_written(
    rkllm: Callable[..., Reported],
    tmp_path: Path,
    abi: str,
    line: str,
    outcome: tuple[str, bool | None],
) -> None:
    done = rkllm(abi, TRIED.format(line=line), RKLLM_PROFILE=str(tmp_path / "profile.json"))
    assert done.code == 0, done.page
    assert "- written to: `~/profile.json`" in done.section("Profile")
    (profile,) = json.loads((tmp_path / "profile.json").read_text())["profiles"]
    name, expected = outcome
    assert profile[name] is expected
    assert profile["prefill_ms"]["512"] >= 51
    if profile["logits_with_history"]:
        assert list(profile["logits_run_ms"]) == ["1", "4", "8", "16"]
    if expected is False and name != "prefix_reuse":
        assert "- reason: `the process was killed by SIGSEGV`" in done.page


def test_engine_uses_what_the_doctor_wrote(rkllm: Callable[..., Reported], tmp_path: Path) -> None:
    settings = {"RKLLM_PROFILE": str(tmp_path / "profile.json")}
    done = rkllm("1.3.1", TRIED.format(line="prefix_reuse on"), **settings)
    # The examination comes after the trials, and so with the profile.
    assert "- tokens reused: 40" in done.section("Next turn")
    assert "RKLLM_PROFILE" not in done.section("What was printed")


def test_profile_that_cannot_be_written_is_a_failure(
    rkllm: Callable[..., Reported], tmp_path: Path
) -> None:
    path = tmp_path / "profile.json"
    path.write_text("[]")
    done = rkllm("1.3.1", TRIED.format(line=""), RKLLM_PROFILE=str(path))
    assert done.code == 1
    assert "- profile: `RKLLM_PROFILE: ~/profile.json was not written: it is no rkllm-profile`" in (
        done.section("What failed")
    )


@pytest.mark.long_except("!")
@pytest.mark.parametrize("text", ["!", "\\xff", "[PAD151935]"])
def test_garbage_fails_the_doctor(rkllm: Callable[..., Reported], text: str) -> None:
    done = rkllm("1.3.1", f'answer\n  say "{text}" times=40 us=1000\n')
    assert done.code == 1
    assert "- first run: `BackendFailed: the " in done.section("What failed")


def test_load_that_failed_but_returned_0_fails_the_doctor(rkllm: Callable[..., Reported]) -> None:
    words = "invalid rknn llm model magic, rknn_init fail! ret=-1"
    done = rkllm("1.3.1", f'init fails=0 "{words}"\nanswer\n  say "a"\n')
    assert done.code == 1
    assert "- loading: `ModelLoadFailed: MODEL_PATH: " in done.section("What failed")
    assert "Prompts with a common start" not in done.page


def test_comparison_says_which_engine_is_faster(
    rkllm: Callable[..., Reported], model_path: Path
) -> None:
    # Two tokens a second of an answer, which any machine exceeds with the built-in model.
    slow = """
        answer when="walnut walnut"
          prefill_ms 0 us_per_token=50000
          say "nut " times=2
        answer when="twenty"
          say "one " times=4 us=500000
        answer
          abort ms=0
          say "one " times=20 us=20000
    """
    done = rkllm("1.3.1", slow, "--compare", str(model_path), CONTEXT_LENGTH="256")
    assert done.code == 0, done.page
    section = done.section("Comparison with a GGUF")
    values = dict(line[2:].split(": ", 1) for line in section.splitlines())
    assert 1.5 < float(values["tokens a second of answers, rkllm"]) < 2.5
    assert 15 < float(values["tokens a second of prompts, rkllm"]) < 25
    for each in ("prompts", "answers"):
        own, other = (float(values[f"tokens a second of {each}, {of}"]) for of in ("rkllm", "GGUF"))
        faster = "GGUF" if other > own else "rkllm"
        ratio = max(own, other) / min(own, other)
        assert values[f"faster for {each}"] == f"`{faster}, {ratio:.1f} times`"
    assert "GGUF" in values["faster for answers"]


def test_comparison_with_a_damaged_model_is_a_failure(
    rkllm: Callable[..., Reported], tmp_path: Path
) -> None:
    damaged = tmp_path / "damaged.gguf"
    damaged.write_bytes(b"GGUF")
    done = rkllm("1.3.1", TRIED.format(line=""), "--compare", str(damaged))
    assert done.code == 1
    assert "- comparison with a GGUF: `ModelLoadFailed: " in done.section("What failed")


def test_comparison_with_a_missing_model_is_refused_at_once(doctor: Doctor) -> None:
    done = doctor("--compare", "none.gguf")
    assert done.code == 2
    assert "--compare: there is no file none.gguf" in done.stderr
