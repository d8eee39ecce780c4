"""A small Debian in a folder, for tests that need a machine with nothing else installed."""

from __future__ import annotations

import os
import re
import shutil
import subprocess
import sys
from collections.abc import Mapping, Sequence
from pathlib import Path

_LIMIT_S = 600
_CERTIFICATES = Path("/etc/ssl/certs/ca-certificates.crt")
_INDEX_OPTIONS = ("INDEX_URL", "EXTRA_INDEX_URL", "FIND_LINKS", "TRUSTED_HOST")


def debootstrap(root: Path, packages: Sequence[str], *options: str) -> None:
    """Install a minimal Debian with these packages into an empty folder, as root.

    It gets this machine's certificates and name servers, so that it reaches the same hosts.
    """
    suite, address = mirror()
    subprocess.run(
        [
            "debootstrap",
            "--variant=minbase",
            f"--include={','.join(packages)}",
            *options,
            suite,
            root,
            address,
        ],
        env={
            **os.environ,
            "PATH": f"{os.environ['PATH']}:/usr/sbin:/sbin",
            # The folder is temporary: no file has to survive a power cut.
            "DPKG_FORCE": "unsafe-io,security-mac,downgrade",
        },
        stdout=subprocess.DEVNULL,
        check=True,
        timeout=_LIMIT_S,
    )
    (root / "etc/ssl/certs").mkdir(parents=True, exist_ok=True)
    shutil.copy(_CERTIFICATES, root / "etc/ssl/certs")
    for name in ("resolv.conf", "hosts"):
        shutil.copy(f"/etc/{name}", root / "etc" / name)


def mirror() -> tuple[str, str]:
    """Return suite and address of the Debian that apt is configured for."""
    texts = [path.read_text() for path in Path("/etc/apt").rglob("*.sources")]
    for paragraph in re.split(r"\n\s*\n", "\n\n".join(texts)):
        fields = dict(re.findall(r"^(\S+): (.+)$", paragraph, re.M))
        if "debian-archive-keyring" in fields.get("Signed-By", ""):
            return fields["Suites"].split()[0], fields["URIs"].split()[0]
    lists = [Path("/etc/apt/sources.list"), *Path("/etc/apt/sources.list.d").glob("*.list")]
    for line in "\n".join(path.read_text() for path in lists if path.is_file()).splitlines():
        if match := re.match(r"deb (?:\[.*?\] )?(\S*debian/?) (\w+) .*main", line):
            return match[2], match[1]
    raise AssertionError("apt is configured for no mirror of Debian")


def package_index() -> Mapping[str, str]:
    """Return the variables for the package index that pip, uv and npm use on this machine.

    Folders in pip's configuration are left out: they do not exist inside another root.
    """
    listed = subprocess.run(
        [sys.executable, "-m", "pip", "config", "list"],
        capture_output=True,
        text=True,
        check=True,
        timeout=60,
    ).stdout
    configured = {
        name.rpartition(".")[2].upper().replace("-", "_"): value
        for name, value in re.findall(r"^([\w.:-]+)='(.*)'$", listed, re.M)
    }
    variables = {
        f"PIP_{name}": " ".join(url for url in configured[name].split() if url.startswith("http"))
        for name in _INDEX_OPTIONS
        if name in configured
    }
    passed_on = {
        name: value
        for name, value in os.environ.items()
        if name.lower().endswith("_proxy")
        or name.upper() in ("NPM_CONFIG_REGISTRY", "UV_DEFAULT_INDEX", "UV_INDEX", "UV_INDEX_URL")
    }
    return {
        **passed_on,
        **{name: value for name, value in variables.items() if value},
        "PIP_CERT": str(_CERTIFICATES),
        "SSL_CERT_FILE": str(_CERTIFICATES),
        "NODE_EXTRA_CA_CERTS": str(_CERTIFICATES),
    }


def mounts(folder: Path) -> list[str]:
    """Return the lines of /proc/mounts for mounts inside a folder."""
    return [line for line in Path("/proc/mounts").read_text().splitlines() if str(folder) in line]
