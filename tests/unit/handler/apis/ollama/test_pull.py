from __future__ import annotations

import asyncio
import json
import struct
import threading
from collections.abc import AsyncIterator, Iterator
from pathlib import Path
from typing import Any

import pytest
from huggingface_hub import constants

import handler.apis.ollama.pull
from engine.errors import QueueFull
from handler.apis.ollama.pull import ModelPuller
from handler.errors import InvalidRequest, ModelNotFound
from handler.models.hub import Hub, OnProgress
from tests.hub_server import MAIN, HubServer, hub_server
from tests.waiting import wait_until

REPO = "org/some-GGUF"
# The header of a GGUF file without properties and tensors.
HEADER = b"GGUF" + struct.pack("<IQQ", 3, 0, 0)
LARGE = HEADER + b"x" * 3_000_000
SETTLE_S = 30


# The pullers of the running test, closed at its end.
PULLERS: list[Puller] = []


class Puller:
    """A puller of a Hub on loopback, and the models that it has added."""

    def __init__(self, folder: Path, *, is_on: bool = True) -> None:
        self.added: dict[str, Path] = {}
        self.failure = ""

        def build_hub(on_progress: OnProgress) -> Hub:
            return Hub([folder / "cache"], on_progress)

        PULLERS.append(self)
        self.puller = ModelPuller(self.is_served, self.add if is_on else None, build_hub)

    def is_served(self, name: str) -> bool:
        return name == "served" or name in self.added

    def add(self, path: Path, requested_name: str) -> None:
        if self.failure:
            raise ValueError(self.failure)
        self.added[requested_name] = path

    async def close(self) -> None:
        await self.puller.close()

    async def pull(self, name: str) -> list[dict[str, Any]]:
        self.puller.check({"model": name})
        return [json.loads(line) async for line in self.puller.pull(name)]


@pytest.fixture(autouse=True)
async def closed_pullers() -> AsyncIterator[None]:
    yield
    while PULLERS:
        await PULLERS.pop().close()


@pytest.fixture
def hub(monkeypatch: pytest.MonkeyPatch) -> Iterator[HubServer]:
    monkeypatch.delenv("HF_TOKEN", raising=False)
    with hub_server() as server:
        # The library reads HF_ENDPOINT when it is imported.
        monkeypatch.setattr(constants, "ENDPOINT", server.url)
        template = server.url + "/{repo_id}/resolve/{revision}/{filename}"
        monkeypatch.setattr(constants, "HUGGINGFACE_CO_URL_TEMPLATE", template)
        # A download is stopped between two chunks.
        monkeypatch.setattr(constants, "DOWNLOAD_CHUNK_SIZE", 100_000)
        yield server
        server.gate.set()


async def test_model_is_downloaded_with_progress_and_added(tmp_path: Path, hub: HubServer) -> None:
    hub.add(REPO, {"some-Q4_K_M.gguf": LARGE, "some-Q8_0.gguf": HEADER + b"y"})
    puller = Puller(tmp_path)
    name = f"hf.co/{REPO}:Q4_K_M"
    lines = await puller.pull(name)
    assert [line["status"] for line in lines[:1] + lines[-1:]] == ["pulling manifest", "success"]
    progress = [line for line in lines if "total" in line]
    assert progress[-1]["completed"] == progress[-1]["total"] == len(LARGE)
    assert all(line["digest"].startswith("sha256:") for line in progress)
    assert puller.added[name].read_bytes() == LARGE
    assert hub.downloads == ["some-Q4_K_M.gguf"]


@pytest.mark.parametrize(
    ("name", "file"),
    [
        (f"hf:{REPO}/some-Q8_0.gguf", "some-Q8_0.gguf"),
        (f"hf.co/{REPO}", "some-Q4_K_M.gguf"),
        (f"https://huggingface.co/{REPO}:latest", "some-Q4_K_M.gguf"),
        (f"huggingface.co/{REPO}:q8_0", "some-Q8_0.gguf"),
    ],
)
async def test_name_chooses_the_file(tmp_path: Path, hub: HubServer, name: str, file: str) -> None:
    hub.add(REPO, {"some-Q4_K_M.gguf": HEADER + b"4", "some-Q8_0.gguf": HEADER + b"8"})
    puller = Puller(tmp_path)
    assert (await puller.pull(name))[-1] == {"status": "success"}
    assert puller.added[name].name == file


async def test_only_file_needs_no_quantisation(tmp_path: Path, hub: HubServer) -> None:
    hub.add(REPO, {"some-f16.gguf": HEADER + b"16"})
    puller = Puller(tmp_path)
    assert (await puller.pull(f"hf.co/{REPO}"))[-1] == {"status": "success"}


async def test_served_model_needs_no_download(tmp_path: Path, hub: HubServer) -> None:
    for is_on in (True, False):
        puller = Puller(tmp_path, is_on=is_on)
        assert await puller.pull("served") == [{"status": "success"}]
    assert hub.requests == []


@pytest.mark.parametrize(
    ("name", "reason"),
    [
        (f"hf.co/{REPO}:Q2_K", "has no single Q2_K model: a-Q4.gguf, b-Q4.gguf"),
        (f"hf.co/{REPO}:Q4", "has no single Q4 model"),
        ("hf:org/none", "no model org/none"),
    ],
)
async def test_failed_pull_ends_with_its_reason(
    tmp_path: Path, hub: HubServer, name: str, reason: str
) -> None:
    hub.add(REPO, {"a-Q4.gguf": HEADER + b"1", "b-Q4.gguf": HEADER + b"2"})
    puller = Puller(tmp_path)
    lines = await puller.pull(name)
    assert reason in lines[-1]["error"]
    with pytest.raises(ModelNotFound):
        await puller.puller.pull_to_end(name)
    assert puller.added == {}


async def test_model_that_cannot_be_added_is_reported(tmp_path: Path, hub: HubServer) -> None:
    hub.add(REPO, {"some.gguf": HEADER + b"1"})
    puller = Puller(tmp_path)
    puller.failure = "there is no domain for it"
    assert (await puller.pull(f"hf:{REPO}"))[-1] == {"error": "there is no domain for it"}


async def test_pull_without_a_stream_returns_success(tmp_path: Path, hub: HubServer) -> None:
    hub.add(REPO, {"some.gguf": HEADER + b"1"})
    assert await Puller(tmp_path).puller.pull_to_end(f"hf:{REPO}") == {"status": "success"}


async def test_model_is_pulled_once_for_several_clients(tmp_path: Path, hub: HubServer) -> None:
    hub.add(REPO, {"some.gguf": LARGE})
    puller = Puller(tmp_path)
    results = await asyncio.gather(*(puller.pull(f"hf:{REPO}") for _ in range(3)))
    assert all(lines[-1] == {"status": "success"} for lines in results)
    assert hub.downloads == ["some.gguf"]


async def test_disconnect_frees_the_puller_for_the_next_client(
    tmp_path: Path, hub: HubServer
) -> None:
    hub.add(REPO, {"some.gguf": LARGE})
    puller = Puller(tmp_path)
    lines = puller.puller.pull(f"hf:{REPO}")
    await anext(lines)
    pulling = asyncio.ensure_future(anext(lines))
    await wait_until(lambda: bool(hub.requests))
    pulling.cancel()
    await asyncio.gather(pulling, return_exceptions=True)
    await lines.aclose()
    assert (await puller.pull(f"hf:{REPO}"))[-1] == {"status": "success"}


@pytest.mark.parametrize("name", ["llama3.2", "hf:", "hf.co/only", None, 7, "hf:../../etc"])
def test_other_names_are_refused(tmp_path: Path, name: Any) -> None:
    with pytest.raises(InvalidRequest, match="model must be") as caught:
        Puller(tmp_path).puller.check({"model": name})
    assert caught.value.param == "model"


def test_pulling_is_off_unless_a_setting_allows_it(tmp_path: Path) -> None:
    with pytest.raises(InvalidRequest, match="MODEL_PULL=on"):
        Puller(tmp_path, is_on=False).puller.check({"model": f"hf:{REPO}"})


def threads_of_pulls() -> int:
    return sum(each.name.startswith("pull") for each in threading.enumerate())


def start(puller: Puller, name: str) -> asyncio.Task[list[dict[str, Any]]]:
    return asyncio.create_task(puller.pull(name))


async def leave(*clients: asyncio.Task[Any]) -> None:
    for client in clients:
        client.cancel()
    await asyncio.gather(*clients, return_exceptions=True)


async def test_clients_that_left_occupy_no_thread_of_others(tmp_path: Path, hub: HubServer) -> None:
    hub.add(REPO, {"some.gguf": LARGE})
    hub.gate.clear()
    puller = Puller(tmp_path)
    clients = [start(puller, f"hf:org/gone{number}") for number in range(9)]
    await wait_until(lambda: len(hub.requests) == 4, SETTLE_S)
    await leave(*clients)
    assert threads_of_pulls() == 4
    # The default executor is free, and no slot for pulls is occupied.
    await asyncio.wait_for(asyncio.to_thread(lambda: None), SETTLE_S)
    last = start(puller, f"hf:{REPO}")
    hub.gate.set()
    assert (await last)[-1] == {"status": "success"}
    # The pulls in the queue were never started, because their clients had left.
    assert sum("gone" in each for each in hub.requests) == 4


async def test_download_goes_on_while_one_of_its_clients_waits(
    tmp_path: Path, hub: HubServer
) -> None:
    hub.add(REPO, {"some.gguf": LARGE})
    hub.gate.clear()
    puller = Puller(tmp_path)
    first, second = start(puller, f"hf:{REPO}"), start(puller, f"hf:{REPO}")
    await wait_until(lambda: bool(hub.requests), SETTLE_S)
    await leave(first)
    hub.gate.set()
    assert (await second)[-1] == {"status": "success"}
    assert hub.downloads == ["some.gguf"]


async def test_pulls_at_the_same_time_are_bounded(tmp_path: Path, hub: HubServer) -> None:
    hub.gate.clear()
    puller = Puller(tmp_path)
    clients = [start(puller, f"hf:org/r{number}") for number in range(12)]
    await wait_until(lambda: len(hub.requests) == 4, SETTLE_S)
    with pytest.raises(QueueFull, match="12 models are being pulled already: try again later"):
        puller.puller.check({"model": f"hf:{REPO}"})
    # Joining a pull starts no further download.
    assert puller.puller.check({"model": "hf:org/r0"}) == "hf:org/r0"
    await leave(*clients)


async def test_pulled_models_are_bounded(
    tmp_path: Path, hub: HubServer, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(handler.apis.ollama.pull, "_MAX_MODELS", 2)
    hub.add(REPO, {f"{number}.gguf": HEADER + bytes([number]) for number in range(3)})
    puller = Puller(tmp_path)
    for number in range(2):
        assert (await puller.pull(f"hf:{REPO}/{number}.gguf"))[-1] == {"status": "success"}
    with pytest.raises(InvalidRequest, match="has 2 pulled models, which is the most it serves"):
        puller.puller.check({"model": f"hf:{REPO}/2.gguf"})
    assert hub.downloads == ["0.gguf", "1.gguf"]


async def test_names_of_one_file_are_bounded(tmp_path: Path, hub: HubServer) -> None:
    repository = hub.add(REPO, {"some.gguf": LARGE})
    puller = Puller(tmp_path)
    last: list[dict[str, Any]] = []
    for number in range(10):
        repository.branches[f"b{number}"] = MAIN
        last.append((await puller.pull(f"hf:{REPO}@b{number}"))[-1])
    assert last[:8] == [{"status": "success"}] * 8
    assert "the model has 8 names already" in last[8]["error"]
    assert len({each.resolve() for each in puller.added.values()}) == 1
    assert hub.downloads == ["some.gguf"]
    with pytest.raises(InvalidRequest, match="at most 512 characters, got 5,003"):
        puller.puller.check({"model": "hf:" + "x" * 5000})


def files_of(cache: Path) -> list[str]:
    """Return the names of the contents, complete or partial, and of the links to them."""
    return [
        each.name for each in cache.rglob("*/*") if each.is_file() and ".locks" not in str(each)
    ]


@pytest.mark.parametrize(
    ("content", "announced", "reason"),
    [
        (b"x" * 3_000_000, None, "some.gguf is not a GGUF file that can be read, and was removed"),
        (b"GGUF\1", None, "some.gguf is not a GGUF file that can be read, and was removed"),
        (b"<html>sign in</html>", None, "is not a GGUF file that can be read, and was removed"),
        (LARGE, "0" * 64, "its SHA-256 is not the one that the Hub announced"),
    ],
)
async def test_damaged_file_is_an_error_and_removed(
    tmp_path: Path, hub: HubServer, content: bytes, announced: str | None, reason: str
) -> None:
    hub.add(REPO, {"some.gguf": content})
    hub.announced = {} if announced is None else {"some.gguf": announced}
    puller = Puller(tmp_path)
    assert reason in (await puller.pull(f"hf:{REPO}"))[-1]["error"]
    assert puller.added == {}
    assert not [each for each in files_of(tmp_path) if "gguf" in each or len(each) >= 64]
    # The next pull downloads it again.
    hub.announced = {}
    hub.add(REPO, {"some.gguf": LARGE})
    assert (await puller.pull(f"hf:{REPO}"))[-1] == {"status": "success"}


async def test_closing_ends_the_downloads(tmp_path: Path, hub: HubServer) -> None:
    hub.add(REPO, {"some.gguf": LARGE})
    hub.gate.clear()
    puller = Puller(tmp_path)
    client = start(puller, f"hf:{REPO}")
    await wait_until(lambda: bool(hub.requests), SETTLE_S)
    await puller.close()
    assert "error" in (await client)[-1]
