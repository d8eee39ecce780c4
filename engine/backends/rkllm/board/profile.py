"""The profile of a board: a file with properties of the runtime that the doctor has measured.

The runtime's documents do not describe these properties, or reports about them differ. `handler
doctor` writes the file (RKLLM_PROFILE), and the engine reads it when it loads a model. For a
property that is not in the file, the engine does what is safe on every board that was reported.
"""

from __future__ import annotations

import hashlib
import json
import logging
from dataclasses import asdict, dataclass, field, fields
from pathlib import Path
from typing import Any

from common.atomic_files import replace_file
from common.fingerprint import file_fingerprint
from engine.errors import ModelLoadFailed

logger = logging.getLogger(__name__)

FORMAT = "rkllm-profile"
VERSION = 1


@dataclass(frozen=True, slots=True, kw_only=True)
class Profile:
    """The outcomes for one library and one model; None is what was not found out.

    `prefix_reuse`: a run without history skips the tokens that its prompt has in common with the
    one before it, and answers as it would without. `history_reuse`: a run that continues a kept
    cache answers as it would to the whole prompt. `logits_with_history`: logits of tokens that
    follow a kept history can be computed. `prefill_ms` is the time of a prompt by its
    number of tokens, and `logits_run_ms` that of a run for logits by its number of new tokens.
    """

    prefix_reuse: bool | None = None
    history_reuse: bool | None = None
    logits_with_history: bool | None = None
    prefill_ms: dict[str, float] = field(default_factory=dict)
    logits_run_ms: dict[str, float] = field(default_factory=dict)


def read_profile(path: Path | None, library: Path, model: Path) -> Profile:
    """Return the outcomes in a file for a library and a model; an empty profile without any.

    Raises:
        ModelLoadFailed: the file is damaged or of another version.
    """
    if path is None:
        return Profile()
    try:
        entries = _read_entries(path)
    except FileNotFoundError:
        logger.warning("RKLLM_PROFILE: there is no %s yet: `handler doctor` writes it", path)
        return Profile()
    except (OSError, ValueError) as error:
        raise ModelLoadFailed(
            f"RKLLM_PROFILE: {path} cannot be used: {error}; delete it, and `handler doctor` "
            "writes a new one"
        ) from error
    key = _key(library, model)
    for entry in entries:
        if _has_key(entry, key):
            return _parse_profile(path, entry)
    logger.warning(
        "RKLLM_PROFILE: %s has nothing about this library with this model: `handler doctor` "
        "measures them",
        path,
    )
    return Profile()


def write_profile(path: Path, library: Path, model: Path, profile: Profile) -> None:
    """Put the outcomes for a library and a model into a file; other entries are kept.

    Raises OSError or ValueError if the file cannot be written, or holds something else.
    """
    key = _key(library, model)
    try:
        entries = _read_entries(path)
    except FileNotFoundError:
        entries = []
    entries = [entry for entry in entries if not _has_key(entry, key)]
    content = {
        "format": FORMAT,
        "version": VERSION,
        "profiles": [*entries, {**key, **asdict(profile)}],
    }
    path.parent.mkdir(parents=True, exist_ok=True)
    replace_file(path, [json.dumps(content, indent=2).encode(), b"\n"])


def _key(library: Path, model: Path) -> dict[str, str]:
    digest = hashlib.sha256(library.read_bytes()).hexdigest()
    return {"library_sha256": digest, "model": file_fingerprint(model)}


def _has_key(entry: dict[str, Any], key: dict[str, str]) -> bool:
    return all(entry.get(name) == value for name, value in key.items())


def _read_entries(path: Path) -> list[dict[str, Any]]:
    """Return the entries of a file. Raises OSError, or ValueError if it is no profile."""
    content = json.loads(path.read_text(encoding="utf-8"))
    if not isinstance(content, dict) or content.get("format") != FORMAT:
        raise ValueError(f"it is no {FORMAT}")
    if content.get("version") != VERSION:
        raise ValueError(f"its version is {content.get('version')!r}, and only {VERSION} is known")
    entries = content.get("profiles")
    if not isinstance(entries, list) or not all(isinstance(entry, dict) for entry in entries):
        raise ValueError("`profiles` must be a list of objects")
    return entries


def _parse_profile(path: Path, entry: dict[str, Any]) -> Profile:
    names = {each.name for each in fields(Profile)}
    values = {name: value for name, value in entry.items() if name in names}
    for name, value in values.items():
        is_times = name.endswith("_ms")
        if not (isinstance(value, dict) if is_times else value in (True, False, None)):
            raise ModelLoadFailed(
                f"RKLLM_PROFILE: {path}: {name} must be {'an object' if is_times else 'a boolean'}"
            )
    return Profile(**values)
