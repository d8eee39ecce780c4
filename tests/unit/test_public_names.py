"""Packages have the public names that they list."""

from __future__ import annotations

from operator import attrgetter
from types import ModuleType

import pytest

import engine
import jobs


@pytest.mark.parametrize("package", [engine, jobs])
def test_every_public_name_is_there(package: ModuleType) -> None:
    assert all(hasattr(package, name) for name in package.__all__)
    # The linter checks their order.
    assert len(set(package.__all__)) == len(package.__all__)


@pytest.mark.parametrize("package", [engine, jobs])
def test_no_other_name_is_there(package: ModuleType) -> None:
    with pytest.raises(AttributeError, match=f"module '{package.__name__}' has no attribute 'X'"):
        attrgetter("X")(package)
