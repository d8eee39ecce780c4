"""A fake vision encoder, whose "model file" is JSON with the keyword arguments of `FakeModel`."""

from __future__ import annotations

import json
import os
import time
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np


@dataclass(frozen=True)
class FakeModel:
    """What the model takes and returns, its faults, and the lines that its start prints.

    Each output has `tokens` rows of `width` numbers, which are the mean of the image's pixels plus
    the number of the row.
    """

    size: int = 28
    tokens: int = 2
    width: int = 8
    outputs: int = 1
    load_code: int = 0
    init_code: int = 0
    fault: str = ""
    duration_s: float = 0.0
    prints: tuple[str, ...] = ()


class RKNNLite:
    """The methods that a vision encoder needs. FAKE_RKNN_LOG names a file for one line per call."""

    # The values of rknn-toolkit-lite2 2.5.0.
    NPU_CORE_AUTO = 0
    NPU_CORE_0 = 1
    NPU_CORE_1 = 2
    NPU_CORE_2 = 4
    NPU_CORE_0_1 = 3
    NPU_CORE_0_1_2 = 7

    def __init__(self) -> None:
        self._model: FakeModel | None = None
        self._is_ready = False

    def load_rknn(self, path: str) -> int:
        _log("load_rknn")
        content = Path(path).read_text(encoding="utf-8")
        if not content.startswith("{"):
            raise ValueError("no RKNN model")
        self._model = FakeModel(**json.loads(content))
        return self._model.load_code

    def init_runtime(self, *, core_mask: int | None = None) -> int:
        _log("init_runtime" if core_mask is None else f"init_runtime:{core_mask}")
        assert self._model is not None
        for line in self._model.prints:
            os.write(2, f"{line}\n".encode())
        self._is_ready = True
        return self._model.init_code

    def inference(self, inputs: list[Any]) -> list[Any] | None:
        _log("inference")
        try:
            return self._compute(inputs)
        finally:
            _log("inference_end")

    def _compute(self, inputs: list[Any]) -> list[Any] | None:
        model = self._model
        assert model is not None
        assert self._is_ready
        time.sleep(model.duration_s)
        [pixels] = inputs
        assert pixels.dtype == np.uint8
        if pixels.shape != (1, model.size, model.size, 3):
            # The toolkit prints the reason.
            return None
        if model.fault == "raises":
            raise RuntimeError("no NPU")
        mean = np.nan if model.fault == "nan" else pixels.mean()
        if model.fault == "scalar":
            return [np.float32(mean)]
        rows = mean + np.arange(model.tokens)[:, None] + np.zeros(model.width)
        return [(rows + 1000 * number)[None] for number in range(model.outputs)]

    def release(self) -> None:
        _log("release")
        self._is_ready = False


def _log(name: str) -> None:
    if path := os.environ.get("FAKE_RKNN_LOG"):
        with Path(path).open("a", encoding="utf-8") as file:
            file.write(f"{time.monotonic_ns()} {os.getpid()} {name}\n")
