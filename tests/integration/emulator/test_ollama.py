"""Ollama's API over HTTP, with the scripted engine."""

from __future__ import annotations

import base64
import json
import struct
from pathlib import Path
from typing import Any

import pytest

from handler.models.model_list import ModelEntry
from tests.conftest import ScriptFactory
from tests.integration.emulator.conftest import Serve
from tests.integration.emulator.serving import RawConnection
from tests.unit.engine.backends.test_gguf import STRING, UINT32, header, pair, text
from tests.unit.handler.input.images import png

USER = [{"role": "user", "content": "hi there"}]
TOOL: dict[str, Any] = {
    "type": "function",
    "function": {
        "name": "add",
        "description": "Adds two numbers.",
        "parameters": {"type": "object", "properties": {"a": {"type": "integer"}}},
    },
}
CALL = '<tool_call>{"name": "add", "arguments": {"a": 1}}</tool_call>'
TIMES = ("total_duration", "load_duration", "prompt_eval_duration", "eval_duration")


def parse_lines(body: bytes) -> list[dict[str, Any]]:
    """Return the lines of a stream; each must be complete JSON."""
    assert body.endswith(b"\n")
    return [json.loads(line) for line in body.splitlines()]


def drop_times(answer: dict[str, Any]) -> dict[str, Any]:
    """Return an answer without times, which must be whole numbers."""
    assert all(type(answer[name]) is int and answer[name] >= 0 for name in TIMES)
    assert answer["created_at"].endswith("Z")
    return {name: each for name, each in answer.items() if name not in {*TIMES, "created_at"}}


async def test_whole_chat(serve: Serve, script: ScriptFactory) -> None:
    path = script({"when": "^user: hi there\nassistant:$", "pieces": ["he", "y"]})
    server = await serve(path, model_name="scripted")
    body = {"model": "scripted:latest", "messages": USER, "stream": False}
    async with server.client() as client:
        response = await client.post("/api/chat", json=body)
    assert response.status_code == 200, response.text
    assert drop_times(response.json()) == {
        "model": "scripted:latest",
        "message": {"role": "assistant", "content": "hey"},
        "done": True,
        "done_reason": "stop",
        "prompt_eval_count": 4,
        "eval_count": 2,
    }


async def test_chat_streams_lines_by_default(serve: Serve, script: ScriptFactory) -> None:
    path = script({"pieces": ["<think>", "hm", "</think>", "he", "y"]})
    server = await serve(path, model_name="scripted")
    async with server.client() as client:
        response = await client.post("/api/chat", json={"model": "scripted", "messages": USER})
    assert response.headers["content-type"] == "application/x-ndjson"
    lines = parse_lines(response.content)
    assert [line["done"] for line in lines] == [False] * (len(lines) - 1) + [True]
    messages = [line["message"] for line in lines]
    assert "".join(each["content"] for each in messages) == "hey"
    assert "".join(each.get("thinking", "") for each in messages) == "hm"
    assert lines[-1]["done_reason"] == "stop"


async def test_generate_has_response_and_thinking(serve: Serve, script: ScriptFactory) -> None:
    server = await serve(script({"pieces": ["<think>", "hm", "</think>", "he", "y"]}))
    body = {"prompt": "hi", "system": "Be brief.", "options": {"num_predict": 4}}
    async with server.client() as client:
        whole = (await client.post("/api/generate", json={**body, "stream": False})).json()
        lines = parse_lines((await client.post("/api/generate", json=body)).content)
    assert (whole["response"], whole["thinking"], whole["done_reason"]) == ("he", "hm", "length")
    assert "".join(line["response"] for line in lines) == "he"
    assert "".join(line.get("thinking", "") for line in lines) == "hm"
    assert drop_times(lines[-1])["eval_count"] == drop_times(whole)["eval_count"] == 4


@pytest.mark.parametrize("stream", [True, False])
async def test_calls_are_sent_in_one_piece(
    serve: Serve, script: ScriptFactory, stream: bool
) -> None:
    pieces = ["Let me ", *[CALL[at : at + 5] for at in range(0, len(CALL), 5)], CALL]
    server = await serve(script({"pieces": pieces}))
    body = {"messages": USER, "tools": [TOOL], "stream": stream}
    async with server.client() as client:
        response = await client.post("/api/chat", json=body)
    lines = parse_lines(response.content + (b"" if stream else b"\n"))
    calls = [call for line in lines for call in line["message"].get("tool_calls", ())]
    assert [call["function"] for call in calls] == [
        {"index": index, "name": "add", "arguments": {"a": 1}} for index in range(2)
    ]
    assert "".join(line["message"]["content"] for line in lines) == "Let me"
    assert lines[-1]["done_reason"] == "stop"


async def test_call_that_a_limit_has_cut_is_text(serve: Serve, script: ScriptFactory) -> None:
    server = await serve(script({"pieces": [CALL[at : at + 5] for at in range(0, len(CALL), 5)]}))
    body = {
        "messages": USER,
        "tools": [TOOL],
        "stream": False,
        "options": {"num_predict": len(CALL) // 5 - 3},
    }
    async with server.client() as client:
        answer = (await client.post("/api/chat", json=body)).json()
    assert answer["done_reason"] == "length"
    assert "tool_calls" not in answer["message"]
    assert answer["message"]["content"].startswith('{"name": ')


@pytest.mark.parametrize(
    ("body", "status", "said"),
    [
        ({"messages": USER, "model": "x"}, 404, 'the model "x" does not exist'),
        ({"messages": USER, "model": 1}, 400, "model must be"),
        ({"messages": USER, "options": {"temperature": 9}}, 400, "options.temperature must be"),
        ({"messages": USER, "options": {"num_predict": "many"}}, 400, "options.num_predict"),
        ({"messages": USER, "format": {"type": 1}}, 400, "format"),
        ({"messages": [{"role": "narrator", "content": ""}]}, 400, "messages[0].role must be"),
        ({"messages": USER, "tools": [{}]}, 400, "tools[0]"),
        ({"messages": "hi"}, 400, "messages must be"),
        ([], 400, "must be"),
    ],
)
async def test_wrong_request_gets_one_sentence(
    serve: Serve, script: ScriptFactory, body: Any, status: int, said: str
) -> None:
    server = await serve(script({"pieces": ["x"]}))
    async with server.client() as client:
        response = await client.post("/api/chat", json=body)
        good = await client.post("/api/chat", json={"messages": USER, "stream": False})
    assert response.status_code == status, response.text
    assert said in response.json()["error"]
    assert good.status_code == 200


async def test_oldest_turns_are_left_out_unless_truncate_is_false(
    serve: Serve, script: ScriptFactory
) -> None:
    server = await serve(script({"pieces": ["ok"]}, context_length=64))
    messages = [
        *({"role": "user", "content": "word " * 40}, {"role": "assistant", "content": "yes"}) * 3,
        {"role": "user", "content": "and now?"},
    ]
    body = {"messages": messages, "stream": False}
    async with server.client() as client:
        answer = (await client.post("/api/chat", json=body)).json()
        refused = await client.post("/api/chat", json={**body, "truncate": False})
    assert answer["message"]["content"] == "ok"
    assert any("oldest messages were left out" in each for each in answer["warnings"])
    assert refused.status_code == 400


async def test_request_without_a_prompt_loads_the_model(
    serve: Serve, script: ScriptFactory
) -> None:
    server = await serve(script({"pieces": ["x"]}), model_name="scripted")
    async with server.client() as client:
        chat = (await client.post("/api/chat", json={"model": "scripted", "messages": []})).json()
        generate = (await client.post("/api/generate", json={"model": "scripted"})).json()
    assert (chat["done"], chat["done_reason"], chat["message"]["content"]) == (True, "load", "")
    assert (generate["done"], generate["done_reason"], generate["response"]) == (True, "load", "")


async def test_models_are_described(serve: Serve, script: ScriptFactory) -> None:
    server = await serve(script({"pieces": ["x"]}), model_name="small,other:7b")
    async with server.client() as client:
        await client.post("/api/chat", json={})
        tags = (await client.get("/api/tags")).json()["models"]
        running = (await client.get("/api/ps")).json()["models"]
        shown = (await client.post("/api/show", json={"model": "small:latest"})).json()
        unknown = await client.post("/api/show", json={"name": "x"})
        version = (await client.get("/api/version")).json()
    assert [each["model"] for each in tags] == ["small:latest", "other:7b"]
    assert all(len(each["digest"]) == 64 for each in tags)
    assert [each["model"] for each in running] == ["small:latest"]
    assert running[0]["expires_at"] > running[0]["modified_at"]
    assert shown["capabilities"][:2] == ["completion", "tools"]
    assert unknown.status_code == 404
    assert tuple(map(int, version["version"].split("."))) >= (0, 6, 4)


async def test_model_that_is_not_loaded_is_described_by_its_header(
    serve: Serve, script: ScriptFactory, tmp_path: Path
) -> None:
    path, projector = tmp_path / "qwen.gguf", tmp_path / "mmproj.gguf"
    template = "{% if tools %}{{ '<tools>' }}{% endif %}{{ '<think>' }}"
    path.write_bytes(
        header(
            pair("general.architecture", STRING, text("qwen3")),
            pair("general.name", STRING, text("Qwen3")),
            pair("qwen3.context_length", UINT32, struct.pack("<I", 40960)),
            pair("qwen3.embedding_length", UINT32, struct.pack("<I", 1024)),
            pair("tokenizer.ggml.fim_pre_token_id", UINT32, struct.pack("<I", 7)),
            pair("tokenizer.chat_template", STRING, text(template)),
        )
    )
    rkllm = tmp_path / "board.rkllm"
    rkllm.write_bytes(b"x")
    server = await serve(
        engine="auto",
        engine_isolation="process",
        model_memory_mb=1,
        context_length=4096,
        models=(
            ModelEntry(path=script({"pieces": ["x"]}), name="loaded"),
            ModelEntry(path=path, name="qwen", context_length=2048, mmproj=projector),
            ModelEntry(path=rkllm, name="board"),
        ),
    )
    async with server.client() as client:
        shown = (await client.post("/api/show", json={"model": "qwen"})).json()
        board = (await client.post("/api/show", json={"model": "board"})).json()
        _, listed, _ = (await client.get("/api/tags")).json()["models"]
        lengths = [
            (await client.get(f"/v1/models/{name}")).json()["max_model_len"]
            for name in ("qwen", "board")
        ]
    capabilities = ["completion", "tools", "thinking", "insert", "embedding", "vision"]
    assert shown["capabilities"] == listed["capabilities"] == capabilities
    assert shown["model_info"] == {
        "general.architecture": "qwen3",
        "general.basename": "qwen",
        "qwen3.context_length": 2048,
        "qwen3.embedding_length": 1024,
    }
    assert listed["context_length"] == 2048
    # Only the runtime knows what a model for boards can do.
    assert board["capabilities"] == ["completion"]
    assert lengths == [2048, None]


async def test_texts_are_embedded(serve: Serve, script: ScriptFactory) -> None:
    server = await serve(script({"pieces": ["x"]}))
    async with server.client() as client:
        several = (await client.post("/api/embed", json={"input": ["a", "b"]})).json()
        one = (await client.post("/api/embeddings", json={"prompt": "a"})).json()
        none = (await client.post("/api/embed", json={"input": []})).json()
        openai = (await client.post("/v1/embeddings", json={"input": ["a", "b"]})).json()
        refused = await client.post("/api/embed", json={"input": {"a": 1}})
    vectors = [each["embedding"] for each in openai["data"]]
    assert several["embeddings"] == vectors
    assert several["prompt_eval_count"] == openai["usage"]["prompt_tokens"]
    assert one["embedding"] == vectors[0]
    assert none["embeddings"] == []
    assert refused.status_code == 400


@pytest.mark.parametrize("words", [9, 40_000])
async def test_texts_that_are_too_long_to_embed_are_cut(
    serve: Serve, script: ScriptFactory, words: int
) -> None:
    server = await serve(script({"pieces": ["x"]}, context_length=8))
    long = " ".join(["word"] * words)
    async with server.client() as client:
        cut = (await client.post("/api/embed", json={"input": ["a", long]})).json()
        same = (
            await client.post("/api/embed", json={"input": ["a", "word word word word"]})
        ).json()
        old = (await client.post("/api/embeddings", json={"prompt": long})).json()
        whole = {"input": long, "truncate": False}
        refused = await client.post("/api/embed", json=whole)
        wrong = await client.post("/api/embed", json={"input": "a", "truncate": "no"})
    assert cut["embeddings"] == same["embeddings"]
    assert cut["warnings"] == ["input[1] was cut to its first 4 tokens, because it is too long"]
    assert (old["embedding"], len(old["warnings"])) == (cut["embeddings"][1], 1)
    assert "warnings" not in same
    assert refused.status_code == 400
    assert refused.json()["error"].startswith("input length exceeds maximum context length (")
    assert wrong.status_code == 400


async def test_text_that_is_too_long_to_embed_is_refused_without_tokens_to_cut(
    serve: Serve, script: ScriptFactory
) -> None:
    server = await serve(script(context_length=8, capabilities={"tokenize": False}))
    async with server.client() as client:
        refused = await client.post("/api/embed", json={"input": "word " * 9})
    assert refused.status_code == 400
    assert refused.json()["error"].startswith("input length exceeds maximum context length (")


async def test_failure_in_a_stream_is_its_last_line(serve: Serve, script: ScriptFactory) -> None:
    answer = {"pieces": ["so", " far", {"signal": "SIGKILL", "delay_ms": 100}]}
    server = await serve(script(answer), engine_isolation="process")
    async with server.client() as client:
        response = await client.post("/api/chat", json={"messages": USER})
    lines = parse_lines(response.content)
    assert "".join(line["message"]["content"] for line in lines[:-1]) == "so far"
    assert set(lines[-1]) == {"error", "request_id"}


async def test_disconnect_ends_the_generation(serve: Serve, script: ScriptFactory) -> None:
    server = await serve(script({"pieces": ["he", {"hang_s": 3600}]}))
    with await RawConnection.connect(server.port) as wire:
        await wire.post("/api/chat", {"messages": USER})
        await wire.read_until(b'"he"')
    await server.wait_until_idle()


async def test_images_are_for_models_that_read_them(serve: Serve, script: ScriptFactory) -> None:
    image = base64.b64encode(png()).decode()
    body = {"messages": [{"role": "user", "content": "what?", "images": [image]}], "stream": False}
    prompt = {"prompt": "what?", "images": [image], "stream": False}
    seeing = await serve(script({"pieces": ["a"]}, capabilities={"images": True}))
    blind = await serve(script({"pieces": ["a"]}))
    async with seeing.client() as client:
        assert (await client.post("/api/chat", json=body)).json()["message"]["content"] == "a"
        assert (await client.post("/api/generate", json=prompt)).json()["response"] == "a"
        shown = (await client.post("/api/show", json={})).json()
        url, lines = f"data:image/png;base64,{image}", "\r\n".join([image[:20], image[20:]])
        for form in (url, lines, f"data:image/png;base64,{lines}"):
            other = {"messages": [{"role": "user", "images": [form]}], "stream": False}
            assert (await client.post("/api/chat", json=other)).status_code == 200
        webp = base64.b64encode(b"RIFF\0\0\0\0WEBPVP8 ").decode()
        for wrong, said in (
            ("no base64!", "must be valid base64"),
            ("data:text/plain,x", "must be a data URL such as data:image/png;base64,…"),
            (webp, "must be a PNG, JPEG or GIF image, got WebP: convert it first"),
        ):
            broken = {"messages": [{"role": "user", "images": [image, wrong]}]}
            refused = await client.post("/api/chat", json=broken)
            assert refused.status_code == 400, refused.text
            assert refused.json()["error"].startswith(f"messages[0].images[1] {said}")
            refused = await client.post("/api/generate", json={"prompt": "x", "images": [wrong]})
            assert refused.json()["error"].startswith(f"images[0] {said}")
    assert "vision" in shown["capabilities"]
    async with blind.client() as client:
        answer = (await client.post("/api/chat", json=body)).json()
    assert answer["message"]["content"] == "a"
    assert "images were left out" in answer["warnings"][0]
