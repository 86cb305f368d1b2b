"""Lint of the permissions of files and sockets."""

import os
import stat
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from types import SimpleNamespace

import pytest

from governor.runtimeproxy.ops.lint import probe_socket, writable_by_others

NOBODY = 65534
FILE, DIRECTORY = stat.S_IFREG, stat.S_IFDIR


@contextmanager
def without_access(directory: Path) -> Iterator[None]:
    """Run as a user without access to a directory; root has access to all."""
    directory.chmod(0)
    user = os.geteuid()
    if user == 0:
        os.seteuid(NOBODY)
    try:
        yield
    finally:
        os.seteuid(user)
        directory.chmod(0o700)


def test_a_socket_without_access_is_reported(tmp_path: Path) -> None:
    private = tmp_path / "private"
    private.mkdir()
    with without_access(private):
        assert probe_socket(private / "plugin.sock") == "cannot be reached: Permission denied"
        assert writable_by_others(private / "plugin.sock") == ""


@pytest.mark.parametrize(
    ("mode", "user", "group", "reason"),
    [
        (FILE | 0o644, 0, 0, ""),
        (FILE | 0o664, 0, 0, ""),
        (FILE | 0o664, 7, 8, ""),
        (FILE | 0o666, 0, 0, "is world-writable (mode 0666)"),
        (FILE | 0o664, 0, 99, "is writable by group 99 (mode 0664)"),
        (FILE | 0o644, 0, 99, ""),
        (FILE | 0o600, 99, 0, "is owned by user 99, who can change it"),
        (DIRECTORY | 0o777, 0, 0, "is world-writable (mode 0777)"),
        (DIRECTORY | 0o1777, 0, 0, ""),
        (DIRECTORY | 0o1775, 0, 99, ""),
        (DIRECTORY | 0o775, 0, 99, "is writable by group 99 (mode 0775)"),
    ],
)
def test_write_access_of_others_is_reported(
    mode: int, user: int, group: int, reason: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(os, "geteuid", lambda: 7)
    monkeypatch.setattr(os, "getegid", lambda: 8)
    found = SimpleNamespace(st_mode=mode, st_uid=user, st_gid=group)
    monkeypatch.setattr(Path, "stat", lambda _path: found)
    assert writable_by_others(Path("/x")) == reason
