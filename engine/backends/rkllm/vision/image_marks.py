"""The texts that mark an image in a prompt, and defaults of vision models."""

from __future__ import annotations

from engine.backends.rkllm.runs.run import ImageMarks

# The marks of Qwen2-VL and its successors.
DEFAULT_IMAGE_MARKS = "<|vision_start|>,<|vision_end|>,<|image_pad|>"

# The size of Qwen2-VL in the multimodal demo of rknn-llm, in pixels.
DEFAULT_VISION_SIZE = 392


def parse_image_marks(text: str) -> ImageMarks:
    """Return the three texts of RKLLM_VISION_TOKENS. Raises ValueError."""
    marks = [part.strip() for part in text.split(",")]
    if len(marks) != len(ImageMarks._fields) or not marks[-1] or "\0" in text:
        raise ValueError(
            "must have three texts separated by commas: before an image, after it, and for each "
            f"of its tokens, as in {DEFAULT_IMAGE_MARKS}; got {text!r}"
        )
    return ImageMarks(*marks)
