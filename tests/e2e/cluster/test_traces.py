"""A cluster leaves nothing behind on the host, however it ends."""

import asyncio
import os
import signal
import subprocess
import sys
from collections.abc import AsyncIterator, Awaitable, Callable, Iterator
from pathlib import Path

import pytest

from testbed.builds.containerd import VERSION as CONTAINERD_VERSION
from testbed.builds.dapr import VERSION
from testbed.cluster import machine_lock
from testbed.cluster.cluster import Cluster
from testbed.cluster.fixtures import SharedCluster
from testbed.cluster.snapshot import Snapshot, leaks, namespaces, take_snapshot
from testbed.waiting import until
from toolchain import cache
from toolchain.errors import tail
from toolchain.repository import REPOSITORY

WITHIN_S = 240.0
STARTER = """
import asyncio, sys
from pathlib import Path
from testbed import images
from testbed.cluster import host
from testbed.cluster.cluster import Cluster

async def main():
    preloaded = [images.pause().file, images.busybox().file]
    await Cluster(Path(sys.argv[1]), "a test that will be killed").start(host.programs(), preloaded)
    await asyncio.Event().wait()

asyncio.run(main())
"""

Moment = Callable[[Cluster], Awaitable[bool]]


def file_exists(*names: str) -> Moment:
    """Return a condition that is true once the cluster has this file."""

    async def exists(cluster: Cluster) -> bool:
        return (cluster.state / Path(*names)).exists()

    return exists


async def pods_run(cluster: Cluster) -> bool:
    if not cluster.is_up:
        return False
    image = ("--image=local.test/busybox:1", "--image-pull-policy=IfNotPresent")
    await until(lambda: has_account(cluster), within_s=WITHIN_S)
    await cluster.kubectl("run", "sleeper", *image, "--", "sleep", "infinity")
    await cluster.kubectl("wait", "pod/sleeper", "--for=condition=Ready", "--timeout=120s")
    return True


async def has_account(cluster: Cluster) -> bool:
    return bool(await cluster.kubectl("get", "serviceaccount", "default", "--ignore-not-found"))


class Starter:
    """A program that starts a cluster and runs until it is killed."""

    def __init__(self, directory: Path, before: Snapshot) -> None:
        self.log = directory / "starter.log"
        self.cluster = Cluster(directory, "a test that will be killed")
        self._before = before
        with self.log.open("wb") as log:
            argv = [sys.executable, "-c", STARTER, str(directory)]
            self._process = subprocess.Popen(argv, cwd=REPOSITORY, stdout=log, stderr=log)

    async def killed_at(self, moment: Moment) -> frozenset[str]:
        """Kill the program at this moment, and return what remains of its cluster."""

        async def is_reached() -> bool:
            assert self._process.poll() is None, tail(self.log)
            return await moment(self.cluster)

        await until(is_reached, within_s=WITHIN_S)
        entered = namespaces(self.cluster.state)
        seen = {each.split(":")[0] for each in take_snapshot(self.cluster.state) - self._before}
        assert seen >= {"process", "file", "cgroup"}, "the snapshot does not show the cluster"
        self.kill()
        return await leaks(self.cluster.state, self._before, entered)

    def kill(self) -> None:
        self._process.kill()
        self._process.wait()


@pytest.fixture
def starter(before: Snapshot, short_directory: Path) -> Iterator[Starter]:
    starter = Starter(short_directory, before)
    yield starter
    starter.kill()


async def test_a_cluster_whose_starter_is_killed_while_it_starts_leaves_nothing(starter: Starter) -> None:
    assert await starter.killed_at(file_exists("kube-apiserver", "kube-apiserver.log")) == frozenset()


@pytest.mark.soak
@pytest.mark.parametrize("name", ["etcd", "containerd", "kube-controller-manager", "kubelet", "kube-proxy", "coredns"])
async def test_a_cluster_whose_starter_is_killed_at_any_stage_leaves_nothing(name: str, starter: Starter) -> None:
    assert await starter.killed_at(file_exists(name, f"{name}.log")) == frozenset()


@pytest.mark.soak
async def test_a_cluster_whose_starter_is_killed_while_pods_run_leaves_nothing(starter: Starter) -> None:
    assert await starter.killed_at(pods_run) == frozenset()


class User:
    """A user of the command line, with a cluster of their own."""

    def __init__(self, home: Path) -> None:
        self.cluster = Cluster(home / "runtime-governor" / "cluster", "a user")
        self._environment = {**os.environ, "XDG_CACHE_HOME": str(home)}

    async def run(self, *arguments: str) -> str:
        """Run ``python -m testbed.cluster`` with these arguments, and return its output."""
        process = await asyncio.create_subprocess_exec(
            *(sys.executable, "-m", "testbed.cluster", *arguments),
            stdout=asyncio.subprocess.PIPE,
            stderr=asyncio.subprocess.STDOUT,
            env=self._environment,
            cwd=REPOSITORY,
        )
        printed, _ = await process.communicate()
        assert process.returncode == 0, printed.decode()
        return printed.decode()


@pytest.fixture
async def user(short_directory: Path) -> AsyncIterator[User]:
    """A user with a complete build cache."""
    root = short_directory / "runtime-governor"
    root.mkdir()
    for entry in cache.root().iterdir():
        if entry.name not in ("cluster", "locks", "logs"):
            (root / entry.name).symlink_to(entry)
    user = User(short_directory)
    yield user
    await user.run("down")


async def kill_guard(cluster: Cluster) -> int:
    """Kill the guard, which would clean up, and return its process id."""
    holder = machine_lock.current_holder()
    assert holder is not None
    assert holder.directory == str(cluster.state)
    os.kill(holder.guard, signal.SIGKILL)
    await until(is_free, within_s=WITHIN_S)
    return holder.guard


async def is_free() -> bool:
    if lock := machine_lock.try_acquire():
        lock.close()
    return lock is not None


@pytest.mark.soak
async def test_up_replaces_a_killed_cluster_and_down_removes_everything(user: User, before: Snapshot) -> None:
    assert "is ready after" in await user.run("up")
    assert "is already running" in await user.run("up")
    file = user.cluster.state / "of-the-first"
    file.touch()
    entered = namespaces(user.cluster.state)
    first = await kill_guard(user.cluster)
    assert not user.cluster.is_up

    assert "is ready after" in await user.run("up")
    assert not file.exists()
    assert await user.cluster.kubectl("get", "nodes", "--output=name") == "node/node\n"
    entered |= namespaces(user.cluster.state)
    assert await kill_guard(user.cluster) != first

    assert "The cluster is removed" in await user.run("down")
    assert await leaks(user.cluster.state, before, entered) == frozenset()
    assert "The cluster is removed" in await user.run("down")


@pytest.mark.soak
async def test_up_can_use_the_newer_containerd(user: User, before: Snapshot) -> None:
    await user.run("up", "--containerd=containerd-2")
    runtime = "--output=jsonpath={.items[0].status.nodeInfo.containerRuntimeVersion}"
    assert await user.cluster.kubectl("get", "nodes", runtime) == f"containerd://{CONTAINERD_VERSION}"
    assert await pods_run(user.cluster)
    entered = namespaces(user.cluster.state)

    await user.run("down")
    assert await leaks(user.cluster.state, before, entered) == frozenset()


@pytest.mark.soak
async def test_the_printed_dapr_example_works_and_is_removed_by_down(user: User, before: Snapshot) -> None:
    usage = await user.run("up", f"--dapr={VERSION}")
    environment = next(line for line in usage.splitlines() if "export KUBECONFIG" in line)
    example = usage.partition("The order application with its sidecar")[2].partition("\n\n")[0].splitlines()[1:]
    script = "\n".join([environment, *example])
    shell = await asyncio.create_subprocess_exec("sh", "-euc", script, stdout=asyncio.subprocess.PIPE)
    printed, _ = await shell.communicate()
    assert shell.returncode == 0
    assert printed.count(b'{"orderId": "42"}') == 2, printed
    entered = namespaces(user.cluster.state)
    assert f"Dapr {VERSION} is ready" in await user.run("up", f"--dapr={VERSION}")

    await user.run("down")
    assert await leaks(user.cluster.state, before, entered) == frozenset()


async def test_the_shared_cluster_leaves_nothing_when_it_ends_while_pods_run(shared_cluster: SharedCluster) -> None:
    cluster = await shared_cluster.running()
    assert await pods_run(cluster)
    entered = namespaces(cluster.state)
    assert entered
    await shared_cluster.end()
    assert await leaks(cluster.state, shared_cluster.before, entered) == frozenset()
