"""kill -9 of the engine 20 times in 20 s while 200 jobs wait."""

from __future__ import annotations

from tests.conftest import ScriptFactory
from tests.integration.emulator.conftest import Serve
from tests.security.engine_kills import kill_while_jobs_wait

# With 4 slots, 200 of these jobs take about 20 s.
ANSWER = {"when": "job", "pieces": ["a", {"text": "b", "delay_ms": 400}]}


async def test_twenty_kills_of_the_engine_fail_no_waiting_job(
    serve: Serve, script: ScriptFactory
) -> None:
    server = await serve(script(ANSWER, slots=4), engine_isolation="process")
    result = await kill_while_jobs_wait(
        server, "job", jobs=200, kills=20, interval_s=1.0, within_s=120
    )
    assert result.kills == 20
    assert result.failed_too_early == []
    assert result.statuses["COMPLETED"] == 200 - len(result.failed)
