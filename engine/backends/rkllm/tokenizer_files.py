"""Find and read the tokenizer files of a model, in the form of Hugging Face."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

from engine.errors import ModelLoadFailed

TOKENIZER = "tokenizer.json"
CONFIG = "tokenizer_config.json"
GENERATION_CONFIG = "generation_config.json"
TEMPLATE = "chat_template.jinja"


def find_tokenizer_folder(model: Path, setting: str | None) -> Path | None:
    """Return the folder of the tokenizer files: RKLLM_TOKENIZER, else one at the model.

    Raises:
        ModelLoadFailed: RKLLM_TOKENIZER names a folder without tokenizer files.
    """
    if setting is not None:
        folder = Path(setting)
        if folder.is_file():
            folder = folder.parent
        if not (folder / TOKENIZER).is_file():
            raise ModelLoadFailed(f"RKLLM_TOKENIZER: there is no {folder / TOKENIZER}")
        return folder
    for folder in (model.with_suffix(""), model.parent):
        if (folder / TOKENIZER).is_file():
            return folder
    return None


def read_text(path: Path) -> str:
    """Return the text of a file. Raises ModelLoadFailed."""
    try:
        return path.read_text(encoding="utf-8")
    except FileNotFoundError as error:
        raise ModelLoadFailed(f"RKLLM_TOKENIZER: there is no {path}") from error
    except OSError as error:
        raise ModelLoadFailed(
            f"RKLLM_TOKENIZER: {path} cannot be read: {error.strerror}"
        ) from error
    except UnicodeDecodeError as error:
        raise ModelLoadFailed(f"RKLLM_TOKENIZER: {path} is not text: {error}") from error


def read_config(path: Path) -> dict[str, Any]:
    """Return the JSON object in a file; {} without the file. Raises ModelLoadFailed."""
    if not path.is_file():
        return {}
    try:
        config = json.loads(read_text(path))
    except ValueError as error:
        raise ModelLoadFailed(f"RKLLM_TOKENIZER: {path} is not JSON: {error}") from error
    if not isinstance(config, dict):
        raise ModelLoadFailed(f"RKLLM_TOKENIZER: {path} must hold an object")
    return config


def find_template_source(folder: Path, config: dict[str, Any]) -> tuple[Path, Any]:
    """Return the file with the chat template, and what it has; "" without one.

    In a valid file that is text.
    """
    path = folder / TEMPLATE
    if path.is_file():
        return path, read_text(path)
    source = config.get("chat_template")
    if isinstance(source, list):
        # A list of named templates; "default" is the one for chats.
        templates = {
            entry.get("name"): entry.get("template") for entry in source if type(entry) is dict
        }
        source = templates.get("default")
    return folder / CONFIG, source or ""


def token_text(value: Any) -> str:
    """Return the text of a special token, which the config has as a string or as an object."""
    if isinstance(value, dict):
        value = value.get("content")
    return value if isinstance(value, str) else ""


def read_end_tokens(folder: Path) -> list[int]:
    """Return the end tokens of generation_config.json, which may differ from the tokenizer's."""
    path = folder / GENERATION_CONFIG
    if not path.is_file():
        return []
    try:
        config = json.loads(path.read_text(encoding="utf-8"))
        end_ids = config.get("eos_token_id")
    except (OSError, ValueError, AttributeError) as error:
        raise ModelLoadFailed(f"RKLLM_TOKENIZER: {path} cannot be read: {error}") from error
    end_ids = end_ids if isinstance(end_ids, list) else [end_ids]
    return [end for end in end_ids if isinstance(end, int)]
