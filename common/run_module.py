"""`python -P run_module.py MODULE ARGUMENT…`: run one of our modules as `python -m` does.

It puts the folder of our packages first on the import path of this process alone. PYTHONPATH would
reach every process that this one starts, and the modules that Python itself imports at its start.
"""

from __future__ import annotations

import os
import runpy
import sys

if __name__ == "__main__":
    sys.path.insert(0, os.path.dirname(os.path.dirname(os.path.abspath(__file__))))
    del sys.argv[0]
    runpy.run_module(sys.argv[0], run_name="__main__", alter_sys=True)
