"""Find the models that settings name, and download those on the Hugging Face Hub."""

from __future__ import annotations

import sys
from collections.abc import Callable, Iterable
from dataclasses import replace
from functools import partial
from pathlib import Path
from typing import TypeVar

from common.setting_error import SettingError
from engine.backends.lora_adapters import LoraAdapter
from handler.models.default_model import explain_missing_model
from handler.models.hub import Hub
from handler.models.model_list import check_models
from handler.models.model_source import ModelSourceError, find_model, find_tokenizer
from handler.settings.shared_settings import Settings

S = TypeVar("S", bound=Settings)


def resolve_models(settings: S, hub: Hub | None = None) -> S:
    """Return the settings with the paths of model files and tokenizer folders.

    Every entry point that loads a model calls this once, before building anything else, because a
    download may take long.

    Raises:
        SettingError: a setting names no model, two models have the same name, or the default model
            is missing.
    """
    if settings.engine == "openai":
        # Imported here for its HTTP client, which takes a tenth of a second of each other start.
        from handler.settings.upstream_models import resolve_upstream_models

        return resolve_upstream_models(settings)
    hub = hub or Hub()
    try:
        resolved = (
            _resolve_models_list(settings, hub)
            if settings.models
            else _resolve_single_model(settings, hub)
        )
        return _resolve_vision_encoder(_resolve_tokenizer(resolved, hub), hub)
    except KeyboardInterrupt:
        sys.stderr.write("interrupted; the next start resumes the download\n")
        raise SystemExit(130) from None


def _resolve_single_model(settings: S, hub: Hub) -> S:
    changes = {}
    if (model := settings.model_path) is not None:
        engine = settings.engine
        changes["model_path"] = _find_or_raise("MODEL_PATH", lambda: find_model(model, engine, hub))
    elif settings.backend == "llamacpp" and (reason := explain_missing_model()) is not None:
        raise SettingError(reason)
    resolved = settings.model_copy(update=changes)
    # The other engines ignore a draft model, a projector and LORA_ADAPTERS.
    if (draft := settings.draft_model_path) is not None and resolved.backend == "llamacpp":
        path = _find_or_raise("DRAFT_MODEL_PATH", lambda: find_model(draft, "llamacpp", hub))
        resolved = resolved.model_copy(update={"draft_model_path": path})
    if (projector := settings.mmproj_path) is not None and resolved.backend == "llamacpp":
        path = _find_or_raise("MMPROJ_PATH", lambda: find_model(projector, "llamacpp", hub))
        resolved = resolved.model_copy(update={"mmproj_path": path})
    if resolved.backend == "llamacpp":
        adapters = _find_adapters("LORA_ADAPTERS", settings.lora_adapters, hub)
        resolved = resolved.model_copy(update={"lora_adapters": adapters})
    names = resolved.served_models
    if duplicates := [name for name in names if names.count(name) > 1]:
        setting = "RKLLM_LORA" if resolved.backend == "rkllm" else "LORA_ADAPTERS"
        raise SettingError(f"{setting}: {duplicates[0]} is a name of the model itself already")
    return resolved


def _resolve_models_list(settings: S, hub: Hub) -> S:
    models = []
    for number, entry in enumerate(settings.models):
        name = f"MODELS[{number}]"
        find = partial(find_model, entry.path, settings.engine, hub)
        path = _find_or_raise(f"{name}.path", find)
        changes: dict[str, object] = {"path": path}
        if entry.tokenizer is not None:
            find = partial(find_tokenizer, entry.tokenizer, hub)
            changes["tokenizer"] = _find_or_raise(f"{name}.tokenizer", find)
        if entry.mmproj is not None:
            kind = "rknn" if path.suffix == ".rkllm" else "llamacpp"
            find = partial(find_model, entry.mmproj, kind, hub)
            changes["mmproj"] = _find_or_raise(f"{name}.mmproj", find)
        if entry.lora and settings.backend_of(path) == "llamacpp":
            changes["lora"] = _find_adapters(f"{name}.lora", entry.lora, hub)
        models.append(entry.model_copy(update=changes))
    resolved = settings.model_copy(update={"models": tuple(models)})
    try:
        # The names and engines are only known after the files have been found.
        check_models(resolved.models, (), in_threads=False)
        resolved.npu_domains()
    except ValueError as error:
        raise SettingError(str(error)) from None
    return resolved


def _find_adapters(
    setting: str, adapters: Iterable[LoraAdapter], hub: Hub
) -> tuple[LoraAdapter, ...]:
    """Return llama.cpp's adapters with the paths of their files."""
    return tuple(
        replace(each, path=_find_or_raise(setting, partial(find_model, each.path, "llamacpp", hub)))
        for each in adapters
    )


def _uses_npu(settings: Settings) -> bool:
    paths = [settings.model_path, *(each.path for each in settings.models)]
    return settings.engine == "rkllm" or any(path and path.suffix == ".rkllm" for path in paths)


def _resolve_vision_encoder(settings: S, hub: Hub) -> S:
    encoder = settings.rkllm_vision
    # The other engines ignore it.
    if encoder is None or not _uses_npu(settings):
        return settings
    path = _find_or_raise("RKLLM_VISION", lambda: find_model(encoder, "rknn", hub))
    return settings.model_copy(update={"rkllm_vision": path})


def _resolve_tokenizer(settings: S, hub: Hub) -> S:
    folder = settings.rkllm_tokenizer
    # The other engines ignore it.
    if folder is None or not _uses_npu(settings):
        return settings
    path = _find_or_raise("RKLLM_TOKENIZER", lambda: find_tokenizer(folder, hub))
    return settings.model_copy(update={"rkllm_tokenizer": path})


def _find_or_raise(setting: str, find: Callable[[], Path]) -> Path:
    try:
        return find()
    except ModelSourceError as error:
        raise SettingError(f"{setting}: {error}") from error
    except OSError as error:
        raise SettingError(
            f"{setting}: {error.filename} cannot be read: {error.strerror}"
        ) from error
