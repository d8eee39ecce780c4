"""The doctor's findings about a scripted backend, in this process."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

from engine.backends.options import RkllmOptions, ScriptedOptions
from engine.backends.scripted import ScriptedBackend
from engine.doctor.answer_checks import is_count
from engine.doctor.examiner import BEGINS, FAILED, Doctor
from tests.conftest import ScriptFactory

STEPS = [
    "machine",
    "model",
    "loading",
    "first run",
    "limit of 5 tokens",
    "abort in decode",
    "next turn",
    "long prompt",
    "abort in prefill",
    "afterwards",
    "closing",
]
ENDLESS = {"pieces": ["so "], "repeat": 300, "delay_ms": 1}


def examine(path: Path) -> list[tuple[str, str, Any]]:
    return list(Doctor(ScriptedOptions(model_path=str(path))).examine())


def collect_values(path: Path) -> dict[tuple[str, str], Any]:
    return {(step, name): value for step, name, value in examine(path)}


def started_steps(findings: list[tuple[str, str, Any]]) -> list[str]:
    return [step for step, name, _ in findings if name == BEGINS]


def failed(findings: list[tuple[str, str, Any]]) -> list[tuple[str, Any]]:
    return [(step, value) for step, name, value in findings if name == FAILED]


def test_doctor_runs_every_step(script: ScriptFactory) -> None:
    findings = examine(script(ENDLESS))
    assert started_steps(findings) == STEPS
    assert failed(findings) == []
    loaded = [value for _, name, value in findings if name == BEGINS]
    assert loaded == [False] * 3 + [True] * 8


def test_doctor_reports_its_findings(script: ScriptFactory) -> None:
    path = script({"pieces": ["one", " two"], "when": "twenty"}, ENDLESS)
    values = collect_values(path)
    assert values["model", "bytes"] == path.stat().st_size
    assert values["loading", "backend"] == "scripted"
    assert values["first run", "text"] == "one two"
    assert values["first run", "callbacks"] == 2
    assert values["first run", "callbacks on the calling thread"] is True
    assert values["first run", "tokens, as the runtime counts"] is None
    assert values["limit of 5 tokens", "callbacks"] == 5
    assert values["limit of 5 tokens", "callbacks beyond the limit"] == 0
    assert values["abort in decode", "ms to the return"] < 1000
    assert values["abort in decode", "callbacks after it"] <= 1
    assert values["next turn", "tokens of the first turn"] == 45
    assert values["next turn", "tokens reused"] == 0
    assert values["afterwards", "callbacks of the last one"] == 8
    assert values["afterwards", "growth over these runs, MB"] < 4


@pytest.mark.parametrize("deaf", [True, False])
def test_doctor_reports_whether_an_abort_interrupts_prefill(
    script: ScriptFactory, deaf: bool
) -> None:
    slow = {"when": "walnut walnut", "prefill_ms": 600, "deaf_prefill": deaf, "pieces": ["so "]}
    values = collect_values(script(slow, ENDLESS))
    assert values["long prompt", "ms to the first callback"] >= 600
    assert values["abort in prefill", "prefill interrupted"] is not deaf


def test_short_prefill_is_inconclusive(script: ScriptFactory) -> None:
    values = collect_values(script(ENDLESS))
    assert values["abort in prefill", "prefill interrupted"] is None


def test_doctor_accepts_answers_without_a_callback(script: ScriptFactory) -> None:
    findings = examine(script({"pieces": []}))
    assert failed(findings) == []
    values = {(step, name): value for step, name, value in findings}
    assert values["first run", "callbacks"] == 0
    assert values["first run", "ms to the first callback"] is None
    assert values["first run", "tokens a second"] is None
    assert values["first run", "callbacks on the calling thread"] is None
    assert values["limit of 5 tokens", "callbacks beyond the limit"] is None
    assert values["limit of 5 tokens", "ms from the last one to the return"] is None
    assert values["abort in decode", "ms to the return"] is None


def test_failed_load_is_the_last_finding(tmp_path: Path) -> None:
    missing = tmp_path / "none.json"
    findings = examine(missing)
    assert findings[-1] == (
        "loading",
        FAILED,
        f"ModelLoadFailed: MODEL_PATH: there is no file {missing}",
    )
    assert started_steps(findings) == STEPS[:3]


def test_failed_run_does_not_stop_the_doctor(script: ScriptFactory) -> None:
    findings = examine(script({"when": "twenty", "pieces": [{"error": "out of luck"}]}, ENDLESS))
    assert started_steps(findings) == STEPS
    assert failed(findings) == [("first run", "BackendFailed: out of luck")]


def test_unexpected_exception_is_a_finding_with_a_traceback(
    script: ScriptFactory, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    def close(self: ScriptedBackend) -> None:
        raise KeyError("gone")

    monkeypatch.setattr(ScriptedBackend, "close", close)
    findings = examine(script(ENDLESS))
    assert failed(findings) == [("closing", "KeyError: 'gone'")]
    assert "Traceback" in capsys.readouterr().err


def test_doctor_examines_a_backend_without_a_model() -> None:
    findings = list(Doctor(ScriptedOptions()).examine())
    assert ("model", "path", "none was given") in findings
    assert failed(findings) == []


def test_missing_library_is_reported_after_the_driver(tmp_path: Path) -> None:
    options = RkllmOptions(model_path="", model_name="m", lib_path=str(tmp_path / "none"))
    findings = list(Doctor(options).examine())
    assert started_steps(findings) == ["machine", "model", "driver", "library"]
    ((step, message),) = failed(findings)
    assert step == "library"
    assert message.startswith("ModelLoadFailed: RKLLM_LIB_PATH: there is no file")


@pytest.mark.parametrize(
    ("text", "expected"),
    [
        ("One, two, three, four, five", True),
        ("1, 2, 3, 4", True),
        ("1\n2\n3", True),
        ("<think>I count: one, TWO, Three.", True),
        ("", False),
        ("0 0 0 0 0 0 0 0", False),
        ("one one one one one one one", False),
        ("한국어 и数 två twofold threefold", False),
        ("1 12 23 312", False),
    ],
)
def test_count_is_distinguished_from_nonsense_with_real_words(text: str, expected: bool) -> None:
    assert is_count(text) is expected
