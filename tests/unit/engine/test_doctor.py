"""What the doctor finds of a scripted backend, in this process."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

from engine.backends.scripted import ScriptedBackend
from engine.doctor import BEGINS, FAILED, Doctor
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


def examined(path: Path) -> list[tuple[str, str, Any]]:
    return list(Doctor("scripted", {"model_path": str(path)}).examine())


def found(path: Path) -> dict[tuple[str, str], Any]:
    return {(step, name): value for step, name, value in examined(path)}


def begun(findings: list[tuple[str, str, Any]]) -> list[str]:
    return [step for step, name, _ in findings if name == BEGINS]


def failed(findings: list[tuple[str, str, Any]]) -> list[tuple[str, Any]]:
    return [(step, value) for step, name, value in findings if name == FAILED]


def test_every_step_is_done(script: ScriptFactory) -> None:
    findings = examined(script(ENDLESS))
    assert begun(findings) == STEPS
    assert failed(findings) == []
    loaded = [value for _, name, value in findings if name == BEGINS]
    assert loaded == [False] * 3 + [True] * 8


def test_what_is_found(script: ScriptFactory) -> None:
    path = script({"pieces": ["one", " two"], "when": "twenty"}, ENDLESS)
    seen = found(path)
    assert seen["model", "bytes"] == path.stat().st_size
    assert seen["loading", "backend"] == "scripted"
    assert seen["first run", "text"] == "one two"
    assert seen["first run", "callbacks"] == 2
    assert seen["first run", "callbacks on the calling thread"] is True
    assert seen["first run", "tokens, as the runtime counts"] is None
    assert seen["limit of 5 tokens", "callbacks"] == 5
    assert seen["limit of 5 tokens", "callbacks beyond the limit"] == 0
    assert seen["abort in decode", "ms to the return"] < 1000
    assert seen["abort in decode", "callbacks after it"] <= 1
    assert seen["next turn", "tokens of the first turn"] == 45
    assert seen["next turn", "tokens reused"] == 0
    assert seen["afterwards", "callbacks of the last one"] == 8
    assert seen["afterwards", "growth over these runs, MB"] < 4


@pytest.mark.parametrize("deaf", [True, False])
def test_whether_an_abort_interrupts_prefill(script: ScriptFactory, deaf: bool) -> None:
    slow = {"when": "walnut walnut", "prefill_ms": 600, "deaf_prefill": deaf, "pieces": ["so "]}
    seen = found(script(slow, ENDLESS))
    assert seen["long prompt", "ms to the first callback"] >= 600
    assert seen["abort in prefill", "prefill interrupted"] is not deaf


def test_a_prefill_that_is_soon_over_tells_nothing(script: ScriptFactory) -> None:
    seen = found(script(ENDLESS))
    assert seen["abort in prefill", "prefill interrupted"] is None


def test_answers_without_a_callback(script: ScriptFactory) -> None:
    findings = examined(script({"pieces": []}))
    assert failed(findings) == []
    seen = {(step, name): value for step, name, value in findings}
    assert seen["first run", "callbacks"] == 0
    assert seen["first run", "ms to the first callback"] is None
    assert seen["first run", "tokens a second"] is None
    assert seen["first run", "callbacks on the calling thread"] is None
    assert seen["limit of 5 tokens", "callbacks beyond the limit"] is None
    assert seen["limit of 5 tokens", "ms from the last one to the return"] is None
    assert seen["abort in decode", "ms to the return"] is None


def test_a_load_that_fails_is_the_last_finding(tmp_path: Path) -> None:
    missing = tmp_path / "none.json"
    findings = examined(missing)
    assert findings[-1] == (
        "loading",
        FAILED,
        f"ModelLoadFailed: MODEL_PATH: there is no file {missing}",
    )
    assert begun(findings) == STEPS[:3]


def test_a_run_that_fails_is_a_finding_among_others(script: ScriptFactory) -> None:
    findings = examined(script({"when": "twenty", "pieces": [{"error": "out of luck"}]}, ENDLESS))
    assert begun(findings) == STEPS
    assert failed(findings) == [("first run", "BackendFailed: out of luck")]


def test_a_bug_is_a_finding_with_its_traceback(
    script: ScriptFactory, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    def close(self: ScriptedBackend) -> None:
        raise KeyError("gone")

    monkeypatch.setattr(ScriptedBackend, "close", close)
    findings = examined(script(ENDLESS))
    assert failed(findings) == [("closing", "KeyError: 'gone'")]
    assert "Traceback" in capsys.readouterr().err


def test_a_backend_without_a_model() -> None:
    findings = list(Doctor("scripted", {}).examine())
    assert ("model", "path", "none was given") in findings
    assert failed(findings) == []


def test_a_missing_library_comes_after_the_driver(tmp_path: Path) -> None:
    options = {"model_path": "", "model_name": "m", "lib_path": str(tmp_path / "none")}
    findings = list(Doctor("rkllm", options).examine())
    assert begun(findings) == ["machine", "model", "driver", "library"]
    ((step, message),) = failed(findings)
    assert step == "library"
    assert message.startswith("ModelLoadFailed: RKLLM_LIB_PATH: there is no file")
