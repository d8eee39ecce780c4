"""`volume_mount.py DIR COMMAND…`: run a command for which the folder is `/runpod-volume`.

The mount is in a namespace of this process, so no other process sees it, and it ends with the
command. Without root's rights it needs a user namespace too. Where `/` has no folder
`/runpod-volume`, the command gets a root folder of its own, with the entries of `/` and this one,
so that nothing has to be created on the machine.

It is run as a file by an interpreter without site-packages, to save time and memory.
"""

from __future__ import annotations

import ctypes
import os
import sys
from typing import Any

VOLUME = "/runpod-volume"
EXIT_NOT_MOUNTED = 126
# Any folder that exists everywhere: the new root has its content again.
_NEW_ROOT = "/tmp"  # noqa: S108 - nothing is written into it
_OLD_ROOT = "/.worker-rkllm-old-root"
_CLONE_NEWNS, _CLONE_NEWUSER = 0x00020000, 0x10000000
_MS_RDONLY, _MS_NOSUID, _MS_NODEV, _MS_REMOUNT = 1, 2, 4, 32
_MS_BIND, _MS_REC, _MS_SLAVE = 1 << 12, 1 << 14, 1 << 19
_MNT_DETACH = 2


def main(folder: str, command: list[str]) -> int:
    """Mount the folder and replace this process by the command; return only if that fails."""
    try:
        mount_volume(folder)
    except OSError as error:
        sys.stderr.write(f"{folder} cannot be mounted at {VOLUME}: {error.strerror or error}\n")
        return EXIT_NOT_MOUNTED
    os.execv(command[0], command)  # noqa: S606 - the command is the server's own


def mount_volume(folder: str) -> None:
    """Mount a folder at `/runpod-volume` for this process and its children. Raises OSError."""
    if sys.platform != "linux":
        raise OSError("this needs Linux")
    has_target = os.path.isdir(VOLUME)
    if has_target and os.path.samefile(folder, VOLUME):
        return
    libc = ctypes.CDLL(None, use_errno=True)
    user, group = os.geteuid(), os.getegid()
    if libc.unshare(_CLONE_NEWNS) != 0:
        _call(libc.unshare, _CLONE_NEWNS | _CLONE_NEWUSER)
        # The kernel accepts the groups of an ordinary user only after `deny`.
        _write("/proc/self/setgroups", "deny")
        _write("/proc/self/uid_map", f"{user} {user} 1")
        _write("/proc/self/gid_map", f"{group} {group} 1")
    # Mounts of the machine still appear here, but those of this process do not spread to it.
    _mount(libc, None, "/", _MS_REC | _MS_SLAVE)
    if not has_target:
        _replace_root(libc)
    _mount(libc, folder, VOLUME, _MS_BIND | _MS_REC)


def _replace_root(libc: ctypes.CDLL) -> None:
    """Change to a root folder with the entries of the old one and an empty `/runpod-volume`.

    It is read-only, because a file written directly into it would be lost with this process.
    """
    working_folder = os.getcwd()
    _mount(libc, "tmpfs", _NEW_ROOT, _MS_NOSUID | _MS_NODEV, kind=b"tmpfs", options=b"mode=755")
    os.mkdir(f"{_NEW_ROOT}{_OLD_ROOT}")
    # Not chroot, after which a program could not make user namespaces, as browsers do.
    _call(libc.pivot_root, _NEW_ROOT.encode(), f"{_NEW_ROOT}{_OLD_ROOT}".encode())
    os.chdir("/")
    for entry in os.scandir(_OLD_ROOT):
        target = f"/{entry.name}"
        if target == VOLUME:
            continue
        if entry.is_symlink():
            os.symlink(os.readlink(entry), target)
            continue
        if entry.is_dir():
            os.mkdir(target)
        else:
            _write(target, "")
        _mount(libc, entry.path, target, _MS_BIND | _MS_REC)
    _call(libc.umount2, _OLD_ROOT.encode(), _MNT_DETACH)
    os.rmdir(_OLD_ROOT)
    os.mkdir(VOLUME)
    _mount(libc, None, "/", _MS_REMOUNT | _MS_BIND | _MS_RDONLY | _MS_NOSUID | _MS_NODEV)
    os.chdir(working_folder)


def _mount(
    libc: ctypes.CDLL,
    source: str | None,
    target: str,
    flags: int,
    *,
    kind: bytes | None = None,
    options: bytes | None = None,
) -> None:
    path = None if source is None else os.fsencode(source)
    _call(libc.mount, path, os.fsencode(target), kind, ctypes.c_ulong(flags), options)


def _call(function: Any, *arguments: object) -> None:
    """Call a function of libc. Raises OSError if it fails."""
    if function(*arguments) != 0:
        reason = os.strerror(ctypes.get_errno())
        raise OSError(f"the kernel refuses it ({function.__name__}: {reason})")


def _write(path: str, text: str) -> None:
    with open(path, "w") as file:
        file.write(text)


if __name__ == "__main__":
    sys.exit(main(sys.argv[1], sys.argv[2:]))
