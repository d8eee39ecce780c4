"""Check the settings of a model before the runtime loads it."""

from __future__ import annotations

import stat
from pathlib import Path

from engine.errors import ModelLoadFailed

# The SDK's manual: a context of up to 16384 tokens, a multiple of 32.
_MAX_CONTEXT_TOKENS = 16_384
CONTEXT_STEP_TOKENS = 32
_LFS_START = b"version https://git-lfs"


def check_model(path: Path) -> None:
    """Raise ModelLoadFailed unless the path is a readable file that may be a .rkllm model.

    Files of other kinds are recognised here, because the library says little about them, and may
    report a successful load.
    """
    if not path.name:
        raise ModelLoadFailed("MODEL_PATH must name a .rkllm model: there is no default one")
    try:
        if not stat.S_ISREG(path.stat().st_mode):
            raise ModelLoadFailed(f"MODEL_PATH: {path} is not a file")
        with path.open("rb") as file:
            start = file.read(len(_LFS_START))
    except FileNotFoundError:
        raise ModelLoadFailed(f"MODEL_PATH: there is no file {path}") from None
    except OSError as error:
        raise ModelLoadFailed(f"MODEL_PATH: {path} cannot be read: {error.strerror}") from error
    if not start:
        raise ModelLoadFailed(f"MODEL_PATH: {path} is empty")
    if start == _LFS_START:
        raise ModelLoadFailed(
            f"MODEL_PATH: {path} is a Git LFS pointer: `git lfs pull` brings the model"
        )
    if start.startswith(b"GGUF"):
        raise ModelLoadFailed(f"MODEL_PATH: {path} is a GGUF model: set ENGINE=llamacpp")
    if path.suffix.lower() == ".rknn":
        raise ModelLoadFailed(
            f"MODEL_PATH: {path} is a model for RKNN: a language model must be converted with "
            "rkllm-toolkit, into a .rkllm file"
        )


def check_context(tokens: int) -> None:
    """Raise ModelLoadFailed for a context length that the runtime does not support."""
    if tokens % CONTEXT_STEP_TOKENS or tokens > _MAX_CONTEXT_TOKENS:
        raise ModelLoadFailed(
            f"CONTEXT_LENGTH must be a multiple of {CONTEXT_STEP_TOKENS} and at most "
            f"{_MAX_CONTEXT_TOKENS} for the RKLLM runtime, got {tokens}"
        )


def batch_conflict(mode: str) -> str | None:
    """Return an error if a setting conflicts with RKLLM_N_BATCH above 1, else None."""
    if mode == "logits":
        return "RKLLM_N_BATCH must be 1 if RKLLM_MODE is logits: batches have no logits"
    return None


def vision_conflict(n_batch: int, mode: str) -> str | None:
    """Return an error if a setting conflicts with RKLLM_VISION, else None."""
    if mode == "logits":
        return "RKLLM_MODE must be generate if RKLLM_VISION is set: images have no logits"
    if n_batch > 1:
        return "RKLLM_N_BATCH must be 1 if RKLLM_VISION is set: batches have no images"
    return None


def check_vision(n_batch: int, mode: str) -> None:
    """Raise ModelLoadFailed if a setting conflicts with a vision encoder."""
    if (conflict := vision_conflict(n_batch, mode)) is not None:
        raise ModelLoadFailed(conflict)


def check_batch(n_batch: int, mode: str, has_tokenizer: bool) -> None:
    """Raise ModelLoadFailed if `n_batch` is above 1 and another setting conflicts with it."""
    if n_batch == 1:
        return
    conflict = batch_conflict(mode)
    if conflict is None and not has_tokenizer:
        # One text that is too long would fail the run of all requests, and without a tokenizer its
        # length is unknown.
        conflict = (
            "RKLLM_N_BATCH above 1 needs the tokenizer files of the model, for requests share a "
            "run as tokens (RKLLM_TOKENIZER)"
        )
    if conflict is not None:
        raise ModelLoadFailed(conflict)
