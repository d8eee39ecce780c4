"""Optional checks, redaction and blocking; the modules are independent of each other."""

from __future__ import annotations

__all__ = ["MissingPart"]


class MissingPart(Exception):
    """An option needs a package that is not installed; the message says which one."""

    def __init__(self, option: str, package: str) -> None:
        super().__init__(
            f"{option} needs the package {package}, which is not installed: "
            f"`pip install {package}` adds it."
        )
        self.package = package
