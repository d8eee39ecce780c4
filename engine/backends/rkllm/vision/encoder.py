"""A vision encoder: a .rknn model that computes the embeddings of an image on the NPU."""

from __future__ import annotations

import hashlib
import threading
from collections import OrderedDict
from collections.abc import Mapping, Sequence
from contextlib import nullcontext
from pathlib import Path
from typing import Any

from engine.backends.rkllm.board.encoder_lock import EncoderLock, hold_for_load
from engine.backends.rkllm.printed.library_output import LibraryOutput
from engine.backends.rkllm.vision.cores import VisionCores, check_cores, find_core_mask
from engine.backends.rkllm.vision.pixels import read_pixels
from engine.backends.rkllm.vision.setup_advice import (
    describe_missing_package,
    find_missing_part,
    find_printed_advice,
)
from engine.errors import BackendFailed, ModelLoadFailed

# The embeddings of an image take 1 to 8 MB.
_MAX_CACHED_IMAGES = 8
_GENERAL_HINT = "it must be a .rknn model for this chip and for the installed librknnrt.so"
_SIZE_HINT = "RKLLM_VISION_SIZE must be the size that it was converted for"


class VisionEncoder:
    """Runs a .rknn model with rknn-toolkit-lite2, which is optional.

    The model takes a square of `size` x `size` RGB pixels, which it normalises itself. The
    embeddings of the latest images are kept, because each turn of a chat has the images of the
    turns before, and the encoder takes seconds for each. Owned by the thread that uses the NPU.
    With a `lock`, it uses the NPU while no language model of the server does.

    Raises:
        ModelLoadFailed: a package is missing, or the model cannot be loaded or takes another size.
    """

    def __init__(
        self,
        path: Path,
        size: int,
        lock: EncoderLock | None = None,
        cores: VisionCores = "auto",
    ) -> None:
        self.size = size
        self._path = path
        self._cache: OrderedDict[bytes, Any] = OrderedDict()
        self._lock = lock
        if not path.is_file():
            raise ModelLoadFailed(f"RKLLM_VISION: there is no file {path}")
        check_cores(cores)
        toolkit = _import_toolkit()
        self._rknn: Any = toolkit()
        try:
            with hold_for_load(lock, is_encoder=True):
                self._load(cores, toolkit)
        except BaseException:
            self.close()
            raise

    def _load(self, cores: VisionCores, toolkit: Any) -> None:
        """Load and try the model. The toolkit returns -1 for all errors, and prints the reason."""
        options = {} if cores == "auto" else {"core_mask": find_core_mask(cores, toolkit)}
        output = LibraryOutput()
        try:
            with output.capture() as printed:
                failure, hint = self._init(options), find_missing_part() or _GENERAL_HINT
                if not failure:
                    failure, hint = self._try_size(), _SIZE_HINT
        finally:
            output.close()
        if failure:
            reason = f" (the library said: {printed.reason})" if printed.reason else ""
            advice = find_printed_advice(printed.lines, cores) or hint
            raise ModelLoadFailed(f"RKLLM_VISION: {self._path} {failure}{reason}: {advice}")

    def _init(self, options: Mapping[str, int]) -> str:
        """Load the model and start its runtime; return why that failed, or nothing."""
        try:
            code = self._rknn.load_rknn(str(self._path)) or self._rknn.init_runtime(**options)
        except Exception as error:
            return f"was not loaded: {str(error) or type(error).__name__}"
        return f"was not loaded: code {code}" if code else ""

    def _try_size(self) -> str:
        """Try a grey image, because the toolkit does not report the size of the model's input.

        Return why that failed, or nothing.
        """
        import numpy as np

        grey = np.full((self.size, self.size, 3), 128, np.uint8)
        try:
            embeddings = self._compute(grey)
        except BackendFailed as error:
            return f"did not take an image of {self.size} x {self.size} pixels: {error}"
        self.image_tokens, self._shape = int(embeddings.shape[0]), embeddings.shape
        return ""

    def encode(self, images: Sequence[str], aborted: threading.Event) -> Any:
        """Return the embeddings of image files in base64, as one array; it has a row per image.

        Return early, with fewer rows, once `aborted` is set.

        Raises:
            RequestRejected: an image cannot be decoded.
            BackendFailed: the encoder failed.
        """
        import numpy as np

        keys = [hashlib.sha256(image.encode()).digest() for image in images]
        rows = []
        # Once for all images of a prompt: between two of them a run could take minutes.
        lock = None if all(key in self._cache for key in keys) else self._lock
        with nullcontext() if lock is None else lock.hold_for_encoder(aborted.is_set):
            for key, image in zip(keys, images, strict=True):
                if aborted.is_set():
                    break
                rows.append(self._encode_image(key, image))
        return np.array(rows, np.float32)

    def _encode_image(self, key: bytes, image: str) -> Any:
        if (embeddings := self._cache.get(key)) is None:
            embeddings = self._compute(read_pixels(image, self.size))
            if embeddings.shape != self._shape:
                raise BackendFailed(
                    f"the vision encoder returned embeddings of shape {embeddings.shape} after "
                    f"{self._shape}"
                )
        self._cache[key] = embeddings
        self._cache.move_to_end(key)
        if len(self._cache) > _MAX_CACHED_IMAGES:
            self._cache.popitem(last=False)
        return embeddings

    def _compute(self, pixels: Any) -> Any:
        """Return the embeddings of an image: for each token, the rows of all outputs in order.

        Most encoders have one output; that of Qwen3-VL has four.
        """
        import numpy as np

        try:
            outputs = self._rknn.inference(inputs=[pixels[None]])
        except Exception as error:
            raise BackendFailed(f"the vision encoder failed: {error}") from error
        if not outputs:
            raise BackendFailed("the vision encoder failed and gave no reason")
        rows = [np.asarray(output, np.float32) for output in outputs]
        try:
            embeddings = np.stack([row.reshape(-1, row.shape[-1]) for row in rows], axis=1)
        except (ValueError, IndexError) as error:
            shapes = ", ".join(str(row.shape) for row in rows)
            raise BackendFailed(
                f"the vision encoder returned no embeddings but outputs of shape {shapes}"
            ) from error
        if not np.isfinite(embeddings).all():
            raise BackendFailed("the vision encoder returned embeddings that are no numbers")
        return embeddings

    def close(self) -> None:
        """Free the model."""
        self._rknn.release()


def _import_toolkit() -> Any:
    """Return RKNNLite. Raises ModelLoadFailed if it or Pillow is not installed."""
    try:
        import PIL.Image  # noqa: F401 - a missing package is reported here, not at first use
    except ImportError as error:
        raise ModelLoadFailed(
            "RKLLM_VISION: decoding images needs Pillow: `pip install pillow` adds it"
        ) from error
    try:
        from rknnlite.api import RKNNLite
    except ImportError as error:
        raise ModelLoadFailed(describe_missing_package(error.name)) from error
    return RKNNLite
