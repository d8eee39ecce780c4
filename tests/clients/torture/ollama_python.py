"""Ollama's client for Python: a chat."""

from __future__ import annotations

import os

from ollama import chat

if __name__ == "__main__":
    stream = chat(
        model=os.environ["TORTURE_MODEL"],
        messages=[{"role": "user", "content": "hi"}],
        stream=True,
    )
    for chunk in stream:
        print(chunk["message"]["content"], end="", flush=True)
