"""The NPU cores of a vision encoder: the values of RKLLM_VISION_CORES."""

from __future__ import annotations

import logging
from pathlib import Path
from typing import Literal

from engine.backends.rkllm.board.driver import find_npu_cores, read_driver
from engine.errors import ModelLoadFailed

logger = logging.getLogger(__name__)

# The names of rknn-toolkit-lite2 without `NPU_CORE_`.
VisionCores = Literal["auto", "0", "1", "2", "0_1", "0_1_2"]
# On these, encoders on other cores than 0 fail or hang (rknn-toolkit2#294, #320, rknpu2#121).
_ONE_CORE_DRIVERS = ("0.9.2", "0.9.3")
_ROOT = Path("/")


def check_cores(cores: VisionCores, root: Path = _ROOT) -> None:
    """Check the cores of an encoder with the chip, if it is known, and with the driver.

    The toolkit takes other cores where the chip lacks one, and reports an error on chips with one
    core. Raises ModelLoadFailed.
    """
    driver = read_driver(root)
    if driver.version in _ONE_CORE_DRIVERS and cores != "0":
        logger.warning(
            "the NPU driver is %s, with which a vision encoder works on core 0 only: set "
            "RKLLM_VISION_CORES=0, or install driver 0.9.8",
            driver.version,
        )
    if cores == "auto" or not driver.chip:
        return
    available = find_npu_cores(root)
    if available == 1:
        raise ModelLoadFailed(
            f"RKLLM_VISION_CORES must be auto on an {driver.chip.upper()}, which has one NPU core; "
            f"it is {cores}"
        )
    if int(cores[-1]) >= available:
        raise ModelLoadFailed(
            f"RKLLM_VISION_CORES={cores} names a core that the {driver.chip.upper()} does not "
            f"have: its {available} NPU cores are 0 to {available - 1}"
        )


def find_core_mask(cores: VisionCores, constants: object) -> int:
    """Return the number by which the toolkit knows these cores, one of `constants`.

    Raises:
        ModelLoadFailed: the installed toolkit has no number for them.
    """
    name = f"NPU_CORE_{cores}"
    mask = getattr(constants, name, None)
    if not isinstance(mask, int):
        raise ModelLoadFailed(
            f"RKLLM_VISION_CORES={cores}: the installed rknn-toolkit-lite2 has no {name}"
        )
    return mask
