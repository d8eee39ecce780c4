"""Each member of each API's bodies, replaced by each wrong type: no answer is a server error."""

from __future__ import annotations

import logging

import pytest

from tests.conftest import ScriptFactory
from tests.integration.emulator.conftest import Serve
from tests.security.type_cases import (
    BATCH_ROUTES,
    CAPABILITIES,
    MODEL,
    batch_cases,
    body_cases,
    check_full_bodies,
    line_cases,
    run_batch,
    send_lines,
    send_type_cases,
)

logger = logging.getLogger(__name__)

_SETTINGS = {
    "model_name": MODEL,
    "rate_limit_chat": "off",
    "max_jobs": 1_000_000,
    "max_queue": 10_000,
    "webhook_tries": 1,
    # Pulled models are read further; none of the names is one of the Hub's.
    "model_pull": True,
}


@pytest.mark.timeout(900)
async def test_no_wrong_type_is_the_servers_fault(
    serve: Serve, script: ScriptFactory, caplog: pytest.LogCaptureFixture
) -> None:
    path = script({"pieces": ["yes", " it"]}, capabilities=CAPABILITIES)
    server = await serve(path, **_SETTINGS)
    async with server.client(sends_anything=True) as client:
        await check_full_bodies(client)
        statuses = await send_type_cases(client, body_cases())
        logger.info("%d bodies: %s", statuses.total(), dict(statuses))
        assert min(statuses[200], statuses[400]) > statuses.total() // 5
        logger.info("lines: %s", dict(await send_lines(client, line_cases())))
    for route in BATCH_ROUTES:
        counts = await run_batch(server, route, batch_cases(route))
        logger.info("a batch for %s: %s", route, dict(counts))
    assert "Traceback" not in caplog.text
