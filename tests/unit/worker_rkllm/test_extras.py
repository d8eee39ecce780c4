"""The table of packages agrees with the distribution's requirements."""

from __future__ import annotations

import re
import tomllib
from pathlib import Path

import pytest

from worker_rkllm import extras

PROJECT = tomllib.loads((Path(__file__).parents[3] / "pyproject.toml").read_text())["project"]
# Import names that differ from the name of their package.
PACKAGES = {"PIL": "pillow", "opentelemetry": "opentelemetry-sdk"}


def names(requirements: list[str]) -> set[str]:
    return {re.split(r"[>=<;\[]", each)[0].strip() for each in requirements}


def package_name(module: str) -> str:
    return PACKAGES.get(module, module.replace("_", "-"))


@pytest.mark.parametrize(("module", "extra"), extras._EXTRA_OF_MODULE.items())
def test_extra_of_a_module_installs_it(module: str, extra: str) -> None:
    assert package_name(module) in names(PROJECT["optional-dependencies"][extra])


@pytest.mark.parametrize("module", sorted(extras._REQUIRED_MODULES))
def test_required_module_is_one_of_every_installation(module: str) -> None:
    assert package_name(module) in names(PROJECT["dependencies"])


@pytest.mark.parametrize(("extra", "packages"), extras._PACKAGES_OF_EXTRA.items())
def test_packages_of_an_extra_are_its_requirements(extra: str, packages: str) -> None:
    assert set(packages.split()) <= names(PROJECT["optional-dependencies"][extra])


def test_every_extra_installs_something() -> None:
    assert all(PROJECT["optional-dependencies"].values())
