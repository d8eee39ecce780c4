"""The files of Swagger UI, from the installed package that has them."""

from __future__ import annotations

from importlib.util import find_spec
from pathlib import Path

from emulator.http.open_paths import SWAGGER_UI_FILES

# A dependency of the package; see docs/decisions/0019-swagger-ui-from-a-wheel.md.
PACKAGE = "fastapi_swagger"
_FOLDER = "resources"


def find_swagger_ui(package: str = PACKAGE) -> Path | None:
    """Return the folder that holds SWAGGER_UI_FILES; None if the package is not installed.

    The package is found without importing it: importing it imports FastAPI, which this server does
    not use.
    """
    spec = find_spec(package)
    if spec is None:
        return None
    for location in spec.submodule_search_locations or ():
        folder = Path(location) / _FOLDER
        if all((folder / name).is_file() for name in SWAGGER_UI_FILES):
            return folder
    return None
