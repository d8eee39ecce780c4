"""A request that ended the engine's process is refused the second time."""

from __future__ import annotations

import pytest

from engine.errors import RequestRejected
from engine.hosts.losses.crash_causes import REFUSED_FOR_S, CrashCauses
from engine.request import Chat, GenerationRequest, Message, Priority, SamplingParams

REASON = "the engine process was killed by SIGSEGV"


def request(
    text: str, priority: Priority = Priority.INTERACTIVE, temperature: float = 1.0
) -> GenerationRequest:
    return GenerationRequest(
        prompt=Chat((Message("user", text),)),
        sampling=SamplingParams(temperature=temperature),
        priority=priority,
    )


def test_single_request_of_a_crash_is_refused() -> None:
    causes = CrashCauses()
    causes.record([request("bad")], REASON)
    with pytest.raises(RequestRejected, match=f"has ended the engine before .{REASON}., and is no"):
        causes.check(request("bad"))
    causes.check(request("good"))
    causes.check(request("bad", temperature=0.5))


def test_one_of_several_requests_is_refused_after_its_second_crash() -> None:
    causes = CrashCauses()
    causes.record([request("bad"), request("neighbour")], REASON)
    for each in ("bad", "neighbour"):
        causes.check(request(each))
    causes.record([request("bad"), request("other neighbour")], REASON)
    with pytest.raises(RequestRejected):
        causes.check(request("bad"))
    for each in ("neighbour", "other neighbour"):
        causes.check(request(each))


def test_no_request_is_refused_while_several_are_suspect() -> None:
    causes = CrashCauses()
    together = [request("bad"), request("neighbour")]
    for _ in range(3):
        causes.record(together, REASON)
    for each in together:
        causes.check(each)


def test_jobs_have_attempts_of_their_own() -> None:
    causes = CrashCauses()
    causes.record([request("bad", Priority.JOB)], REASON)
    causes.check(request("bad", Priority.JOB))
    causes.check(request("bad"))


def test_job_is_refused_when_another_with_the_same_run_has_used_up_its_attempts() -> None:
    causes = CrashCauses()
    bad, neighbour = request("bad", Priority.JOB), request("neighbour", Priority.JOB)
    for running in ([bad, neighbour], [bad, neighbour], [bad]):
        causes.check(bad)
        causes.record(running, REASON)
    with pytest.raises(RequestRejected, match="has ended the engine before"):
        causes.check(bad)
    causes.check(neighbour)


def test_side_call_that_crashed_the_engine_is_refused() -> None:
    causes = CrashCauses()
    causes.record([("embed", "bad")], REASON)
    with pytest.raises(RequestRejected):
        causes.check(("embed", "bad"))
    for other in (("tokenize", "bad"), ("embed", "good"), ("score", ((1, 2), 0))):
        causes.check(other)


def test_refusal_expires() -> None:
    now = [100.0]
    causes = CrashCauses(clock=lambda: now[0])
    causes.record([request("bad")], REASON)
    now[0] += REFUSED_FOR_S + 1
    causes.check(request("bad"))


def test_number_of_remembered_requests_is_bounded() -> None:
    causes = CrashCauses()
    for number in range(300):
        causes.record([request(str(number))], REASON)
    causes.check(request("0"))
    with pytest.raises(RequestRejected):
        causes.check(request("299"))
