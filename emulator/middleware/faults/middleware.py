"""Apply the faults that a request or a rule asks for."""

from __future__ import annotations

import logging
from urllib.parse import parse_qsl

from starlette.types import ASGIApp, Receive, Scope, Send

from emulator.http.responses import error_response
from emulator.http.route_facts import read_route
from emulator.middleware.faults.catalogue import RULE_FAULT_NAMES
from emulator.middleware.faults.lease_loss import LeaseLossMiddleware
from emulator.middleware.faults.parser import (
    FAULT_PARAM,
    Faults,
    find_unsuitable,
    format_faults,
    parse_faults,
)
from emulator.middleware.faults.response import FaultyResponse
from emulator.middleware.faults.rules import WORKER_OPERATIONS, FaultRules
from handler.errors import InvalidRequest, error_info
from jobs import JobStore

logger = logging.getLogger(__name__)

_HEADER = FAULT_PARAM.encode()


class RequestFaultMiddleware:
    """Serves client and OpenAI requests with the faults of their `x-fault`, or else of a rule.

    `x-fault` is a header or a query parameter; several of them are joined. A request with `x-fault`
    uses up no rule. In the requests of workers `x-fault` has no effect, but rules do.
    """

    def __init__(self, app: ASGIApp, rules: FaultRules, store: JobStore) -> None:
        self._app = app
        self._rules = rules
        self._losing_leases = LeaseLossMiddleware(app, store)
        self._rate_limited: ASGIApp | None = None
        logger.warning("FAULTS_PER_REQUEST is on: clients may make requests fail on purpose")

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        """Pass the request on, with faults if it asks for some."""
        if scope["type"] != "http" or not _allows_faults(scope):
            await self._app(scope, receive, send)
            return
        try:
            faults = _read_faults(scope)
        except InvalidRequest as error:
            response = error_response(error_info(error), scope)
            await response(scope, receive, send)
            return
        if faults is None:
            faults = self._rules.choose(scope)
        if faults is None:
            await self._app(scope, receive, send)
            return
        app = self._find_app(faults)
        operation = read_route(scope).operation
        logger.info("fault on purpose for %s: %s", operation, format_faults(faults))
        await FaultyResponse(faults, scope, receive, send).run(app)

    def _find_app(self, faults: Faults) -> ASGIApp:
        """Return the application, inside of the one that a fault of RULE_FAULTS needs."""
        if "lose-lease" in faults:
            return self._losing_leases
        if "rate-limits" not in faults:
            return self._app
        if self._rate_limited is None:
            # Importing the package takes 0.1 s, and most servers have no such rule.
            from emulator.middleware.faults.rate_limit import RateLimitMiddleware

            self._rate_limited = RateLimitMiddleware(self._app, self._rules.default_endpoint)
        return self._rate_limited


def _allows_faults(scope: Scope) -> bool:
    request_route = read_route(scope)
    is_allowed = request_route.is_client or request_route.operation in WORKER_OPERATIONS
    return is_allowed and request_route.facts.allows_faults


def _read_faults(scope: Scope) -> Faults | None:
    """Return the faults of a request's `x-fault`; None without one. Raises InvalidRequest."""
    if not read_route(scope).is_client:
        return None
    values = [value.decode("latin-1") for name, value in scope["headers"] if name == _HEADER]
    if _HEADER in scope["query_string"].lower():
        query = parse_qsl(scope["query_string"].decode("latin-1"), keep_blank_values=True)
        values += [value for name, value in query if name == FAULT_PARAM]
    if not values:
        return None
    faults = parse_faults(",".join(values))
    if rule_faults := sorted(faults.keys() & RULE_FAULT_NAMES):
        raise InvalidRequest(
            f"{FAULT_PARAM}: {rule_faults[0]} needs a rule, which POST /faults adds", FAULT_PARAM
        )
    name = find_unsuitable(faults, read_route(scope).facts.wire_format)
    if name is not None:
        raise InvalidRequest(
            f"{FAULT_PARAM}: {name} changes server-sent events, and the streams of this path are "
            "lines of JSON",
            FAULT_PARAM,
        )
    return faults
