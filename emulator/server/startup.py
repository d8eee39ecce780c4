"""Report known causes of a failed start in one sentence instead of a traceback."""

from __future__ import annotations

from starlette.types import ASGIApp, Message, Receive, Scope, Send

from jobs import StoreUnavailable, StoreUnusable

_FAILED = "lifespan.startup.failed"


class StartupErrorFilter:
    """Wraps an application whose job database may be unusable.

    Starlette reports an exception at the start with a traceback. A database that is damaged or used
    by another server is no bug of the program, so only the error's message is reported.
    """

    def __init__(self, app: ASGIApp) -> None:
        self._app = app
        # The start failed for a reason that a restart does not remove.
        self.is_unusable = False

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        """Pass a request on; filter the errors of the lifespan's start."""
        if scope["type"] == "lifespan":
            await self._run_lifespan(scope, receive, send)
        else:
            await self._app(scope, receive, send)

    async def _run_lifespan(self, scope: Scope, receive: Receive, send: Send) -> None:
        failure: Message | None = None

        async def hold_failure(message: Message) -> None:
            nonlocal failure
            if message["type"] == _FAILED:
                failure = message
            else:
                await send(message)

        try:
            await self._app(scope, receive, hold_failure)
        except StoreUnavailable as error:
            self.is_unusable = isinstance(error, StoreUnusable)
            if failure is None:
                raise
            failure["message"] = f"the server does not start: {error}"
            raise
        finally:
            if failure is not None:
                await send(failure)
