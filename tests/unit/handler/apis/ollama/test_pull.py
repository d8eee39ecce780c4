from __future__ import annotations

import asyncio
import json
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from huggingface_hub import constants

from handler.apis.ollama.pull import ModelPuller
from handler.errors import InvalidRequest, ModelNotFound
from handler.models.hub import Hub, OnProgress
from tests.hub_server import HubServer, hub_server
from tests.waiting import wait_until

REPO = "org/some-GGUF"
LARGE = b"x" * 3_000_000


class Puller:
    """A puller of a Hub on loopback, and the models that it has added."""

    def __init__(self, folder: Path, *, is_on: bool = True) -> None:
        self.added: dict[str, Path] = {}
        self.failure = ""

        def build_hub(on_progress: OnProgress) -> Hub:
            return Hub([folder / "cache"], on_progress)

        self.puller = ModelPuller(self.is_served, self.add if is_on else None, build_hub)

    def is_served(self, name: str) -> bool:
        return name == "served" or name in self.added

    def add(self, path: Path, requested_name: str) -> None:
        if self.failure:
            raise ValueError(self.failure)
        self.added[requested_name] = path

    async def pull(self, name: str) -> list[dict[str, Any]]:
        self.puller.check({"model": name})
        return [json.loads(line) async for line in self.puller.pull(name)]


@pytest.fixture
def hub(monkeypatch: pytest.MonkeyPatch) -> Iterator[HubServer]:
    monkeypatch.delenv("HF_TOKEN", raising=False)
    with hub_server() as server:
        # The library reads HF_ENDPOINT when it is imported.
        monkeypatch.setattr(constants, "ENDPOINT", server.url)
        template = server.url + "/{repo_id}/resolve/{revision}/{filename}"
        monkeypatch.setattr(constants, "HUGGINGFACE_CO_URL_TEMPLATE", template)
        yield server


async def test_model_is_downloaded_with_progress_and_added(tmp_path: Path, hub: HubServer) -> None:
    hub.add(REPO, {"some-Q4_K_M.gguf": LARGE, "some-Q8_0.gguf": b"y"})
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
    hub.add(REPO, {"some-Q4_K_M.gguf": b"4", "some-Q8_0.gguf": b"8"})
    puller = Puller(tmp_path)
    assert (await puller.pull(name))[-1] == {"status": "success"}
    assert puller.added[name].name == file


async def test_only_file_needs_no_quantisation(tmp_path: Path, hub: HubServer) -> None:
    hub.add(REPO, {"some-f16.gguf": b"16"})
    puller = Puller(tmp_path)
    assert (await puller.pull(f"hf.co/{REPO}"))[-1] == {"status": "success"}


async def test_served_model_needs_no_download(tmp_path: Path, hub: HubServer) -> None:
    for is_on in (True, False):
        puller = Puller(tmp_path, is_on=is_on)
        assert await puller.pull("served") == [{"status": "success"}]
    assert hub.requests == []


@pytest.mark.parametrize(
    ("name", "said"),
    [
        (f"hf.co/{REPO}:Q2_K", "has no single Q2_K model: a-Q4.gguf, b-Q4.gguf"),
        (f"hf.co/{REPO}:Q4", "has no single Q4 model"),
        ("hf:org/none", "no model org/none"),
    ],
)
async def test_failed_pull_ends_with_its_reason(
    tmp_path: Path, hub: HubServer, name: str, said: str
) -> None:
    hub.add(REPO, {"a-Q4.gguf": b"1", "b-Q4.gguf": b"2"})
    puller = Puller(tmp_path)
    lines = await puller.pull(name)
    assert said in lines[-1]["error"]
    with pytest.raises(ModelNotFound):
        await puller.puller.pull_to_end(name)
    assert puller.added == {}


async def test_model_that_cannot_be_added_is_reported(tmp_path: Path, hub: HubServer) -> None:
    hub.add(REPO, {"some.gguf": b"1"})
    puller = Puller(tmp_path)
    puller.failure = "there is no domain for it"
    assert (await puller.pull(f"hf:{REPO}"))[-1] == {"error": "there is no domain for it"}


async def test_whole_answer_is_success(tmp_path: Path, hub: HubServer) -> None:
    hub.add(REPO, {"some.gguf": b"1"})
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
