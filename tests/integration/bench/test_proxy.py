"""`make bench-proxy` on real processes: every route answers, and the plugins of each are asked."""

import random

from bench.proxy.plugins import plugin_directories
from bench.proxy.rounds import take
from bench.proxy.stage import Sizes, fake_runtime, stage
from testbed.cri.fixtures import MakeDirectory


async def test_every_act_is_measured_on_every_route(peer_directory: MakeDirectory) -> None:
    ours = {"ours", "ours+go", "ours+python", "ours+three"}
    directory = peer_directory()
    async with (
        plugin_directories(directory) as hooks,
        fake_runtime(directory) as (socket, cgroup),
        stage(directory / "s", socket, cgroup, hooks, []) as ready,
    ):
        await ready.see_plugins()
        acts = await ready.acts("fake", Sizes(calls=2))
        samples = await take(1, acts, ready.clients, random.Random(1), lambda _: None)
        memory = ready.memory()

    assert {act.rpartition(",")[0] for act in samples} == {"Version", "ListContainers(100)", "CreateContainer"}
    assert {frozenset(routes) for routes in samples.values()} == {frozenset({"direct", *ours})}
    assert memory.keys() == ours
