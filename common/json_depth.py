"""How deeply a JSON value may be nested to be sent or stored again."""

from __future__ import annotations

from typing import Any

import orjson


def is_nested_too_deeply(value: Any) -> bool:
    """Return whether a parsed JSON value cannot be encoded as a part of an answer or a job.

    orjson reads up to 1,024 levels and writes up to 255. The objects around the value add up to
    four.
    """
    try:
        orjson.dumps([[[[value]]]])
    except orjson.JSONEncodeError:
        return True
    return False
