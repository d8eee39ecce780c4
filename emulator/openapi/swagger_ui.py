"""The files of Swagger UI, from the installed package that has them."""

from __future__ import annotations

from importlib.util import find_spec
from pathlib import Path

from emulator.http.public_files import SWAGGER_UI_FILES

# A dependency of the package; see docs/decisions/0019-swagger-ui-from-a-wheel.md.
PACKAGE = "fastapi_swagger"
_FOLDER = "resources"


def find_swagger_ui(package: str = PACKAGE) -> Path:
    """Return the folder that holds SWAGGER_UI_FILES.

    The package is found without importing it: importing it imports FastAPI, which this server does
    not use. Raises ModuleNotFoundError if it is not installed or has not all files.
    """
    spec = find_spec(package)
    for location in (spec.submodule_search_locations if spec else None) or ():
        folder = Path(location) / _FOLDER
        if all((folder / name).is_file() for name in SWAGGER_UI_FILES):
            return folder
    raise ModuleNotFoundError(f"{package} has no {_FOLDER}/{SWAGGER_UI_FILES[0]}", name=package)
