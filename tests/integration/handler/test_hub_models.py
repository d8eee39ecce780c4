"""Models named as `hf:org/repo`: from caches, and from a Hub on loopback."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from huggingface_hub import constants

from common.setting_error import SettingError
from engine import EngineConfig
from engine.backends.lora_adapters import parse_adapters
from engine.backends.options import options_to_wire
from handler.models.hub import Hub
from handler.models.model_list import ModelEntry
from handler.models.model_source import ModelSourceError, find_model, find_tokenizer
from handler.settings.engine_configs import build_engine_config, build_engine_configs
from handler.settings.model_settings import resolve_models
from handler.settings.shared_settings import Settings
from tests.hub_server import MAIN, OLDER, HubServer, cache_repository, hub_server
from tests.terminal import run_on_terminal

ROOT = Path(__file__).resolve().parents[3]
BOARD = {
    "tiny.rkllm": b"model",
    "tokenizer.json": b'{"a": 1}',
    "tokenizer_config.json": b'{"b": 1}',
    "chat_template.jinja": b"{{ x }}",
    "generation_config.json": b'{"c": 1}',
    "config.json": b'{"d": 1}',
    "README.md": b"long",
    "model.safetensors": b"weights",
}


def wire(config: EngineConfig) -> dict[str, Any]:
    return options_to_wire(config.backend.options)


@pytest.fixture
def server(monkeypatch: pytest.MonkeyPatch) -> Iterator[HubServer]:
    monkeypatch.delenv("HF_TOKEN", raising=False)
    with hub_server() as server:
        point_library_at(monkeypatch, server.url)
        yield server


def point_library_at(monkeypatch: pytest.MonkeyPatch, url: str) -> None:
    # The library reads HF_ENDPOINT when it is imported.
    monkeypatch.setattr(constants, "ENDPOINT", url)
    template = url + "/{repo_id}/resolve/{revision}/{filename}"
    monkeypatch.setattr(constants, "HUGGINGFACE_CO_URL_TEMPLATE", template)


@pytest.fixture
def caches(tmp_path: Path) -> list[Path]:
    """The library's cache and RunPod's, both empty."""
    return [tmp_path / "hub", tmp_path / "runpod-volume"]


def find(source: str, caches: list[Path], engine: str = "auto") -> Path:
    return find_model(Path(source), engine, Hub(caches))


def test_named_file_is_downloaded_once(server: HubServer, caches: list[Path]) -> None:
    server.add("org/repo", {"a.gguf": b"one", "b.gguf": b"two"})
    path = find("hf:org/repo/b.gguf", caches)
    assert path == caches[0] / "models--org--repo" / "snapshots" / MAIN / "b.gguf"
    assert path.read_bytes() == b"two"
    assert server.downloads == ["b.gguf"]
    server.requests.clear()
    assert find("hf:org/repo/b.gguf", caches) == path
    assert server.requests == []


def test_only_model_of_a_repository_needs_no_name(server: HubServer, caches: list[Path]) -> None:
    server.add("org/repo", {"a.gguf": b"one", "README.md": b"text"})
    assert find("hf:org/repo", caches).read_bytes() == b"one"
    assert server.downloads == ["a.gguf"]


def test_revision_is_downloaded(server: HubServer, caches: list[Path]) -> None:
    repository = server.add("org/repo", {"a.gguf": b"new"})
    repository.commits[OLDER] = {"a.gguf": b"old"}
    repository.branches |= {"v1": OLDER, "refs/pr/3": OLDER}
    assert find("hf:org/repo", caches).read_bytes() == b"new"
    for revision in ("v1", "refs/pr/3", OLDER):
        assert find(f"hf:org/repo@{revision}", caches).read_bytes() == b"old"
        server.requests.clear()
        assert find(f"hf:org/repo@{revision}/a.gguf", caches).read_bytes() == b"old"
        assert server.requests == []


def test_split_model_in_a_folder_is_downloaded_whole(server: HubServer, caches: list[Path]) -> None:
    parts = [f"Q8/a-0000{number}-of-00002.gguf" for number in (1, 2)]
    server.add("org/repo", {**{part: part.encode() for part in parts}, "Q4/a.gguf": b"other"})
    path = find("hf:org/repo/Q8", caches)
    assert server.downloads == parts
    assert path.name == "a-00001-of-00002.gguf"
    settings = resolve_models(Settings(model_path=path), Hub(caches))
    assert settings.served_model == "a"
    path.with_name("a-00002-of-00002.gguf").unlink()
    server.requests.clear()
    # A cache that lacks a part is completed.
    assert find("hf:org/repo/Q8/a-00002-of-00002.gguf", caches) == path
    assert path.with_name("a-00002-of-00002.gguf").is_file()


def test_tokenizer_files_are_downloaded_before_a_board_model(
    server: HubServer, caches: list[Path]
) -> None:
    server.add("org/board", {**BOARD})
    path = find("hf:org/board", caches)
    *tokenizer, model = server.downloads
    assert model == "tiny.rkllm"
    assert tokenizer == sorted(BOARD.keys() - {"tiny.rkllm", "README.md", "model.safetensors"})
    assert {each.name for each in path.parent.iterdir()} == {*tokenizer, model}
    # As the engine looks for it.
    assert find_tokenizer(path) == path.parent


def test_tokenizer_comes_from_a_repository_of_its_own(
    server: HubServer, caches: list[Path], tmp_path: Path
) -> None:
    server.add("org/original", {**BOARD})
    model = tmp_path / "tiny.rkllm"
    model.write_bytes(b"model")
    settings = Settings(model_path=model, rkllm_tokenizer=Path("hf:org/original"))
    resolved = resolve_models(settings, Hub(caches))
    snapshot = caches[0] / "models--org--original" / "snapshots" / MAIN
    assert wire(build_engine_config(resolved))["tokenizer"] == str(snapshot)
    assert "model.safetensors" not in server.downloads
    assert "tiny.rkllm" not in server.downloads
    server.requests.clear()
    assert resolve_models(settings, Hub(caches)) == resolved
    assert server.requests == []


@pytest.mark.parametrize("number", [0, 1])
def test_cached_model_is_used_without_a_network(
    caches: list[Path], number: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    # The library's own cache, and the folder of RunPod's cached models.
    point_library_at(monkeypatch, "http://127.0.0.1:9")
    snapshot = cache_repository(caches[number], "org/repo", {"a.gguf": b"one"})
    assert find("hf:org/repo", caches) == snapshot / "a.gguf"
    assert find("hf:org/repo/a.gguf", caches) == snapshot / "a.gguf"
    assert find(f"hf:org/repo@{MAIN}", caches) == snapshot / "a.gguf"


def test_library_cache_comes_before_the_folder_of_runpod(caches: list[Path]) -> None:
    first, _ = (cache_repository(each, "org/repo", {"a.gguf": b"one"}) for each in caches)
    assert find("hf:org/repo", caches) == first / "a.gguf"


def test_default_caches_are_those_of_the_library_and_of_runpod(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(constants, "HF_HUB_CACHE", str(tmp_path))
    assert Hub().caches == (tmp_path, Path("/runpod-volume/huggingface-cache/hub"))


@pytest.mark.parametrize(
    ("source", "message"),
    [
        ("hf:org/gone", "hf:org/gone: the Hub has no model org/gone, or it is private and "),
        ("hf:org/repo@v9", "hf:org/repo@v9: org/repo has no revision v9"),
        ("hf:org/gated", "hf:org/gated: org/gated is gated: accept its terms on the Hub and set "),
        ("hf:org/repo/c.gguf", "hf:org/repo contains no c.gguf, but a.Q4_K_M.gguf, a.Q8_0.gguf"),
        ("hf:org/repo/README.md", "hf:org/repo/README.md must end with .gguf or .rkllm"),
        (
            "hf:org/repo",
            "hf:org/repo contains 2 models, name one of them, as in "
            "hf:org/repo/a.Q4_K_M.gguf: a.Q4_K_M.gguf, a.Q8_0.gguf",
        ),
        ("hf:org/empty", "hf:org/empty contains no .gguf or .rkllm"),
    ],
)
def test_reference_that_means_no_model_is_one_sentence(
    server: HubServer, caches: list[Path], source: str, message: str
) -> None:
    server.add("org/repo", {"a.Q8_0.gguf": b"", "a.Q4_K_M.gguf": b"", "README.md": b""})
    server.add("org/gated", {"a.gguf": b""}, token="hf_secret")
    server.add("org/empty", {"README.md": b""})
    with pytest.raises(ModelSourceError) as refused:
        find(source, caches)
    assert str(refused.value).startswith(message)
    assert "\n" not in str(refused.value)
    assert server.downloads == []


def test_gated_model_is_downloaded_with_a_token(
    server: HubServer, caches: list[Path], monkeypatch: pytest.MonkeyPatch
) -> None:
    server.add("org/gated", {"a.gguf": b"one"}, token="hf_secret")
    monkeypatch.setenv("HF_TOKEN", "hf_secret")
    assert find("hf:org/gated", caches).read_bytes() == b"one"


def test_offline_error_names_the_folders(
    caches: list[Path], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(constants, "HF_HUB_OFFLINE", True)
    with pytest.raises(ModelSourceError) as refused:
        find("hf:org/repo", caches)
    looked_for = " or ".join(str(each / "models--org--repo") for each in caches)
    assert str(refused.value) == (
        f"hf:org/repo: HF_HUB_OFFLINE is set and it is not in {looked_for}"
    )


def test_unreachable_hub_error_names_the_folders(
    caches: list[Path], monkeypatch: pytest.MonkeyPatch
) -> None:
    point_library_at(monkeypatch, "http://127.0.0.1:9")
    with pytest.raises(ModelSourceError) as refused:
        find("hf:org/repo", caches)
    message = str(refused.value)
    assert f"it is not in {caches[0] / 'models--org--repo'} or {caches[1]}" in message
    assert "fetching it from http://127.0.0.1:9 failed (ConnectError: " in message
    assert "\n" not in message


def test_unwritable_cache_is_reported_in_one_sentence(server: HubServer, tmp_path: Path) -> None:
    server.add("org/repo", {"a.gguf": b"one"})
    (tmp_path / "file").touch()
    with pytest.raises(ModelSourceError, match=r"Not a directory \(.*/file/") as refused:
        find("hf:org/repo", [tmp_path / "file" / "hub"])
    assert "\n" not in str(refused.value)


def test_every_setting_takes_a_reference(server: HubServer, caches: list[Path]) -> None:
    server.add("org/repo", {"a.gguf": b"one", "small.gguf": b"two", "p.gguf": b"p"})
    server.add("org/board", {**BOARD, "vision.rknn": b"v"})
    hub = Hub(caches)
    one = Settings(
        model_path=Path("hf:org/repo/a.gguf"),
        draft_model_path=Path("hf:org/repo/small.gguf"),
        mmproj_path=Path("hf:org/repo/p.gguf"),
        lora_adapters=parse_adapters("two=hf:org/repo/small.gguf:0.5"),
    )
    options = wire(build_engine_config(resolve_models(one, hub)))
    assert Path(str(options["model_path"])).read_bytes() == b"one"
    assert Path(str(options["draft_path"])).read_bytes() == b"two"
    assert Path(str(options["mmproj_path"])).read_bytes() == b"p"
    [adapter] = options["adapters"]
    assert (adapter["name"], Path(adapter["path"]).read_bytes(), adapter["scale"]) == (
        "two",
        b"two",
        0.5,
    )
    several = Settings(
        models=(
            ModelEntry(
                path=Path("hf:org/repo/a.gguf"),
                name="a,b",
                mmproj=Path("hf:org/repo/p.gguf"),
                lora=parse_adapters("two=hf:org/repo/small.gguf"),
            ),
            ModelEntry(
                path=Path("hf:org/board"),
                tokenizer=Path("hf:org/board"),
                mmproj=Path("hf:org/board/vision.rknn"),
                copies=2,
                lora=parse_adapters("own=some/own.lora"),
            ),
        )
    )
    resolved = resolve_models(several, hub)
    assert resolved.served_models == ("a", "b", "tiny", "two", "own")
    result = build_engine_configs(resolved)
    assert {name: each.backend.backend for name, each in result.items()} == {
        "a": "llamacpp",
        "tiny": "rkllm",
    }
    assert str(wire(result["tiny"])["tokenizer"]).endswith(MAIN)
    assert Path(str(wire(result["a"])["mmproj_path"])).read_bytes() == b"p"
    [adapter] = wire(result["a"])["adapters"]
    assert Path(adapter["path"]).read_bytes() == b"two"
    assert wire(result["tiny"])["adapters"] == [
        {"name": "own", "path": "some/own.lora", "scale": 1.0}
    ]
    assert Path(str(wire(result["tiny"])["vision"])).read_bytes() == b"v"
    board = Settings(model_path=Path("hf:org/board"), rkllm_vision=Path("hf:org/board/vision.rknn"))
    options = wire(build_engine_config(resolve_models(board, hub)))
    assert Path(str(options["vision"])).read_bytes() == b"v"
    assert [options_to_wire(each.options)["base_domain_id"] for each in result["tiny"].copies] == [
        1
    ]


@pytest.mark.parametrize(
    ("values", "message"),
    [
        ({"model_path": Path("gone.gguf")}, "MODEL_PATH: there is no file or folder gone.gguf"),
        (
            {"models": (ModelEntry(path=Path("gone.gguf")),)},
            "MODELS[0].path: there is no file or folder gone.gguf",
        ),
        (
            {"model_path": Path("hf:org/repo/a.gguf"), "draft_model_path": Path("gone.gguf")},
            "DRAFT_MODEL_PATH: there is no file or folder gone.gguf",
        ),
        (
            {"model_path": Path("hf:org/board"), "rkllm_tokenizer": Path("hf:org/repo")},
            "RKLLM_TOKENIZER: hf:org/repo contains no tokenizer.json",
        ),
        (
            {"models": (ModelEntry(path=Path("hf:org/repo")), ModelEntry(path=Path("hf:org/two")))},
            "MODELS has two models named a: give one another name, or set its copies",
        ),
        (
            {
                "model_path": Path("hf:org/board"),
                "model_name": "x,y",
                "rkllm_lora": parse_adapters("y=some/file"),
            },
            "RKLLM_LORA: y is a name of the model itself already",
        ),
        (
            {
                "model_path": Path("hf:org/repo/a.gguf"),
                "lora_adapters": parse_adapters("a=hf:org/repo/a.gguf"),
            },
            "LORA_ADAPTERS: a is a name of the model itself already",
        ),
        (
            {
                "model_path": Path("hf:org/repo/a.gguf"),
                "lora_adapters": parse_adapters("b=gone.gguf"),
            },
            "LORA_ADAPTERS: there is no file or folder gone.gguf",
        ),
        (
            {"models": (ModelEntry(path=Path("hf:org/repo"), lora=parse_adapters("b=gone.gguf")),)},
            "MODELS[0].lora: there is no file or folder gone.gguf",
        ),
    ],
)
def test_error_names_the_setting(
    server: HubServer, caches: list[Path], values: dict[str, Any], message: str
) -> None:
    for name in ("org/repo", "org/two"):
        server.add(name, {"a.gguf": b"one"})
    server.add("org/board", {**BOARD})
    with pytest.raises(SettingError) as refused:
        resolve_models(Settings(**values), Hub(caches))
    assert str(refused.value) == message


def environment(server: HubServer, cache: Path, **more: str) -> dict[str, str]:
    inherited = {name: os.environ[name] for name in ("PATH", "HOME") if name in os.environ}
    hub = {"HF_ENDPOINT": server.url, "HF_HUB_CACHE": str(cache), "HF_HUB_DISABLE_TELEMETRY": "1"}
    return inherited | hub | more


@pytest.fixture
def large_file(tmp_path: Path, model_path: Path) -> Path:
    """A file of 20 MB, whose download shows its progress."""
    path = tmp_path / "large.gguf"
    path.write_bytes(model_path.read_bytes().ljust(20_000_000, b"\0"))
    return path


@pytest.mark.long
def test_progress_is_lines_in_a_pipe(server: HubServer, tmp_path: Path, large_file: Path) -> None:
    server.add("org/repo", {"a.gguf": large_file})
    done = subprocess.run(
        [sys.executable, "-c", RESOLVE],
        env=environment(server, tmp_path, MODEL_PATH="hf:org/repo"),
        cwd=ROOT,
        capture_output=True,
        text=True,
        timeout=60,
        check=True,
    )
    assert done.stdout.strip().endswith(f"{MAIN}/a.gguf")
    lines = [line for line in done.stderr.splitlines() if "%" in line]
    # Progress is read at intervals, and a fast download may pass a quarter between two of them.
    quarters = [f"a.gguf: {share} % of 20 MB" for share in (25, 50, 75, 100)]
    assert lines == [line for line in quarters if line in lines]
    assert lines[-1] == quarters[-1]


@pytest.mark.long
def test_progress_is_a_bar_on_a_terminal(
    server: HubServer, tmp_path: Path, large_file: Path
) -> None:
    server.add("org/repo", {"a.gguf": large_file})
    code, printed = run_on_terminal(
        [sys.executable, "-c", RESOLVE],
        cwd=ROOT,
        environment=environment(server, tmp_path, MODEL_PATH="hf:org/repo", TERM="xterm"),
    )
    assert code == 0
    assert "a.gguf: 100%" in printed
    assert "20.0M/20.0M" in printed


RESOLVE = """
from handler.settings.model_settings import resolve_models
from handler.settings.shared_settings import Settings
print(resolve_models(Settings()).model_path)
"""

JOB = {"input": {"prompt": "Say hello.", "sampling_params": {"max_tokens": 4, "temperature": 0}}}


@pytest.mark.timeout(180)
def test_worker_answers_with_a_model_from_the_hub(
    server: HubServer, tmp_path: Path, model_path: Path
) -> None:
    server.add("org/repo", {"small.gguf": model_path})
    done = subprocess.run(
        [sys.executable, "-m", "handler", "--test_input", json.dumps(JOB)],
        env=environment(server, tmp_path, MODEL_PATH="hf:org/repo", MODEL_NAME="x,y"),
        cwd=ROOT,
        capture_output=True,
        text=True,
        timeout=150,
        check=False,
    )
    assert done.returncode == 0, done.stderr
    output = json.loads(done.stdout.splitlines()[-1])
    answer = output.get("output", output)
    assert answer["model"] == "x"
    assert answer["choices"][0]["text"]
    assert server.downloads == ["small.gguf"]


OFFLINE = ("hf:org/repo", "MODEL_PATH: hf:org/repo: HF_HUB_OFFLINE is set and it is not in ")


@pytest.mark.long_except(
    "command0-gone.gguf-MODEL_PATH: there is no file or folder gone.gguf\\n",
    "command1-docs-MODEL_PATH: the folder docs contains no .gguf or .rkllm\\n",
    "command3-hf:org/repo-MODEL_PATH: hf:org/repo: HF_HUB_OFFLINE is set and it is not in ",
)
@pytest.mark.parametrize(
    ("command", "value", "message"),
    [
        (["handler"], "gone.gguf", "MODEL_PATH: there is no file or folder gone.gguf\n"),
        (["handler"], "docs", "MODEL_PATH: the folder docs contains no .gguf or .rkllm\n"),
        (["handler"], "LICENSE", "MODEL_PATH: LICENSE must end with .gguf or .rkllm or .json, or "),
        (["handler"], *OFFLINE),
        (["handler", "doctor"], *OFFLINE),
        (["emulator", "--port=0"], *OFFLINE),
        (["batch", "run", "-i", "x", "-o", "y"], *OFFLINE),
    ],
)
def test_start_ends_with_one_sentence(
    server: HubServer, tmp_path: Path, command: list[str], value: str, message: str
) -> None:
    done = subprocess.run(
        [sys.executable, "-m", *command],
        env=environment(server, tmp_path, MODEL_PATH=value, HF_HUB_OFFLINE="1", JOB_DB=":memory:"),
        cwd=ROOT,
        capture_output=True,
        text=True,
        timeout=30,
        check=False,
    )
    assert (done.returncode, done.stdout) == (2, "")
    assert done.stderr.startswith(message)
    assert done.stderr.count("\n") == 1


def test_start_without_the_default_model_says_how_to_fetch_it(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(
        "handler.settings.model_settings.explain_missing_model",
        lambda: "the default model is not at X",
    )
    with pytest.raises(SettingError, match=r"^the default model is not at X$"):
        resolve_models(Settings())
    scripted = Settings(engine="scripted")
    assert resolve_models(scripted) == scripted
