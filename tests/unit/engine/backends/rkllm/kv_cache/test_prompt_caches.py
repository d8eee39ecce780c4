"""Prompt cache files: their owner, their number, and incomplete files."""

from __future__ import annotations

import errno
import json
import os
import stat
import subprocess
from collections.abc import Sequence
from pathlib import Path
from typing import cast

import pytest

from engine.backends.lora_adapters import LoraAdapter
from engine.backends.rkllm.kv_cache.prompt_caches import MAX_CACHES, PromptCaches
from engine.backends.rkllm.runtime import Runtime
from engine.errors import RequestRejected


class Handle:
    """A fake runtime that records which caches are loaded and released."""

    def __init__(self) -> None:
        self.calls: list[str] = []
        self.loads = True

    def load_prompt_cache(self, path: Path) -> bool:
        self.calls.append(path.stem)
        return self.loads

    def release_prompt_cache(self) -> None:
        self.calls.append("release")


@pytest.fixture
def model(tmp_path: Path) -> Path:
    path = tmp_path / "qwen.rkllm"
    path.write_bytes(b"begin" + bytes(3_000_000) + b"end")
    return path


@pytest.fixture
def handle() -> Handle:
    return Handle()


def caches_of(model: Path, abi: str = "1.3", adapters: Sequence[LoraAdapter] = ()) -> PromptCaches:
    made = PromptCaches(str(model.parent / "caches"), model)
    made.find_folders(abi, adapters)
    return made


def load_or_prepare(
    caches: PromptCaches, handle: Handle, name: str, tokens: list[int], lora: str | None = None
) -> tuple[int, bool]:
    """Run a prompt; return how many tokens are reused, and whether it is saved (and save it)."""
    runtime = cast("Runtime", handle)
    path = caches.cache_path(name, lora)
    assert path is not None
    caches.release_unless(runtime, path)
    found = caches.load_or_prepare(runtime, path, tokens)
    assert found is not None
    if found.save_to is not None:
        found.save_to.write_text("what the runtime computed")
    caches.commit(path, tokens)
    return found.reused, found.save_to is not None


@pytest.mark.parametrize(
    ("tokens", "reused"),
    [([1, 2, 3, 4], 3), ([1, 2, 3], 2), ([1, 2], 1), ([1, 9, 3], 1), ([9], 0), ([], 0)],
)
def test_common_prefix_is_reused(
    model: Path,
    handle: Handle,
    caplog: pytest.LogCaptureFixture,
    tokens: list[int],
    reused: int,
) -> None:
    caches = caches_of(model)
    assert load_or_prepare(caches, handle, "bot", [1, 2, 3]) == (0, True)
    assert load_or_prepare(caches, handle, "bot", tokens) == (reused, False)
    assert load_or_prepare(caches, handle, "bot", tokens) == (reused, False)
    assert handle.calls == ["bot"]
    # An existing cache is not saved again.
    assert caplog.records == []


@pytest.mark.parametrize("umask", [0o000, 0o077])
def test_caches_are_private_with_any_umask(model: Path, handle: Handle, umask: int) -> None:
    before = os.umask(umask)
    try:
        load_or_prepare(caches_of(model), handle, "bot", [1, 2, 3])
    finally:
        os.umask(before)
    (folder,) = (model.parent / "caches").iterdir()
    assert stat.S_IMODE(folder.stat().st_mode) == 0o700
    assert [stat.S_IMODE(path.stat().st_mode) for path in folder.iterdir()] == [0o600] * 2
    # An earlier version may have left it like this.
    folder.chmod(0o755)
    assert load_or_prepare(caches_of(model), handle, "bot", [1, 2, 3]) == (2, False)
    assert stat.S_IMODE(folder.stat().st_mode) == 0o700


def test_cache_is_released_before_another_is_loaded(model: Path, handle: Handle) -> None:
    caches = caches_of(model)
    for name in ("a", "b", "a", "b"):
        load_or_prepare(caches, handle, name, [1, 2])
    assert handle.calls == ["a", "release", "b"]
    caches.release_unless(cast("Runtime", handle), None)
    caches.release_unless(cast("Runtime", handle), None)
    assert handle.calls[3:] == ["release"]
    load_or_prepare(caches, handle, "a", [1, 2])
    caches.reset()
    load_or_prepare(caches, handle, "a", [1, 2])
    assert handle.calls[4:] == ["a", "a"]


@pytest.mark.parametrize("change", ["begin", "end", "size", "name", "abi"])
def test_each_model_has_its_own_files(model: Path, handle: Handle, change: str) -> None:
    load_or_prepare(caches_of(model), handle, "bot", [1, 2])
    data = model.read_bytes()
    if change == "begin":
        model.write_bytes(b"Begin" + data[5:])
    elif change == "end":
        model.write_bytes(data[:-3] + b"End")
    elif change == "size":
        model.write_bytes(data[:5] + data[6:])
    elif change == "name":
        model = model.rename(model.with_name("llama.rkllm"))
    other = caches_of(model, "1.2" if change == "abi" else "1.3")
    assert load_or_prepare(other, handle, "bot", [1, 2]) == (0, True)
    assert handle.calls == []


@pytest.mark.parametrize("change", ["file", "scale"])
def test_each_adapter_has_its_own_files(model: Path, handle: Handle, change: str) -> None:
    path = model.with_name("french.lora")
    path.write_text("weights")
    adapters = [LoraAdapter("french", path), LoraAdapter("legal", model)]
    caches = caches_of(model, adapters=adapters)
    for lora in (None, "french", "legal"):
        assert load_or_prepare(caches, handle, "bot", [1, 2], lora) == (0, True)
    assert load_or_prepare(caches, handle, "bot", [1, 2], "french") == (1, False)
    assert load_or_prepare(caches, handle, "bot", [1, 2]) == (1, False)
    assert handle.calls == ["bot", "release", "bot"]
    # Another file under the same name.
    if change == "file":
        path.write_text("Weights")
    else:
        adapters[0] = LoraAdapter("french", path, 0.5)
    caches = caches_of(model, adapters=adapters)
    assert load_or_prepare(caches, handle, "bot", [1, 2], "french") == (0, True)
    assert load_or_prepare(caches, handle, "bot", [1, 2], "legal") == (1, False)


@pytest.mark.parametrize("half", ["no text", "{", "[1]", "{}", '{"tokens": 5}', None])
def test_incomplete_cache_is_saved_again(model: Path, handle: Handle, half: str | None) -> None:
    caches = caches_of(model)
    for _ in range(2):
        load_or_prepare(caches, handle, "bot", [1, 2])
    (beside,) = model.parent.glob("caches/*/bot.json")
    if half is None:
        beside.with_suffix(".bin").unlink()
    else:
        beside.write_text(half)
    assert load_or_prepare(caches, handle, "bot", [1, 2]) == (0, True)
    assert json.loads(beside.read_text()) == {"tokens": [1, 2]}
    assert handle.calls == ["bot", "release"]
    assert load_or_prepare(caches, handle, "bot", [1, 2]) == (1, False)


def test_two_processes_can_save_the_same_cache_concurrently(
    model: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    by_pid = {pid: caches_of(model) for pid in (1, os.getppid())}
    file = by_pid[1].cache_path("bot", None)
    assert file is not None
    for pid, caches in by_pid.items():
        monkeypatch.setattr("os.getpid", lambda pid=pid: pid)
        found = caches.load_or_prepare(cast("Runtime", Handle()), file, [1, 2])
        assert found is not None
        assert found.save_to is not None
        found.save_to.write_text(f"half of {pid}")
    for pid, caches in by_pid.items():
        monkeypatch.setattr("os.getpid", lambda pid=pid: pid)
        caches.commit(file, [1, 2])
        assert file.read_text() == f"half of {pid}"


def test_number_of_caches_is_limited(model: Path, handle: Handle) -> None:
    caches = caches_of(model)
    for number in range(MAX_CACHES):
        load_or_prepare(caches, handle, f"bot{number}", [1, 2])
    with pytest.raises(RequestRejected, match=r"prompt_cache: more cannot be saved, .* 64 already"):
        load_or_prepare(caches, handle, "more", [1, 2])
    assert load_or_prepare(caches, handle, "bot0", [1, 2]) == (1, False)


def test_cache_that_does_not_load_is_retried(model: Path, handle: Handle) -> None:
    caches = caches_of(model)
    load_or_prepare(caches, handle, "bot", [1, 2])
    handle.loads = False
    with pytest.raises(RequestRejected, match=r"did not load .*/bot\.bin"):
        load_or_prepare(caches, handle, "bot", [1, 2])
    handle.loads = True
    assert load_or_prepare(caches, handle, "bot", [1, 2]) == (1, False)


def test_caches_are_disabled_without_a_folder(model: Path) -> None:
    caches = PromptCaches(None, model)
    caches.find_folders("1.3")
    assert not caches.enabled
    assert caches.cache_path("bot", None) is None


def test_failed_commit_does_not_fail_the_answer(
    model: Path, handle: Handle, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    write = Path.write_text

    def full(path: Path, text: str, encoding: str | None = None) -> int:
        if ".json." in path.name:
            path.touch()
            raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))
        return write(path, text, encoding)

    caches = caches_of(model)
    with monkeypatch.context() as patched:
        patched.setattr(Path, "write_text", full)
        load_or_prepare(caches, handle, "bot", [1, 2, 3])
    assert "prompt cache bot was not saved: No space left on device" in caplog.text
    assert [path.name for path in (model.parent / "caches").rglob("bot*")] == []
    # The next request saves it.
    assert load_or_prepare(caches, handle, "bot", [1, 2, 3]) == (0, True)
    assert load_or_prepare(caches, handle, "bot", [1, 2, 4]) == (2, False)


def test_temporary_files_of_dead_processes_are_removed(model: Path, handle: Handle) -> None:
    caches = caches_of(model)
    path = caches.cache_path("old", None)
    assert path is not None
    path.parent.mkdir(parents=True)
    ended = subprocess.Popen(["true"])
    ended.wait()
    for kind in ("bin", "json"):
        (path.parent / f"old.{kind}.{ended.pid}").touch()
    kept = [path.parent / name for name in (f"other.bin.{os.getppid()}", "own.bin.x", "notes.1")]
    for each in kept:
        each.touch()
    load_or_prepare(caches, handle, "bot", [1, 2, 3])
    there = {each.name for each in path.parent.iterdir()}
    assert there == {"bot.bin", "bot.json", *(each.name for each in kept)}


def test_no_cache_is_loaded_after_an_aborted_saving_until_a_reload(
    model: Path, handle: Handle
) -> None:
    caches, runtime = caches_of(model), cast("Runtime", handle)
    load_or_prepare(caches, handle, "bot", [1, 2, 3])
    other = caches.cache_path("other", None)
    assert other is not None
    saving = caches.load_or_prepare(runtime, other, [1])
    assert saving is not None
    assert saving.save_to is not None
    saving.save_to.write_text("half")
    caches.record_abort(other)
    assert not saving.save_to.exists()
    bot = caches.cache_path("bot", None)
    assert bot is not None
    assert caches.load_or_prepare(runtime, bot, [1, 2, 3]) is None
    caches.reset()
    assert caches.load_or_prepare(runtime, bot, [1, 2, 3]) is not None
    assert handle.calls == ["bot"]
