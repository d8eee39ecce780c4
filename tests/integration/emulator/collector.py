"""A collector of traces on loopback, as OpenTelemetry's exporters talk to one."""

from __future__ import annotations

import asyncio
import gzip
import re
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from dataclasses import dataclass, field
from typing import Any

from opentelemetry.proto.collector.trace.v1.trace_service_pb2 import ExportTraceServiceRequest

_LENGTH = re.compile(r"^content-length: (\d+)", re.I | re.M)
_ANSWER = b"HTTP/1.1 200 OK\r\ncontent-type: application/x-protobuf\r\ncontent-length: 0\r\n\r\n"


@dataclass(frozen=True)
class Spanned:
    """One span as it came in: ids in hexadecimal digits, times in nanoseconds."""

    name: str
    trace: str
    id: str
    parent: str
    begun: int
    ended: int
    about: dict[str, Any]
    events: dict[str, int]
    failed: bool


@dataclass
class Collector:
    url: str = ""
    service: str = ""
    spans: list[Spanned] = field(default_factory=list)

    def named(self, name: str) -> list[Spanned]:
        return [span for span in self.spans if span.name == name]

    def one(self, name: str) -> Spanned:
        [span] = self.named(name)
        return span

    async def take(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        try:
            while True:
                head = (await reader.readuntil(b"\r\n\r\n")).decode("latin-1")
                found = _LENGTH.search(head)
                assert head.startswith("POST /v1/traces ")
                assert found
                body = await reader.readexactly(int(found[1]))
                self._read(
                    gzip.decompress(body) if "content-encoding: gzip" in head.lower() else body
                )
                writer.write(_ANSWER)
        except (asyncio.IncompleteReadError, ConnectionError):
            writer.close()

    def _read(self, body: bytes) -> None:
        request: Any = ExportTraceServiceRequest()
        request.ParseFromString(body)
        for resource in request.resource_spans:
            self.service = _about(resource.resource.attributes)["service.name"]
            for scope in resource.scope_spans:
                self.spans += [_spanned(span) for span in scope.spans]


def _spanned(span: Any) -> Spanned:
    return Spanned(
        span.name,
        span.trace_id.hex(),
        span.span_id.hex(),
        span.parent_span_id.hex(),
        span.start_time_unix_nano,
        span.end_time_unix_nano,
        _about(span.attributes),
        {event.name: event.time_unix_nano for event in span.events},
        span.status.code == 2,
    )


def _about(attributes: Any) -> dict[str, Any]:
    found = {}
    for each in attributes:
        kind = each.value.WhichOneof("value")
        value = getattr(each.value, kind)
        found[each.key] = [v.string_value for v in value.values] if kind == "array_value" else value
    return found


@asynccontextmanager
async def collecting() -> AsyncIterator[Collector]:
    collector = Collector()
    server = await asyncio.start_server(collector.take, "127.0.0.1", 0)
    collector.url = f"http://127.0.0.1:{server.sockets[0].getsockname()[1]}"
    try:
        yield collector
    finally:
        server.close()
