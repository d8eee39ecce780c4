"""Start a recording with a header that describes the board, the library and the model."""

from __future__ import annotations

import hashlib
from pathlib import Path

from common.fingerprint import sha256_of_ends
from engine.backends.rkllm.abi.abi import Abi
from engine.backends.rkllm.board import driver
from engine.backends.rkllm.recording.recorder import Recorder
from engine.backends.rkllm.recording.recording_file import RecordingFile


def open_recorder(
    path: Path,
    *,
    texts: bool,
    process: str,
    abi: Abi,
    library: Path,
    version: str | None,
    model: Path,
) -> Recorder:
    """Return a recorder with a new file; `version` is the library's, if it is known.

    `process` says which one is recorded: a copy of the model, or a trial of the doctor.

    The header has no path, because paths contain names of users and customers.

    Raises:
        ModelLoadFailed: the file cannot be created.
    """
    npu = driver.read_driver()
    header = {
        "texts": texts,
        "process": process,
        "abi": abi.name,
        "library": {
            "version": version,
            "sha256": hashlib.sha256(library.read_bytes()).hexdigest(),
        },
        "board": npu.board,
        "chip": npu.chip or None,
        "driver": {"present": npu.present, "version": npu.version},
        "model": {"bytes": model.stat().st_size, "sha256_of_ends": sha256_of_ends(model)},
    }
    return Recorder(RecordingFile(path, header), model, texts=texts)
