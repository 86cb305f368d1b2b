"""Whose turn the machine's one cluster is: waiting, refusing, and what a killed holder leaves to the next."""

import asyncio
import subprocess
import sys
from collections.abc import Callable, Iterator
from dataclasses import replace
from pathlib import Path

import pytest

from testbed.cluster import leftovers, requisites, turn
from testbed.cluster.turn import Holder
from testbed.waiting import until
from toolchain.errors import TestbedError

GUARD = "import sys; print(flush=True); sys.stdin.read()"

Hold = Callable[[Holder], "subprocess.Popen[bytes]"]


@pytest.fixture(autouse=True)
def own_lock(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """A lock of the test's own: the machine's may be in use."""
    monkeypatch.setattr(turn, "LOCK", tmp_path / "lock")


@pytest.fixture
def holder(tmp_path: Path) -> Holder:
    return Holder("the tests of somebody else", 0, str(tmp_path / "state"))


@pytest.fixture
def hold() -> Iterator[Hold]:
    """Let a process hold the lock as a guard does, until it is killed."""
    guards = []

    def start(holder: Holder) -> "subprocess.Popen[bytes]":
        lock = turn.take()
        assert lock is not None
        with lock:
            # Only its command line is a guard's.
            argv = [sys.executable, "-c", GUARD, "testbed.cluster.guard", f"--directory={holder.directory}"]
            guard = subprocess.Popen(argv, stdin=subprocess.PIPE, stdout=subprocess.PIPE, pass_fds=[lock.fileno()])
            guards.append(guard)
            # A process that has only just begun shows no command line for a moment.
            assert guard.stdout is not None
            assert guard.stdout.readline() == b"\n"
            turn.write(lock, replace(holder, guard=guard.pid))
        return guard

    yield start
    for guard in guards:
        guard.kill()
        guard.communicate()


async def test_who_waits_says_for_whom_once_and_gets_its_turn_when_the_other_has_ended(
    hold: Hold, holder: Holder
) -> None:
    guard = hold(holder)
    said: list[str] = []

    async def has_said() -> bool:
        return bool(said)

    async with asyncio.TaskGroup() as group:
        waiting = group.create_task(turn.wait(said.append, 60))
        await until(has_said)
        assert turn.take() is None
        guard.kill()
    waiting.result().close()
    assert said == [f"waiting for this machine's cluster, which is that of {replace(holder, guard=guard.pid)}"]


async def test_nobody_waits_for_a_cluster_that_a_person_may_keep(hold: Hold, holder: Holder) -> None:
    hold(replace(holder, name="`make testbed-up`", lasting=True))
    with pytest.raises(TestbedError, match=r"that of `make testbed-up` \(process .* `make testbed-down`"):
        await turn.wait(print, 60)


async def test_who_has_waited_too_long_hears_for_whom(hold: Hold, holder: Holder) -> None:
    hold(holder)
    with pytest.raises(TestbedError, match="did not become free; it is that of the tests of somebody else"):
        await turn.wait(print, 0.2)


async def test_nobody_holds_what_was_never_held_or_whose_guard_was_killed(hold: Hold, holder: Holder) -> None:
    assert turn.holder() is None
    guard = hold(holder)
    assert turn.holder() == replace(holder, guard=guard.pid)
    guard.kill()
    guard.wait()
    assert turn.holder() is None


async def test_the_next_one_removes_files_and_places_of_a_killed_holder_and_nothing_else(
    hold: Hold, holder: Holder, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(leftovers, "unplug", lambda: None)
    monkeypatch.setattr(leftovers, "cgroups", list)
    (tmp_path / "state" / "etcd").mkdir(parents=True)
    (tmp_path / "made").mkdir()
    (tmp_path / "used" / "by-another").mkdir(parents=True)
    (tmp_path / "found").mkdir()
    made = tuple(str(tmp_path / name) for name in ("made", "used", "never-made"))
    guard = hold(replace(holder, made=made))
    guard.kill()
    guard.wait()

    with await turn.wait(print, 60) as lock:
        leftovers.sweep(lock)
        assert turn.read(lock) is None
    assert sorted(path.name for path in tmp_path.iterdir()) == ["found", "lock", "used"]


def test_who_is_not_root_hears_so_before_anything_is_begun(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("os.geteuid", lambda: 1000)
    with pytest.raises(TestbedError, match=r"needs root.*run this as root"):
        requisites.programs()
