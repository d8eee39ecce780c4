"""The descriptions of the APIs: each is in the list, and no fact stands in two of them."""

from __future__ import annotations

from importlib import import_module
from pkgutil import iter_modules

from emulator.openapi import descriptions
from emulator.openapi.descriptions import DESCRIPTIONS
from emulator.settings.emulator_settings import EmulatorSettings

SETTINGS = EmulatorSettings(engine="scripted", faults_per_request=True)


def test_every_module_is_listed() -> None:
    names = [each.name for each in iter_modules(descriptions.__path__, "")]
    modules = [import_module(f"{descriptions.__name__}.{name}") for name in names]
    assert len(modules) == len(DESCRIPTIONS)
    assert all(module.DESCRIPTION in DESCRIPTIONS for module in modules)


def test_no_two_apis_describe_the_same() -> None:
    tables = [
        (
            *(each.tags, each.operations, each.build_schemas(SETTINGS)),
            *(each.examples, each.path_parameters, each.error_schemas),
        )
        for each in DESCRIPTIONS
    ]
    for of_all_apis in zip(*tables, strict=True):
        names = [name for table in of_all_apis for name in table]
        assert len(set(names)) == len(names), sorted(names)


def test_every_operation_has_a_tag_of_its_api_and_every_body_an_example() -> None:
    for each in DESCRIPTIONS:
        assert {operation.tag for operation in each.operations.values()} <= each.tags.keys()
        assert each.examples.keys() <= each.build_schemas(SETTINGS).keys()
    bodies = {known.body for each in DESCRIPTIONS for known in each.operations.values()}
    assert bodies - {None} == {body for each in DESCRIPTIONS for body in each.examples}
