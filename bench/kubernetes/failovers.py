"""Fail-overs between two replicas of the agent: the leading one is killed, or stopped, and then a change is made.

The server, both agents, etcd and kube-apiserver are real; sidecars are replayed, as in ``replayed``.
"""

import asyncio
import time
from collections.abc import Awaitable, Callable
from functools import partial
from pathlib import Path
from typing import Final

import msgspec

from bench.kubernetes.agent import Agent, profile, register
from bench.kubernetes.pods import NAMESPACE, Pods
from bench.kubernetes.replayed import DIRECT, SECOND_S, change, component, replayed_cluster
from demo.world import World
from governor.wire.rest import ChangeRequest
from testbed.waiting import until

SIDECARS: Final = 20
KILLED: Final = "is killed"
STOPPED: Final = "is stopped"


class Failover(msgspec.Struct, frozen=True):
    """Seconds after the leading agent ended until the other one leads, and until a change is verified."""

    leads_s: float
    verified_s: float


class Failovers(msgspec.Struct, frozen=True):
    """The fail-overs by how the leading agent ended, and the memory of both."""

    by_cause: dict[str, list[Failover]]
    leader_mib: float
    standby_mib: float


async def measure(directory: Path, times: int, log: Callable[[str], None]) -> Failovers:
    """Start everything and let the leading agent end some times in both ways."""
    async with replayed_cluster(directory) as (plane, replay), World(directory / "world", {}) as world:
        member = await register(world, plane.kubeconfig, NAMESPACE)
        settings = {**member.settings, **DIRECT, "leader-election": True}
        leader, standby = (Agent(directory / name, settings, member.token) for name in ("first", "second"))
        try:
            await leader.start()
            await until(leader.is_leader)
            await standby.start()
            await world.verified((await world.api.change(ChangeRequest((profile(component("first")),)))).revision or 0)
            await asyncio.sleep(SECOND_S)
            await Pods(plane, replay, SIDECARS).create(SIDECARS)
            await change(world, leader, plane, replay, "second")
            found: dict[str, list[Failover]] = {KILLED: [], STOPPED: []}
            for number in range(2 * times):
                cause = (KILLED, STOPPED)[number % 2]
                make_change = partial(change, world, standby, plane, replay, f"note {number}")
                found[cause].append(await fail_over(leader, standby, cause, make_change))
                log(f"{number + 1} of {2 * times} fail-overs")
                leader, standby = standby, leader
                await standby.start()
            return Failovers(found, leader.resident_mib, standby.resident_mib)
        finally:
            for each in (leader, standby):
                await each.stop()


async def fail_over(
    leader: Agent, standby: Agent, cause: str, make_change: Callable[[], Awaitable[object]]
) -> Failover:
    """End the leading agent and measure until the other one leads, and until a change is verified."""
    began_s = time.monotonic()
    ending = asyncio.ensure_future(leader.kill() if cause == KILLED else leader.stop())
    await until(standby.is_leader)
    leads_s = time.monotonic() - began_s
    await make_change()
    verified_s = time.monotonic() - began_s
    await ending
    return Failover(leads_s, verified_s)
