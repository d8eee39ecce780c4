"""The other families of routes: /v3, the oracle's routes without a prefix, and extra routes."""

from __future__ import annotations

from typing import Any

import pytest

from common.setting_error import SettingError
from emulator.settings.emulator_settings import EmulatorSettings
from emulator.startup.components import build_components
from engine import Engine
from handler.settings.engine_configs import build_engine_config
from tests.conftest import ScriptFactory
from tests.integration.emulator.conftest import Serve
from tests.integration.emulator.serving import join_text, parse_chunks

TURNS = {"messages": [{"role": "user", "content": "hi"}]}
HELLO_SCRIPT = {"pieces": ["Hello", " there"]}


@pytest.mark.parametrize("prefix", ["/v1", "/v3", ""])
async def test_each_family_answers(prefix: str, serve: Serve, script: ScriptFactory) -> None:
    # R1, R33
    server = await serve(script(HELLO_SCRIPT), model_name="tiny")
    async with server.client() as client:
        for path, body in (("completions", {"prompt": "hi"}), ("chat/completions", TURNS)):
            request: dict[str, Any] = {"model": "tiny", **body}
            answer = (await client.post(f"{prefix}/{path}", json=request)).json()
            streamed = await client.post(f"{prefix}/{path}", json=request | {"stream": True})
            chunks = parse_chunks(streamed.content)
            assert join_text(chunks) == "Hello there"
            [choice] = answer["choices"]
            text = choice["text"] if "text" in choice else choice["message"]["content"]
            assert text == "Hello there"
            # R22: by default, only /v1 sends the usage, where OpenAI's text clients read it.
            assert ("usage" in chunks[-1]) is (prefix == "/v1")
        assert (await client.get(f"{prefix}/models")).json()["data"][0]["id"] == "tiny"
        assert (await client.get(f"{prefix}/models/tiny")).json()["id"] == "tiny"
        assert (await client.get(f"{prefix}/models/a/b")).status_code == 404


async def test_model_server_route_requires_a_model(serve: Serve) -> None:
    # R7
    server = await serve()
    async with server.client() as client:
        refused = await client.post("/v3/completions", json={"prompt": "hi"})
        assert refused.status_code == 400
        assert refused.json()["error"]["message"] == "model must be given"


async def test_oracle_route_sends_the_role_in_each_chunk(
    serve: Serve, script: ScriptFactory
) -> None:
    # R36
    server = await serve(script(HELLO_SCRIPT | {"delay_ms": 5}))
    async with server.client() as client:
        chunks = parse_chunks(
            (await client.post("/chat/completions", json=TURNS | {"stream": True})).content
        )
    deltas = [chunk["choices"][0]["delta"] for chunk in chunks]
    assert {delta["role"] for delta in deltas if "content" in delta} == {"assistant"}
    assert deltas[-1] == {}


async def test_oracle_route_has_named_error_codes(serve: Serve) -> None:
    # R7, R53
    server = await serve(model_name="tiny")
    async with server.client() as client:
        error = (await client.post("/chat/completions", json=TURNS | {"model": "big"})).json()
        assert error["error"]["code"] == "model_not_found"
        assert error["error"]["details"] == {"available_models": ["tiny"]}
        bad = await client.post("/chat/completions", json={"messages": []})
        assert (bad.status_code, bad.json()["error"]["code"]) == (400, "invalid_request")


async def test_eleventh_chat_of_a_minute_is_refused(serve: Serve, script: ScriptFactory) -> None:
    # R41
    server = await serve(script(HELLO_SCRIPT))
    async with server.client() as client:
        key = {"authorization": "Bearer one"}
        for number in range(10):
            response = await client.post("/chat/completions", json=TURNS, headers=key)
            assert response.status_code == 200
            assert response.headers["x-ratelimit-limit"] == "10"
            assert response.headers["x-ratelimit-remaining"] == str(9 - number)
        stream = TURNS | {"stream": True}
        refused = await client.post("/chat/completions", json=stream, headers=key)
        assert refused.status_code == 429
        assert refused.headers["content-type"] == "application/json"
        wait_s = int(refused.headers["retry-after"])
        assert 1 <= wait_s <= 61
        error = refused.json()["error"]
        assert error["code"] == "rate_limit_exceeded"
        assert error["message"] == f"Rate limit exceeded. Try again in {wait_s} seconds."
        assert error["details"] == {"retry_after": wait_s}
        # Each key has its own limit, and the other routes have none.
        other = {"authorization": "Bearer two"}
        responses = [
            await client.post("/chat/completions", json=TURNS, headers=other),
            await client.post("/v1/chat/completions", json=TURNS, headers=key),
            await client.post("/completions", json={"prompt": "x"}, headers=key),
        ]
        assert {response.status_code for response in responses} == {200}


async def test_key_has_one_limit_in_every_form(serve: Serve, script: ScriptFactory) -> None:
    # R41
    server = await serve(script(HELLO_SCRIPT), rate_limit_chat="6/minute", api_keys="K")
    forms = [("authorization", value) for value in ("Bearer K", "bearer K", "Bearer  K", "K")]
    forms += [("x-api-key", "K"), ("X-API-Key", "K")]
    async with server.client() as client:
        for number, (name, value) in enumerate(forms):
            response = await client.post("/chat/completions", json=TURNS, headers={name: value})
            assert response.status_code == 200
            assert response.headers["x-ratelimit-remaining"] == str(5 - number), value
        for name, value in forms:
            refused = await client.post("/chat/completions", json=TURNS, headers={name: value})
            assert refused.status_code == 429, value


async def test_every_answer_that_counts_has_the_headers_of_the_limit(
    serve: Serve, script: ScriptFactory
) -> None:
    # R41
    path = script({"when": "hang", "pieces": ["a", {"hang_s": 3600}]}, {}, slots=1)
    server = await serve(path, model_name="tiny", max_queue=0)
    hang: Any = {"messages": [{"role": "user", "content": "hang"}], "stream": True}
    cases: list[tuple[dict[str, Any], int]] = [
        ({"content": b"{"}, 400),
        ({"json": TURNS | {"max_tokens": []}}, 400),
        ({"json": TURNS | {"model": "big"}}, 404),
        ({"content": b"{}", "headers": {"content-type": "text/plain", "origin": server.url}}, 415),
        ({"json": TURNS | {"stream": True}}, 429),
        ({"json": TURNS}, 429),
    ]
    async with (
        server.client() as client,
        client.stream("POST", "/v1/chat/completions", json=hang) as running,
    ):
        assert running.status_code == 200
        for number, (options, status) in enumerate(cases):
            response = await client.post("/chat/completions", **options)
            assert response.status_code == status, response.text
            assert response.headers["x-ratelimit-limit"] == "10"
            assert response.headers["x-ratelimit-remaining"] == str(9 - number)
            assert int(response.headers["x-ratelimit-reset"]) > 0
        # The queue was full, not the limit of the key.
        assert "Rate limit" not in response.text


async def test_rate_limit_can_be_turned_off(serve: Serve) -> None:
    server = await serve(rate_limit_chat="off")
    async with server.client() as client:
        for _ in range(12):
            assert (await client.post("/chat/completions", json=TURNS)).status_code == 200


def test_invalid_rate_limit_is_a_setting_error() -> None:
    settings = EmulatorSettings(engine="scripted", rate_limit_chat="often", job_db=":memory:")
    with pytest.raises(SettingError, match="RATE_LIMIT_CHAT: "):
        build_components(settings, Engine(build_engine_config(settings)))


async def test_system_status_reports_models_and_performance(
    serve: Serve, script: ScriptFactory
) -> None:
    # R42
    server = await serve(script(HELLO_SCRIPT), model_name="tiny")
    async with server.client() as client:
        await client.post("/v1/completions", json={"prompt": "x"})
        status = (await client.get("/system/status")).json()
    assert status["status"] == "operational"
    assert status["models"] == [{"id": "tiny", "status": "ready"}]
    assert status["uptime"] >= 0
    assert status["performance"]["requests_per_minute"] > 0
    assert status["performance"]["throughput_tokens_per_second"] > 0
    assert status["performance"]["avg_latency_ms"] >= 0


async def test_tokenize_and_detokenize(serve: Serve) -> None:
    server = await serve()
    async with server.client() as client:
        tokenized = (await client.post("/tokenize", json={"prompt": "one two"})).json()
        assert (tokenized["count"], len(tokenized["tokens"])) == (2, 2)
        assert tokenized["max_model_len"] == 4096
        of_chat = (await client.post("/tokenize", json=TURNS)).json()
        assert of_chat["count"] > 2
        detokenized = (await client.post("/detokenize", json={"tokens": [1, 2]})).json()
        assert detokenized == {"prompt": "1 2"}
        for path, body in (("/tokenize", {"prompt": 1}), ("/detokenize", {"tokens": ["a"]})):
            assert (await client.post(path, json=body)).status_code == 400
        # R7: in the form of the other routes.
        chat = await client.post("/v1/chat/completions", json=TURNS | {"model": "gpt"})
        for path in ("/tokenize", "/detokenize"):
            named = {"prompt": "a", "tokens": [1], "model": "gpt"}
            unknown = await client.post(path, json=named)
            assert (unknown.status_code, chat.status_code) == (404, 404)
            errors = [answer.json()["error"] for answer in (unknown, chat)]
            for error in errors:
                del error["request_id"]
            assert errors[0] == errors[1]


async def test_tokenizer_of_a_model_is_described(serve: Serve) -> None:
    server = await serve(model_name="tiny")
    async with server.client() as client:
        info = (await client.get("/tokenizer_info")).json()
        assert info == {
            "tokenizer_class": "RemoteTokenizer",
            "bos_token": None,
            "eos_token": "",
            "pad_token": None,
            "chat_template": None,
        }
        body = {"prompt": "one two", "add_special_tokens": False}
        assert (await client.post("/tokenize", json=body)).json()["count"] == 2
        assert (await client.get("/tokenizer_info?model=other")).status_code == 404
