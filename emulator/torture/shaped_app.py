"""Serves each port with the shape that its client is run against."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Any

import orjson
from starlette.types import ASGIApp, Message, Receive, Scope, Send

from emulator.middleware.faults.parser import FAULT_PARAM
from emulator.torture.answer import MODEL_NAME
from emulator.torture.shape import Api

_HEADER = FAULT_PARAM.encode()
# The last segments of the paths that generate an answer, with the API of a streamed one.
_GENERATING = {
    "/chat/completions": Api.CHAT,
    "/completions": Api.COMPLETIONS,
    "/responses": Api.RESPONSES,
    "/messages": Api.MESSAGES,
    "/api/chat": Api.OLLAMA,
    "/api/generate": Api.OLLAMA,
}
# Other paths whose requests name a model: clients look at it, or count tokens, before a request.
_WITH_MODEL = ("/api/show", "/messages/count_tokens", "/embeddings", "/api/embed", "/tokenize")
_STREAMS = ("text/event-stream", "application/x-ndjson")
_JOB_OPERATIONS = ("runsync", "status", "status-sync")


@dataclass(slots=True)
class ShapedRequests:
    """The faults for the requests of one client run, and what its requests were.

    `api`: None counts no request, and faults none of them. `apis` has the API of each request with
    an answer, as far as its response has shown it.
    """

    faults: tuple[str, ...] = ("",)
    api: Api | None = None
    count: int = 0
    apis: list[Api] = field(default_factory=list)
    has_tools: bool = False

    def next_fault(self) -> str:
        """Return the faults of the next request, and count it."""
        fault = self.faults[min(self.count, len(self.faults) - 1)]
        self.count += 1
        return fault


class ShapedApp:
    """An ASGI application that adds the faults of its port's client run to each request.

    Requests for any model are answered by the only one, so that a client needs no other name than
    it has. Owned by the event loop.
    """

    def __init__(self, app: ASGIApp) -> None:
        self._app = app
        self._runs: dict[int, ShapedRequests] = {}

    def begin(self, port: int, requests: ShapedRequests) -> None:
        """Serve a port with these faults from now on."""
        self._runs[port] = requests

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        """Pass a request on."""
        requests = self._runs.get(scope["server"][1]) if scope["type"] == "http" else None
        if requests is None:
            await self._app(scope, receive, send)
            return
        api = _find_api(scope)
        fault = ""
        if requests.api is None or api is _kind_of(requests.api, api):
            fault = requests.next_fault() if api is not None else ""
        headers = [header for header in scope["headers"] if header[0] != _HEADER]
        if fault:
            headers.append((_HEADER, fault.encode()))
        body = _Body(receive, requests)
        if _names_model(scope, api):
            await body.read()
            headers = [header for header in headers if header[0] != b"content-length"]
            headers.append((b"content-length", b"%d" % len(body.content)))
        scope = {**scope, **_replace_model_path(scope), "headers": headers}
        await self._app(scope, body.receive, _watch_response(send, api, requests))


def _names_model(scope: Scope, api: Api | None) -> bool:
    """Return whether the body of a request names a model."""
    path = scope["path"].rstrip("/")
    is_generating = api in _GENERATING.values()
    return scope["method"] == "POST" and (is_generating or path.endswith(_WITH_MODEL))


def _replace_model_path(scope: Scope) -> dict[str, Any]:
    """Return the path of the server's model for that of a client's; nothing for other paths."""
    start, separator, name = scope["path"].partition("/v1/models/")
    if not separator or not name:
        return {}
    path = f"{start}{separator}{MODEL_NAME}"
    return {"path": path, "raw_path": path.encode()}


def _kind_of(target: Api, api: Api | None) -> Api | None:
    """Return the API of the path under which the answers of an API are requested."""
    if target is Api.JSON:
        return api if api in _GENERATING.values() else None
    if target in (Api.POLLS, Api.JOB_EVENTS):
        return Api.POLLS
    return target


def _find_api(scope: Scope) -> Api | None:
    """Return the API of a path; POLLS for the stream of a job; None for all other paths."""
    path = scope["path"].rstrip("/")
    for end, api in _GENERATING.items():
        if path.endswith(end) and scope["method"] == "POST":
            return api
    parts = path.split("/")
    if len(parts) >= 3 and parts[-2] == "stream":
        return Api.POLLS
    if parts[-1] == "runsync" or (len(parts) >= 3 and parts[-2] in _JOB_OPERATIONS):
        return Api.JOB
    return None


class _Body:
    """The body of a request, with the model's name in place of the client's."""

    def __init__(self, receive: Receive, requests: ShapedRequests) -> None:
        self._receive = receive
        self._requests = requests
        self._is_read = False
        self._is_delivered = False
        self.content = b""

    async def read(self) -> None:
        """Read the whole body."""
        content = bytearray()
        while True:
            message = await self._receive()
            if message["type"] == "http.disconnect":
                break
            content += message.get("body", b"")
            if not message.get("more_body", False):
                break
        self._is_read = True
        self.content = self._replace_model(bytes(content))

    def _replace_model(self, content: bytes) -> bytes:
        try:
            body = orjson.loads(content)
        except orjson.JSONDecodeError:
            return content
        if not isinstance(body, dict):
            return content
        self._requests.has_tools = self._requests.has_tools or bool(body.get("tools"))
        return orjson.dumps({**body, "model": MODEL_NAME})

    async def receive(self) -> Message:
        """Return the body, and then what the server receives."""
        if not self._is_read or self._is_delivered:
            return await self._receive()
        self._is_delivered = True
        return {"type": "http.request", "body": self.content, "more_body": False}


def _watch_response(send: Send, api: Api | None, requests: ShapedRequests) -> Send:
    """Return a `send` that notes the API of the answer by the response's content type."""

    async def watch(message: Message) -> None:
        if message["type"] == "http.response.start" and api is not None:
            content_type = dict(message["headers"]).get(b"content-type", b"").decode()
            is_stream = content_type.startswith(_STREAMS)
            answered = api
            if api in _GENERATING.values() and not is_stream:
                answered = Api.JSON
            elif api is Api.POLLS and is_stream:
                answered = Api.JOB_EVENTS
            requests.apis.append(answered)
        await send(message)

    return watch
