"""RunPod's own MCP server (npm), and a client that calls its tools."""

from __future__ import annotations

import json
import subprocess
from types import TracebackType
from typing import Any

from tests.integration.emulator.processes import ROOT, build_environment

_PROGRAM = ROOT / "tests/clients/node_modules/@runpod/mcp-server/dist/stdio.mjs"
_PROTOCOL_VERSION = "2025-06-18"


class RunPodMCP:
    """The program, pointed at a local server; one request at a time, over its stdin and stdout."""

    def __init__(self, url: str, home: str) -> None:
        self._process = subprocess.Popen(
            ["node", str(_PROGRAM)],
            env=build_environment(
                {
                    "HOME": home,
                    "RUNPOD_API_KEY": "any",
                    "RUNPOD_API_BASE_URL": url,
                    "RUNPOD_SERVERLESS_API_URL": f"{url}/v2",
                }
            ),
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            stderr=subprocess.DEVNULL,
            text=True,
        )
        self._last_id = 0

    def __enter__(self) -> RunPodMCP:
        self._request(
            "initialize",
            protocolVersion=_PROTOCOL_VERSION,
            capabilities={},
            clientInfo={"name": "tests", "version": "1"},
        )
        self._write({"method": "notifications/initialized"})
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        traceback: TracebackType | None,
    ) -> None:
        self._process.kill()
        self._process.communicate()

    def call(self, tool: str, **arguments: Any) -> dict[str, Any]:
        """Call a tool; return the JSON that it answers."""
        result = self._request("tools/call", name=tool, arguments=arguments)
        text = result["content"][0]["text"]
        assert not result.get("isError"), text
        answer: dict[str, Any] = json.loads(text)
        return answer

    def _request(self, method: str, **params: Any) -> dict[str, Any]:
        self._last_id += 1
        self._write({"id": self._last_id, "method": method, "params": params})
        assert self._process.stdout is not None
        for line in self._process.stdout:
            message = json.loads(line)
            if message.get("id") == self._last_id:
                assert "error" not in message, message["error"]
                result: dict[str, Any] = message["result"]
                return result
        raise AssertionError(f"it ended during {method}")

    def _write(self, message: dict[str, Any]) -> None:
        assert self._process.stdin is not None
        self._process.stdin.write(json.dumps({"jsonrpc": "2.0", **message}) + "\n")
        self._process.stdin.flush()
