"""Every route is counted under a name, and no path can make a new one."""

from __future__ import annotations

import pytest

from emulator.http.operation_names import OPERATION_NAMES, operation_name
from emulator.openapi.operations import OPERATIONS


@pytest.mark.parametrize(
    ("path", "name"),
    [
        ("/run", "run"),
        ("/v2/any/runsync", "runsync"),
        ("/v2/metrics/status/job-1", "status"),
        ("/v2/ep/job-take/w-1", "job-take"),
        ("/v2/ep/job-done/w-1/j-1", "job-done"),
        ("/v1/chat/completions", "chat"),
        ("/chat/completions", "chat"),
        ("/v3/completions", "completions"),
        ("/v2/chat/openai/v1/embeddings", "embeddings"),
        ("/v1/rerank", "rerank"),
        ("/score", "score"),
        ("/v2/ep/openai/v1/anything", "other"),
        ("/v1/models/chat/completions", "models"),
        ("/v1/files/file-1/content", "files"),
        ("/v1/batches/batch_1/cancel", "batches"),
        ("/v1/messages", "messages"),
        ("/v1/messages/count_tokens", "messages"),
        ("/api/chat", "chat"),
        ("/api/ps", "ps"),
        ("/system/status", "system"),
        ("/metrics", "metrics"),
        ("/health", "health"),
        ("/v2/ep/health", "health"),
        ("/", "other"),
        ("/etc/passwd", "other"),
        ("/v2/ep/drop tables", "other"),
    ],
)
def test_a_path_has_the_name_of_its_operation(path: str, name: str) -> None:
    assert operation_name({"type": "http", "path": path}) == name


def test_every_route_has_a_name() -> None:
    # All routes are in this table, as a test of the description sees to.
    for known in OPERATIONS:
        path = known.split()[-1]
        if path == "/openai/v1/{route}":
            continue
        asked = (path, f"/v2/models{path}")
        names = {operation_name({"type": "http", "path": each}) for each in asked} - {"other"}
        assert len(names) == 1, path
        assert names < set(OPERATION_NAMES)
