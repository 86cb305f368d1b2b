"""The machine-wide lock of the one cluster: waiting for it, and cleaning up after a killed holder."""

import asyncio
import subprocess
import sys
from collections.abc import Callable, Iterator
from dataclasses import replace
from pathlib import Path

import pytest

from testbed.cluster import cleanup, host, machine_lock
from testbed.cluster.machine_lock import Holder
from testbed.waiting import until
from toolchain.errors import TestbedError

GUARD = "import sys; print(flush=True); sys.stdin.read()"

Hold = Callable[[Holder], "subprocess.Popen[bytes]"]


@pytest.fixture(autouse=True)
def own_lock(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Use a private lock file: the machine's lock may be held."""
    monkeypatch.setattr(machine_lock, "LOCK", tmp_path / "lock")


@pytest.fixture
def holder(tmp_path: Path) -> Holder:
    return Holder("the tests of process 1", 0, str(tmp_path / "state"))


@pytest.fixture
def hold() -> Iterator[Hold]:
    """Return a function that starts a process which holds the lock as a guard does, until it is killed."""
    guards = []

    def start(holder: Holder) -> "subprocess.Popen[bytes]":
        lock = machine_lock.try_acquire()
        assert lock is not None
        with lock:
            # The process resembles a guard by its command line alone.
            argv = [sys.executable, "-c", GUARD, "testbed.cluster.guard", f"--directory={holder.directory}"]
            guard = subprocess.Popen(argv, stdin=subprocess.PIPE, stdout=subprocess.PIPE, pass_fds=[lock.fileno()])
            guards.append(guard)
            # /proc shows no command line until the process has executed the program.
            assert guard.stdout is not None
            assert guard.stdout.readline() == b"\n"
            machine_lock.write_holder(lock, replace(holder, guard=guard.pid))
        return guard

    yield start
    for guard in guards:
        guard.kill()
        guard.communicate()


async def test_a_waiting_process_reports_the_holder_once_and_gets_the_lock_when_it_exits(
    hold: Hold, holder: Holder
) -> None:
    guard = hold(holder)
    notices: list[str] = []

    async def has_reported() -> bool:
        return bool(notices)

    async with asyncio.TaskGroup() as group:
        waiting = group.create_task(machine_lock.acquire(notices.append, 60))
        await until(has_reported)
        assert machine_lock.try_acquire() is None
        guard.kill()
    waiting.result().close()
    assert notices == [f"waiting for this machine's cluster, held by {replace(holder, guard=guard.pid)}"]


async def test_waiting_for_a_detached_cluster_fails_at_once(hold: Hold, holder: Holder) -> None:
    hold(replace(holder, name="`make testbed-up`", detached=True))
    with pytest.raises(TestbedError, match=r"held by `make testbed-up` \(process .* `make testbed-down`"):
        await machine_lock.acquire(print, 60)


async def test_a_timeout_names_the_holder(hold: Hold, holder: Holder) -> None:
    hold(holder)
    with pytest.raises(TestbedError, match=r"not released within 0\.2 s; it is held by the tests of process 1"):
        await machine_lock.acquire(print, 0.2)


async def test_there_is_no_holder_without_a_running_guard(hold: Hold, holder: Holder) -> None:
    assert machine_lock.current_holder() is None
    guard = hold(holder)
    assert machine_lock.current_holder() == replace(holder, guard=guard.pid)
    guard.kill()
    guard.wait()
    assert machine_lock.current_holder() is None


async def test_sweeping_removes_only_what_a_killed_holder_created(
    hold: Hold, holder: Holder, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(cleanup, "delete_host_link", lambda: None)
    monkeypatch.setattr(cleanup, "cgroups", list)
    (tmp_path / "state" / "etcd").mkdir(parents=True)
    (tmp_path / "created").mkdir()
    (tmp_path / "used" / "by-another").mkdir(parents=True)
    (tmp_path / "found").mkdir()
    created = tuple(str(tmp_path / name) for name in ("created", "used", "never-created"))
    guard = hold(replace(holder, created=created))
    guard.kill()
    guard.wait()

    with await machine_lock.acquire(print, 60) as lock:
        cleanup.sweep(lock)
        assert machine_lock.read_holder(lock) is None
    assert sorted(path.name for path in tmp_path.iterdir()) == ["found", "lock", "used"]


def test_a_user_other_than_root_is_rejected_first(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("os.geteuid", lambda: 1000)
    with pytest.raises(TestbedError, match=r"needs root.*run this as root"):
        host.programs()
