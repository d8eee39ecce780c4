"""Build the middleware stack of the server."""

from __future__ import annotations

from starlette.middleware import Middleware
from starlette.middleware.cors import CORSMiddleware

from emulator.http.route_table import RouteLookupMiddleware, RouteTable
from emulator.http.shutdown_state import ShutdownState
from emulator.metrics.definitions import Metrics
from emulator.middleware.auth import ApiKeyMiddleware
from emulator.middleware.draining import DrainGate
from emulator.middleware.faults.middleware import RequestFaultMiddleware
from emulator.middleware.faults.rules import FaultRules
from emulator.middleware.origin_check import OriginCheckMiddleware
from emulator.middleware.request_id import RequestIdMiddleware
from emulator.settings.emulator_settings import EmulatorSettings
from emulator.tracing.setup import Tracing
from jobs import JobStore

# The response headers that scripts of other origins may read.
_EXPOSED_HEADERS = (
    "x-request-id",
    "retry-after",
    "x-ratelimit-limit",
    "x-ratelimit-remaining",
    "x-ratelimit-reset",
)


def build_middleware(
    settings: EmulatorSettings,
    shutdown: ShutdownState,
    store: JobStore,
    metrics: Metrics,
    tracing: Tracing,
    worker_key: str | None,
    route_table: RouteTable,
    fault_rules: FaultRules | None = None,
) -> list[Middleware]:
    """Return the middleware that every request passes through, the outermost first.

    Without `fault_rules`, `x-fault` has no effect.
    """
    stack = [
        # Before all others, which read the route that it finds.
        Middleware(RouteLookupMiddleware, table=route_table),
        Middleware(RequestIdMiddleware, on_end=metrics.count_request),
        # Inside RequestIdMiddleware, so that rejected requests are logged and counted. Before all
        # others, so that they are neither traced nor rate-limited, and their key is not checked.
        Middleware(
            OriginCheckMiddleware,
            hosts=settings.host_check(),
            origins=settings.origins(),
            has_keys=bool(settings.keys()),
        ),
        *tracing.middleware(),
        Middleware(DrainGate, shutdown=shutdown),
    ]
    if origins := settings.origins():
        # Outermost: a browser hides every response without these headers from its script, errors
        # too. Preflight requests, which have no key, end here and get no request id.
        stack.insert(0, _build_cors(origins))
    if keys := settings.keys():
        stack.append(Middleware(ApiKeyMiddleware, keys=keys, worker_key=worker_key))
    if fault_rules is not None:
        stack.append(Middleware(RequestFaultMiddleware, rules=fault_rules, store=store))
    return stack


def _build_cors(origins: tuple[str, ...]) -> Middleware:
    return Middleware(
        CORSMiddleware,
        allow_origins=origins,
        allow_methods=["*"],
        allow_headers=["*"],
        # Browsers require it if a public page calls a server in a private network.
        allow_private_network=True,
        expose_headers=_EXPOSED_HEADERS,
    )
