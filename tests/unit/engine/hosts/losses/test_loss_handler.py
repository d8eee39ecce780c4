"""What happens to the requests of a lost process, and to the next start."""

from __future__ import annotations

from typing import Any

import pytest

from engine.config import BackendConfig
from engine.errors import EngineCrashed, EngineError, EngineReplaced, EngineStalled, RequestRejected
from engine.hooks import EngineEvent, Hooks, HostLost
from engine.hosts.losses.crash_causes import CrashCauses
from engine.hosts.losses.loss import Loss
from engine.hosts.losses.loss_handler import LossHandler
from engine.hosts.output_tail import OutputTail

CRASH = Loss("it crashed", "none", has_crashed=True)
WORK = ("embed", "a text")


class AbortedRun:
    """A run that was aborted, for a timeout or by its client."""

    def __init__(self, error: EngineError | None) -> None:
        self.error = error


class Runs:
    """The requests on the process."""

    def __init__(self, *aborted: AbortedRun) -> None:
        self.aborted_runs = aborted
        self.running = [WORK]
        self.error: EngineError | None = None

    def fail_all(self, error: EngineError) -> None:
        self.error = error


class LossScene:
    """A handler of losses with its requests, crash causes and events."""

    def __init__(self, *aborted: AbortedRun) -> None:
        inflight: Any = Runs(*aborted)
        self.inflight = inflight
        self.crash_causes = CrashCauses()
        self.events: list[EngineEvent] = []
        self.losses = LossHandler(
            BackendConfig.from_wire("scripted", {}),
            300.0,
            Hooks([self.events.append]),
            inflight,
            self.crash_causes,
            OutputTail(),
        )
        self.losses.record_load(2.0, has_run=True)


def test_crash_ends_the_requests_and_is_remembered_as_theirs() -> None:
    scene = LossScene()
    assert scene.losses.handle(CRASH, has_failed=False) is None
    assert type(scene.inflight.error) is EngineCrashed
    with pytest.raises(RequestRejected, match="it crashed"):
        scene.crash_causes.check(WORK)
    assert scene.events == [HostLost("it crashed", False)]
    downtime = scene.losses.downtime
    assert downtime is not None
    assert (downtime.reason, downtime.crashes, downtime.load_s) == ("it crashed", 1, 2.0)


def test_crash_by_the_abort_of_a_client_does_not_count_against_the_engine() -> None:
    scene = LossScene(AbortedRun(None))
    scene.losses.handle(CRASH, has_failed=False)
    assert scene.losses.policy.crashes_in_a_row == 0
    assert isinstance(scene.inflight.error, EngineReplaced)
    scene.crash_causes.check(WORK)


def test_run_that_stalled_before_its_abort_counts() -> None:
    scene = LossScene(AbortedRun(EngineStalled("no token")))
    scene.losses.handle(CRASH, has_failed=False)
    assert scene.losses.policy.crashes_in_a_row == 1


def test_killed_process_has_crashed_by_none_of_its_requests() -> None:
    scene = LossScene()
    scene.losses.handle(Loss("it hangs", "none", was_killed=True), has_failed=False)
    assert isinstance(scene.inflight.error, EngineReplaced)
    scene.crash_causes.check(WORK)


def test_downtime_keeps_its_beginning_until_the_model_is_loaded() -> None:
    scene = LossScene()
    scene.losses.begin_downtime("it was killed")
    assert scene.losses.downtime is not None
    since = scene.losses.downtime.since
    scene.losses.handle(CRASH, has_failed=False)
    scene.losses.end_pause()
    assert (scene.losses.downtime.since, scene.losses.downtime.next_start) == (since, None)
    scene.losses.record_load(1.0, has_run=False)
    assert scene.losses.downtime is None


def test_fatal_error_is_returned_and_logged_unless_there_is_one(
    caplog: pytest.LogCaptureFixture,
) -> None:
    scene = LossScene()
    scene.losses._down_limit_s = 0.0
    error = scene.losses.handle(CRASH, has_failed=False)
    assert error is not None
    assert error.message in caplog.text
    caplog.clear()
    scene.losses.handle(CRASH, has_failed=True)
    assert not caplog.text
