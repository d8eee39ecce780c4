"""The API key of a request, for all code that checks keys or counts by them."""

from __future__ import annotations

from starlette.types import Scope

from emulator.http.route_facts import read_route

# Query parameter in the URLs of managed workers, if the server requires API keys.
WORKER_KEY_PARAM = b"worker_key"
_BEARER = b"bearer "


def read_api_key(scope: Scope) -> bytes | None:
    """Return the key of a request; None if it has no key, or has a header twice.

    The same key is returned for `Authorization: Bearer KEY`, `Authorization: KEY` and, except on
    workers' routes, `x-api-key: KEY`. If both headers are sent, `Authorization` decides.
    """
    authorization = _header_values(scope, b"authorization")
    if not authorization:
        keys = [] if read_route(scope).is_worker else _header_values(scope, b"x-api-key")
        return keys[0] if len(keys) == 1 else None
    if len(authorization) != 1:
        return None
    value = authorization[0]
    return value[len(_BEARER) :].strip() if value[: len(_BEARER)].lower() == _BEARER else value


def _header_values(scope: Scope, header: bytes) -> list[bytes]:
    return [value.strip() for name, value in scope["headers"] if name == header]
