"""The models of a server, in the forms of its answers."""

from __future__ import annotations

import json
from typing import Any

import pytest

from engine.backends.openai.server_models import ServerModel, read_models

VLLM = {"id": "a", "object": "model", "owned_by": "vllm", "max_model_len": 4096}
LLAMA = {"id": "a", "owned_by": "llamacpp", "meta": {"n_ctx": 8192, "n_ctx_train": 131072}}


@pytest.mark.parametrize(
    ("listed", "model"),
    [
        (VLLM, ServerModel("a", "vllm", 4096)),
        (LLAMA, ServerModel("a", "llamacpp", 8192)),
        ({"id": "a:latest", "owned_by": "library"}, ServerModel("a:latest", "library")),
        ({"id": "a"}, ServerModel("a")),
        ({"id": "a", "max_model_len": None, "meta": None, "owned_by": None}, ServerModel("a")),
        ({"id": "a", "state": "loading"}, ServerModel("a", is_loading=True)),
        ({"id": "a", "state": "dead", "failure": "why"}, ServerModel("a", failure="why")),
    ],
)
def test_model_is_read(listed: dict[str, Any], model: ServerModel) -> None:
    assert read_models(json.dumps({"data": [listed]}).encode()) == (model,)


@pytest.mark.parametrize(
    "body", [b"", b"[]", b"{}", b'{"data": null}', b'{"data": ["a"]}', b'{"data": [{}]}', b"5"]
)
def test_answer_of_another_form_has_no_models(body: bytes) -> None:
    assert read_models(body) == ()
