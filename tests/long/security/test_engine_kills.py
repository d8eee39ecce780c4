"""kill -9 of the engine 20 times in 20 s while 200 jobs wait."""

from __future__ import annotations

from tests.conftest import ScriptFactory
from tests.integration.emulator.conftest import Serve
from tests.security.engine_kills import kill_while_jobs_wait

# 200 of these take 4 slots some 20 s.
ANSWER = {"when": "job", "pieces": ["a", {"text": "b", "delay_ms": 400}]}


async def test_twenty_kills_of_the_engine_fail_no_waiting_job(
    serve: Serve, script: ScriptFactory
) -> None:
    server = await serve(script(ANSWER, slots=4), engine_isolation="process")
    found = await kill_while_jobs_wait(
        server, "job", jobs=200, kills=20, interval_s=1.0, within_s=120
    )
    assert found.kills == 20
    assert found.failed_too_early == []
    assert found.statuses["COMPLETED"] == 200 - len(found.failed)
