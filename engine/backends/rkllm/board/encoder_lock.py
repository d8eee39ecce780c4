"""The lock that keeps a vision encoder and language models from using the NPU at the same time.

RKNN and RKLLM at once have hung whole systems until a reboot, also on different cores
(rknn-llm#315, #383, rknn-toolkit2#384, #533); a maintainer advises to run them one after the other.
One process does so by its order of calls. This lock does it for all engine processes of a server:
copies of a model, several models, and a model that is loaded while another one answers.
"""

from __future__ import annotations

import fcntl
import os
import time
import weakref
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager

from engine.errors import IS_TRANSIENT, BackendFailed, ModelLoadFailed

# By then a run in another process has ended: a request may take 600 s (REQUEST_TIMEOUT_S).
MAX_WAIT_S = 600.0
_FIRST_POLL_S = 0.001
_LONGEST_POLL_S = 0.02

# Open for the life of this process, which passes them on to the engine processes that it starts.
_files: list[int] = []


def open_encoder_files() -> tuple[int, ...]:
    """Return the descriptors of the two files of this server's lock, the same ones each time.

    They are in memory and have no name, so no other server uses them and none is left behind.
    """
    if not _files:
        _files.extend(os.memfd_create(f"rknpu-{name}") for name in ("turn", "use"))
    return tuple(_files)


class EncoderLock:
    """Locks the NPU for runs of language models, which share it, or for the vision encoder alone.

    There are two flocks. `use` is held during each use of the NPU. `turn` is held while waiting for
    `use`, and an encoder keeps it: runs that start later wait behind a waiting encoder, so that
    copies that take turns in running cannot keep it waiting. The kernel releases both when a
    process ends. Each instance opens the files again, because locks of one open file do not exclude
    each other. One thread at a time uses an instance, and must not hold it twice.
    """

    def __init__(self, files: Sequence[int]) -> None:
        self._turn, self._use = (
            os.open(f"/proc/self/fd/{each}", os.O_RDONLY | os.O_CLOEXEC) for each in files
        )
        for each in (self._turn, self._use):
            weakref.finalize(self, os.close, each)

    @contextmanager
    def hold_for_run(self, is_cancelled: Callable[[], bool]) -> Iterator[None]:
        """Hold the lock for a run or a load of a language model.

        Holds nothing if the wait was cancelled. Raises BackendFailed after `MAX_WAIT_S`.
        """
        try:
            if self._acquire(self._turn, fcntl.LOCK_SH, is_cancelled):
                # Immediate: an encoder that holds `use` holds `turn` as well.
                self._acquire(self._use, fcntl.LOCK_SH, is_cancelled)
            fcntl.flock(self._turn, fcntl.LOCK_UN)
            yield
        finally:
            self._release()

    @contextmanager
    def hold_for_encoder(self, is_cancelled: Callable[[], bool]) -> Iterator[None]:
        """Hold the lock for the encoder alone, after the runs that use the NPU.

        Holds nothing if the wait was cancelled. Raises BackendFailed after `MAX_WAIT_S`.
        """
        try:
            if self._acquire(self._turn, fcntl.LOCK_EX, is_cancelled):
                self._acquire(self._use, fcntl.LOCK_EX, is_cancelled)
            yield
        finally:
            self._release()

    def _acquire(self, file: int, kind: int, is_cancelled: Callable[[], bool]) -> bool:
        """Lock a file; return False if the wait was cancelled.

        It polls, because a thread that waits in flock could not be cancelled.
        """
        give_up_at = time.monotonic() + MAX_WAIT_S
        pause_s = _FIRST_POLL_S
        while True:
            try:
                fcntl.flock(file, kind | fcntl.LOCK_NB)
                return True
            except BlockingIOError:
                pass
            if is_cancelled():
                return False
            if time.monotonic() > give_up_at:
                raise BackendFailed(
                    f"the NPU did not become free within {MAX_WAIT_S:g} s: a vision encoder "
                    "(RKLLM_VISION) and a language model of this server must not use it at the "
                    "same time"
                )
            time.sleep(pause_s)
            pause_s = min(2 * pause_s, _LONGEST_POLL_S)

    def _release(self) -> None:
        for each in (self._use, self._turn):
            fcntl.flock(each, fcntl.LOCK_UN)


@contextmanager
def hold_for_load(lock: EncoderLock | None, *, is_encoder: bool) -> Iterator[None]:
    """Hold the lock, if there is one, for the load of an encoder or of a language model.

    Raises ModelLoadFailed if the NPU does not become free.
    """
    if lock is None:
        yield
        return
    hold = lock.hold_for_encoder if is_encoder else lock.hold_for_run
    try:
        with hold(lambda: False):
            yield
    except BackendFailed as error:
        raise ModelLoadFailed(error.message, **{IS_TRANSIENT: True}) from error
