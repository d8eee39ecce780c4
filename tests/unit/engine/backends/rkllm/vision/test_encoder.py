"""A vision encoder: its embeddings, its cache, and the errors of a load."""

from __future__ import annotations

import base64
import threading
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from engine.backends.rkllm.vision.encoder import VisionEncoder
from engine.errors import BackendFailed, ModelLoadFailed, RequestRejected
from tests import fake_rknnlite
from tests.unit.handler.input.images import png

IMAGES = [base64.b64encode(png(9, 9, (value, value, value))).decode() for value in range(12)]


@pytest.fixture(autouse=True)
def rknn_log(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> Path:
    fake_rknnlite.install(monkeypatch)
    monkeypatch.setenv("FAKE_RKNN_LOG", str(tmp_path / "rknn.log"))
    return tmp_path / "rknn.log"


def load(tmp_path: Path, **options: Any) -> VisionEncoder:
    return VisionEncoder(fake_rknnlite.write_encoder(tmp_path / "vision.rknn", **options), 28)


def encode(encoder: VisionEncoder, *images: str) -> Any:
    return encoder.encode(images, threading.Event())


def test_images_have_their_embeddings_in_order(tmp_path: Path) -> None:
    encoder = load(tmp_path, tokens=3)
    assert encoder.image_tokens == 3
    embeddings = encode(encoder, IMAGES[7], IMAGES[2])
    assert (embeddings.dtype, embeddings.flags.c_contiguous) == (np.float32, True)
    assert embeddings.reshape(6, 8)[:, 0].tolist() == [7, 8, 9, 2, 3, 4]


def test_outputs_are_interleaved_for_each_token(tmp_path: Path) -> None:
    embeddings = encode(load(tmp_path, outputs=3), IMAGES[1])
    assert embeddings.reshape(6, 8)[:, 0].tolist() == [1, 1001, 2001, 2, 1002, 2002]


def test_encodings_of_the_latest_images_are_cached(tmp_path: Path, rknn_log: Path) -> None:
    encoder = load(tmp_path)
    first = encode(encoder, *IMAGES[:3])
    rknn_log.write_text("")
    assert (encode(encoder, *IMAGES[:3]) == first).all()
    assert fake_rknnlite.read_names(rknn_log) == []
    encode(encoder, *IMAGES)
    rknn_log.write_text("")
    assert encode(encoder, *IMAGES[-8:])[0, 0, 0, 0] == 4
    assert fake_rknnlite.read_names(rknn_log) == []
    encode(encoder, IMAGES[0])
    assert fake_rknnlite.read_names(rknn_log) == ["inference", "inference_end"]


def test_abort_ends_before_the_next_image(tmp_path: Path, rknn_log: Path) -> None:
    encoder, aborted = load(tmp_path), threading.Event()
    aborted.set()
    rknn_log.write_text("")
    assert len(encoder.encode(IMAGES, aborted)) == 0
    assert fake_rknnlite.read_names(rknn_log) == []


def test_damaged_image_is_refused(tmp_path: Path) -> None:
    with pytest.raises(RequestRejected, match="cannot be decoded"):
        encode(load(tmp_path), IMAGES[0][:40])


@pytest.mark.parametrize(
    ("options", "reason"),
    [
        ({"size": 56}, "did not take an image of 28 x 28 pixels.*RKLLM_VISION_SIZE"),
        ({"fault": "raises"}, "the vision encoder failed: no NPU"),
        ({"fault": "nan"}, "embeddings that are no numbers"),
        ({"fault": "scalar"}, "no embeddings but outputs of shape"),
        ({"load_code": -1}, "was not loaded: code -1"),
        ({"init_code": -6}, "was not loaded: code -6"),
    ],
)
def test_unsuitable_model_is_refused_and_released(
    tmp_path: Path, rknn_log: Path, options: dict[str, Any], reason: str
) -> None:
    with pytest.raises(ModelLoadFailed, match=rf"^RKLLM_VISION: .*vision\.rknn .*{reason}"):
        load(tmp_path, **options)
    assert fake_rknnlite.read_names(rknn_log)[-1] == "release"


def test_file_that_is_no_model_is_named(tmp_path: Path) -> None:
    path = tmp_path / "vision.rknn"
    with pytest.raises(ModelLoadFailed, match=f"^RKLLM_VISION: there is no file {path}"):
        VisionEncoder(path, 28)
    path.write_text("<html>")
    with pytest.raises(ModelLoadFailed, match="was not loaded: no RKNN model"):
        VisionEncoder(path, 28)


def test_failure_after_the_load_is_reported(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    encoder = load(tmp_path)
    monkeypatch.setattr("rknnlite.api.RKNNLite.inference", lambda self, inputs: [np.zeros((5, 8))])
    with pytest.raises(BackendFailed, match=r"shape \(5, 1, 8\) after \(2, 1, 8\)"):
        encode(encoder, IMAGES[0])
