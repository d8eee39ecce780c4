"""The file with what the doctor measured of a library with a model."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from engine.backends.rkllm.board.profile import Profile, read_profile, write_profile
from engine.errors import ModelLoadFailed

PROFILE = Profile(
    prefix_reuse=True,
    logits_with_history=False,
    prefill_ms={"512": 51.3},
)


@pytest.fixture
def library(tmp_path: Path) -> Path:
    path = tmp_path / "librkllmrt.so"
    path.write_bytes(b"a library")
    return path


@pytest.fixture
def model(tmp_path: Path) -> Path:
    path = tmp_path / "qwen.rkllm"
    path.write_bytes(b"a model")
    return path


def test_profile_is_read_as_it_was_written(tmp_path: Path, library: Path, model: Path) -> None:
    path = tmp_path / "new" / "profile.json"
    write_profile(path, library, model, PROFILE)
    assert read_profile(path, library, model) == PROFILE


def test_profile_of_another_library_or_model_is_not_used(
    tmp_path: Path, library: Path, model: Path, caplog: pytest.LogCaptureFixture
) -> None:
    path = tmp_path / "profile.json"
    write_profile(path, library, model, PROFILE)
    newer = tmp_path / "newer.so"
    newer.write_bytes(b"a newer library")
    assert read_profile(path, newer, model) == Profile()
    assert "has nothing about this library with this model" in caplog.text
    model.write_bytes(b"another model")
    assert read_profile(path, library, model) == Profile()


def test_write_profile_replaces_its_own_entry_only(
    tmp_path: Path, library: Path, model: Path
) -> None:
    path = tmp_path / "profile.json"
    other = tmp_path / "gemma.rkllm"
    other.write_bytes(b"another model")
    write_profile(path, library, model, PROFILE)
    write_profile(path, library, other, Profile(prefix_reuse=False))
    write_profile(path, library, model, Profile(prefix_reuse=False))
    assert read_profile(path, library, model) == Profile(prefix_reuse=False)
    assert read_profile(path, library, other) == Profile(prefix_reuse=False)
    assert len(json.loads(path.read_text())["profiles"]) == 2


def test_missing_profile_is_a_warning(
    tmp_path: Path, library: Path, model: Path, caplog: pytest.LogCaptureFixture
) -> None:
    assert read_profile(tmp_path / "none.json", library, model) == Profile()
    assert "`handler doctor` writes it" in caplog.text
    assert read_profile(None, library, model) == Profile()


@pytest.mark.parametrize(
    ("content", "why"),
    [
        ("{", "Expecting property name"),
        ("[]", "it is no rkllm-profile"),
        ('{"format": "other"}', "it is no rkllm-profile"),
        ('{"format": "rkllm-profile", "version": 2}', "its version is 2, and only 1 is known"),
        ('{"format": "rkllm-profile", "version": 1}', "`profiles` must be a list"),
        ('{"format": "rkllm-profile", "version": 1, "profiles": [3]}', "`profiles` must be a list"),
        (b"\xff", "codec can't decode"),
    ],
)
def test_damaged_profile_is_refused_with_the_reason(
    tmp_path: Path, library: Path, model: Path, content: str | bytes, why: str
) -> None:
    path = tmp_path / "profile.json"
    path.write_bytes(content.encode() if isinstance(content, str) else content)
    with pytest.raises(ModelLoadFailed, match=f"^RKLLM_PROFILE: {path} cannot be used: .*{why}"):
        read_profile(path, library, model)
    with pytest.raises(ValueError, match=why):
        write_profile(path, library, model, PROFILE)


@pytest.mark.parametrize(
    ("field", "value", "kind"),
    [("prefix_reuse", "yes", "a boolean"), ("prefill_ms", [1], "an object")],
)
def test_profile_with_a_wrong_type_names_the_field(
    tmp_path: Path, library: Path, model: Path, field: str, value: object, kind: str
) -> None:
    path = tmp_path / "profile.json"
    write_profile(path, library, model, PROFILE)
    content = json.loads(path.read_text())
    content["profiles"][0][field] = value
    path.write_text(json.dumps(content))
    with pytest.raises(ModelLoadFailed, match=f"{field} must be {kind}"):
        read_profile(path, library, model)
