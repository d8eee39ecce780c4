"""A worker that sends the same requests as the SDK's, without seconds of imports.

Run as `python tests/crashes/sdk_worker.py PORT ENDPOINT NAME LOG`. Each line of LOG is one event,
`began|taken|ignored JOB NONCE`: an acknowledgement to this worker must stay true.
"""

from __future__ import annotations

import http.client
import json
import os
import sys
import threading
import time
import uuid
from typing import Any

_POLL_TIMEOUT_S = 30.0
# After a connection that broke off: the server needs the processor to come back.
_DOWN_S = 0.1
# The SDK's delays before each attempt to deliver a result; then it drops the result.
_DELIVERY_DELAYS_S = (0.0, 0.3, 1.0, 2.0, 3.0, 5.0)
_ERRORS = (OSError, http.client.HTTPException)


class Worker:
    """Runs one job at a time, and polls for stop requests in a thread, as the SDK does."""

    def __init__(self, port: int, endpoint: str, name: str, log: str) -> None:
        self._port = port
        self._base = f"/v2/{endpoint}"
        self._name = name
        self._log = os.open(log, os.O_WRONLY | os.O_APPEND | os.O_CREAT, 0o600)

    def run(self) -> None:
        """Work until killed."""
        threading.Thread(target=self._poll_stops, daemon=True).start()
        connection = self._connection()
        while True:
            try:
                code, body = _request(
                    connection, "GET", self._path("job-take", "job_in_progress=0")
                )
            except _ERRORS:
                connection.close()
                time.sleep(_DOWN_S)
                continue
            if code == 200:
                self._work(connection, json.loads(body))
            elif code != 204:
                time.sleep(_DOWN_S)

    def _work(self, connection: http.client.HTTPConnection, job: dict[str, Any]) -> None:
        nonce = uuid.uuid4().hex
        self._note("began", job["id"], nonce)
        prompt, job_id = job["input"]["prompt"], job["id"]
        self._post(connection, "job-stream", job_id, {"output": {"said": prompt}}, (0.0,))
        output = {"output": {"said": prompt, "nonce": nonce}}
        response = self._post(connection, "job-done", job_id, output, _DELIVERY_DELAYS_S)
        if response is None:
            # The server would wait for this job for as long as the worker runs.
            os._exit(1)
        self._note("ignored" if response.get("ignored") else "taken", job_id, nonce)

    def _post(
        self,
        connection: http.client.HTTPConnection,
        verb: str,
        job_id: str,
        value: dict[str, Any],
        pauses_s: tuple[float, ...],
    ) -> dict[str, Any] | None:
        path = f"{self._base}/{verb}/{self._name}/{job_id}?gpu=none&isStream=false"
        for pause_s in pauses_s:
            time.sleep(pause_s)
            try:
                code, body = _request(connection, "POST", path, json.dumps(value).encode())
            except _ERRORS:
                connection.close()
                continue
            if code == 200:
                response: dict[str, Any] = json.loads(body)
                return response
        return None

    def _poll_stops(self) -> None:
        connection = self._connection()
        while True:
            try:
                _request(connection, "GET", self._path("job-stop"))
            except _ERRORS:
                connection.close()
                time.sleep(_DOWN_S)

    def _connection(self) -> http.client.HTTPConnection:
        return http.client.HTTPConnection("127.0.0.1", self._port, timeout=_POLL_TIMEOUT_S)

    def _path(self, verb: str, query: str = "") -> str:
        return f"{self._base}/{verb}/{self._name}?gpu=none&{query}"

    def _note(self, event: str, job_id: str, nonce: str) -> None:
        os.write(self._log, f"{event} {job_id} {nonce}\n".encode())


def _request(
    connection: http.client.HTTPConnection, method: str, path: str, body: bytes | None = None
) -> tuple[int, bytes]:
    connection.request(method, path, body)
    response = connection.getresponse()
    return response.status, response.read()


if __name__ == "__main__":
    Worker(int(sys.argv[1]), sys.argv[2], sys.argv[3], sys.argv[4]).run()
