"""Find models in files, folders and references, and report errors."""

from __future__ import annotations

from pathlib import Path

import pytest

from handler.models.hub import HubReference
from handler.models.model_source import ModelSourceError, find_model, find_tokenizer


def folder_with(tmp_path: Path, *names: str) -> Path:
    for name in names:
        (tmp_path / name).touch()
    return tmp_path


@pytest.mark.parametrize("name", ["a.gguf", "a.rkllm", "a.json"])
def test_find_model_returns_a_file_as_it_is(tmp_path: Path, name: str) -> None:
    path = folder_with(tmp_path, name) / name
    assert find_model(path) == path


def test_find_model_expands_the_home_folder(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("HOME", str(folder_with(tmp_path, "a.gguf")))
    assert find_model(Path("~/a.gguf")) == tmp_path / "a.gguf"


@pytest.mark.parametrize(
    ("names", "engine", "result"),
    [
        (["a.gguf", "README.md"], "auto", "a.gguf"),
        (["a.rkllm", "tokenizer.json", "config.json"], "auto", "a.rkllm"),
        (["a.gguf", "mmproj-a.gguf"], "auto", "a.gguf"),
        (["a.gguf", "a.rkllm"], "rkllm", "a.rkllm"),
        (["a.gguf", "a.rkllm"], "llamacpp", "a.gguf"),
        (["a-00002-of-00002.gguf", "a-00001-of-00002.gguf"], "auto", "a-00001-of-00002.gguf"),
    ],
)
def test_find_model_returns_the_only_model_of_a_folder(
    tmp_path: Path, names: list[str], engine: str, result: str
) -> None:
    assert find_model(folder_with(tmp_path, *names), engine) == tmp_path / result


def test_find_model_returns_the_first_part_of_a_split_model(tmp_path: Path) -> None:
    folder_with(tmp_path, "a-00001-of-00002.gguf", "a-00002-of-00002.gguf")
    second = tmp_path / "a-00002-of-00002.gguf"
    assert find_model(second) == tmp_path / "a-00001-of-00002.gguf"


@pytest.mark.parametrize(
    ("names", "engine", "message"),
    [
        ([], "auto", "the folder {} contains no .gguf or .rkllm"),
        (["a.rkllm"], "llamacpp", "the folder {} contains no .gguf"),
        (
            ["b.gguf", "a.gguf"],
            "auto",
            "{} contains 2 models, name one of them, as in {}/a.gguf: a.gguf, b.gguf",
        ),
        (
            ["a.Q8_0.gguf", "a.Q4_K_M.gguf", "a.rkllm"],
            "auto",
            "{} contains 3 models, name one of them, as in {}/a.Q4_K_M.gguf: "
            "a.Q4_K_M.gguf, a.Q8_0.gguf, a.rkllm",
        ),
        (
            ["a-00001-of-00002.gguf"],
            "auto",
            "{} lacks a-00002-of-00002.gguf, a part of the split model",
        ),
    ],
)
def test_find_model_refuses_a_folder_without_exactly_one_model(
    tmp_path: Path, names: list[str], engine: str, message: str
) -> None:
    with pytest.raises(ModelSourceError) as refused:
        find_model(folder_with(tmp_path, *names), engine)
    assert str(refused.value) == message.replace("{}", str(tmp_path))


def test_find_model_limits_the_names_in_an_error(tmp_path: Path) -> None:
    folder_with(tmp_path, *(f"{number:02}.gguf" for number in range(25)))
    with pytest.raises(ModelSourceError, match=r"19\.gguf and 5 more$"):
        find_model(tmp_path)


def test_find_model_refuses_a_path_that_does_not_exist(tmp_path: Path) -> None:
    with pytest.raises(ModelSourceError, match=f"^there is no file or folder {tmp_path}/gone.gguf"):
        find_model(tmp_path / "gone.gguf")


def test_find_model_refuses_an_unknown_ending(tmp_path: Path) -> None:
    path = folder_with(tmp_path, "a.bin") / "a.bin"
    with pytest.raises(ModelSourceError, match=r"a\.bin must end with \.gguf or \.rkllm or \.json"):
        find_model(path)
    assert find_model(path, "llamacpp") == path


def test_find_tokenizer_returns_the_folder(tmp_path: Path) -> None:
    folder_with(tmp_path, "tokenizer.json")
    assert find_tokenizer(tmp_path) == tmp_path
    assert find_tokenizer(tmp_path / "tokenizer.json") == tmp_path
    with pytest.raises(ModelSourceError, match=r"^there is no file .*/gone/tokenizer\.json"):
        find_tokenizer(tmp_path / "gone" / "x")


@pytest.mark.parametrize(
    ("text", "parts"),
    [
        ("hf:org/repo", ("org/repo", "main", "")),
        ("hf:Qwen/Qwen2.5-0.5B", ("Qwen/Qwen2.5-0.5B", "main", "")),
        ("hf:org/repo@v1.0", ("org/repo", "v1.0", "")),
        ("hf:org/repo/a.gguf", ("org/repo", "main", "a.gguf")),
        ("hf:org/repo@v1/sub/a.gguf", ("org/repo", "v1", "sub/a.gguf")),
        ("hf:org/repo@refs/pr/3/a.gguf", ("org/repo", "refs/pr/3", "a.gguf")),
    ],
)
def test_hub_reference_is_parsed_and_written(text: str, parts: tuple[str, str, str]) -> None:
    reference = HubReference.parse(text)
    assert (reference.repo, reference.revision, reference.file) == parts
    assert str(reference) == text


@pytest.mark.parametrize(
    "text",
    ["hf:repo", "hf:", "hf:org/repo@", "hf:../..", "hf:org/repo@../x", "hf:o/r/../../a.gguf"],
)
def test_find_model_refuses_a_malformed_reference(text: str) -> None:
    with pytest.raises(ModelSourceError, match=r"is not of the form hf:org/repo\[@revision\]"):
        find_model(Path(text))
