"""Kernel facts about a process: inotify watches, listening sockets, command line.

They come from /proc, listening sockets from netlink: /proc/net/tcp has every connection of the machine and takes tens
of milliseconds to read. An unreadable process yields no facts.
"""

import contextlib
import itertools
import os
import re
import socket
import struct
import sys
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Final

_WATCH: Final = re.compile(r"^inotify wd:\S+ ino:(?P<inode>[0-9a-f]+) sdev:(?P<device>[0-9a-f]+) ", re.MULTILINE)
_SOCKET: Final = re.compile(r"socket:\[(\d+)\]")
_MINOR_BITS: Final = 20
_TABLES: Final = (Path("/proc/net/tcp"), Path("/proc/net/tcp6"))
_LISTENER: Final = r"^ *\d+: [0-9A-F]+:{port:04X} [0-9A-F:]+ 0A (?:\S+ +){{5}}(\d+) "
"""A row of /proc/net/tcp in state LISTEN; the group is the inode."""
_NETLINK_SOCK_DIAG: Final = 4
_SOCK_DIAG_BY_FAMILY: Final = 20
_DUMP: Final = 0x301
"""NLM_F_REQUEST and NLM_F_DUMP."""
_LISTEN: Final = 1 << 10
_HEADER: Final = struct.Struct("=IHHII")
"""Length, type, flags, sequence number and port of a netlink message."""
_QUERY: Final = struct.Struct("=BBxxI2s46x")
"""An inet_diag_req_v2: family, protocol, states, source port."""
_ANSWER: Final = struct.Struct("=4x2s62xI")
"""An inet_diag_msg: source port, inode."""
_NLMSG_ERROR: Final = 2
_NLMSG_DONE: Final = 3
_RECEIVED_BYTES: Final = 64 * 1024


def has_watch(pid: int, directory: Path) -> bool:
    """Return whether the process has an inotify watch on this directory."""
    try:
        expected = directory.stat()
    except OSError:
        return False
    infos = _read_entries(Path(f"/proc/{pid}/fdinfo"), Path.read_text)
    found = {(int(match["inode"], 16), int(match["device"], 16)) for info in infos for match in _WATCH.finditer(info)}
    device = os.major(expected.st_dev) << _MINOR_BITS | os.minor(expected.st_dev)
    # On file systems without a block device, stat may return another device number than fdinfo.
    anonymous = os.major(expected.st_dev) == 0
    return any(inode == expected.st_ino and (anonymous or found_device == device) for inode, found_device in found)


def listening_socket(pid: int, port: int) -> int:
    """Return the inode of the socket on which the process listens on a port, or 0.

    A program that restarts within its process listens on a new socket.
    """
    listeners = _listeners(port)
    return min(listeners & open_sockets(pid), default=0) if listeners else 0


def open_sockets(pid: int) -> set[int]:
    """Return the inodes of the sockets that a process has open."""
    links = _read_entries(Path(f"/proc/{pid}/fd"), lambda each: str(each.readlink()))
    return {int(match[1]) for match in map(_SOCKET.fullmatch, links) if match}


def listening_pid(port: int) -> int:
    """Return the pid of the process that listens on a port of this network namespace, or 0."""
    listeners = _listeners(port)
    pids = (int(entry.name) for entry in Path("/proc").iterdir() if entry.name.isdecimal()) if listeners else ()
    return next((pid for pid in pids if listeners & open_sockets(pid)), 0)


def _listeners(port: int) -> set[int]:
    """Return the inodes of the sockets that listen on a port of this network namespace.

    An inode is unique among all namespaces, a port is not: a container's process may listen on the same one.
    """
    try:
        return {inode for family in (socket.AF_INET, socket.AF_INET6) for inode in _diagnosed(family, port)}
    except OSError:  # no such netlink protocol in this kernel or sandbox
        return _tabulated(port)


def _diagnosed(family: int, port: int) -> Iterator[int]:
    source = port.to_bytes(2)
    query = _QUERY.pack(family, socket.IPPROTO_TCP, _LISTEN, source)
    with socket.socket(socket.AF_NETLINK, socket.SOCK_RAW, _NETLINK_SOCK_DIAG) as netlink:
        netlink.send(_HEADER.pack(_HEADER.size + len(query), _SOCK_DIAG_BY_FAMILY, _DUMP, 0, 0) + query)
        while True:
            for kind, message in _messages(netlink.recv(_RECEIVED_BYTES)):
                if kind == _NLMSG_DONE:
                    return
                if kind == _NLMSG_ERROR:
                    raise OSError(-int.from_bytes(message[:4], sys.byteorder, signed=True), "sock_diag")
                found, inode = _ANSWER.unpack_from(message)
                if found == source:
                    yield inode


def _messages(data: bytes) -> Iterator[tuple[int, bytes]]:
    """Yield type and content of each netlink message."""
    while data:
        length, kind, *_ = _HEADER.unpack_from(data)
        yield kind, data[_HEADER.size : length]
        data = data[-(-length // 4) * 4 :]


def _tabulated(port: int) -> set[int]:
    row = re.compile(_LISTENER.format(port=port), re.MULTILINE)
    found: set[int] = set()
    for table in _TABLES:
        with contextlib.suppress(OSError):  # there is none without IPv6
            found.update(map(int, row.findall(table.read_text())))
    return found


def has_flag(pid: int, directory: Path, flag: str) -> bool:
    """Return whether the command line passes this directory to ``flag``, resolved as the process resolves it."""
    try:
        arguments = Path(f"/proc/{pid}/cmdline").read_bytes().decode(errors="replace").split("\0")
        expected = directory.stat()
    except OSError:
        return False
    return any(_is_same(pid, path, expected) for path in _values(arguments, flag))


def _read_entries(directory: Path, read: Callable[[Path], str]) -> set[str]:
    """Read each entry; entries that vanish meanwhile are skipped."""
    found = set()
    with contextlib.suppress(OSError):
        for entry in directory.iterdir():
            with contextlib.suppress(OSError):
                found.add(read(entry))
    return found


def _values(arguments: list[str], flag: str) -> list[str]:
    joined = [word.removeprefix(f"{flag}=") for word in arguments if word.startswith(f"{flag}=")]
    return joined + [value for word, value in itertools.pairwise(arguments) if word == flag]


def _is_same(pid: int, path: str, expected: os.stat_result) -> bool:
    start = "root" if path.startswith("/") else "cwd"
    try:
        return os.path.samestat(Path(f"/proc/{pid}/{start}/{path.lstrip('/')}").stat(), expected)
    except OSError:
        return False
