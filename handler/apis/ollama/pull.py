"""Download models from the Hugging Face Hub while the server runs, and serve them."""

from __future__ import annotations

import asyncio
import hashlib
import logging
import re
from collections.abc import AsyncGenerator, Callable, Mapping
from pathlib import Path
from typing import Any, Protocol

import orjson

from common.value_description import describe_value
from handler.errors import InvalidRequest, ModelNotFound, error_info
from handler.models.hub import PREFIX, Hub, HubError, HubReference, OnProgress
from handler.models.model_source import ModelSourceError, find_model

logger = logging.getLogger(__name__)

# The names that Ollama's clients have for repositories on the Hub, and the default of Ollama.
_HUB_NAME = re.compile(
    r"(?:https://)?(?:hf\.co|huggingface\.co)/([^/:\s]+/[^/:\s]+)(?::([\w.-]+))?"
)
_DEFAULT_QUANTISATION = "q4_k_m"
# How often a line tells the progress of a download.
_INTERVAL_S = 0.25
FORM = f"{PREFIX}org/repo[@revision][/file] or hf.co/org/repo[:quantisation]"


class PullStopped(Exception):
    """The client has disconnected, so the download ends; the next one resumes it."""


class AddModel(Protocol):
    """Serves a model file under its own name and the requested one."""

    def __call__(self, path: Path, requested_name: str) -> None:
        """Raises ValueError with a reason why the model cannot be served."""


class ModelPuller:
    """Pulls models, one at a time; `is_served` states whether a name is served already.

    `add_model` is None if pulling is off. Owned by the event loop; downloads run in a thread.
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
        self._lock = asyncio.Lock()

    def check(self, body: Mapping[str, Any]) -> str:
        """Return the name in a body that can be pulled, or is served. Raises InvalidRequest."""
        # `name` is the older name of the field.
        name = body.get("model") or body.get("name")
        if not isinstance(name, str):
            raise InvalidRequest(f"model must be {FORM}, got {describe_value(name)}", "model")
        if self._is_served(name):
            return name
        if self._add_model is None:
            raise InvalidRequest(
                f"model {describe_value(name)} is not served, and this server pulls no models: "
                "MODEL_PULL=on allows it",
                "model",
            )
        _parse_name(name)
        return name

    async def pull(self, name: str) -> AsyncGenerator[bytes, None]:
        """Yield the lines about a pull; the last one is `success` or an error."""
        if not self._is_served(name):
            yield _line(status="pulling manifest")
            try:
                async with self._lock:
                    async for line in self._download(name):
                        yield line
            except (HubError, ModelSourceError, ValueError) as error:
                yield orjson.dumps({"error": str(error)}) + b"\n"
                return
            except Exception as error:
                # Any error: a stream that just stops looks like a complete one to some clients.
                yield orjson.dumps({"error": error_info(error).message}) + b"\n"
                return
        yield _line(status="success")

    async def pull_to_end(self, name: str) -> dict[str, Any]:
        """Return the answer without progress. Raises ModelNotFound if the pull failed."""
        last: dict[str, Any] = {}
        async for line in self.pull(name):
            last = orjson.loads(line)
        if "error" in last:
            raise ModelNotFound(last["error"], "model")
        return last

    async def _download(self, name: str) -> AsyncGenerator[bytes, None]:
        """Yield the progress of a download, and serve the model."""
        if self._is_served(name) or self._add_model is None:
            # Another client has pulled it meanwhile.
            return
        progress: tuple[str, int, int] | None = None
        is_stopped = False

        def on_progress(file: str, done: int, total: int) -> None:
            nonlocal progress
            if is_stopped:
                raise PullStopped
            progress = (file, done, total)

        hub = self._build_hub(on_progress)
        task = asyncio.create_task(asyncio.to_thread(_find, name, hub))
        try:
            last = None
            while not task.done():
                await asyncio.wait({task}, timeout=_INTERVAL_S)
                if progress is not None and progress != last:
                    last = progress
                    yield _progress_line(*progress)
            path = task.result()
        finally:
            # The thread sees it at the next progress; its result is not needed any more.
            is_stopped = True
            task.add_done_callback(_log_late_error)
        yield _line(status="verifying sha256 digest")
        self._add_model(path, name)
        logger.info("the model %s is served: %s", name, path)


def _find(name: str, hub: Hub) -> Path:
    """Return the file of a model on the Hub, downloaded if it is in no cache."""
    reference, quantisation = _parse_name(name)
    if quantisation is None:
        return find_model(Path(str(reference)), hub=hub)
    files = [each for each in hub.list_files(reference) if each.endswith(".gguf")]
    matching = [each for each in files if quantisation.lower() in Path(each).name.lower()]
    parts = [each for each in matching if "-of-" not in each or "-00001-of-" in each]
    if len(parts) == 1:
        return find_model(Path(str(reference.with_file(parts[0]))), hub=hub)
    if len(files) == 1 and quantisation == _DEFAULT_QUANTISATION:
        return find_model(Path(str(reference)), hub=hub)
    listed = ", ".join(sorted(files)[:20]) or "no .gguf file"
    raise ModelSourceError(f"{reference} has no single {quantisation} model: {listed}")


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


def _log_late_error(task: asyncio.Task[Path]) -> None:
    """Retrieve the error of a download whose client has disconnected."""
    if not task.cancelled() and (error := task.exception()) is not None:
        logger.debug("a download ended: %s", error)
