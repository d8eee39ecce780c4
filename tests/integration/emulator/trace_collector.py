"""A collector of traces on loopback, which OpenTelemetry's exporters connect to."""

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
_RESPONSE = b"HTTP/1.1 200 OK\r\ncontent-type: application/x-protobuf\r\ncontent-length: 0\r\n\r\n"


@dataclass(frozen=True)
class ReceivedSpan:
    """A received span; its ids are hexadecimal."""

    name: str
    trace_id: str
    span_id: str
    parent_id: str
    start_ns: int
    end_ns: int
    attributes: dict[str, Any]
    events: dict[str, int]
    failed: bool


@dataclass
class TraceCollector:
    url: str = ""
    service: str = ""
    spans: list[ReceivedSpan] = field(default_factory=list)

    def find_spans(self, name: str) -> list[ReceivedSpan]:
        return [span for span in self.spans if span.name == name]

    def find_span(self, name: str) -> ReceivedSpan:
        [span] = self.find_spans(name)
        return span

    async def handle_connection(
        self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter
    ) -> None:
        try:
            while True:
                head = (await reader.readuntil(b"\r\n\r\n")).decode("latin-1")
                length = _LENGTH.search(head)
                assert head.startswith("POST /v1/traces ")
                assert length
                body = await reader.readexactly(int(length[1]))
                self._read(
                    gzip.decompress(body) if "content-encoding: gzip" in head.lower() else body
                )
                writer.write(_RESPONSE)
        except (asyncio.IncompleteReadError, ConnectionError):
            writer.close()

    def _read(self, body: bytes) -> None:
        request: Any = ExportTraceServiceRequest()
        request.ParseFromString(body)
        for resource in request.resource_spans:
            self.service = _parse_attributes(resource.resource.attributes)["service.name"]
            for scope in resource.scope_spans:
                self.spans += [_parse_span(span) for span in scope.spans]


def _parse_span(span: Any) -> ReceivedSpan:
    return ReceivedSpan(
        span.name,
        span.trace_id.hex(),
        span.span_id.hex(),
        span.parent_span_id.hex(),
        span.start_time_unix_nano,
        span.end_time_unix_nano,
        _parse_attributes(span.attributes),
        {event.name: event.time_unix_nano for event in span.events},
        span.status.code == 2,
    )


def _parse_attributes(attributes: Any) -> dict[str, Any]:
    attributes_by_name = {}
    for attribute in attributes:
        kind = attribute.value.WhichOneof("value")
        value = getattr(attribute.value, kind)
        attributes_by_name[attribute.key] = (
            [v.string_value for v in value.values] if kind == "array_value" else value
        )
    return attributes_by_name


@asynccontextmanager
async def run_collector() -> AsyncIterator[TraceCollector]:
    collector = TraceCollector()
    server = await asyncio.start_server(collector.handle_connection, "127.0.0.1", 0)
    collector.url = f"http://127.0.0.1:{server.sockets[0].getsockname()[1]}"
    try:
        yield collector
    finally:
        server.close()
