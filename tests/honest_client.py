"""A client that reads the stream of each API as its page requires, and fails on all others.

The tests run it in their own process, in place of the command of `worker-rkllm torture`.
"""

from __future__ import annotations

import json
import ssl
import time
from collections.abc import AsyncIterator, Awaitable, Callable, Mapping
from dataclasses import dataclass
from typing import Any

import httpx2

from emulator.torture.client_process import ClientCommand
from emulator.torture.shape import Api
from emulator.torture.shaped_app import ShapedRequests
from emulator.torture.verdict import ClientRun
from engine.backends.openai.event_stream import Event, EventStreamParser

_WITHOUT_CERTIFICATES = ssl.SSLContext(ssl.PROTOCOL_TLS_CLIENT)
_TIMEOUT_S = 60
_MESSAGES = [{"role": "user", "content": "hi"}]
_TOOL = {"name": "report", "parameters": {"type": "object", "properties": {"city": {}}}}
_FUNCTIONS = [{"type": "function", "function": _TOOL}]
_JOB = {"input": {"prompt": "hi", "stream": True}}
_FINAL = ("COMPLETED", "FAILED", "CANCELLED", "TIMED_OUT")


class NoWholeAnswer(Exception):
    """The server sent no whole answer."""


Reader = Callable[[httpx2.AsyncClient], Awaitable[str]]


@dataclass(frozen=True, slots=True)
class HonestCommand(ClientCommand):
    """Reads the answers of one API in this process."""

    api: Api = Api.CHAT
    has_tools: bool = False

    async def run(self, variables: Mapping[str, str], requests: ShapedRequests) -> ClientRun:
        """Read one answer; the exit code is 1 without a whole one."""
        started_at = time.monotonic()
        read = (CALL_READERS if self.has_tools else READERS)[self.api]
        printed, errors, exit_code = "", "", 0
        async with httpx2.AsyncClient(
            base_url=variables["TORTURE_URL"], verify=_WITHOUT_CERTIFICATES, timeout=_TIMEOUT_S
        ) as client:
            try:
                printed = await read(client)
            except (httpx2.HTTPError, ValueError, KeyError, NoWholeAnswer) as error:
                errors, exit_code = repr(error), 1
        return ClientRun(
            printed=printed,
            errors=errors,
            exit_code=exit_code,
            duration_s=time.monotonic() - started_at,
            requests=requests.count,
        )


async def read_events(
    client: httpx2.AsyncClient, path: str, body: Any, method: str = "POST"
) -> AsyncIterator[Event]:
    """Yield the events of a response with status 200."""
    parser = EventStreamParser()
    headers = {"accept": "text/event-stream"}
    async with client.stream(method, path, json=body, headers=headers) as response:
        check_status(response)
        async for part in response.aiter_bytes():
            for event in parser.feed(part):
                yield event


def check_status(response: httpx2.Response) -> None:
    if response.status_code != 200:
        raise NoWholeAnswer(f"status {response.status_code}")


async def read_chunks(client: httpx2.AsyncClient, path: str, body: Any) -> list[Any]:
    """Return the chunks of an OpenAI stream up to [DONE], of which one has a finish reason."""
    chunks: list[Any] = []
    async for event in read_events(client, path, {**body, "stream": True}):
        if event.data == "[DONE]":
            break
        chunk = json.loads(event.data)
        if "error" in chunk:
            raise NoWholeAnswer(chunk["error"])
        chunks += chunk["choices"]
    if not any(choice["finish_reason"] for choice in chunks):
        raise NoWholeAnswer("there is no finish reason")
    return chunks


async def read_chat(client: httpx2.AsyncClient) -> str:
    choices = await read_chunks(client, "/v1/chat/completions", {"messages": _MESSAGES})
    return "".join(choice["delta"].get("content") or "" for choice in choices)


async def read_chat_call(client: httpx2.AsyncClient) -> str:
    body = {"messages": _MESSAGES, "tools": _FUNCTIONS}
    choices = await read_chunks(client, "/v1/chat/completions", body)
    calls = [call for choice in choices for call in choice["delta"].get("tool_calls") or ()]
    return "".join(call["function"].get("arguments") or "" for call in calls)


async def read_completion(client: httpx2.AsyncClient) -> str:
    choices = await read_chunks(client, "/v1/completions", {"prompt": "hi"})
    return "".join(choice["text"] or "" for choice in choices)


async def read_typed(
    client: httpx2.AsyncClient, path: str, body: Any, last: str
) -> list[dict[str, Any]]:
    """Return the events of a stream whose last one is of the type `last`."""
    events: list[dict[str, Any]] = []
    async for event in read_events(client, path, {**body, "stream": True}):
        if event.data == "[DONE]":
            break
        value = json.loads(event.data)
        if value["type"] in ("error", "response.failed"):
            raise NoWholeAnswer(event.data)
        events.append(value)
    if not any(each["type"] == last for each in events):
        raise NoWholeAnswer(f"there is no {last}")
    return events


async def read_response(client: httpx2.AsyncClient) -> str:
    events = await read_typed(client, "/v1/responses", {"input": "hi"}, "response.completed")
    kind = "response.output_text.delta"
    return "".join(each["delta"] for each in events if each["type"] == kind)


async def read_message(client: httpx2.AsyncClient) -> str:
    body = {"messages": _MESSAGES, "max_tokens": 1000}
    events = await read_typed(client, "/v1/messages", body, "message_stop")
    kind = "content_block_delta"
    return "".join(each["delta"]["text"] for each in events if each["type"] == kind)


async def read_response_call(client: httpx2.AsyncClient) -> str:
    body = {"input": "hi", "tools": [{"type": "function", **_TOOL}]}
    events = await read_typed(client, "/v1/responses", body, "response.completed")
    kind = "response.function_call_arguments.delta"
    return "".join(each["delta"] for each in events if each["type"] == kind)


async def read_message_call(client: httpx2.AsyncClient) -> str:
    tool = {"name": _TOOL["name"], "input_schema": _TOOL["parameters"]}
    body = {"messages": _MESSAGES, "max_tokens": 1000, "tools": [tool]}
    events = await read_typed(client, "/v1/messages", body, "message_stop")
    kind = "content_block_delta"
    return "".join(each["delta"]["partial_json"] for each in events if each["type"] == kind)


async def read_ollama(client: httpx2.AsyncClient) -> str:
    messages = await read_lines(client, {"messages": _MESSAGES})
    return "".join(message["content"] for message in messages)


async def read_ollama_call(client: httpx2.AsyncClient) -> str:
    messages = await read_lines(client, {"messages": _MESSAGES, "tools": _FUNCTIONS})
    [call] = [call for message in messages for call in message.get("tool_calls") or ()]
    return json.dumps(call["function"]["arguments"])


async def read_lines(client: httpx2.AsyncClient, body: Any) -> list[Any]:
    """Return the messages of the lines of Ollama's API, of which one has `done`."""
    body = {"model": "any", "stream": True, **body}
    content = bytearray()
    async with client.stream("POST", "/api/chat", json=body) as response:
        check_status(response)
        async for part in response.aiter_bytes():
            content += part
    values = [json.loads(line) for line in content.split(b"\n") if line.strip()]
    if not any(value["done"] for value in values):
        raise NoWholeAnswer("there is no line with done")
    return [value["message"] for value in values]


async def read_json(client: httpx2.AsyncClient) -> str:
    text: str = (await read_json_message(client, {"messages": _MESSAGES}))["content"]
    return text


async def read_json_call(client: httpx2.AsyncClient) -> str:
    message = await read_json_message(client, {"messages": _MESSAGES, "tools": _FUNCTIONS})
    text: str = message["tool_calls"][0]["function"]["arguments"]
    return text


async def read_json_message(client: httpx2.AsyncClient, body: Any) -> Any:
    response = await client.post("/v1/chat/completions", json=body)
    check_status(response)
    return json.loads(response.content.decode("utf-8-sig"))["choices"][0]["message"]


async def read_job(client: httpx2.AsyncClient) -> str:
    response = await client.post("/v2/default/runsync", json=_JOB)
    check_status(response)
    return text_of_job(json.loads(response.content.decode("utf-8-sig")))


def text_of_job(job: Any) -> str:
    if job["status"] != "COMPLETED":
        raise NoWholeAnswer(job["status"])
    text: str = job["output"]["choices"][0]["text"]
    return text


async def read_polls(client: httpx2.AsyncClient) -> str:
    job = (await client.post("/v2/default/run", json=_JOB)).json()
    outputs: list[Any] = []
    status = ""
    while status not in _FINAL:
        response = await client.get(f"/v2/default/stream/{job['id']}")
        check_status(response)
        answer = json.loads(response.content.decode("utf-8-sig"))
        status = answer["status"]
        outputs += [each["output"]["choices"][0] for each in answer["stream"]]
    if status != "COMPLETED":
        raise NoWholeAnswer(status)
    # The last output repeats the whole text.
    return "".join(each["text"] for each in outputs if "finish_reason" not in each)


async def read_job_events(client: httpx2.AsyncClient) -> str:
    job = (await client.post("/v2/default/run", json=_JOB)).json()
    text, status = "", ""
    async for event in read_events(client, f"/v2/default/stream/{job['id']}", None, "GET"):
        value = json.loads(event.data)
        if event.name == "end":
            status = value["status"]
        elif "finish_reason" not in value["output"]["choices"][0]:
            text += value["output"]["choices"][0]["text"]
    if status != "COMPLETED":
        raise NoWholeAnswer(status or "there is no end")
    return text


READERS: Mapping[Api, Reader] = {
    Api.CHAT: read_chat,
    Api.COMPLETIONS: read_completion,
    Api.RESPONSES: read_response,
    Api.MESSAGES: read_message,
    Api.OLLAMA: read_ollama,
    Api.JOB_EVENTS: read_job_events,
    Api.POLLS: read_polls,
    Api.JOB: read_job,
    Api.JSON: read_json,
}
CALL_READERS: Mapping[Api, Reader] = {
    Api.CHAT: read_chat_call,
    Api.RESPONSES: read_response_call,
    Api.MESSAGES: read_message_call,
    Api.OLLAMA: read_ollama_call,
    Api.JSON: read_json_call,
}
