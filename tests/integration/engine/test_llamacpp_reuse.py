"""The next turn of a chat reuses the cache of the last one, also with other chats in between."""

from __future__ import annotations

from pathlib import Path

import pytest

from engine import BackendConfig, Chat, Engine, Message, Usage
from tests.conftest import EngineFactory
from tests.integration.engine.support import ask

SYSTEM = Message("system", "You are a guide who answers in few words and knows every town.")
TURNS = 10


@pytest.fixture
def engine(engine_factory: EngineFactory, model_path: Path) -> Engine:
    options = {"model_path": str(model_path), "model_name": "tiny", "threads": 1}
    return engine_factory(
        BackendConfig.from_wire("llamacpp", {**options, "slots": 3, "context_length": 1024})
    )


async def turn(engine: Engine, turns: list[Message], question: str) -> Usage:
    """Ask a chat's next question, and keep the answer."""
    turns.append(Message("user", question))
    text, finish = await ask(engine, Chat(tuple(turns)), temperature=0, max_tokens=4)
    turns.append(Message("assistant", text))
    return finish.usage


@pytest.mark.long
@pytest.mark.timeout(180)
async def test_ten_turns_of_two_chats_with_one_system_prompt(engine: Engine) -> None:
    # The first token of the tenth turn takes at most 1.5 times as long as that of the second.
    chats = {name: [SYSTEM] for name in ("north", "south")}
    computed: dict[str, list[int]] = {name: [] for name in chats}
    for number in range(1, TURNS + 1):
        for name, turns in chats.items():
            usage = await turn(engine, turns, f"And what of the {name} of town {number}?")
            computed[name].append(usage.prompt_tokens - usage.cached_tokens)
            assert usage.prompt_tokens > 20 * number
    for counts in computed.values():
        assert counts[-1] <= 1.5 * counts[1]
        # Each turn adds a question, an answer and the template's marks.
        assert max(counts[1:]) <= 1.5 * min(counts[1:])


@pytest.mark.long_except("True")
@pytest.mark.parametrize("deterministic", [False, True])
async def test_capability_prefix_reuse_is_reported(
    engine_factory: EngineFactory, model_path: Path, *, deterministic: bool
) -> None:
    options = {"model_path": str(model_path), "model_name": "tiny", "threads": 1}
    engine = engine_factory(
        BackendConfig.from_wire("llamacpp", {**options, "deterministic": deterministic})
    )
    assert (await engine.ready()).prefix_reuse is not deterministic


async def test_single_questions_with_a_long_system_prompt_share_it(engine: Engine) -> None:
    long = Message("system", SYSTEM.content * 8)
    for number in range(3):
        usage = await turn(engine, [long], f"Question {number}?")
        computed = usage.prompt_tokens - usage.cached_tokens
        assert (computed < 40) is (number > 0)
