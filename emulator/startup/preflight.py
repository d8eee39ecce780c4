"""Check the address, the job database and the batch folder before anything is started.

A second server on the same port or database is the most common mistake at start. It is reported in
one sentence, before a model is loaded or a file is created.
"""

from __future__ import annotations

import errno
import os
import socket
import stat
from collections.abc import Sequence
from pathlib import Path

from common.private_files import is_read_only, suggest_owner
from common.setting_error import SettingError
from emulator.batches.folder_layout import LOCK, explain_refusal
from emulator.http.allowed_hosts import is_loopback
from emulator.settings.emulator_settings import IN_MEMORY, EmulatorSettings
from jobs.sqlite.database_file import check_hard_links, find_user, is_locked, real_path

# Uvicorn's own default.
_BACKLOG = 2048
# The last port that only root may listen on.
_LAST_PRIVILEGED_PORT = 1023


def listening_sockets(
    host: str, port: int, port_setting: str = "--port or PORT"
) -> list[socket.socket]:
    """Return sockets that listen on every address of a host; port 0 is one free port for all.

    The sockets listen already, because two programs can bind the same address if neither listens.
    Clients that connect before the server is ready wait for it. `port_setting` is how errors name
    the port. Raises SettingError.
    """
    try:
        addresses = socket.getaddrinfo(
            host or None, port, type=socket.SOCK_STREAM, flags=socket.AI_PASSIVE
        )
    except (OSError, UnicodeError) as error:
        reason = error.strerror if isinstance(error, OSError) else "it is no host name"
        raise SettingError(
            f"the address {host} cannot be found ({reason}); choose another one with --host or HOST"
        ) from None
    sockets: list[socket.socket] = []
    try:
        for family, kind, protocol, _, address in dict.fromkeys(addresses):
            sock = socket.socket(family, kind, protocol)
            sockets.append(sock)
            sock.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
            if family == socket.AF_INET6:
                sock.setsockopt(socket.IPPROTO_IPV6, socket.IPV6_V6ONLY, 1)
            chosen = port or (sockets[0].getsockname()[1] if len(sockets) > 1 else 0)
            sock.bind((address[0], chosen, *address[2:]))
            sock.listen(_BACKLOG)
            sock.setblocking(False)
    except OSError as error:
        for sock in sockets:
            sock.close()
        raise SettingError(_bind_error(error, host, port, port_setting)) from None
    return sockets


def check_exposure(settings: EmulatorSettings, sockets: Sequence[socket.socket]) -> None:
    """Check that a server that other machines can reach requires a key, or allows access without.

    The addresses are taken from the listening `sockets`, because HOST may be a name. Raises
    SettingError.
    """
    if settings.keys() or settings.allow_no_api_key:
        return
    addresses = [sock.getsockname()[0] for sock in sockets]
    exposed = [address for address in addresses if not is_loopback(address)]
    if not exposed:
        return
    for sock in sockets:
        sock.close()
    raise SettingError(
        f"HOST: other machines can reach {exposed[0]}, and without API_KEYS they could use the "
        "server; set API_KEYS, or set ALLOW_NO_API_KEY=on if that is meant"
    )


def _bind_error(error: OSError, host: str, port: int, port_setting: str) -> str:
    if error.errno == errno.EADDRINUSE:
        return (
            f"port {port} on {host} is in use by another program; "
            f"stop it or choose another port with {port_setting}"
        )
    if error.errno in (errno.EACCES, errno.EPERM):
        why = "only root may listen below 1024" if port <= _LAST_PRIVILEGED_PORT else "not allowed"
        return (
            f"port {port} on {host} cannot be listened on ({why}); "
            f"choose another port with {port_setting}"
        )
    if error.errno == errno.EADDRNOTAVAIL:
        return (
            f"{host} is not an address of this machine; choose one that is with --host or HOST, "
            "127.0.0.1 for this machine alone or 0.0.0.0 for all its addresses"
        )
    return f"port {port} on {host} cannot be listened on: {error.strerror}; change HOST or PORT"


def check_files(settings: EmulatorSettings) -> None:
    """Check that no other server uses the job database or batch folder, and that both can be used.

    Creates and changes nothing. Two servers that start in the same moment may both pass; the
    journal, the store process and the batch folder take locks of their own. Raises SettingError.
    """
    if settings.job_db != IN_MEMORY:
        _check_database(Path(settings.job_db))
    folder = settings.batch_folder()
    if folder is not None:
        _check_batch_folder(folder)


def _check_database(path: Path) -> None:
    remedy = "choose another one with --db or JOB_DB"
    path = real_path(path)
    _check_reachable(path, f"the job database {path}", remedy)
    _check_parent(path, "the job database", remedy)
    if path.is_dir():
        raise SettingError(f"the job database {path} is a folder; {remedy}")
    if path.exists() and not path.is_file():
        raise SettingError(f"the job database {path} is not a regular file; {remedy}")
    if path.exists() and not os.access(path, os.R_OK | os.W_OK):
        raise _unwritable(f"the job database {path} cannot be written", path, remedy, suffix="*")
    try:
        _check_owner(path, f"the job database {path}", remedy, suffix="*")
        is_used, owner = find_user(path)
    except OSError as error:
        problem = f"the job database {path} cannot be opened: {error.strerror}"
        raise _unwritable(problem, Path(error.filename or path), remedy) from None
    if is_used:
        process = "" if owner is None else f" (process {owner})"
        raise SettingError(
            f"the job database {path} is in use by another server{process}; stop it or {remedy}"
        )
    if (reason := check_hard_links(path)) is not None:
        raise SettingError(f"the job database {path} is refused: {reason}")


def _check_batch_folder(folder: Path) -> None:
    remedy = "choose another one with BATCH_DIR"
    _check_reachable(folder, f"the batch folder {folder}", remedy)
    if folder.exists() and not folder.is_dir():
        raise SettingError(f"the batch folder {folder} is a file; {remedy}")
    if folder.is_dir():
        if not os.access(folder, os.W_OK | os.X_OK):
            problem = f"the batch folder {folder} cannot be written"
            raise _unwritable(problem, folder, remedy, option="-R")
        try:
            _check_owner(folder, f"the batch folder {folder}", remedy, option="-R")
            is_used = is_locked(folder / LOCK)
            reason = explain_refusal(folder)
        except OSError as error:
            problem = f"the batch folder {folder} cannot be read: {error.strerror}"
            raise _unwritable(problem, Path(error.filename or folder), remedy) from None
        if is_used:
            raise SettingError(
                f"the batch folder {folder} is in use by another server; stop it or {remedy}"
            )
        if reason is not None:
            raise SettingError(f"the batch folder {folder} (BATCH_DIR) is refused: {reason}")
        return
    # Missing folders above it are made with it.
    above = folder.absolute()
    while not above.exists():
        above = above.parent
    if not (above.is_dir() and os.access(above, os.W_OK | os.X_OK)):
        raise _unwritable(f"the batch folder {folder} cannot be created in {above}", above, remedy)


def _check_parent(path: Path, what: str, remedy: str) -> None:
    parent = path.absolute().parent
    if not parent.is_dir():
        raise SettingError(
            f"{what} {path} cannot be created: there is no folder {parent}; {remedy}"
        )
    if not os.access(parent, os.W_OK | os.X_OK):
        problem = f"{what} {path} cannot be created: the folder {parent} is not writable"
        raise _unwritable(problem, parent, remedy)


def _check_reachable(path: Path, what: str, remedy: str) -> None:
    """Reject a path below a folder that this process may not enter."""
    for folder in reversed(path.absolute().parents):
        if not os.access(folder, os.F_OK):
            # It is missing.
            return
        if folder.is_dir() and not os.access(folder, os.X_OK):
            problem = f"{what} cannot be reached: the folder {folder} may not be entered"
            raise _unwritable(problem, folder, remedy)


def _unwritable(
    problem: str, path: Path, remedy: str, *, option: str = "", suffix: str = ""
) -> SettingError:
    """Return an error about a path, with the command that makes this user its owner if that helps.

    `option` and `suffix` are those of `suggest_owner`.
    """
    if is_read_only(path):
        return SettingError(f"{problem}: it is mounted read-only; mount it writable or {remedy}")
    owner = suggest_owner(path, option=option, suffix=suffix)
    return SettingError(f"{problem}; {remedy}" + (f", or {owner}" if owner else ""))


def _check_owner(path: Path, what: str, remedy: str, *, option: str = "", suffix: str = "") -> None:
    """Reject a path that other users can access and whose mode this process cannot change.

    Raises OSError.
    """
    if not path.exists():
        return
    status = path.stat()
    is_open_to_others = stat.S_IMODE(status.st_mode) & ~stat.S_IRWXU
    if is_open_to_others and status.st_uid != os.geteuid() and os.geteuid() != 0:
        mode = f"mode {stat.S_IMODE(status.st_mode):04o}"
        problem = f"{what} belongs to another user and is open to others ({mode})"
        raise _unwritable(problem, path, remedy, option=option, suffix=suffix)
