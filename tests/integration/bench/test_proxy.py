"""`make bench-proxy` on real processes: every route answers, and its plugins are called."""

import random

from bench.proxy import docker
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


async def test_docker_mode_is_measured_beside_dockerd(peer_directory: MakeDirectory) -> None:
    samples, memory = await docker.measure(peer_directory(), 1, docker.QUICK, random.Random(1), lambda _: None)

    assert {operation.rpartition(",")[0] for operation in samples} == {"run", "exec", "list of 100"}
    assert {frozenset(routes) for routes in samples.values()} == {frozenset({"direct", "ours", "ours+policy"})}
    assert memory.keys() == {"ours", "ours+policy"}
    (*_, aims) = docker.tables(samples, memory)
    assert [line.split("|")[1].strip() for line in aims][2:] == [
        "ours takes at most 36 MiB",
        "ours+policy takes at most 36 MiB",
    ]
