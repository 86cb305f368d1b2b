"""However a cluster ends, nothing of it is left on the machine."""

import asyncio
import os
import signal
import subprocess
import sys
import tempfile
import time
from collections.abc import AsyncIterator, Awaitable, Callable, Iterator
from contextlib import suppress
from pathlib import Path

import pytest

from testbed.cluster import turn
from testbed.cluster.cluster import Cluster
from testbed.cluster.leftovers import sweep
from testbed.cluster.shared import SharedCluster
from testbed.cluster.traces import Traces, inhabited, look, namespaces
from testbed.cri.containerd import VERSION as CONTAINERD_VERSION
from testbed.daprd import VERSION
from testbed.waiting import until
from toolchain import cache
from toolchain.errors import tail
from toolchain.wheels import REPOSITORY

WITHIN_S = 240.0
GONE_WITHIN_S = 120.0
"""Other tests mount things for a while, and mounts are looked at as a whole."""
STARTER = """
import asyncio, sys
from pathlib import Path
from testbed import images
from testbed.cluster import requisites
from testbed.cluster.cluster import Cluster

async def main():
    ready_made = [images.pause().file, images.busybox().file]
    await Cluster(Path(sys.argv[1]), "a test that will be killed").start(requisites.programs(), ready_made)
    await asyncio.Event().wait()

asyncio.run(main())
"""

Moment = Callable[[Cluster], Awaitable[bool]]


def when_there_is(*names: str) -> Moment:
    """The moment at which the cluster has that file."""

    async def has_come(cluster: Cluster) -> bool:
        return (cluster.state / Path(*names)).exists()

    return has_come


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


async def left_by(cluster: Cluster, before: Traces, lived_in: frozenset[str]) -> frozenset[str]:
    """What stays of a cluster that has come to its end, or will by itself."""
    left: frozenset[str] = frozenset()
    with await turn.wait(print, WITHIN_S):  # nobody else's cluster is there while we look
        ended_at = time.clock_gettime(time.CLOCK_BOOTTIME)

        async def is_nothing() -> bool:
            nonlocal left
            left = (look(cluster.state) - before) | inhabited(lived_in, ended_at)
            return not left

        with suppress(TimeoutError):  # killed processes take a moment to go; what is left then is said below
            await until(is_nothing, within_s=GONE_WITHIN_S)
    return left


class Starter:
    """A program that starts a cluster and would hold it for ever."""

    def __init__(self, directory: Path, before: Traces) -> None:
        self.log = directory / "starter.log"
        self.cluster = Cluster(directory, "nobody")
        self._before = before
        with self.log.open("wb") as log:
            argv = [sys.executable, "-c", STARTER, str(directory)]
            self._process = subprocess.Popen(argv, cwd=REPOSITORY, stdout=log, stderr=log)

    async def killed_at(self, moment: Moment) -> frozenset[str]:
        """What is left when it is killed at that moment."""

        async def has_come() -> bool:
            assert self._process.poll() is None, tail(self.log)
            return await moment(self.cluster)

        await until(has_come, within_s=WITHIN_S)
        lived_in = namespaces(self.cluster.state)
        seen = {each.split(":")[0] for each in look(self.cluster.state) - self._before}
        assert seen >= {"process", "file", "cgroup"}, "the comparison would see nothing"
        self.kill()
        return await left_by(self.cluster, self._before, lived_in)

    def kill(self) -> None:
        self._process.kill()
        self._process.wait()


@pytest.fixture
async def before(no_cluster: None) -> Traces:
    """What there is when no cluster is, nor anything of one that was killed."""
    with await turn.wait(print, WITHIN_S) as lock:
        sweep(lock)
        return look(Path("nowhere"))


@pytest.fixture
def starter(before: Traces, short_directory: Path) -> Iterator[Starter]:
    starter = Starter(short_directory, before)
    yield starter
    starter.kill()


@pytest.fixture
def short_directory() -> Iterator[Path]:
    """Not among the tests' own: the names of sockets must be short."""
    with tempfile.TemporaryDirectory(prefix="g-", ignore_cleanup_errors=True) as name:
        yield Path(name)


@pytest.mark.parametrize(
    "moment",
    [
        pytest.param(when_there_is("kube-apiserver", "kube-apiserver.log"), id="while its control plane starts"),
        pytest.param(pods_run, id="while pods run"),
    ],
)
async def test_a_cluster_whose_starter_is_killed_leaves_nothing(moment: Moment, starter: Starter) -> None:
    assert await starter.killed_at(moment) == frozenset()


@pytest.mark.soak
@pytest.mark.parametrize("name", ["etcd", "containerd", "kube-controller-manager", "kubelet", "kube-proxy", "coredns"])
async def test_a_cluster_whose_starter_is_killed_at_any_stage_leaves_nothing(name: str, starter: Starter) -> None:
    assert await starter.killed_at(when_there_is(name, f"{name}.log")) == frozenset()


class Person:
    """Somebody at a shell of this machine, with a cluster of their own."""

    def __init__(self, home: Path) -> None:
        self.cluster = Cluster(home / "runtime-governor" / "cluster", "them")
        self._environment = {**os.environ, "XDG_CACHE_HOME": str(home)}

    async def types(self, *arguments: str) -> str:
        """All that they read after ``python -m testbed.cluster`` with these arguments."""
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
async def person(short_directory: Path) -> AsyncIterator[Person]:
    """A person for whom everything is built already."""
    root = short_directory / "runtime-governor"
    root.mkdir()
    for entry in cache.root().iterdir():
        if entry.name not in ("cluster", "locks", "logs"):
            (root / entry.name).symlink_to(entry)
    person = Person(short_directory)
    yield person
    await person.types("down")


async def kill_guard(cluster: Cluster) -> int:
    """Kill the one process that clears up; which it was."""
    holder = turn.holder()
    assert holder is not None
    assert holder.directory == str(cluster.state)
    os.kill(holder.guard, signal.SIGKILL)
    await until(is_free, within_s=WITHIN_S)
    return holder.guard


async def is_free() -> bool:
    if lock := turn.take():
        lock.close()
    return lock is not None


async def test_a_person_gets_a_new_cluster_for_a_killed_one_and_nothing_is_left_after_down(
    person: Person, before: Traces
) -> None:
    assert "is ready after" in await person.types("up")
    assert "is there already" in await person.types("up")
    trace = person.cluster.state / "of-the-first"
    trace.touch()
    lived_in = namespaces(person.cluster.state)
    first = await kill_guard(person.cluster)
    assert not person.cluster.is_up

    assert "is ready after" in await person.types("up")
    assert not trace.exists()
    assert await person.cluster.kubectl("get", "nodes", "--output=name") == "node/node\n"
    lived_in |= namespaces(person.cluster.state)
    assert await kill_guard(person.cluster) != first

    assert "Nothing of the cluster is left" in await person.types("down")
    assert await left_by(person.cluster, before, lived_in) == frozenset()
    assert "Nothing of the cluster is left" in await person.types("down")


@pytest.mark.soak
async def test_a_person_may_ask_for_the_newer_containerd(person: Person, before: Traces) -> None:
    await person.types("up", "--containerd=containerd-2")
    runtime = "--output=jsonpath={.items[0].status.nodeInfo.containerRuntimeVersion}"
    assert await person.cluster.kubectl("get", "nodes", runtime) == f"containerd://{CONTAINERD_VERSION}"
    assert await pods_run(person.cluster)
    lived_in = namespaces(person.cluster.state)

    await person.types("down")
    assert await left_by(person.cluster, before, lived_in) == frozenset()


@pytest.mark.soak
async def test_what_a_person_is_told_to_try_with_dapr_works_and_goes_with_down(person: Person, before: Traces) -> None:
    told = await person.types("up", f"--dapr={VERSION}")
    surroundings = next(line for line in told.splitlines() if "export KUBECONFIG" in line)
    example = told.partition("The order application with its sidecar")[2].partition("\n\n")[0].splitlines()[1:]
    script = "\n".join([surroundings, *example])
    shell = await asyncio.create_subprocess_exec("sh", "-euc", script, stdout=asyncio.subprocess.PIPE)
    printed, _ = await shell.communicate()
    assert shell.returncode == 0
    assert printed.count(b'{"orderId": "42"}') == 2, printed
    lived_in = namespaces(person.cluster.state)
    assert f"Dapr {VERSION} is ready" in await person.types("up", f"--dapr={VERSION}")

    await person.types("down")
    assert await left_by(person.cluster, before, lived_in) == frozenset()


async def test_a_cluster_that_was_used_by_many_leaves_nothing(shared_cluster: SharedCluster) -> None:
    cluster = await shared_cluster.running()
    lived_in = namespaces(cluster.state)
    assert lived_in
    await shared_cluster.end()
    assert await left_by(cluster, shared_cluster.before, lived_in) == frozenset()
