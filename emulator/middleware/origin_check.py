"""Check which web pages may call the server: its own, and those of CORS_ORIGINS."""

from __future__ import annotations

import asyncio

from starlette.types import ASGIApp, Receive, Scope, Send

from common.value_description import describe_value
from emulator.http.allowed_hosts import AllowedHosts, is_loopback
from emulator.http.responses import error_response
from emulator.http.route_facts import DETAILS_HIDDEN, Access, read_route
from handler.errors import ErrorInfo, ErrorMapping

# 403 and not 421 for a host name: browsers and Node.js repeat a request after 421.
_FORBIDDEN = ErrorMapping(403, "permission_error", name="forbidden")
_UNAUTHORIZED = ErrorMapping(
    401, "authentication_error", name="unauthorized", code="invalid_api_key"
)
_WEBSOCKET = ErrorInfo(
    "this server has no WebSocket routes; streams are GET",
    ErrorMapping(400, "invalid_request_error"),
)
# The RunPod SDK repeats a rejected request at once, thousands of times a second.
_WORKER_DELAY_S = 1.0
_DEFAULT_PORTS = {b"http": b":80", b"https": b":443"}
# The value of a header that is sent twice, which browsers never do. It is not a valid host, origin
# or credential.
_CONTRADICTION = b""
_CHECKED_HEADERS = frozenset(
    {b"host", b"origin", b"sec-fetch-site", b"authorization", b"user-agent", b"upgrade"}
)


class OriginCheckMiddleware:
    """Rejects requests that a foreign web page makes its visitor's browser send.

    - **Host.** A name that is not allowed belongs to a page that rebound its name.
    - **Origin and Sec-Fetch-Site.** Browsers add them and pages cannot change them. `same-origin`
      is a page of this server, `none` the user's address bar. Everything else is foreign:
      `same-site` as well, because another port of localhost is the same site. If there is no
      Sec-Fetch-Site, the Origin is compared with the request's own scheme, host and port. Programs
      send neither header.
    - **Workers' requests.** They are GET requests that lease jobs, and a browser sends no Origin
      with an image. Browsers send no Sec-Fetch-Site over plain HTTP either, unless the server has a
      loopback address. Without API keys such a request therefore needs an `Authorization` header,
      which a page cannot send without a preflight request, or it must come from a program on the
      same machine.

    Public pages are exempt, because other sites may link to them and health checks may use any host
    name. A foreign page gets them without details. So are routes that check a signature: a foreign
    page that shows an object of the bucket has its signed URL, and can sign no other request.
    WebSocket handshakes are rejected, because the server has no WebSocket routes.
    """

    def __init__(
        self,
        app: ASGIApp,
        hosts: AllowedHosts,
        origins: tuple[str, ...] = (),
        *,
        has_keys: bool = False,
    ) -> None:
        self._app = app
        self._hosts = hosts
        self._allows_all_origins = "*" in origins
        self._origins = frozenset(each.encode() for each in origins)
        self._has_keys = has_keys

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        """Answer 403, 401 or 400, or pass the request on."""
        if scope["type"] != "http":
            await self._app(scope, receive, send)
            return
        headers = _read_headers(scope)
        problem = self._find_problem(scope, headers)
        if (
            problem is not None
            and problem is not _WEBSOCKET
            and read_route(scope).facts.access in (Access.EVERYONE, Access.SIGNATURE)
        ):
            scope[DETAILS_HIDDEN] = True
            problem = None
        if problem is None:
            await self._app(scope, receive, send)
            return
        if read_route(scope).is_worker and not _has_browser_header(headers):
            await asyncio.sleep(_WORKER_DELAY_S)
        response = error_response(problem, scope)
        if problem.mapping.status == 401:
            response.headers["WWW-Authenticate"] = "Bearer"
        await response(scope, receive, send)

    def _find_problem(self, scope: Scope, headers: dict[bytes, bytes]) -> ErrorInfo | None:
        """Return why a request is refused; None if it is not."""
        if headers.get(b"upgrade", b"").lower() == b"websocket":
            return _WEBSOCKET
        host = headers.get(b"host")
        # Every browser sends a Host; HTTP/1.0 clients may omit it.
        if host is not None and not self._hosts.allows(host):
            name = describe_value(host.decode("latin-1"))
            return ErrorInfo(
                f"the host name {name} is not allowed: call the server by its address or by "
                "localhost, or add the name to ALLOWED_HOSTS",
                _FORBIDDEN,
            )
        if not self._allows_all_origins and self._is_foreign(scope, headers, host or b""):
            page = describe_value(headers.get(b"origin", b"another site").decode("latin-1"))
            return ErrorInfo(
                f"a page of {page} may not call this server: only its own pages and those of "
                "CORS_ORIGINS may",
                _FORBIDDEN,
            )
        if not self._has_keys and read_route(scope).is_worker and not _is_worker(scope, headers):
            return ErrorInfo(
                "a worker must send an Authorization header, unless it is a program on the "
                "server's own machine",
                _UNAUTHORIZED,
            )
        return None

    def _is_foreign(self, scope: Scope, headers: dict[bytes, bytes], host: bytes) -> bool:
        """Return whether a page of another origin has sent a request."""
        site, origin = headers.get(b"sec-fetch-site"), headers.get(b"origin")
        if origin is None:
            return site not in (None, b"same-origin", b"none")
        # A proxy in front of the server may have changed scheme and host, but the browser compared
        # the page's origin with the address that it called.
        if site == b"same-origin" or origin in self._origins:
            return False
        return site not in (None, b"none") or not _is_same_origin(origin, scope["scheme"], host)


def _read_headers(scope: Scope) -> dict[bytes, bytes]:
    """Return the headers that the check needs; one that is sent twice is a contradiction."""
    headers: dict[bytes, bytes] = {}
    for name, value in scope["headers"]:
        if name in _CHECKED_HEADERS:
            headers[name] = value if name not in headers else _CONTRADICTION
    return headers


def _is_same_origin(origin: bytes, scheme: str, host: bytes) -> bool:
    """Return whether a page's origin is the scheme, host and port that the request was sent to."""
    scheme_ = scheme.encode()
    default_port = _DEFAULT_PORTS.get(scheme_, b"")
    own = b"%b://%b" % (scheme_, host.lower())
    return origin.removesuffix(default_port) == own.removesuffix(default_port)


def _has_browser_header(headers: dict[bytes, bytes]) -> bool:
    # Not Sec-Fetch-Mode: `fetch` in Node.js sends it, although it is no browser.
    return b"origin" in headers or b"sec-fetch-site" in headers


def _is_worker(scope: Scope, headers: dict[bytes, bytes]) -> bool:
    """Return whether a request can be a worker's, on a server without keys."""
    authorization = headers.get(b"authorization", b"").strip()
    # A URL with a user name makes some browsers send Basic.
    if authorization and not authorization.lower().startswith(b"basic "):
        return True
    is_browser = _has_browser_header(headers) or headers.get(b"user-agent", b"").startswith(
        b"Mozilla/"
    )
    return not is_browser and _is_same_machine(scope)


def _is_same_machine(scope: Scope) -> bool:
    client, server = scope.get("client"), scope.get("server")
    if client is None:  # a Unix socket
        return True
    return is_loopback(client[0]) or (server is not None and client[0] == server[0])
