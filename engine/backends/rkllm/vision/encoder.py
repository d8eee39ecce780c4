"""A vision encoder: a .rknn model that computes the embeddings of an image on the NPU."""

from __future__ import annotations

import hashlib
import os
import threading
from collections import OrderedDict
from collections.abc import Sequence
from contextlib import nullcontext
from pathlib import Path
from typing import Any

from engine.backends.rkllm.board.encoder_lock import EncoderLock, hold_for_load
from engine.backends.rkllm.vision.pixels import read_pixels
from engine.errors import BackendFailed, ModelLoadFailed

# The embeddings of an image take 1 to 8 MB.
_MAX_CACHED_IMAGES = 8


class VisionEncoder:
    """Runs a .rknn model with rknn-toolkit-lite2, which is optional.

    The model takes a square of `size` x `size` RGB pixels, which it normalises itself. The
    embeddings of the latest images are kept, because each turn of a chat has the images of the
    turns before, and the encoder takes seconds for each. Owned by the thread that uses the NPU.
    With a `lock`, it uses the NPU while no language model of the server does. `cores` are those of
    the NPU, in the form of RKLLM_VISION_CORES.

    Raises:
        ModelLoadFailed: a package is missing, or the model cannot be loaded or takes another size.
    """

    def __init__(
        self, path: Path, size: int, lock: EncoderLock | None = None, *, cores: str = "auto"
    ) -> None:
        self.size = size
        self._path = path
        self._cache: OrderedDict[bytes, Any] = OrderedDict()
        self._lock = lock
        with hold_for_load(lock, is_encoder=True):
            self._rknn = _load_model(path, cores)
            try:
                # The toolkit does not tell the size of the input, so a grey image tries it.
                self.image_tokens, self._shape = self._try_size()
            except BaseException:
                self.close()
                raise

    def _try_size(self) -> tuple[int, tuple[int, ...]]:
        import numpy as np

        grey = np.full((self.size, self.size, 3), 128, np.uint8)
        try:
            embeddings = self._compute(grey)
        except BackendFailed as error:
            raise ModelLoadFailed(
                f"RKLLM_VISION: {self._path} did not take an image of {self.size} x {self.size} "
                f"pixels: {error}. RKLLM_VISION_SIZE must be the size that it was converted for"
            ) from error
        return embeddings.shape[0], embeddings.shape

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


def _load_model(path: Path, cores: str) -> Any:
    if not path.is_file():
        raise ModelLoadFailed(f"RKLLM_VISION: there is no file {path}")
    try:
        import PIL.Image  # noqa: F401 - a missing package is reported here, not at first use
    except ImportError as error:
        raise ModelLoadFailed(
            "RKLLM_VISION: decoding images needs Pillow: `pip install pillow` adds it"
        ) from error
    try:
        from rknnlite.api import RKNNLite
    except ImportError as error:
        raise ModelLoadFailed(
            "RKLLM_VISION: a vision encoder needs rknn-toolkit-lite2: "
            "`make vision` or `pip install rknn-toolkit-lite2` adds it on a board"
        ) from error
    rknn: Any = RKNNLite()
    try:
        code = rknn.load_rknn(str(path))
        if code == 0:
            # Without the argument it is one core; drivers 0.9.2 and 0.9.3 can only use core 0
            # (rknn-toolkit2#294, #320).
            code = rknn.init_runtime(**_core_mask(RKNNLite, cores))
        failure = f"code {code}" if code else ""
    except ModelLoadFailed:
        rknn.release()
        raise
    except Exception as error:
        failure = str(error) or type(error).__name__
    if failure:
        rknn.release()
        raise ModelLoadFailed(
            f"RKLLM_VISION: {path} was not loaded: {failure}. {_find_load_hint(cores)}"
        )
    return rknn


def _core_mask(toolkit: Any, cores: str) -> dict[str, int]:
    """Return the argument that chooses cores; none leaves the choice to the toolkit.

    Raises:
        ModelLoadFailed: the toolkit has no name for these cores.
    """
    if cores == "auto":
        return {}
    mask = getattr(toolkit, f"NPU_CORE_{cores.upper()}", None)
    if mask is None:
        raise ModelLoadFailed(
            f"RKLLM_VISION_CORES: the installed rknn-toolkit-lite2 cannot choose {cores}: use auto"
        )
    return {"core_mask": mask}


def _find_load_hint(cores: str, root: Path = Path("/")) -> str:
    """Return what a model that was not loaded may lack on this machine."""
    if not (root / "proc/device-tree/compatible").exists():
        return (
            "The toolkit reads the chip from /proc/device-tree/compatible, which is not here: a "
            "container needs --security-opt systempaths=unconfined"
        )
    library = os.environ.get("LIBRKNNRT_PATH") or root / "usr/lib/librknnrt.so"
    if not Path(library).exists():
        return f"The toolkit needs librknnrt.so, and there is no {library} (LIBRKNNRT_PATH)"
    chosen = (
        "" if cores == "auto" else f", and the cores {cores} (RKLLM_VISION_CORES) must be there"
    )
    return (
        "It must be a .rknn model for this chip, made by a toolkit of the version of the installed "
        f"librknnrt.so{chosen}"
    )
