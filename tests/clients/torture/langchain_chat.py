"""LangChain's ChatOpenAI: a chat."""

from __future__ import annotations

import os
from typing import Any

from langchain_openai import ChatOpenAI

if __name__ == "__main__":
    fields: dict[str, Any] = {
        "model": os.environ["TORTURE_MODEL"],
        "base_url": os.environ["OPENAI_BASE_URL"],
        "max_retries": 0,
    }
    for chunk in ChatOpenAI(**fields).stream("hi"):
        print(chunk.text, end="", flush=True)
