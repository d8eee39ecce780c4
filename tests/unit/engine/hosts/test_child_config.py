"""The first frame for the engine's process."""

from __future__ import annotations

import pytest

from engine.config import BackendConfig
from engine.errors import ModelLoadFailed
from engine.hosts.child_config import encode_config
from engine.hosts.frames import build_decoder


def test_encode_config_sends_the_options_and_whether_to_try_a_run() -> None:
    config = BackendConfig.from_wire("scripted", {"model_path": "a.json"})
    frame, shared_files = encode_config(config, try_run=True)
    (sent,) = build_decoder().feed(frame)
    assert sent["backend"] == "scripted"
    assert sent["options"] == {"model_path": "a.json", "model_name": "scripted"}
    assert sent["try_run"] is True
    assert shared_files == ()


def test_encode_config_refuses_a_name_that_is_not_utf8() -> None:
    config = BackendConfig.from_wire("scripted", {"model_path": "\udcff.json"})
    with pytest.raises(ModelLoadFailed, match="it is not UTF-8"):
        encode_config(config, try_run=False)
