"""Builds the image of a project again when a file of it was saved."""

from __future__ import annotations

import asyncio
import logging
import signal
from collections.abc import Callable, Sequence
from contextlib import suppress

from emulator.autoscaling.containers.container_engine import ContainerEngineError
from emulator.autoscaling.containers.worker_image import WorkerImage, replace_identity

logger = logging.getLogger(__name__)

_MAX_OUTPUT_BYTES = 8_000
# How long a build may take to end after SIGTERM.
_EXIT_TIMEOUT_S = 10.0


class ImageBuild:
    """Builds an image after each change, one build at a time, while the workers go on.

    `on_built` is called with the new image if it differs from the one before, and `on_failed` with
    the reason and the builder's output if it cannot be built. Images that were replaced are removed
    after the next build, when no container uses them. Owned by the event loop.
    """

    def __init__(
        self,
        image: WorkerImage,
        on_built: Callable[[WorkerImage], None],
        on_failed: Callable[[str, str], None],
    ) -> None:
        self._image = image
        self._on_built = on_built
        self._on_failed = on_failed
        self._changed = asyncio.Event()
        self._has_failed = False
        self._is_closing = False
        # The process that builds, or has built last.
        self._builder: asyncio.subprocess.Process | None = None
        self._task: asyncio.Task[None] | None = None

    def start(self) -> None:
        """Start waiting for changes."""
        self._task = asyncio.create_task(self._run())

    def request(self, names: Sequence[str]) -> None:
        """Build the image soon, because files with these names were saved."""
        logger.info("%s changed: %s is built again", ", ".join(names), self._image.reference)
        self._changed.set()

    async def close(self) -> None:
        """End a running build, and begin no other.

        Not by cancelling the task: asyncio may then wait forever for a process that just starts.
        """
        self._is_closing = True
        self._changed.set()
        if self._task is None:
            return
        self._end_builder(signal.SIGTERM)
        if (await asyncio.wait({self._task}, timeout=_EXIT_TIMEOUT_S))[1]:
            self._end_builder(signal.SIGKILL)
            await self._task

    def _end_builder(self, number: int) -> None:
        if self._builder is not None and self._builder.returncode is None:
            # It may end at any moment.
            with suppress(ProcessLookupError):
                self._builder.send_signal(number)

    async def remove_replaced(self) -> None:
        """Remove the images of earlier builds that no container uses."""
        try:
            await self._image.engine.call_async(*self._image.prune_arguments())
        except ContainerEngineError as error:
            logger.warning(
                "earlier builds of %s were not removed: %s", self._image.reference, error
            )

    async def _run(self) -> None:
        while True:
            await self._changed.wait()
            if self._is_closing:
                return
            self._changed.clear()
            await self._build()

    async def _build(self) -> None:
        engine = self._image.engine
        try:
            code, output = await self._run_builder()
        except OSError as error:
            code, output = 1, str(error)
        if self._is_closing:
            return
        if code:
            self._has_failed = True
            self._on_failed(f"was not built: {engine} build ended with exit code {code}", output)
            return
        inspected = await asyncio.to_thread(engine.inspect_image, self._image.reference)
        if inspected is not None and (problem := self._image.explain_missing_command(inspected)):
            self._has_failed = True
            self._on_failed(problem, output)
            return
        is_unchanged = inspected is None or inspected.get("Id") == self._image.image_id
        # After a failed build, the same image is news, too.
        if inspected is None or (is_unchanged and not self._has_failed):
            logger.info("the image %s is unchanged", self._image.reference)
            return
        self._has_failed = False
        self._image = replace_identity(self._image, inspected)
        self._on_built(self._image)
        # Not the one before this: its workers still run.
        await self.remove_replaced()

    async def _run_builder(self) -> tuple[int, str]:
        """Run the builder; return its exit code and the end of what it printed."""
        process = await asyncio.create_subprocess_exec(
            self._image.engine.program,
            *self._image.build_command(),
            stdin=asyncio.subprocess.DEVNULL,
            stdout=asyncio.subprocess.PIPE,
            stderr=asyncio.subprocess.STDOUT,
        )
        self._builder = process
        if self._is_closing:
            self._end_builder(signal.SIGTERM)
        output = b""
        assert process.stdout is not None  # noqa: S101 - a pipe was asked for
        while block := await process.stdout.read(_MAX_OUTPUT_BYTES):
            output = (output + block)[-_MAX_OUTPUT_BYTES:]
        code = await process.wait()
        return code, output.decode(errors="replace")
