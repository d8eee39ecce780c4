"""A client of llama.cpp's HTTP listener, for operations that have no in-process call."""

from __future__ import annotations

import http.client
import json
import os
import re
import secrets
import socket
import threading
from collections.abc import Callable
from contextlib import suppress
from typing import Any

from common.temporary_folders import ScratchFolder
from engine.errors import (
    BackendFailed,
    EngineError,
    ModelLoadFailed,
    PromptTooLong,
    RequestRejected,
    UnsupportedParameter,
)
from engine.prompts.chat_template import template_error

# The reason at the end of the trace of a chat template.
_TEMPLATE_ERROR = re.compile(r"\nError: (?:Jinja Exception: )?(.+)\Z", re.DOTALL)
# llama.cpp takes a host name with this suffix as the path of a Unix socket.
_SOCKET_NAME = "listener.sock"
_MAX_SOCKET_PATH_BYTES = 107
_ABORT_POLL_INTERVAL_S = 0.25


class ListenerClient:
    """Chooses the listener's socket path and API key, and sends requests to it.

    The socket is in a private folder and the key is random, so no other user can call the
    listener. llama.cpp refuses a socket path that already exists, so each load has a new one.

    Raises:
        ModelLoadFailed: the name of the folder for scratch files is too long.
    """

    def __init__(self) -> None:
        self.key = secrets.token_hex(16)
        self._folder = ScratchFolder()
        folder = self._folder.open()
        self.path = str(folder / _SOCKET_NAME)
        if len(os.fsencode(self.path)) > _MAX_SOCKET_PATH_BYTES:
            self._folder.close()
            raise ModelLoadFailed(f"TMPDIR: {folder} is too long for the path of a socket")

    def request(self, path: str, body: dict[str, Any] | None = None) -> Any:
        """Send a GET, or a POST if there is a `body`; return the response. Raises EngineError."""
        connection = _UnixConnection(self.path)
        headers = {"Content-Type": "application/json", "Authorization": f"Bearer {self.key}"}
        try:
            if body is None:
                connection.request("GET", path, headers=headers)
            else:
                connection.request("POST", path, json.dumps(body), headers)
            response = connection.getresponse()
            answer = json.loads(response.read())
        except (OSError, http.client.HTTPException, ValueError) as error:
            raise BackendFailed(f"llama.cpp did not answer {path}: {error}") from error
        finally:
            connection.close()
        if response.status != 200:
            raise to_engine_error(answer.get("error") or {})
        return answer

    def stream(
        self,
        path: str,
        body: dict[str, Any],
        on_event: Callable[[dict[str, Any]], bool],
        aborted: threading.Event,
    ) -> None:
        """Send a POST; call `on_event` with each event until it returns True or the last one.

        An error is an event with the member `error`. Setting `aborted` closes the connection, at
        which llama.cpp ends the request as soon as it can. There is no time limit.

        Raises:
            BackendFailed: the connection failed.
        """
        connection = _UnixConnection(self.path, timeout_s=None)
        headers = {"Content-Type": "application/json", "Authorization": f"Bearer {self.key}"}
        ended = threading.Event()
        try:
            connection.request("POST", path, json.dumps(body), headers)
            threading.Thread(
                target=_shut_down_when_aborted, args=(connection.sock, aborted, ended), daemon=True
            ).start()
            with connection.getresponse() as response:
                if response.status != 200:
                    on_event(json.loads(response.read()))
                    return
                for line in response:
                    name, _, data = line.strip().partition(b": ")
                    if name == b"data" and data != b"[DONE]" and on_event(json.loads(data)):
                        return
        except (OSError, http.client.HTTPException, ValueError) as error:
            if not aborted.is_set():
                raise BackendFailed(f"llama.cpp did not answer {path}: {error}") from error
        finally:
            ended.set()
            connection.close()

    def close(self) -> None:
        """Remove the socket and its folder."""
        self._folder.close()


class _UnixConnection(http.client.HTTPConnection):
    def __init__(self, path: str, timeout_s: float | None = 60) -> None:
        super().__init__("localhost", timeout=timeout_s)
        self._path = path

    def connect(self) -> None:
        self.sock = socket.socket(socket.AF_UNIX)
        self.sock.settimeout(self.timeout)
        self.sock.connect(self._path)


def _shut_down_when_aborted(
    connection: socket.socket, aborted: threading.Event, ended: threading.Event
) -> None:
    """Wake the thread that reads from a connection when its request is aborted."""
    while not ended.is_set():
        if aborted.wait(_ABORT_POLL_INTERVAL_S):
            with suppress(OSError):
                connection.shutdown(socket.SHUT_RDWR)
            return


def to_engine_error(error: dict[str, Any]) -> EngineError:
    """Convert an error object of llama.cpp to the engine's exception."""
    message = str(error.get("message", "no reason given"))
    if error.get("type") == "exceed_context_size_error":
        prompt_tokens, context = error["n_prompt_tokens"], error["n_ctx"]
        return PromptTooLong(
            f"prompt: {prompt_tokens} tokens do not fit the context of {context} tokens",
            prompt_tokens=prompt_tokens,
            context_length=context,
        )
    if error.get("type") == "not_supported_error":
        return UnsupportedParameter(f"llama.cpp refused the request: {message}")
    if error.get("code") == 400 and (reason := _TEMPLATE_ERROR.search(message)) is not None:
        return template_error(reason[1])
    if error.get("code") == 400:
        return RequestRejected(f"llama.cpp refused the request: {message}")
    return BackendFailed(f"llama.cpp failed: {message}")
