"""LiteLLM: a chat of OpenAI's API."""

from __future__ import annotations

import importlib
import os
from typing import Any

if __name__ == "__main__":
    # Otherwise LiteLLM fetches the prices of models when it is imported.
    os.environ["LITELLM_LOCAL_MODEL_COST_MAP"] = "True"
    litellm: Any = importlib.import_module("litellm")
    # Otherwise it prints hints to stdout when it raises an exception.
    litellm.suppress_debug_info = True
    response = litellm.completion(
        model=f"openai/{os.environ['TORTURE_MODEL']}",
        messages=[{"role": "user", "content": "hi"}],
        api_base=os.environ["OPENAI_BASE_URL"],
        stream=True,
        max_retries=0,
    )
    for part in response:
        print(part.choices[0].delta.content or "", end="", flush=True)
