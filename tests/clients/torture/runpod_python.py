"""RunPod's client for Python: a job whose output is streamed.

The last output of a job repeats the whole text, and it is the only one with a `finish_reason`.
"""

from __future__ import annotations

import os

import runpod

if __name__ == "__main__":
    runpod.api_key = os.environ["RUNPOD_API_KEY"]
    endpoint = runpod.Endpoint(os.environ["RUNPOD_ENDPOINT_ID"])
    job = endpoint.run({"prompt": "hi", "stream": True})
    for output in job.stream():
        choice = output["choices"][0]
        if "finish_reason" not in choice:
            print(choice["text"], end="", flush=True)
