"""Restrict the addresses that jobs may name."""

from __future__ import annotations

import ipaddress
import socket
from typing import Any

import pytest

from emulator.autoscaling.worker_process import worker_environment
from emulator.settings.emulator_settings import EmulatorSettings
from handler.delivery.outbound_targets import OutboundPolicy, TargetRefused, is_loopback, is_public
from handler.settings.worker_settings import WorkerSettings
from handler.worker.local import has_local_platform

EVERYWHERE = "0.0.0.0"  # noqa: S104 - what the setting is about
PUBLIC_ONLY = OutboundPolicy(allows_private=False)


@pytest.mark.parametrize(
    "address",
    [
        *("127.0.0.1", "10.0.0.1", "172.31.0.1", "192.168.0.1", "169.254.169.254", "100.127.0.1"),
        *("0.0.0.0", "224.0.0.1", "240.0.0.1", "255.255.255.255", "198.18.0.1"),  # noqa: S104
        *("::", "::1", "fe80::1", "fec0::1", "fc00::1", "ff02::1", "::ffff:10.0.0.1"),
        *("::a00:1", "64:ff9b::a00:1", "2002:a00:1::", "2001:0:4136:e378:8000:63bf:f5ff:fffe"),
    ],
)
def test_is_public_refuses_this_machine_and_networks(address: str) -> None:
    assert not is_public(ipaddress.ip_address(address))


@pytest.mark.parametrize(
    "address", ["1.1.1.1", "172.32.0.1", "2606:4700::1111", "::ffff:8.8.8.8", "64:ff9b::808:808"]
)
def test_is_public_accepts_addresses_of_the_internet(address: str) -> None:
    assert is_public(ipaddress.ip_address(address))


@pytest.mark.parametrize("host", ["127.0.0.1", "127.9.9.9", "::1", "localhost", "Localhost."])
def test_is_loopback_of_this_machine(host: str) -> None:
    assert is_loopback(host)


@pytest.mark.parametrize("host", ["", "0.0.0.0", "::", "192.168.1.2", "example.com"])  # noqa: S104
def test_is_loopback_is_false_for_every_other_address(host: str) -> None:
    assert not is_loopback(host)


def test_addresses_leave_out_private_ones(monkeypatch: pytest.MonkeyPatch) -> None:
    def lookup(host: str, port: int, **options: Any) -> list[Any]:
        return [(0, 0, 0, "", (each, port)) for each in ("10.0.0.1", "1.1.1.1", "fd00::1")]

    monkeypatch.setattr(socket, "getaddrinfo", lookup)
    assert PUBLIC_ONLY.resolve("both.example", 80) == ["1.1.1.1"]
    assert OutboundPolicy().resolve("both.example", 80) == ["10.0.0.1", "1.1.1.1", "fd00::1"]


def test_message_names_the_host_and_the_setting_but_no_address(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(socket, "getaddrinfo", lambda *_, **__: [(0, 0, 0, "", ("10.0.0.1", 1))])
    with pytest.raises(TargetRefused, match="PRIVATE_TARGETS") as refused:
        PUBLIC_ONLY.resolve("internal.example", 80)
    assert "internal.example" in str(refused.value)
    assert "10.0.0.1" not in str(refused.value)


def test_managed_worker_gets_its_servers_private_targets() -> None:
    url = "http://127.0.0.1:1"
    for allows, setting in ((True, "on"), (False, "off")):
        environment = worker_environment(url, "e", "w", None, allows_private_targets=allows)
        assert environment["PRIVATE_TARGETS"] == setting
    assert not EmulatorSettings(host=EVERYWHERE).outbound_policy().allows_private


@pytest.mark.parametrize(
    ("platform", "allows"),
    [
        ("http://127.0.0.1:8000/v2/x/job-take/$ID", True),
        ("http://localhost:8000/v2/x/job-take/$ID", True),
        ("https://api.runpod.ai/v2/x/job-take/$ID", False),
        ("http://192.168.1.5:8000/v2/x/job-take/$ID", False),
        ("http://[broken", False),
    ],
)
def test_worker_allows_private_targets_only_for_jobs_of_its_own_machine(
    platform: str, allows: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("RUNPOD_WEBHOOK_GET_JOB", platform)
    targets = WorkerSettings().outbound_policy_for(is_local=has_local_platform())
    assert targets.allows_private is allows
