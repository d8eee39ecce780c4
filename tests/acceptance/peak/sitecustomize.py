"""Write the peak memory of this process in MB into the file PEAK when it exits.

The resource usage that the parent can read includes the memory from before `exec`, which is a copy
of the parent's.
"""

from __future__ import annotations

import atexit
import os
import re
from pathlib import Path


@atexit.register
def write_peak() -> None:
    [peak_kb] = re.findall(r"VmHWM:\s+(\d+) kB", Path("/proc/self/status").read_text())
    Path(os.environ["PEAK"]).write_text(str(int(peak_kb) / 1024))
