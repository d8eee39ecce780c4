"""Jobs that look like background responses, and outputs that look like answers, are checked."""

from __future__ import annotations

from typing import Any

import httpx2
import pytest

from tests.integration.emulator.conftest import Serve

_WORK = {"input": "hi", "background": True}
_JOB = {"openai_route": "/v1/responses", "openai_input": _WORK}
# What a client may send to `/run`, and what a worker that it runs itself may return for that.
_FORGED_INPUTS: list[dict[str, Any]] = [
    {"envelope": [1]},
    {"envelope": "x"},
    {"openai_input": _WORK | {"input": 5}},
    {"openai_input": _WORK | {"input": [[]]}},
    {"openai_input": _WORK | {"previous_response_id": {}}},
]
_FORGED_OUTPUTS: list[Any] = [[], [1], ["x", []], 5, "x", {}, {"output": 5}, {"output": [5]}]
_WORKER = {"authorization": "Bearer worker"}


async def _check_routes(client: httpx2.AsyncClient, response_id: str) -> set[int]:
    """Call each route of a response; return the statuses."""
    url = f"/v1/responses/{response_id}"
    follow_up = {"input": "and", "previous_response_id": response_id}
    answers = [
        await client.get(url),
        await client.get(f"{url}/input_items"),
        await client.get(url, params={"stream": "true"}),
        await client.post(f"{url}/cancel"),
        await client.post("/v1/responses", json=follow_up),
        await client.post("/v1/responses", json=follow_up | {"background": True}),
        await client.delete(url),
    ]
    for answer in answers:
        assert "internal error" not in answer.text, answer.url
    return {answer.status_code for answer in answers}


async def test_forged_background_responses_are_client_errors_on_every_route(
    serve: Serve, subtests: pytest.Subtests, caplog: pytest.LogCaptureFixture
) -> None:
    server = await serve()
    async with server.client() as client:
        for changes in _FORGED_INPUTS:
            with subtests.test(changes=changes):
                job = (await client.post("/v2/own/run", json={"input": _JOB | changes})).json()
                assert await _check_routes(client, f"resp_{job['id']}") <= {400, 404}
                await client.post(f"/v2/own/cancel/{job['id']}")
        for output in _FORGED_OUTPUTS:
            with subtests.test(output=output):
                job = (await client.post("/v2/own/run", json={"input": _JOB})).json()
                taken = await client.get("/v2/own/job-take/w", headers=_WORKER)
                assert taken.json()["id"] == job["id"]
                await client.post(
                    f"/v2/own/job-done/w/{job['id']}", json={"output": output}, headers=_WORKER
                )
                statuses = await _check_routes(client, f"resp_{job['id']}")
                # An object is shown as it is, but no conversation goes on with it.
                assert statuses <= ({200, 400} if isinstance(output, dict) else {400, 404})
        # A real one is read as before.
        real = (await client.post("/v1/responses", json=_WORK)).json()
        assert await _check_routes(client, real["id"]) <= {200, 400}
    assert "Traceback" not in caplog.text


async def test_deep_member_of_a_response_is_refused_by_name(serve: Serve) -> None:
    deep: Any = 1
    for _ in range(300):
        deep = {"a": deep}
    server = await serve()
    async with server.client() as client:
        for body in (
            {"input": "hi", "x": deep},
            {"input": [{"role": "user", "content": "a", "x": deep}]},
        ):
            for extra in ({}, {"stream": True}, {"background": True}):
                answer = await client.post("/v1/responses", json=body | extra)
                assert answer.status_code == 400, answer.text
                error = answer.json()["error"]
                assert error["message"] == f"{error['param']} is nested too deeply"
