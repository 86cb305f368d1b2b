"""`make bench-proxy` on real processes: every route answers, and its plugins are called."""

import random

from bench.proxy.environment import Sizes, environment, fake_runtime
from bench.proxy.plugins import plugin_directories
from bench.proxy.rounds import run_rounds
from testbed.cri.fixtures import MakeDirectory


async def test_every_operation_is_measured_on_every_route(peer_directory: MakeDirectory) -> None:
    ours = {"ours", "ours+go", "ours+python", "ours+three", "ours+policy"}
    directory = peer_directory()
    async with (
        plugin_directories(directory) as hooks,
        fake_runtime(directory) as (socket, cgroup),
        environment(directory / "s", socket, cgroup, hooks, []) as prepared,
    ):
        await prepared.check_plugins()
        operations = await prepared.operations("fake", Sizes(calls=2))
        samples = await run_rounds(1, operations, prepared.clients, random.Random(1), lambda _: None)
        memory = prepared.memory()

    assert {operation.rpartition(",")[0] for operation in samples} == {
        "Version",
        "ListContainers(100)",
        "CreateContainer",
    }
    assert {frozenset(routes) for routes in samples.values()} == {frozenset({"direct", *ours})}
    assert memory.keys() == ours
