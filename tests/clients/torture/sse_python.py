"""Parsers of event streams for Python: `sse_python.py httpx-sse|sseclient-py`, a chat.

Such a parser knows nothing about chats, so this program checks that `[DONE]` has arrived.
"""

from __future__ import annotations

import json
import os
import sys
from collections.abc import Iterator
from typing import Any

URL = f"{os.environ['OPENAI_BASE_URL']}/chat/completions"
HEADERS = {"Authorization": f"Bearer {os.environ['OPENAI_API_KEY']}"}
BODY: dict[str, Any] = {
    "model": os.environ["TORTURE_MODEL"],
    "messages": [{"role": "user", "content": "hi"}],
    "stream": True,
}


def read_with_httpx_sse() -> Iterator[str]:
    import httpx
    from httpx_sse import connect_sse

    with (
        httpx.Client() as client,
        connect_sse(client, "POST", URL, json=BODY, headers=HEADERS) as event_source,
    ):
        event_source.response.raise_for_status()
        for sse in event_source.iter_sse():
            yield sse.data


def read_with_sseclient() -> Iterator[str]:
    import requests
    import sseclient

    response = requests.post(URL, json=BODY, headers=HEADERS, stream=True)
    response.raise_for_status()
    for event in sseclient.SSEClient(response).events():
        yield event.data


def main() -> None:
    parsers = {"httpx-sse": read_with_httpx_sse, "sseclient-py": read_with_sseclient}
    for data in parsers[sys.argv[1]]():
        if data == "[DONE]":
            return
        for choice in json.loads(data)["choices"]:
            print(choice["delta"].get("content") or "", end="", flush=True)
    sys.exit("the stream has ended without [DONE]")


if __name__ == "__main__":
    main()
