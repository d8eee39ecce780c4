"""Whether this machine's kernel lets a process mount in namespaces of its own."""

from __future__ import annotations

import os
import subprocess


def can_mount(*, as_root: bool = os.geteuid() == 0) -> bool:
    """Return whether `unshare` of util-linux can mount a folder, with a user namespace or as root.

    It knows nothing of the code under test.
    """
    option = "-m" if as_root else "-rm"
    check = subprocess.run(
        ["unshare", option, "mount", "-t", "tmpfs", "none", "/tmp"],  # noqa: S108
        capture_output=True,
    )
    return check.returncode == 0
