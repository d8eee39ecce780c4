"""Containers of killed servers are removed, and those of others are not."""

from __future__ import annotations

import json
import os
from pathlib import Path

import pytest

from emulator.autoscaling.containers.abandoned import (
    SERVER_LABEL,
    describe_this_process,
    remove_abandoned_containers,
)
from tests.unit.emulator.autoscaling.containers.conftest import FakeEngine


def add_container(engine: FakeEngine, label: str) -> None:
    engine.write("ps", "c1\n")
    container = {"Id": "c1", "Config": {"Labels": {SERVER_LABEL: label}}}
    engine.write("container.json", json.dumps([container]))


def test_process_is_described_by_boot_namespace_number_and_start() -> None:
    boot, processes, number, started = describe_this_process().split("/")
    assert boot == Path("/proc/sys/kernel/random/boot_id").read_text().strip()
    assert processes == os.readlink("/proc/self/ns/pid")
    assert int(number) == os.getpid()
    assert started.isdecimal()


@pytest.mark.parametrize(
    ("label", "is_removed"),
    [
        ("{own}", False),
        # The highest number of a process is 2^22.
        ("{namespace}/9999999/1", True),
        # Another process has the number now.
        ("{namespace}/{pid}/1", True),
        # A server in a container, or on another machine that uses this engine.
        ("another-boot/pid:[1]/9999999/1", False),
        ("", False),
        ("unreadable", False),
    ],
)
def test_only_containers_of_ended_servers_of_this_machine_are_removed(
    engine: FakeEngine, label: str, is_removed: bool
) -> None:
    own = describe_this_process()
    namespace = own.rpartition("/")[0].rpartition("/")[0]
    add_container(engine, label.format(own=own, namespace=namespace, pid=os.getpid()))
    assert remove_abandoned_containers(engine) == is_removed
    assert ("rm --force --volumes c1" in engine.calls) is is_removed


def test_engine_that_does_not_answer_is_only_a_warning(
    engine: FakeEngine, caplog: pytest.LogCaptureFixture
) -> None:
    (engine.folder / "docker").write_text("#!/bin/sh\necho no daemon >&2; exit 1\n")
    assert remove_abandoned_containers(engine) == 0
    assert "containers of an earlier server cannot be removed: no daemon" in caplog.text
