"""Installs the stamping backend in an engine host process.

Python imports `sitecustomize` from its path before anything else, and the engine host inherits
PYTHONPATH. This is the only way into that process without changes in `engine`.
"""

from benchmarks.stamping import install

install()
