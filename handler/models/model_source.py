"""Find the model file that a setting names: a file, a folder or a Hugging Face repository."""

from __future__ import annotations

import logging
import re
from collections.abc import Iterable, Mapping, Sequence
from pathlib import Path, PurePosixPath

from handler.models.hub import PREFIX, Hub, HubError, HubReference

logger = logging.getLogger(__name__)

# The file endings of models in a folder or repository, by the value of ENGINE.
ENDINGS: Mapping[str, Sequence[str]] = {
    "auto": (".gguf", ".rkllm"),
    "llamacpp": (".gguf",),
    "rkllm": (".rkllm",),
    "scripted": (".json",),
    # A vision encoder, which is only a part of a model for an engine.
    "rknn": (".rknn",),
}
_KNOWN_ENDINGS = (".gguf", ".rkllm", ".json")

# Files that the engine needs in addition to a .rkllm model. A .gguf model contains the same data.
_TOKENIZER_FILES = (
    "added_tokens.json",
    "chat_template.jinja",
    "chat_template.json",
    "config.json",
    "generation_config.json",
    "merges.txt",
    "special_tokens_map.json",
    "tokenizer.json",
    "tokenizer.model",
    "tokenizer_config.json",
    "vocab.json",
    "vocab.txt",
)
_TOKENIZER = "tokenizer.json"

_PART = re.compile(r"(?P<stem>.+)-(?P<number>\d{5})-of-(?P<count>\d{5})\.gguf")
# The quantisation that model cards recommend most often, for the example in an error.
_RECOMMENDED_QUANTISATION = "q4_k_m"
_MAX_LISTED = 20


class ModelSourceError(Exception):
    """A setting does not name exactly one model; the message is one sentence with the reason."""


def find_model(source: Path, engine: str = "auto", hub: Hub | None = None) -> Path:
    """Return the model file of a file, a folder or `hf:org/repo[@revision][/file]`.

    A folder or repository must contain one model with an ending that `engine` loads; a split GGUF
    counts as one, and its first part is returned. A repository is taken from the local caches if
    it is there, and otherwise downloaded. The path of a cached file is not resolved: the
    tokenizer files are in the folder of the link, not in the folder of its target.

    Raises:
        ModelSourceError: there is no model, or several of them.
    """
    if str(source).startswith(PREFIX):
        reference = _parse_reference(source)
        try:
            return _find_in_hub(reference, engine, hub or Hub())
        except HubError as error:
            raise ModelSourceError(str(error)) from error
    source = source.expanduser()
    if source.is_dir():
        names = [path.name for path in source.iterdir() if path.is_file()]
        models = _find_models(names, ENDINGS[engine])
        if not models:
            raise ModelSourceError(
                f"the folder {source} contains no {_join_endings(ENDINGS[engine])}"
            )
        return source / _check_parts(_single_model(models, str(source)), names, str(source))[0]
    if not source.exists():
        raise ModelSourceError(f"there is no file or folder {source}")
    if engine == "auto" and source.suffix not in _KNOWN_ENDINGS:
        raise ModelSourceError(
            f"{source} must end with {_join_endings(_KNOWN_ENDINGS)}, or ENGINE must say which"
            " engine loads it"
        )
    if _PART.fullmatch(source.name):
        names = [path.name for path in source.parent.iterdir() if path.is_file()]
        return source.parent / _check_parts(_list_parts(source.name), names, str(source.parent))[0]
    return source


def list_model_files(path: Path) -> list[Path]:
    """Return all files of a model that `find_model` has found: the parts of a split GGUF."""
    return [path.with_name(name) for name in _list_parts(path.name)]


def find_tokenizer(source: Path, hub: Hub | None = None) -> Path:
    """Return the folder with the tokenizer files of a folder, file or `hf:org/repo[@revision]`.

    Raises:
        ModelSourceError: there is no tokenizer.json.
    """
    if str(source).startswith(PREFIX):
        reference = _parse_reference(source)
        try:
            return _find_tokenizer_in_hub(reference, hub or Hub())
        except HubError as error:
            raise ModelSourceError(str(error)) from error
    source = source.expanduser()
    folder = source if source.is_dir() else source.parent
    if not (folder / _TOKENIZER).is_file():
        raise ModelSourceError(f"there is no file {folder / _TOKENIZER}")
    return folder


def _parse_reference(source: Path) -> HubReference:
    try:
        return HubReference.parse(str(source))
    except ValueError as error:
        raise ModelSourceError(str(error)) from None


def _find_in_hub(reference: HubReference, engine: str, hub: Hub) -> Path:
    for snapshot in hub.cached_snapshots(reference):
        names = _list_files(snapshot)
        files = _select_files(reference, names, engine)
        if files and set(files) <= set(names):
            logger.info("using %s for %s", snapshot / files[0], reference)
            return snapshot / files[0]
    names = hub.list_files(reference)
    files = _select_files(reference, names, engine)
    if not files:
        missing = reference.file or _join_endings(ENDINGS[engine])
        available = _find_models(names, ENDINGS[engine])
        alternatives = f", but {_join_names(available)}" if available else ""
        raise ModelSourceError(f"{reference.with_file('')} contains no {missing}{alternatives}")
    _check_parts(files, names, str(reference))
    # The tokenizer files first: if the model is in the cache, they are too.
    return hub.download(reference, [*_tokenizer_files(files[0], names), *files]) / files[0]


def _find_tokenizer_in_hub(reference: HubReference, hub: Hub) -> Path:
    requested = PurePosixPath(reference.file or ".")
    folder = requested.parent if requested.name == _TOKENIZER else requested
    for snapshot in hub.cached_snapshots(reference):
        if (snapshot / folder / _TOKENIZER).is_file():
            return snapshot / folder
    names = hub.list_files(reference)
    if str(folder / _TOKENIZER) not in names:
        raise ModelSourceError(f"{reference} contains no {_TOKENIZER}")
    return hub.download(reference, _tokenizer_files(str(folder / _TOKENIZER), names)) / folder


def _select_files(reference: HubReference, names: Sequence[str], engine: str) -> Sequence[str]:
    """Return the files of a reference's model; an empty sequence if they are not in `names`."""
    models = _find_models(names, ENDINGS[engine])
    if requested := reference.file:
        if _PART.fullmatch(requested):
            return models.get(_list_parts(requested)[0], ())
        if requested in names:
            if engine == "auto" and requested not in models:
                raise ModelSourceError(
                    f"{reference} must end with {_join_endings(ENDINGS['auto'])}"
                )
            return (requested,)
        models = {name: parts for name, parts in models.items() if name.startswith(f"{requested}/")}
    return _single_model(models, str(reference)) if models else ()


def _find_models(names: Iterable[str], endings: Sequence[str]) -> dict[str, Sequence[str]]:
    """Return the files of each model, keyed by its first file."""
    models: dict[str, Sequence[str]] = {}
    for name in sorted(names):
        path = PurePosixPath(name)
        # An image projector (mmproj) is only a part of a vision model.
        if path.suffix not in endings or path.name.startswith("mmproj"):
            continue
        parts = _list_parts(name)
        models[parts[0]] = parts
    return models


def _list_parts(name: str) -> Sequence[str]:
    """Return the names of all parts of a split GGUF, or the name itself."""
    if (match := _PART.fullmatch(name)) is None:
        return (name,)
    count = int(match["count"])
    return [f"{match['stem']}-{number:05}-of-{count:05}.gguf" for number in range(1, count + 1)]


def _single_model(models: Mapping[str, Sequence[str]], where: str) -> Sequence[str]:
    """Return the files of the only model. Raises ModelSourceError if there are several."""
    if len(models) > 1:
        recommended = [name for name in models if _RECOMMENDED_QUANTISATION in name.lower()]
        root = where if PREFIX not in where else str(HubReference.parse(where).with_file(""))
        raise ModelSourceError(
            f"{where} contains {len(models)} models, name one of them, as in"
            f" {root}/{(recommended or [*models])[0]}: {_join_names(models)}"
        )
    return next(iter(models.values()))


def _check_parts(parts: Sequence[str], names: Sequence[str], where: str) -> Sequence[str]:
    if missing := [part for part in parts if part not in names]:
        raise ModelSourceError(f"{where} lacks {missing[0]}, a part of the split model")
    return parts


def _tokenizer_files(model: str, names: Iterable[str]) -> list[str]:
    """Return the tokenizer files in a model's folder; a GGUF model needs none."""
    if model.endswith(".gguf"):
        return []
    folder = PurePosixPath(model).parent
    tokenizer_names = {str(folder / name) for name in _TOKENIZER_FILES}
    return sorted(name for name in names if name in tokenizer_names)


def _list_files(folder: Path) -> list[str]:
    return [str(path.relative_to(folder)) for path in folder.rglob("*") if path.is_file()]


def _join_endings(endings: Sequence[str]) -> str:
    return " or ".join(endings)


def _join_names(names: Iterable[str]) -> str:
    all_names = [*names]
    more = f" and {len(all_names) - _MAX_LISTED} more" if len(all_names) > _MAX_LISTED else ""
    return ", ".join(all_names[:_MAX_LISTED]) + more
