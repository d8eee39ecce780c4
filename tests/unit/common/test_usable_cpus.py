"""The CPUs that a process may use, by its affinity and the limits of its cgroups."""

from __future__ import annotations

import os
from collections.abc import Mapping
from pathlib import Path

import pytest

from common.usable_cpus import count_usable_cpus, describe_usable_cpus, find_cpu_limit

V1_GROUPS = (
    "12:cpuset:/docker/1f\n4:cpu,cpuacct:/docker/1f\n1:name=systemd:/docker/1f\n0::/system.slice\n"
)
V1 = "33 31 0:29 {group} /sys/fs/cgroup/cpu,cpuacct rw shared:9 - cgroup cgroup rw,cpu,cpuacct"
CPUSET = "34 31 0:31 / /sys/fs/cgroup/cpuset rw - cgroup cgroup rw,cpuset"
V2 = "30 23 0:26 {group} {folder} rw,relatime - cgroup2 cgroup2 rw,nsdelegate"
# What bind mounts of namespaces look like; their group is no path.
NAMESPACE = "54 23 0:4 mnt:[4026532] /run/docker/netns rw shared:27 - nsfs nsfs rw"
V1_FOLDER = "sys/fs/cgroup/cpu,cpuacct"


@pytest.fixture(autouse=True)
def eight_cpus(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(os, "sched_getaffinity", lambda pid: set(range(8)))


def write(root: Path, files: Mapping[str, str]) -> Path:
    for name, text in files.items():
        path = root / name
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text(text)
    return root


def v1(root: Path, limits: Mapping[str, tuple[str, str]], group: str = "/") -> Path:
    mounts = "\n".join([NAMESPACE, CPUSET, V1.format(group=group)])
    files = {"proc/self/cgroup": V1_GROUPS, "proc/self/mountinfo": f"{mounts}\n"}
    for folder, (quota, period) in limits.items():
        files[f"{V1_FOLDER}{folder}/cpu.cfs_quota_us"] = f"{quota}\n"
        files[f"{V1_FOLDER}{folder}/cpu.cfs_period_us"] = f"{period}\n"
    return write(root, files)


def v2(
    root: Path, group: str, limits: Mapping[str, str], mounted_group: str = "/", folder: str = ""
) -> Path:
    escaped = folder.replace(" ", "\\040")
    mount = V2.format(group=mounted_group, folder=f"/sys/fs/cgroup{escaped}")
    files = {"proc/self/cgroup": f"0::{group}\n", "proc/self/mountinfo": f"{NAMESPACE}\n{mount}\n"}
    files |= {f"sys/fs/cgroup{folder}{path}/cpu.max": f"{text}\n" for path, text in limits.items()}
    return write(root, files)


@pytest.mark.parametrize(
    ("quota", "cpus"), [("200000", 2), ("150000", 2), ("50000", 1), ("1600000", 8), ("-1", 8)]
)
def test_count_usable_cpus_rounds_the_quota_of_version_1_up(
    tmp_path: Path, quota: str, cpus: int
) -> None:
    assert count_usable_cpus(v1(tmp_path, {"/docker/1f": (quota, "100000")})) == cpus


@pytest.mark.parametrize(
    ("text", "cpus"),
    [("300000 100000", 3), ("max 100000", 8), ("1000 1000000", 1), ("75000 50000", 2)],
)
def test_count_usable_cpus_rounds_the_quota_of_version_2_up(
    tmp_path: Path, text: str, cpus: int
) -> None:
    assert count_usable_cpus(v2(tmp_path, "/app.slice", {"/app.slice": text})) == cpus


@pytest.mark.parametrize("limits", [{"/pod": "100000 100000", "/pod/a": "400000 100000"}])
@pytest.mark.parametrize("own", ["max 100000", "600000 100000"])
def test_find_cpu_limit_is_the_lowest_of_all_groups_above(
    tmp_path: Path, limits: Mapping[str, str], own: str
) -> None:
    assert find_cpu_limit(v2(tmp_path, "/pod/a/b", {**limits, "/pod/a/b": own})) == 1


def test_find_cpu_limit_of_version_1_is_that_of_a_group_above(tmp_path: Path) -> None:
    limits = {"": ("-1", "100000"), "/docker": ("250000", "100000"), "/docker/1f": ("-1", "100000")}
    assert find_cpu_limit(v1(tmp_path, limits)) == 2.5


@pytest.mark.parametrize("mounted_group", ["/docker/1f", "/kubepods/other"])
def test_find_cpu_limit_reads_the_mounted_folder_of_a_container(
    tmp_path: Path, mounted_group: str
) -> None:
    """Without a namespace of cgroups, the path of the process is the machine's."""
    root = v1(tmp_path, {"": ("100000", "100000")}, group=mounted_group)
    assert find_cpu_limit(root) == 1


def test_find_cpu_limit_reads_the_group_below_the_mounted_one(tmp_path: Path) -> None:
    limits = {"": "max 100000", "/worker": "200000 100000"}
    assert find_cpu_limit(v2(tmp_path, "/pod/worker", limits, mounted_group="/pod")) == 2


def test_find_cpu_limit_does_not_leave_the_mounted_folder(tmp_path: Path) -> None:
    """A process that was moved out of its namespace has such a path."""
    limits = {"": "300000 100000", "/../other": "100000 100000"}
    assert find_cpu_limit(v2(tmp_path, "/../other", limits)) == 3


def test_find_cpu_limit_finds_a_mount_with_a_space_and_a_group_with_a_colon(tmp_path: Path) -> None:
    root = v2(tmp_path, "/app:1", {"/app:1": "200000 100000"}, folder="/my groups")
    assert find_cpu_limit(root) == 2


def test_find_cpu_limit_of_a_hybrid_system_is_that_of_version_1(tmp_path: Path) -> None:
    v1(tmp_path, {"/docker/1f": ("400000", "100000")})
    mountinfo = tmp_path / "proc/self/mountinfo"
    unified = V2.format(group="/", folder="/sys/fs/cgroup/unified")
    mountinfo.write_text(f"{unified}\n{mountinfo.read_text()}")
    write(tmp_path, {"sys/fs/cgroup/unified/system.slice/cgroup.procs": "1\n"})
    assert find_cpu_limit(tmp_path) == 4


@pytest.mark.parametrize("text", ["", "max", "200000", "x 100000", "0 100000", "200000 0", "-1 -1"])
def test_find_cpu_limit_ignores_files_without_a_limit(tmp_path: Path, text: str) -> None:
    assert find_cpu_limit(v2(tmp_path, "/a", {"/a": text})) is None


@pytest.mark.parametrize(
    "missing",
    ["proc/self/cgroup", "proc/self/mountinfo", f"{V1_FOLDER}/docker/1f/cpu.cfs_quota_us"],
)
def test_find_cpu_limit_ignores_missing_and_unreadable_files(tmp_path: Path, missing: str) -> None:
    root = v1(tmp_path, {"/docker/1f": ("100000", "100000")})
    assert count_usable_cpus(root) == 1
    (root / missing).unlink()
    assert count_usable_cpus(root) == 8
    (root / missing).mkdir()
    assert count_usable_cpus(root) == 8


def test_find_cpu_limit_ignores_lines_that_it_cannot_read(tmp_path: Path) -> None:
    root = v1(tmp_path, {"/docker/1f": ("100000", "100000")})
    for name in ("cgroup", "mountinfo"):
        path = root / "proc/self" / name
        path.write_text(f"\nx\n1:2\n - cgroup\n{path.read_text()}")
    assert find_cpu_limit(root) == 1


def test_describe_usable_cpus_names_the_limit_that_is_below_the_affinity(tmp_path: Path) -> None:
    assert describe_usable_cpus(tmp_path) == "8"
    text = describe_usable_cpus(v1(tmp_path, {"/docker/1f": ("200000", "100000")}))
    assert text == "2 (CPU limit of the container or service; without it 8)"
