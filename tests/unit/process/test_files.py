"""Writes that are whole or not there."""

import errno
import os
import stat
from pathlib import Path

import pytest

from governor.errors import GovernorError, Kind
from governor.process.files import remove_durable, stage, sweep, write_atomic


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

    def noted_sync(descriptor: int) -> None:
        steps.append("directory" if stat.S_ISDIR(os.fstat(descriptor).st_mode) else "file")
        sync(descriptor)

    def noted_replace(self: Path, target: Path) -> Path:
        steps.append("rename")
        return replace(self, target)

    monkeypatch.setattr(os, "fsync", noted_sync)
    monkeypatch.setattr(Path, "replace", noted_replace)
    write_atomic(tmp_path / "state", b"x")
    assert steps == ["file", "rename", "directory"]


@pytest.mark.parametrize("code", [errno.ENOSPC, errno.EDQUOT])
def test_a_full_disk_keeps_the_old_content_and_says_so(
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


def test_what_is_staged_changes_nothing_until_it_is_committed(tmp_path: Path) -> None:
    target = tmp_path / "state"
    write_atomic(target, b"old")
    staged = stage(target, b"new")
    assert target.read_bytes() == b"old"
    staged.commit()
    staged.discard()
    assert target.read_bytes() == b"new"
    stage(target, b"newer").discard()
    assert (target.read_bytes(), list(tmp_path.iterdir())) == (b"new", [target])


def test_sweeping_removes_what_was_left_half_written_and_nothing_else(tmp_path: Path) -> None:
    stage(tmp_path / "a.yaml", b"secret")
    others = {".hidden", ".a.yaml.swp", "a.yaml.0123abcd.tmp", ".a.0123ABCD.tmp", ".a.yaml.0123abcd.tmp.yaml"}
    for name in others:
        (tmp_path / name).touch()
    (tmp_path / ".directory.0123abcd.tmp").mkdir()
    sweep(tmp_path)
    assert {path.name for path in tmp_path.iterdir()} == {*others, ".directory.0123abcd.tmp"}


def test_removing_says_whether_there_was_something(tmp_path: Path) -> None:
    target = tmp_path / "state"
    write_atomic(target, b"x")
    assert remove_durable(target) is True
    assert remove_durable(target) is False
    assert list(tmp_path.iterdir()) == []


def test_removing_a_directory_is_refused(tmp_path: Path) -> None:
    (tmp_path / "directory").mkdir()
    with pytest.raises(GovernorError, match="cannot remove"):
        remove_durable(tmp_path / "directory")
