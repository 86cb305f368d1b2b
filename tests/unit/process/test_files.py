"""Atomic writes, durable removal, and the exclusive lock."""

import errno
import os
import signal
import stat
import subprocess
import sys
from pathlib import Path

import pytest

from governor.errors import GovernorError, Kind
from governor.process.files import (
    commit_all,
    exclusive_lock,
    remove_durable,
    remove_temporary_files,
    stage,
    write_atomic,
)

IN_USE = GovernorError(Kind.CONFLICT, "in-use", "already in use")

HOLDER = """
import pathlib, sys, time
from governor.errors import GovernorError, Kind
from governor.process.files import exclusive_lock
with exclusive_lock(pathlib.Path(sys.argv[1]), GovernorError(Kind.CONFLICT, "", "")):
    print("held", flush=True)
    time.sleep(600)
"""


def test_a_write_replaces_the_content_and_leaves_nothing_else(tmp_path: Path) -> None:
    target = tmp_path / "state.json"
    write_atomic(target, b"old")
    write_atomic(target, b"new")
    assert target.read_bytes() == b"new"
    assert list(tmp_path.iterdir()) == [target]


@pytest.mark.parametrize("mode", [0o600, 0o644])
def test_the_mode_is_exact_whatever_the_umask(tmp_path: Path, mode: int) -> None:
    before = os.umask(0o077)
    try:
        write_atomic(tmp_path / "key", b"x", mode=mode)
    finally:
        os.umask(before)
    assert stat.S_IMODE((tmp_path / "key").stat().st_mode) == mode


def test_file_and_directory_are_synced_before_and_after_the_rename(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    steps: list[str] = []
    sync, replace = os.fsync, Path.replace

    def recorded_sync(descriptor: int) -> None:
        steps.append("directory" if stat.S_ISDIR(os.fstat(descriptor).st_mode) else "file")
        sync(descriptor)

    def recorded_replace(self: Path, target: Path) -> Path:
        steps.append("rename")
        return replace(self, target)

    monkeypatch.setattr(os, "fsync", recorded_sync)
    monkeypatch.setattr(Path, "replace", recorded_replace)
    write_atomic(tmp_path / "state", b"x")
    assert steps == ["file", "rename", "directory"]

    steps.clear()
    commit_all([stage(tmp_path / name, b"y") for name in ("one", "state")])
    assert steps == ["file", "file", "rename", "rename", "directory"]
    assert [(tmp_path / name).read_bytes() for name in ("one", "state")] == [b"y", b"y"]


@pytest.mark.parametrize("code", [errno.ENOSPC, errno.EDQUOT])
def test_a_full_disk_keeps_the_old_content_and_is_reported(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, code: int
) -> None:
    target = tmp_path / "state"
    write_atomic(target, b"old")

    def full(_descriptor: int) -> None:
        raise OSError(code, os.strerror(code))

    monkeypatch.setattr(os, "fsync", full)
    with pytest.raises(GovernorError, match="free space") as caught:
        write_atomic(target, b"new")
    assert caught.value.kind is Kind.EXHAUSTED
    assert target.read_bytes() == b"old"
    assert list(tmp_path.iterdir()) == [target]


def test_a_missing_directory_is_an_error_that_names_the_file(tmp_path: Path) -> None:
    target = tmp_path / "absent" / "state"
    with pytest.raises(GovernorError, match=str(target)) as caught:
        write_atomic(target, b"x")
    assert caught.value.kind is Kind.PRECONDITION


def test_the_temporary_file_is_hidden_and_beside_its_target(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    seen: list[Path] = []
    monkeypatch.setattr(os, "fsync", lambda _descriptor: seen.extend(tmp_path.iterdir()))
    write_atomic(tmp_path / "pubsub.yaml", b"x")
    assert seen[0].name.startswith(".pubsub.yaml.")
    assert seen[0].suffix not in (".yaml", ".yml")


def test_staged_content_changes_nothing_until_it_is_committed(tmp_path: Path) -> None:
    target = tmp_path / "state"
    write_atomic(target, b"old")
    staged = stage(target, b"new")
    assert target.read_bytes() == b"old"
    staged.commit()
    staged.discard()
    assert target.read_bytes() == b"new"
    stage(target, b"newer").discard()
    assert (target.read_bytes(), list(tmp_path.iterdir())) == (b"new", [target])


def test_only_leftover_temporary_files_are_removed(tmp_path: Path) -> None:
    stage(tmp_path / "a.yaml", b"secret")
    others = {".hidden", ".a.yaml.swp", "a.yaml.0123abcd.tmp", ".a.0123ABCD.tmp", ".a.yaml.0123abcd.tmp.yaml"}
    for name in others:
        (tmp_path / name).touch()
    (tmp_path / ".directory.0123abcd.tmp").mkdir()
    remove_temporary_files(tmp_path)
    assert {path.name for path in tmp_path.iterdir()} == {*others, ".directory.0123abcd.tmp"}


def test_removing_returns_whether_the_file_existed(tmp_path: Path) -> None:
    target = tmp_path / "state"
    write_atomic(target, b"x")
    assert remove_durable(target) is True
    assert remove_durable(target) is False
    assert list(tmp_path.iterdir()) == []


def test_removing_a_directory_is_rejected(tmp_path: Path) -> None:
    (tmp_path / "directory").mkdir()
    with pytest.raises(GovernorError, match="cannot remove"):
        remove_durable(tmp_path / "directory")


def test_a_lock_that_is_held_is_rejected_until_it_is_released(tmp_path: Path) -> None:
    path = tmp_path / "lock"
    with (
        exclusive_lock(path, IN_USE),
        pytest.raises(GovernorError, match="already in use"),
        exclusive_lock(path, IN_USE),
    ):
        pytest.fail("the lock was taken twice")
    with exclusive_lock(path, IN_USE):
        assert path.stat().st_mode & 0o777 == 0o600


def test_a_killed_process_releases_its_lock(tmp_path: Path) -> None:
    path = tmp_path / "lock"
    with subprocess.Popen([sys.executable, "-c", HOLDER, str(path)], stdout=subprocess.PIPE) as holder:
        assert holder.stdout is not None
        assert holder.stdout.readline() == b"held\n"
        with pytest.raises(GovernorError, match="already in use"), exclusive_lock(path, IN_USE):
            pytest.fail("two processes hold the lock")
        holder.send_signal(signal.SIGKILL)
        holder.wait()
        with exclusive_lock(path, IN_USE):
            pass


def test_an_error_raised_while_holding_the_lock_passes_unchanged(tmp_path: Path) -> None:
    with pytest.raises(BlockingIOError), exclusive_lock(tmp_path / "lock", IN_USE):
        raise BlockingIOError


def test_a_lock_file_that_cannot_be_opened_is_named(tmp_path: Path) -> None:
    path = tmp_path / "absent" / "lock"
    with pytest.raises(GovernorError, match=str(path)), exclusive_lock(path, IN_USE):
        pytest.fail("locked a file in an absent directory")
