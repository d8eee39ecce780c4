"""Named prompt caches in files, so that a long common prefix is computed only once."""

from __future__ import annotations

import json
import logging
import os
import stat
from collections.abc import Sequence
from contextlib import suppress
from pathlib import Path
from typing import NamedTuple

from common.fingerprint import file_fingerprint
from engine.backends.lora_adapters import LoraAdapter
from engine.backends.rkllm.runtime import Runtime
from engine.errors import RequestRejected

logger = logging.getLogger(__name__)

# Each file may be as large as the key-value cache of a full context.
MAX_CACHES = 64
_FILE_MODE = 0o600
_FOLDER_MODE = 0o700


class CacheUse(NamedTuple):
    """How many of a prompt's tokens its cache holds, and where to save it if there is none."""

    reused: int = 0
    save_to: Path | None = None


class PromptCaches:
    """The prompt cache files of one model; at most one of them is loaded into the handle.

    The first prompt that names a cache is saved under that name. Later prompts with the name reuse
    their common prefix with it. A file is valid only for the model, the LoRA adapter and the ABI
    that wrote it, so its path contains all three. A JSON file next to it lists its tokens; it is
    written last, so an incomplete cache is ignored. Owned by the thread that uses the handle.
    """

    def __init__(self, folder: str | None, model: Path) -> None:
        self._root = None if folder is None else Path(folder)
        self._model = model
        # By adapter name; the base model's folder is under None.
        self._folders: dict[str | None, Path] = {}
        self._loaded_path: Path | None = None
        # Whether a run that saved a cache was aborted since the model was loaded. Loading a cache
        # then crashes 1.2.3 on RK3576 (oRKLLM), unless the doctor found that it does not.
        self._is_unsafe = False
        self.can_load_after_abort = False

    @property
    def enabled(self) -> bool:
        """Whether a folder for prompt caches is configured."""
        return self._root is not None

    def find_folders(self, abi: str, adapters: Sequence[LoraAdapter] = ()) -> None:
        """Determine the folders of this model and its adapters; call it when the ABI is known."""
        if self._root is None:
            return
        base_name = f"{self._model.stem}-{file_fingerprint(self._model)}-abi{abi}"
        self._folders[None] = self._root / base_name
        for adapter in adapters:
            # Contains the file's fingerprint, because the name may later refer to another file.
            folder_name = f"{base_name}-lora-{file_fingerprint(adapter.path)}-{adapter.scale:g}"
            self._folders[adapter.name] = self._root / folder_name

    def cache_path(self, name: str | None, lora: str | None) -> Path | None:
        """Return the file for a cache name and an adapter; None without a name or a folder."""
        if name is None or not self.enabled:
            return None
        return self._folders[lora] / f"{name}.bin"

    def release_unless(self, runtime: Runtime, path: Path | None) -> None:
        """Release the loaded cache unless it is the one at `path`."""
        if self._loaded_path not in (None, path):
            self._loaded_path = None
            runtime.release_prompt_cache()

    def load_or_prepare(self, runtime: Runtime, path: Path, tokens: list[int]) -> CacheUse | None:
        """Load a cache, or prepare to save it if it does not exist.

        Return None if the model must be reloaded before a cache can be loaded.

        Raises:
            RequestRejected: the cache cannot be loaded, or cannot be saved.
        """
        saved_tokens = _read_tokens(path)
        if saved_tokens is None:
            # The cache may still be loaded although its file was deleted.
            self.release_unless(runtime, None)
            self._prepare_folder(path)
            return CacheUse(save_to=_temporary_path(path))
        _restrict_access(path.parent)
        if self._is_unsafe and self._loaded_path is None:
            return None
        if self._loaded_path is None and not runtime.load_prompt_cache(path):
            raise RequestRejected(
                f"prompt_cache: the RKLLM runtime did not load {path}; once it is deleted, the "
                "next request that names it saves it again"
            )
        self._loaded_path = path
        # The last token is always computed: the answer starts from its output.
        return CacheUse(min(_common_prefix_length(saved_tokens, tokens), max(len(tokens) - 1, 0)))

    def record_abort(self, path: Path) -> None:
        """Record that the run was aborted that may have saved a cache, and remove its leftovers."""
        if self._loaded_path != path:
            self._is_unsafe = not self.can_load_after_abort
            _remove(_temporary_path(path))

    def commit(self, path: Path, tokens: list[int]) -> None:
        """Put a cache that the run has saved into place; no-op if it existed before the run."""
        if self._loaded_path == path:
            return
        if not _temporary_path(path).is_file():
            logger.warning(
                "the RKLLM runtime saved no prompt cache %s: it cannot save every model's",
                path.stem,
            )
            return
        metadata_path = path.with_suffix(".json")
        try:
            content = json.dumps({"tokens": tokens})
            _temporary_path(metadata_path).write_text(content, encoding="utf-8")
            for file in (_temporary_path(path), _temporary_path(metadata_path)):
                file.chmod(_FILE_MODE)
            _temporary_path(path).replace(path)
            _temporary_path(metadata_path).replace(metadata_path)
        except OSError as error:
            # Not an error of the request: its answer is complete, and the next request retries.
            logger.warning("prompt cache %s was not saved: %s", path.stem, error.strerror)
            _remove(_temporary_path(path), _temporary_path(metadata_path))
            return
        logger.info("prompt cache %s was saved, of %d tokens", path.stem, len(tokens))

    def reset(self) -> None:
        """Record that no cache is loaded, after the model was loaded."""
        self._loaded_path, self._is_unsafe = None, False

    def _prepare_folder(self, path: Path) -> None:
        """Check that a cache file can be written, and remove orphaned temporary files."""
        folder = path.parent
        try:
            folder.mkdir(mode=_FOLDER_MODE, parents=True, exist_ok=True)
            _restrict_access(folder)
            if len(list(folder.glob("*.json"))) >= MAX_CACHES:
                raise RequestRejected(
                    f"prompt_cache: {path.stem} cannot be saved, {folder} has {MAX_CACHES} already"
                )
            _remove(*(file for file in folder.iterdir() if _is_orphaned(file)))
            _temporary_path(path).touch()
            _temporary_path(path).unlink()
        except OSError as error:
            raise RequestRejected(
                f"prompt_cache: {path} cannot be written: {error.strerror}"
            ) from error


def _temporary_path(path: Path) -> Path:
    """Return the temporary path of a file; it differs between processes."""
    return path.with_name(f"{path.name}.{os.getpid()}")


def _is_orphaned(path: Path) -> bool:
    """Return whether a file is the temporary file of a process that has ended."""
    name, _, pid = path.name.rpartition(".")
    if not name.endswith((".bin", ".json")) or not pid.isdecimal():
        return False
    try:
        os.kill(int(pid), 0)
    except (ProcessLookupError, OverflowError):
        return True
    except PermissionError:
        pass
    return False


def _restrict_access(folder: Path) -> None:
    """Deny other users access to a folder, because its files contain prompts.

    The umask is not enough: the runtime writes files with it, and earlier versions created the
    folder with it.
    """
    # chmod fails for another user's folder and on file systems without modes; these are used as
    # they are.
    with suppress(OSError):
        if stat.S_IMODE(folder.stat().st_mode) != _FOLDER_MODE:
            folder.chmod(_FOLDER_MODE)


def _remove(*paths: Path) -> None:
    for path in paths:
        with suppress(OSError):
            path.unlink()


def _read_tokens(path: Path) -> list[int] | None:
    """Return the tokens of a cache; None if it does not exist or is incomplete."""
    try:
        tokens = json.loads(path.with_suffix(".json").read_text(encoding="utf-8"))["tokens"]
    except (OSError, ValueError, LookupError, TypeError):
        return None
    return tokens if isinstance(tokens, list) and path.is_file() else None


def _common_prefix_length(first: list[int], second: list[int]) -> int:
    pairs = zip(first, second, strict=False)
    shorter = min(len(first), len(second))
    return next((i for i, (a, b) in enumerate(pairs) if a != b), shorter)
