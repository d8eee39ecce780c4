"""Prompts that are kept in files by name, so that a long beginning is read once for all."""

from __future__ import annotations

import json
import logging
import os
import stat
from collections.abc import Sequence
from contextlib import suppress
from pathlib import Path
from typing import NamedTuple

from engine.backends.rkllm.lora_adapters import LoraAdapter
from engine.backends.rkllm.runtime import Runtime
from engine.errors import RequestRejected
from engine.fingerprint import sha256_of_ends

logger = logging.getLogger(__name__)

# Each of them may be as large as the cache of a whole context.
MAX_CACHES = 64
_FILE_MODE = 0o600
_FOLDER_MODE = 0o700


class Use(NamedTuple):
    """How many of a prompt's tokens are in its cache, and where to save it if there is none."""

    reused: int = 0
    save_to: Path | None = None


class PromptCaches:
    """The files of one model in one folder, at most one of them loaded into the handle.

    The first prompt that names one is saved under the name, those after it that name it begin with
    what they share with it. A file is good for the model, the LoRA adapter and the ABI it was made
    with alone, so these are in its path: another's cache is never found. Beside each is what it is
    made of, put in place last, so that half a file counts as none. Owned by the thread that runs
    on the handle.
    """

    def __init__(self, folder: str | None, model: Path) -> None:
        self._root = None if folder is None else Path(folder)
        self._model = model
        # By adapter, the bare model's under None.
        self._folders: dict[str | None, Path] = {}
        self._loaded: Path | None = None

    @property
    def on(self) -> bool:
        """Whether there is a folder for them."""
        return self._root is not None

    def open(self, abi: str, adapters: Sequence[LoraAdapter] = ()) -> None:
        """Find the folders of this model and its adapters, once the library is known."""
        if self._root is None:
            return
        bare = f"{self._model.stem}-{_digest(self._model)}-abi{abi}"
        self._folders[None] = self._root / bare
        for adapter in adapters:
            # Its name may stand for another file tomorrow.
            own = f"{bare}-lora-{_digest(adapter.path)}-{adapter.scale:g}"
            self._folders[adapter.name] = self._root / own

    def path(self, name: str | None, lora: str | None) -> Path | None:
        """Return the file of a name with an adapter, None where none is named or they are off."""
        if name is None or not self.on:
            return None
        return self._folders[lora] / f"{name}.bin"

    def release_all_but(self, runtime: Runtime, path: Path | None) -> None:
        """Release the one that is loaded, if it is not this one."""
        if self._loaded not in (None, path):
            self._loaded = None
            runtime.release_prompt_cache()

    def use(self, runtime: Runtime, path: Path, tokens: list[int]) -> Use:
        """Load a cache, or say where to save it.

        Raises:
            RequestRejected: it cannot be loaded, or not be saved.
        """
        saved = _tokens_of(path)
        if saved is None:
            # It may be loaded all the same, if somebody has deleted its file since.
            self.release_all_but(runtime, None)
            self._make_room(path)
            return Use(save_to=_unfinished(path))
        _close_to_others(path.parent)
        if self._loaded is None and not runtime.load_prompt_cache(path):
            raise RequestRejected(
                f"prompt_cache: the RKLLM runtime did not load {path}; once it is deleted, the "
                "next request that names it saves it again"
            )
        self._loaded = path
        # The last token is read in any case: the answer begins with what comes out of it.
        return Use(min(_shared(saved, tokens), max(len(tokens) - 1, 0)))

    def saved(self, path: Path, tokens: list[int]) -> None:
        """Write down what a run has saved, unless the cache was there before it."""
        if self._loaded == path:
            return
        if not _unfinished(path).is_file():
            logger.warning(
                "the RKLLM runtime saved no prompt cache %s: it cannot save every model's",
                path.stem,
            )
            return
        beside = path.with_suffix(".json")
        try:
            _unfinished(beside).write_text(json.dumps({"tokens": tokens}), encoding="utf-8")
            for file in (_unfinished(path), _unfinished(beside)):
                file.chmod(_FILE_MODE)
            _unfinished(path).replace(path)
            _unfinished(beside).replace(beside)
        except OSError as error:
            # The answer is whole, and the next prompt that names it tries again.
            logger.warning("prompt cache %s was not saved: %s", path.stem, error.strerror)
            _remove(_unfinished(path), _unfinished(beside))
            return
        logger.info("prompt cache %s was saved, of %d tokens", path.stem, len(tokens))

    def forget(self) -> None:
        """Count none as loaded: the handle is new."""
        self._loaded = None

    def _make_room(self, path: Path) -> None:
        """See that a file can be written, and that none is there which a run left unfinished."""
        folder = path.parent
        try:
            folder.mkdir(mode=_FOLDER_MODE, parents=True, exist_ok=True)
            _close_to_others(folder)
            if len(list(folder.glob("*.json"))) >= MAX_CACHES:
                raise RequestRejected(
                    f"prompt_cache: {path.stem} cannot be saved, {folder} has {MAX_CACHES} already"
                )
            _remove(*(each for each in folder.iterdir() if _is_left(each)))
            _unfinished(path).touch()
            _unfinished(path).unlink()
        except OSError as error:
            raise RequestRejected(
                f"prompt_cache: {path} cannot be written: {error.strerror}"
            ) from error


def _unfinished(path: Path) -> Path:
    """Return where a file is written; another process may be writing the same one."""
    return path.with_name(f"{path.name}.{os.getpid()}")


def _is_left(path: Path) -> bool:
    """Whether a file is unfinished, and its process has ended."""
    name, _, process = path.name.rpartition(".")
    if not name.endswith((".bin", ".json")) or not process.isdecimal():
        return False
    try:
        os.kill(int(process), 0)
    except (ProcessLookupError, OverflowError):
        return True
    except PermissionError:
        pass
    return False


def _close_to_others(folder: Path) -> None:
    """Close a folder to other users, whatever the umask: prompts can be read from the files in it.

    The runtime writes its files by the umask, and earlier versions created the folder by it.
    """
    # Another user's folder, or one on a file system without modes, is used as it is.
    with suppress(OSError):
        if stat.S_IMODE(folder.stat().st_mode) != _FOLDER_MODE:
            folder.chmod(_FOLDER_MODE)


def _remove(*paths: Path) -> None:
    for path in paths:
        with suppress(OSError):
            path.unlink()


def _tokens_of(path: Path) -> list[int] | None:
    """Return what a cache is made of, None where there is none that is whole."""
    try:
        tokens = json.loads(path.with_suffix(".json").read_text(encoding="utf-8"))["tokens"]
    except (OSError, ValueError, LookupError, TypeError):
        return None
    return tokens if isinstance(tokens, list) and path.is_file() else None


def _shared(one: list[int], other: list[int]) -> int:
    pairs = zip(one, other, strict=False)
    least = min(len(one), len(other))
    return next((i for i, (a, b) in enumerate(pairs) if a != b), least)


def _digest(path: Path) -> str:
    """Tell one model from another, by its size and ends."""
    return f"{path.stat().st_size:x}-{sha256_of_ends(path)[:12]}"
