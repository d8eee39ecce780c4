"""The openai engine in front of a server with the shapes of `worker-rkllm torture`."""

from __future__ import annotations

import time
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass

import pytest

from emulator.torture.run import examine_client, run_shapes
from emulator.torture.server import run_shaped_server
from emulator.torture.shape import Api, Expected, Shape, list_shapes
from emulator.torture.shaped_app import ShapedRequests
from emulator.torture.verdict import ClientRun
from engine import BackendConfig, Chat, Engine, EngineConfig, Message
from engine.backends.options import OpenAIOptions
from engine.errors import EngineError
from engine.request import Prompt
from tests.honest_client import HonestCommand
from tests.integration.engine.support import ask
from tests.leftovers import restored_logger

# Each run has a port of its own, so that the pauses of all shapes pass at the same time.
PORTS = 32
PROMPTS: Mapping[Api, Prompt] = {Api.CHAT: Chat((Message("user", "hi"),)), Api.COMPLETIONS: "hi"}


@pytest.fixture(autouse=True)
def uvicorn_logger() -> Iterator[None]:
    # Uvicorn's configuration silences its access log.
    with restored_logger("uvicorn.access"):
        yield


@dataclass(frozen=True, slots=True)
class EngineCommand(HonestCommand):
    """Asks an engine that has the shaped server as its upstream."""

    async def run(self, variables: Mapping[str, str], requests: ShapedRequests) -> ClientRun:
        """Read one answer; the exit code is 1 if the engine fails."""
        started_at = time.monotonic()
        options = OpenAIOptions(
            model_name="front", model_id="any", urls=(variables["TORTURE_URL"],), slots=1
        )
        engine = Engine(EngineConfig(backend=BackendConfig(options), isolation="thread"))
        printed, errors, exit_code = "", "", 0
        try:
            printed, _ = await ask(engine, PROMPTS[self.api])
        except EngineError as error:
            errors, exit_code = repr(error), 1
        finally:
            await engine.close()
        return ClientRun(
            printed=printed,
            errors=errors,
            exit_code=exit_code,
            duration_s=time.monotonic() - started_at,
            requests=requests.count,
        )


async def check_shapes(api: Api, shapes: Sequence[Shape]) -> None:
    async with run_shaped_server(PORTS) as server:
        subject = await examine_client(EngineCommand(api, 60, api), server)
        assert subject.api is api
        results = await run_shapes(subject, shapes, server, lambda _: None, lambda _: None)
    assert [each.shape.name for each in results] == [each.name for each in shapes]
    assert [(each, each.run.errors) for each in results if not each.is_right] == []
    failures = {each.shape.name for each in results if each.run.exit_code}
    for each in shapes:
        if each.expected is Expected.FAILURE:
            assert each.name in failures, each.name


async def test_engine_takes_no_half_answer_for_a_whole_one() -> None:
    await check_shapes(Api.CHAT, list_shapes(Api.CHAT)[::8])


@pytest.mark.long
@pytest.mark.parametrize("api", list(PROMPTS))
async def test_engine_is_right_for_every_shape(api: Api) -> None:
    await check_shapes(api, list_shapes(api))
