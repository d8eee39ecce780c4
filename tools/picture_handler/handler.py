"""A handler for the picture of the console in docs/: it paints a colour gradient."""

from __future__ import annotations

import base64
import io
from typing import Any

import runpod
from PIL import Image

_SIZE = 160


def _paint(blue: int) -> str:
    image = Image.new("RGB", (_SIZE, _SIZE))
    image.putdata(
        [(255 * x // _SIZE, 255 * y // _SIZE, blue) for y in range(_SIZE) for x in range(_SIZE)]
    )
    buffer = io.BytesIO()
    image.save(buffer, format="PNG")
    return "data:image/png;base64," + base64.b64encode(buffer.getvalue()).decode()


def handler(job: dict[str, Any]) -> dict[str, Any]:
    """Return the picture and what it was made of."""
    job_input = job["input"]
    return {"image": _paint(job_input["blue"]), **job_input}


runpod.serverless.start({"handler": handler})
