"""The doctor's steps and trials in this process, on the fake library: what they report and fail."""

from __future__ import annotations

import threading
from pathlib import Path
from typing import Any

import pytest

from engine.backends.lora_adapters import parse_adapters
from engine.backends.options import RkllmOptions
from engine.backends.rkllm.abi.abi import ABI_131
from engine.backends.rkllm.board.trials import HISTORY_REUSE, PREFIX_REUSE, REPEATS
from engine.doctor.examiner import FAILED, Doctor, examine_trial
from tests import fake_rknnlite
from tests.integration.engine.rkllm.conftest import OptionsMaker

CONTINUED, COMMON_START = "continued chat", "prompts with a common start"
NEWEST_ABI = pytest.mark.parametrize("abi", [ABI_131], ids=["abi1.3.1"])
COUNT = 'say "one " "two " "three " id=7 us=100 times=4'
# The first tokens of the trial's chat, which a run that continues it does not have.
WHOLE = "100 101 102"


def findings_of(options: RkllmOptions, *steps: str) -> dict[str, dict[str, Any]]:
    """Return the findings of some of the doctor's steps, by step and name."""
    return by_step(Doctor(options).examine(("loading", *steps, "closing")))


def by_step(findings: Any) -> dict[str, dict[str, Any]]:
    found: dict[str, dict[str, Any]] = {}
    for step, name, value in findings:
        found.setdefault(step, {})[name] = value
    return found


def trial_of(options: RkllmOptions, step: str) -> dict[str, Any]:
    return by_step(examine_trial(step, options))[step]


def test_trial_of_a_continued_chat_proves_the_same_answer(options_of: OptionsMaker) -> None:
    values = trial_of(options_of(f"answer\n  cache told\n  {COUNT}\n"), CONTINUED)
    assert (values[REPEATS], values[HISTORY_REUSE]) == (True, True)
    assert values["of them in the cache"] > 100


def test_trial_of_a_continued_chat_finds_another_answer(options_of: OptionsMaker) -> None:
    script = f'''answer when="{WHOLE}"
  cache told
  {COUNT}
answer
  cache told
  say "nonsense " id=9 us=100 times=8
'''
    values = trial_of(options_of(script), CONTINUED)
    assert (values[REPEATS], values[HISTORY_REUSE]) == (True, False)


@pytest.mark.parametrize("step", [CONTINUED, COMMON_START])
def test_board_that_does_not_repeat_itself_proves_nothing(
    options_of: OptionsMaker, step: str
) -> None:
    # Each run of the model gives another token.
    script = "".join(
        f'answer run={run}\n  cache told\n  say "a " id={run} us=100 times=8\n'
        for run in range(1, 30)
    )
    values = trial_of(options_of(script), step)
    outcome = HISTORY_REUSE if step == CONTINUED else PREFIX_REUSE
    assert values[REPEATS] is False
    assert values[outcome] in (None, False)
    assert values.get("same answer") is None


def test_token_that_the_tokenizer_lacks_is_not_the_boards_fault(options_of: OptionsMaker) -> None:
    options = options_of('answer\n  say "one two three " id=1000 us=100 times=9\n', tokenizer=True)
    values = findings_of(options, "next turn")["next turn"]
    assert FAILED not in values
    assert values["not tried"] == "prompt: there is no token 1000"
    assert "tokens reused" not in values


@NEWEST_ABI
def test_abort_that_came_too_late_is_not_known(
    options_of: OptionsMaker, monkeypatch: pytest.MonkeyPatch
) -> None:
    script = f"answer\n  prefill_ms 220\n  abort ms=0 finish\n  {COUNT}\n"
    values = findings_of(options_of(script), "long prompt", "abort in prefill")["abort in prefill"]
    assert values["prefill interrupted"] is False
    timer = threading.Timer

    def late_timer(interval: float, function: Any) -> threading.Timer:
        return timer(interval * 3.2, function)

    monkeypatch.setattr("engine.doctor.run_trace.threading.Timer", late_timer)
    values = findings_of(options_of(script), "long prompt", "abort in prefill")["abort in prefill"]
    assert values["prefill interrupted"] is None


def test_vectors_of_unlike_texts_that_are_alike_fail(
    options_of: OptionsMaker, monkeypatch: pytest.MonkeyPatch
) -> None:
    options = options_of("vocabulary 260\nanswer\n", tokenizer=True)
    values = findings_of(options, "vector")["vector"]
    assert FAILED not in values
    assert -1 <= values["cosine of two unlike texts"] < 0.999
    monkeypatch.setattr(
        "engine.backends.rkllm.backend.RkllmBackend.embed",
        lambda backend, text: ([0.5, 0.5], len(text)),
    )
    values = findings_of(options, "vector")["vector"]
    assert values["cosine of two unlike texts"] == 1
    assert "alike" in values[FAILED]


@pytest.mark.parametrize(
    ("text", "failure"),
    [
        ('say "Red " us=100', None),
        ('say "A picture of run \\{run}" us=100', None),
        ('say "I see nothing." us=100', "does not depend on the picture"),
        ('say "!" us=100 times=24', "no text"),
    ],
    ids=["named", "differs", "equal", "garbage"],
)
def test_doctor_asks_about_pictures(
    options_of: OptionsMaker, tmp_path: Path, text: str, failure: str | None
) -> None:
    vision = fake_rknnlite.write_encoder(tmp_path / "vision.rknn")
    options = options_of(f"answer\n  {text}\n", tokenizer=True, vision=str(vision), vision_size=28)
    values = findings_of(options, "pictures")["pictures"]
    assert (failure or "") in values.get(FAILED, "")
    assert (FAILED in values) is (failure is not None)


def test_special_tokens_that_are_read_as_text_are_named(
    options_of: OptionsMaker, tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    vision = fake_rknnlite.write_encoder(tmp_path / "vision.rknn")
    script = 'answer\n  say "Red "\n  perf prefill_tokens=400\n'
    options = options_of(script, tokenizer=True, vision=str(vision), vision_size=28)
    findings_of(options, "pictures")
    assert "special tokens in the text may be read as plain text" in caplog.text


def test_each_adapter_answers_or_is_named(options_of: OptionsMaker, tmp_path: Path) -> None:
    for name in ("good", "bad"):
        (tmp_path / name).write_text("")
    adapters = parse_adapters(f"good={tmp_path}/good,bad={tmp_path}/bad")
    script = f'answer run=1\n  {COUNT}\nanswer\n  say "!" us=100 times=24\n'
    options = options_of(f"prefix_reuse off\n{script}", adapters=adapters, kv_reuse=False)
    found = findings_of(options, "adapter good", "adapter bad")
    assert found["adapter good"]["text"].startswith("one two three")
    assert "the answer with the adapter is empty or no text" in found["adapter bad"][FAILED]
