"""Download models from the Hugging Face Hub while the server runs, and serve them."""

from __future__ import annotations

import asyncio
import hashlib
import logging
import re
from collections.abc import AsyncGenerator, Callable
from concurrent.futures import ThreadPoolExecutor
from contextlib import aclosing
from pathlib import Path
from typing import Any, Protocol

import orjson

from common.json_object import JsonObject
from common.value_description import describe_value
from engine.backends.gguf import read_header
from engine.errors import EngineClosed, ModelLoadFailed, QueueFull
from handler.errors import InvalidRequest, ModelNotFound, error_info
from handler.models.hub import PREFIX, Hub, HubError, HubReference, OnProgress
from handler.models.model_source import ModelSourceError, find_model, list_model_files

logger = logging.getLogger(__name__)

# The names that Ollama's clients have for repositories on the Hub, and the default of Ollama.
_HUB_NAME = re.compile(
    r"(?:https://)?(?:hf\.co|huggingface\.co)/([^/:\s]+/[^/:\s]+)(?::([\w.-]+))?"
)
_DEFAULT_QUANTISATION = "q4_k_m"
# How often a line tells the progress of a download.
_INTERVAL_S = 0.25
FORM = f"{PREFIX}org/repo[@revision][/file] or hf.co/org/repo[:quantisation]"


# How many downloads run at the same time, and how many more may wait for them.
_MAX_DOWNLOADS = 4
_MAX_WAITING = 8
# How many files the server serves that clients have pulled, and by how many names each.
_MAX_MODELS = 32
_MAX_NAMES_OF_A_MODEL = 8
_MAX_NAME_CHARS = 512


class PullStopped(Exception):
    """All clients of a download have disconnected, so it ends; the next one continues it."""


class AddModel(Protocol):
    """Serves a model file under its own name and the requested one.

    If the file is served already, the requested name becomes an alias of that model.
    """

    def __call__(self, path: Path, requested_name: str) -> None:
        """Raises ValueError with a reason why the model cannot be served."""


class _Download:
    """One download, and how many clients wait for it."""

    def __init__(self) -> None:
        self.clients = 0
        self.progress: tuple[str, int, int] | None = None
        self.is_stopped = False
        self.task: asyncio.Task[None] | None = None

    def report_progress(self, file: str, done: int, total: int) -> None:
        """Keep the progress. Called in the download's thread; raises PullStopped."""
        if self.is_stopped:
            raise PullStopped
        self.progress = (file, done, total)

    def stop(self) -> None:
        """End the download; its thread notices it at the next progress."""
        self.is_stopped = True
        if self.task is not None:
            self.task.cancel()


class ModelPuller:
    """Pulls models; `is_served` returns whether a name is that of a served model.

    Clients that pull the same name wait for the same download, which ends when all of them have
    left. Without `add_model`, pulling is off. Owned by the event loop. Look-ups and downloads run
    in threads of their own, because a Hub that does not answer holds each of them for a while.
    """

    def __init__(
        self,
        is_served: Callable[[str], bool],
        add_model: AddModel | None,
        build_hub: Callable[[OnProgress], Hub] = lambda on_progress: Hub(on_progress=on_progress),
    ) -> None:
        self._is_served = is_served
        self._add_model = add_model
        self._build_hub = build_hub
        self._threads = ThreadPoolExecutor(_MAX_DOWNLOADS, "pull")
        self._downloads: dict[str, _Download] = {}
        # The names of each pulled file.
        self._names: dict[Path, set[str]] = {}

    def start(self) -> None:
        """Remove what killed downloads have left long ago, if pulling is on."""
        if self._add_model is not None:
            self._threads.submit(_remove_stale_parts, self._build_hub(lambda *_: None))

    async def close(self) -> None:
        """End all downloads without waiting for their threads."""
        for download in [*self._downloads.values()]:
            download.stop()
        self._threads.shutdown(wait=False, cancel_futures=True)

    def check(self, body: JsonObject) -> str:
        """Return the name in a body that can be pulled, or is served.

        Raises InvalidRequest, or QueueFull if too many models are being pulled.
        """
        # `name` is the older name of the field.
        name = body.get("model") or body.get("name")
        if not isinstance(name, str):
            raise InvalidRequest(f"model must be {FORM}, got {describe_value(name)}", "model")
        if len(name) > _MAX_NAME_CHARS:
            raise InvalidRequest(
                f"model must have at most {_MAX_NAME_CHARS} characters, got {len(name):,}", "model"
            )
        if self._is_served(name):
            return name
        if self._add_model is None:
            raise InvalidRequest(
                f"model {describe_value(name)} is not served, and this server pulls no models: "
                "MODEL_PULL=on allows it",
                "model",
            )
        _parse_name(name)
        self._check_limits(name)
        return name

    async def pull(self, name: str) -> AsyncGenerator[bytes, None]:
        """Yield the lines about a pull; the last one is `success` or an error."""
        if not self._is_served(name):
            yield _line(status="pulling manifest")
            try:
                async with aclosing(self._wait_for_download(name)) as lines:
                    async for line in lines:
                        yield line
            except (HubError, ModelSourceError, ValueError) as error:
                yield orjson.dumps({"error": str(error)}) + b"\n"
                return
            except Exception as error:
                # Any error: a stream that just stops looks like a complete one to some clients.
                yield orjson.dumps({"error": error_info(error).message}) + b"\n"
                return
        yield _line(status="success")

    async def pull_to_end(self, name: str) -> JsonObject:
        """Return the answer without progress. Raises ModelNotFound if the pull failed."""
        last: dict[str, Any] = {}
        async with aclosing(self.pull(name)) as lines:
            async for line in lines:
                last = orjson.loads(line)
        if "error" in last:
            raise ModelNotFound(last["error"], "model")
        return last

    def _check_limits(self, name: str) -> None:
        """Raise QueueFull or InvalidRequest if no download of this name may begin now."""
        if name in self._downloads:
            return
        if len(self._downloads) >= _MAX_DOWNLOADS + _MAX_WAITING:
            raise QueueFull(
                f"{len(self._downloads)} models are being pulled already: try again later"
            )
        if len(self._names) >= _MAX_MODELS:
            raise InvalidRequest(
                f"the server has {_MAX_MODELS} pulled models, which is the most it serves: name "
                "the ones that you need in MODELS and restart it",
                "model",
            )

    async def _wait_for_download(self, name: str) -> AsyncGenerator[bytes, None]:
        """Yield the progress of a download until the model is served; join or begin it."""
        if (download := self._downloads.get(name)) is None:
            self._check_limits(name)
            download = self._downloads[name] = _Download()
            download.task = asyncio.create_task(self._download(name, download))
            download.task.add_done_callback(_log_late_error)
        task = download.task
        assert task is not None  # noqa: S101 - set with the download
        download.clients += 1
        try:
            last = None
            while not task.done():
                await asyncio.wait({task}, timeout=_INTERVAL_S)
                if download.progress is not None and download.progress != last:
                    last = download.progress
                    yield _progress_line(*last)
            if task.cancelled():
                raise EngineClosed("the server is shutting down")
            task.result()
        finally:
            download.clients -= 1
            if download.clients == 0 and not task.done():
                # The next client begins another one: this one may take long to notice.
                self._forget(name, download)
                download.stop()
        yield _line(status="verifying sha256 digest")

    async def _download(self, name: str, download: _Download) -> None:
        """Download a model and serve it."""
        try:
            loop = asyncio.get_running_loop()
            hub = self._build_hub(download.report_progress)
            path = await loop.run_in_executor(self._threads, _find, name, hub)
            if self._add_model is not None and not self._is_served(name):
                names = self._names.get(path.resolve(), set())
                if len(names) >= _MAX_NAMES_OF_A_MODEL:
                    raise ValueError(
                        f"the model has {len(names)} names already, which is the most: "
                        f"use one of {', '.join(sorted(names))}"
                    )
                self._add_model(path, name)
                self._names[path.resolve()] = {*names, name}
                logger.info("the model %s is served: %s", name, path)
        finally:
            self._forget(name, download)

    def _forget(self, name: str, download: _Download) -> None:
        if self._downloads.get(name) is download:
            del self._downloads[name]


def _find(name: str, hub: Hub) -> Path:
    """Return the file of a model on the Hub, downloaded if it is in no cache, and checked."""
    path = find_model(Path(str(_find_reference(name, hub))), hub=hub)
    for part in list_model_files(path):
        if part.suffix == ".gguf":
            _check_gguf(part)
    return path


def _find_reference(name: str, hub: Hub) -> HubReference:
    """Return the file or repository that a name stands for."""
    reference, quantisation = _parse_name(name)
    if quantisation is None:
        return reference
    files = [each for each in hub.list_files(reference) if each.endswith(".gguf")]
    matching = [each for each in files if quantisation.lower() in Path(each).name.lower()]
    parts = [each for each in matching if "-of-" not in each or "-00001-of-" in each]
    if len(parts) == 1:
        return reference.with_file(parts[0])
    if len(files) == 1 and quantisation == _DEFAULT_QUANTISATION:
        return reference
    listed = ", ".join(sorted(files)[:20]) or "no .gguf file"
    raise ModelSourceError(f"{reference} has no single {quantisation} model: {listed}")


def _check_gguf(path: Path) -> None:
    """Remove a file that is no GGUF, and its content. Raises ModelSourceError."""
    try:
        read_header(path)
    except ModelLoadFailed as error:
        if isinstance(error.__cause__, OSError):
            raise ModelSourceError(
                f"{path.name} cannot be read: {error.__cause__.strerror}"
            ) from None
        try:
            path.resolve().unlink()
            path.unlink(missing_ok=True)
        except OSError as unlink_error:
            logger.warning("%s is damaged and stays: %s", path, unlink_error.strerror)
        raise ModelSourceError(
            f"{path.name} is not a GGUF file that can be read, and was removed"
        ) from None


def _remove_stale_parts(hub: Hub) -> None:
    try:
        hub.remove_stale_parts()
    except (HubError, OSError) as error:
        logger.warning("unfinished downloads are not removed: %s", error)


def _parse_name(name: str) -> tuple[HubReference, str | None]:
    """Return the repository, and the quantization to look for in it. Raises InvalidRequest."""
    match = _HUB_NAME.fullmatch(name)
    text = name if match is None else f"{PREFIX}{match[1]}"
    try:
        reference = HubReference.parse(text)
    except ValueError:
        raise InvalidRequest(
            f"model must be {FORM}, got {describe_value(name)}: Ollama's own library is not asked",
            "model",
        ) from None
    if match is None:
        return reference, None
    tag = match[2]
    return reference, _DEFAULT_QUANTISATION if tag in (None, "latest") else tag


def _progress_line(file: str, done: int, total: int) -> bytes:
    # Clients make a progress bar for each digest.
    digest = "sha256:" + hashlib.sha256(file.encode()).hexdigest()
    return _line(status=f"pulling {file}", digest=digest, total=max(total, done), completed=done)


def _line(**members: Any) -> bytes:
    return orjson.dumps(members) + b"\n"


def _log_late_error(task: asyncio.Task[None]) -> None:
    """Retrieve the error of a download whose client has disconnected."""
    if not task.cancelled() and (error := task.exception()) is not None:
        logger.debug("a download ended: %s", error)
