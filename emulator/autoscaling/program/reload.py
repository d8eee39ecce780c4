"""Notice that a file of the user's handler was saved."""

from __future__ import annotations

import asyncio
import logging
from collections.abc import AsyncIterator, Callable, Sequence
from pathlib import Path

from watchfiles import Change, DefaultFilter, awatch

logger = logging.getLogger(__name__)

# Files that a handler itself may write, such as results as JSON, must not restart it.
_SUFFIXES = (".py", ".toml", ".yaml", ".yml")
_ENV_FILE = ".env"
# An editor writes several files within a moment. The default of the library is 1.6 s.
_DEBOUNCE_MS = 200
# An installer writes many packages, one after the other.
_INSTALLED_AFTER_S = 2.0


class CodeFilter(DefaultFilter):
    """Lets changes of code and of configuration pass, and packages that are installed.

    Code in virtual environments and caches does not pass. `is_code` returns whether a path is
    code. `data` is a folder with what the handler writes, any of which may look like code.
    """

    def __init__(
        self, data: Path | None = None, is_code: Callable[[str], bool] | None = None
    ) -> None:
        super().__init__()
        self._data = data
        self._is_code = is_code or _is_handler_code

    def __call__(self, change: Change, path: str) -> bool:
        """Return whether the change of this file may restart the workers."""
        if _is_package(path):
            return True
        if not self._is_code(path) or not super().__call__(change, path):
            return False
        return self._data is None or not Path(path).resolve().is_relative_to(self._data)


def _is_handler_code(path: str) -> bool:
    return path.endswith(_SUFFIXES) or Path(path).name == _ENV_FILE


def _is_package(path: str) -> bool:
    """Return whether a path is what an installer writes about a package."""
    return path.endswith(".dist-info") or Path(path).parent.name.endswith(".dist-info")


class CodeWatch:
    """Calls `on_change` with the names of the files saved in folders; owned by the event loop.

    If packages were installed in a virtual environment there, it calls `on_install` after the last.
    Files in the folder `data` do not count, unless it has one of the folders in it.
    """

    def __init__(
        self,
        folders: Sequence[Path],
        on_change: Callable[[Sequence[str]], None],
        on_install: Callable[[], None] = lambda: None,
        *,
        data: Path | None = None,
        is_code: Callable[[str], bool] | None = None,
    ) -> None:
        self._folders = folders
        has_code = data is not None and any(
            folder.resolve().is_relative_to(data) for folder in folders
        )
        self._filter = CodeFilter(None if has_code else data, is_code)
        self._on_change = on_change
        self._on_install = on_install
        self._install_timer: asyncio.TimerHandle | None = None
        self._task: asyncio.Task[None] | None = None

    def start(self) -> None:
        """Start watching."""
        self._task = asyncio.create_task(self._watch())

    async def close(self) -> None:
        """Stop watching."""
        if self._install_timer is not None:
            self._install_timer.cancel()
        if self._task is not None:
            self._task.cancel()
            await asyncio.gather(self._task, return_exceptions=True)

    async def _watch(self) -> None:
        try:
            try:
                await self._report(self._changes(recursive=True))
            except OSError as error:
                # Most often the limit on watched folders, which a home folder exceeds.
                logger.warning(
                    "only files directly in %s are watched for changes, not in folders below: %s",
                    self._names(),
                    error,
                )
                await self._report(self._changes(recursive=False))
        except (OSError, RuntimeError) as error:
            logger.error("changes of %s are not noticed any more: %s", self._names(), error)

    def _names(self) -> str:
        return " and ".join(str(folder) for folder in self._folders)

    def _changes(self, *, recursive: bool) -> AsyncIterator[set[tuple[Change, str]]]:
        return awatch(
            *self._folders,
            watch_filter=self._filter,
            debounce=_DEBOUNCE_MS,
            recursive=recursive,
            ignore_permission_denied=True,
        )

    async def _report(self, changes: AsyncIterator[set[tuple[Change, str]]]) -> None:
        async for batch in changes:
            paths = {path for _, path in batch}
            if names := sorted({Path(path).name for path in paths if not _is_package(path)}):
                self._on_change(names)
            if any(map(_is_package, paths)):
                self._wait_for_installer()

    def _wait_for_installer(self) -> None:
        if self._install_timer is not None:
            self._install_timer.cancel()
        loop = asyncio.get_running_loop()
        self._install_timer = loop.call_later(_INSTALLED_AFTER_S, self._on_install)
