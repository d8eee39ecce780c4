"""Puts this project's packages on the import path of the process of a command.

An installation has them in worker_rkllm/packages, which is on no other process's path. Their names
are general: in site-packages, `common` or `validation` would clash with other distributions, and
the `import jobs` of a user's handler could find ours.
"""

from __future__ import annotations

import sys
from pathlib import Path

_INSTALLED = Path(__file__).resolve().with_name("packages")
# In a clone they are in the folder of worker_rkllm.
FOLDER = _INSTALLED if _INSTALLED.is_dir() else _INSTALLED.parents[1]


def put_own_packages_first() -> None:
    """Put the folder of our packages first on `sys.path`.

    First, because the user's folder and site-packages may have modules of the same names.
    """
    if sys.path[:1] != [str(FOLDER)]:
        sys.path.insert(0, str(FOLDER))
