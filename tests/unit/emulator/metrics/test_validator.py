"""Verdicts are counted, one at a time."""

from __future__ import annotations

import threading

from emulator.metrics.validator import InstrumentedValidator
from tests.waiting import WAIT_S
from validation import Options, Subject, Verdict

PASSED, REFUSED = Verdict(text="", intent="general"), Verdict(text="", intent="unsafe")
SUBJECT = Subject(prompt="prompt", text="text")


class Judge:
    """Refuses prompts that begin with "bad", and accepts every answer."""

    def check_request(self, prompt: str, conversation: str, options: Options) -> Verdict | None:
        return REFUSED if prompt.startswith("bad") else None

    def validate(self, subject: Subject, options: Options) -> Verdict:
        return PASSED


def test_validator_counts_verdicts_and_refusals_only() -> None:
    verdicts: list[Verdict] = []
    counted = InstrumentedValidator(Judge(), verdicts.append)
    assert counted.check_request("good", "", Options()) is None
    assert verdicts == []
    assert counted.check_request("bad", "", Options()) is REFUSED
    assert counted.validate(SUBJECT, Options()) is PASSED
    assert verdicts == [REFUSED, PASSED]


def test_verdicts_of_two_threads_are_reported_one_at_a_time() -> None:
    telling, go_on = threading.Semaphore(0), threading.Event()

    def report(verdict: Verdict) -> None:
        telling.release()
        assert go_on.wait(WAIT_S)

    counted = InstrumentedValidator(Judge(), report)
    threads = [
        threading.Thread(target=counted.validate, args=(SUBJECT, Options())) for _ in range(2)
    ]
    for thread in threads:
        thread.start()
    assert telling.acquire(timeout=WAIT_S)
    # The second report does not begin before the first has ended.
    assert not telling.acquire(timeout=0.1)
    go_on.set()
    assert telling.acquire(timeout=WAIT_S)
    for thread in threads:
        thread.join(WAIT_S)
