"""The application's start: where it is known why it fails, that is said in a sentence."""

from __future__ import annotations

from collections.abc import Awaitable

from starlette.types import ASGIApp, Message, Receive, Scope, Send

from jobs import StoreUnavailable, StoreUnusable

_FAILED = "lifespan.startup.failed"


class StartupErrorFilter:
    """An application whose job database may be unusable.

    Starlette reports whatever its start raises with a traceback. A database that another server
    has, or that is damaged, is no fault of the program: what helps is the sentence alone.
    """

    def __init__(self, app: ASGIApp) -> None:
        self._app = app
        # The start failed for a reason that a person has to remove: a restart does not help.
        self.is_refused = False

    # Not a coroutine of its own: every call comes by here.
    def __call__(self, scope: Scope, receive: Receive, send: Send) -> Awaitable[None]:
        """Hand a call on, and watch over the start."""
        if scope["type"] == "lifespan":
            return self._live(scope, receive, send)
        return self._app(scope, receive, send)

    async def _live(self, scope: Scope, receive: Receive, send: Send) -> None:
        failed: Message | None = None

        async def held(message: Message) -> None:
            nonlocal failed
            if message["type"] == _FAILED:
                failed = message
            else:
                await send(message)

        try:
            await self._app(scope, receive, held)
        except StoreUnavailable as error:
            self.is_refused = isinstance(error, StoreUnusable)
            if failed is None:
                raise
            failed["message"] = f"the server does not start: {error}"
            raise
        finally:
            if failed is not None:
                await send(failed)
