"""Teaches an engine host process the stamping backend.

Python imports a `sitecustomize` from its path before anything else, and the engine host inherits
PYTHONPATH from whoever starts it: the one way into that process that changes nothing in `engine`.
"""

from benchmarks.stamping import install

install()
