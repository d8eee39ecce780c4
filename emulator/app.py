"""The server as one ASGI application."""

from __future__ import annotations

from collections.abc import Mapping
from contextlib import AbstractAsyncContextManager
from typing import Any

from starlette.applications import Starlette
from starlette.exceptions import HTTPException
from starlette.requests import ClientDisconnect, Request
from starlette.responses import Response
from starlette.types import ExceptionHandler

from emulator.apis.openai.no_engine_routes import NoEngineRoutes
from emulator.console.pages import PageRoutes
from emulator.http.disconnect import ClientDisconnected
from emulator.http.responses import error_response, on_error, on_http_error
from emulator.http.route_facts import ApiRoute
from emulator.http.route_table import RouteTable
from emulator.metrics.route import MetricsRoute
from emulator.middleware.faults.routes import FaultRoutes
from emulator.middleware.stack import build_middleware
from emulator.openapi.routes import DocsRoutes
from emulator.startup.components import Components
from engine.errors import EngineError
from handler.errors import CallFailed, ErrorInfo, ErrorMapping, HandlerError
from jobs import StoreFull, StoreUnavailable


def create_app(components: Components) -> Starlette:
    """Return the application, which starts the components and closes them at its end."""

    def lifespan(app: Starlette) -> AbstractAsyncContextManager[None]:
        return components.run()

    # Starlette tries the routes in this order, so the most frequent requests come first.
    routes = [
        *components.worker_routes.routes(),
        *components.client_routes.routes(),
        *_engine_routes(components),
        *components.queued_openai_routes.routes(),
        *components.worker_list_routes.routes(),
        *components.console_routes.routes(),
        components.health.route(),
        MetricsRoute(components.exported_metrics, is_open=components.settings.metrics_open).route(),
    ]
    if components.bucket is not None:
        routes += components.bucket.routes()
    if components.fault_rules is not None:
        routes += FaultRoutes(components.fault_rules).routes()
    docs = DocsRoutes(routes, components.settings)
    routes = [*routes, *docs.routes(), *PageRoutes().routes()]
    return Starlette(
        routes=routes,
        middleware=build_middleware(
            components.settings,
            components.shutdown,
            components.store,
            components.metrics,
            components.tracing,
            components.managed_worker_key,
            RouteTable(routes),
            components.fault_rules,
        ),
        lifespan=lifespan,
        # RequestIdMiddleware answers all other exceptions.
        exception_handlers={
            HTTPException: on_http_error,
            HandlerError: on_error,
            EngineError: on_error,
            CallFailed: on_error,
            StoreFull: _on_store_full,
            StoreUnavailable: _on_store_unavailable,
            ClientDisconnected: _on_disconnect,
            # Starlette's own exception, if the client disconnects while it sends the body.
            ClientDisconnect: _on_disconnect,
            **_batch_handlers(components),
        },
    )


def _batch_handlers(components: Components) -> Mapping[Any, ExceptionHandler]:
    """Return the handlers of errors that only batches raise, which need an engine."""
    if components.engine_components is None:
        return {}
    from emulator.batches.file_storage import InsufficientStorage
    from emulator.batches.service import handle_insufficient_storage

    return {InsufficientStorage: handle_insufficient_storage}


def _engine_routes(components: Components) -> list[ApiRoute]:
    engine_components = components.engine_components
    if engine_components is None:
        endpoint = components.settings.endpoint_id
        return [*NoEngineRoutes(endpoint, has_handler=components.runs_handlers).routes()]
    return [
        *engine_components.routes,
        *engine_components.batches.routes(),
    ]


async def _on_store_full(request: Request, error: Exception) -> Response:
    mapping = ErrorMapping(429, "rate_limit_error", retryable=True)
    return error_response(ErrorInfo(str(error), mapping), request.scope)


async def _on_store_unavailable(request: Request, error: Exception) -> Response:
    mapping = ErrorMapping(503, "service_unavailable_error", retryable=True)
    return error_response(ErrorInfo(str(error), mapping), request.scope)


async def _on_disconnect(request: Request, error: Exception) -> Response:
    # The client does not read it; 499 is what proxies log for a client that has disconnected.
    return Response(status_code=499)
