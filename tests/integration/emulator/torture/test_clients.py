"""A client that reads each API as its page requires gets no wrong verdict; another gets its own."""

from __future__ import annotations

import asyncio
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass

import httpx2
import pytest

from emulator.torture.run import ClientNotUsable, ShapeResult, examine_client, run_shapes
from emulator.torture.server import run_shaped_server
from emulator.torture.shape import Api, Expected, list_shapes
from emulator.torture.shaped_app import ShapedRequests
from emulator.torture.verdict import ClientRun, Verdict
from tests.honest_client import CALL_READERS, HonestCommand, read_chat
from tests.leftovers import restored_logger

# Each run has a port of its own, so that the pauses of all shapes pass at the same time.
PORTS = 32


@pytest.fixture(autouse=True)
def uvicorn_logger() -> Iterator[None]:
    # Uvicorn's configuration silences its access log.
    with restored_logger("uvicorn.access"):
        yield


async def torture(command: HonestCommand, names: Sequence[str] = ()) -> list[ShapeResult]:
    """Return the verdicts on a client, for all shapes or those with a name."""
    async with run_shaped_server(PORTS) as server:
        subject = await examine_client(command, server)
        assert (subject.api, subject.is_call) == (command.api, command.has_tools)
        shapes = [each for each in subject.shapes() if not names or each.name in names]
        return await run_shapes(subject, shapes, server, lambda _: None, lambda _: None)


@pytest.mark.long_except("chat")
@pytest.mark.parametrize("api", list(Api))
async def test_honest_client_is_right_for_every_shape(api: Api) -> None:
    results = await torture(HonestCommand(api, 60, api))
    assert [each.shape.name for each in results] == [each.name for each in list_shapes(api)]
    assert [(each, each.run.errors) for each in results if not each.is_right] == []
    failures = {each.shape.name for each in results if each.run.exit_code}
    for each in list_shapes(api):
        if each.expected is not Expected.EITHER:
            assert (each.name in failures) is (each.expected is Expected.FAILURE), each.name


@pytest.mark.long
@pytest.mark.parametrize("api", list(CALL_READERS))
async def test_honest_client_of_a_tool_is_right_for_shapes_of_events_and_errors(api: Api) -> None:
    shapes = list_shapes(api, is_call=True)
    # The form of the events has nothing to do with what they are.
    names = ["plain", *(each.name for each in shapes if each.expected is not Expected.ANSWER)]
    results = await torture(HonestCommand("tools", 60, api, has_tools=True), names)
    assert [(each, each.run.errors) for each in results if not each.is_right] == []


@dataclass(frozen=True, slots=True)
class CarelessCommand(HonestCommand):
    """Takes all that it gets for the answer, and all errors for its end."""

    async def run(self, variables: Mapping[str, str], requests: ShapedRequests) -> ClientRun:
        run = await HonestCommand.run(self, variables, requests)
        printed = run.printed or ("half" if run.exit_code else "")
        return ClientRun(
            printed=printed.replace("half", "Grüße aus"),
            errors="",
            exit_code=0,
            duration_s=run.duration_s,
            requests=run.requests,
        )


async def test_careless_client_gets_a_wrong_verdict_for_each_broken_stream() -> None:
    names = ("plain", "end-in-text", "error-in-text", "status-500", "reset", "busy-once", "bom")
    results = await torture(CarelessCommand("careless", 60), names)
    verdicts = {each.shape.name: each.judgement.verdict for each in results}
    half = Verdict.HALF_ANSWER
    assert verdicts == dict.fromkeys(names, half) | {
        "plain": Verdict.RIGHT,
        "bom": Verdict.RIGHT,
    }


@dataclass(frozen=True, slots=True)
class FunctionCommand(HonestCommand):
    """Prints a fixed text after a request, or without one."""

    printed: str = ""
    exit_code: int | None = 0
    sends: bool = True

    async def run(self, variables: Mapping[str, str], requests: ShapedRequests) -> ClientRun:
        if self.sends:
            async with httpx2.AsyncClient(base_url=variables["TORTURE_URL"]) as client:
                await read_chat(client)
        return ClientRun(
            printed=self.printed,
            errors="Traceback\n",
            exit_code=self.exit_code,
            duration_s=0.1,
            requests=requests.count,
        )


async def test_client_that_prints_no_answer_is_refused_with_the_reason() -> None:
    refused = {
        FunctionCommand("", 5, sends=False): "the client requested no answer: it must send its ",
        FunctionCommand("", 5, exit_code=3): "the client failed with code 3 on a stream without a",
        FunctionCommand("", 5, exit_code=None): "the client had not ended after 5 s, on a stream",
        FunctionCommand("", 5, printed="other"): "the client must print exactly the answer, which",
    }
    async with run_shaped_server(1) as server:
        for command, reason in refused.items():
            with pytest.raises(ClientNotUsable) as caught:
                await examine_client(command, server)
            assert str(caught.value).startswith(reason)


async def test_any_model_is_answered_and_variables_name_the_port() -> None:
    async with run_shaped_server(2) as server:
        assert len(set(server.ports)) == 2
        server.begin(server.ports[1], ShapedRequests())
        url = f"http://127.0.0.1:{server.ports[1]}"
        async with httpx2.AsyncClient(base_url=url) as client:
            body = {"model": "claude-x", "max_tokens": 9, "messages": []}
            body["messages"] = [{"role": "user", "content": "hi"}]
            answers = await asyncio.gather(
                client.post("/v1/messages", json=body),
                client.post("/v1/chat/completions", json=body | {"model": "gpt-x"}),
                client.post("/api/show", json={"model": "llama-x"}),
                client.post("/v1/messages/count_tokens", json=body),
                client.get("/v1/models/gpt-x"),
                client.get("/v2/default/openai/v1/models/gpt-x"),
            )
        assert [each.status_code for each in answers] == [200] * 6


@dataclass(frozen=True, slots=True)
class WarmCommand(HonestCommand):
    """Sends a request without a stream before its own."""

    async def run(self, variables: Mapping[str, str], requests: ShapedRequests) -> ClientRun:
        async with httpx2.AsyncClient(base_url=variables["TORTURE_URL"]) as client:
            messages = [{"role": "user", "content": "hi"}]
            await client.post("/v1/chat/completions", json={"messages": messages})
        return await HonestCommand.run(self, variables, requests)


async def test_client_with_a_stream_after_another_request_is_judged_by_its_stream() -> None:
    results = await torture(WarmCommand("warm", 60, Api.MESSAGES), ["end-in-text"])
    assert [each.judgement.verdict for each in results] == [Verdict.RIGHT]
