"""A file of the name that RunPod's Hub looks for: it runs the package, as the image does."""

import runpy
import sys
from pathlib import Path

# This file has the package's name, and would be found in its place.
sys.path[0] = str(Path(__file__).resolve().parents[1])
runpy.run_module("handler", run_name="__main__", alter_sys=True)
