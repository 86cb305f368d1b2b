"""Changes with many sidecars: time, CPU, requests and memory of the agent.

The server, the agent, etcd and kube-apiserver are real; there is no kubelet. Pods exist as objects, and one server
replays for all of them what a real daprd answered before and after it loaded a changed component. It switches as soon
as the API server has the change, so the time that Dapr itself needs is not part of the figures.
"""

import asyncio
import re
from collections.abc import AsyncIterator, Callable
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Any, Final

import msgspec
import yaml

from bench.kubernetes.agent import STATE, Agent, joined, profile
from bench.kubernetes.pods import APP_ID, NAMESPACE, Pods
from bench.machine import cpu_seconds
from demo.world import World
from governor.wire.rest import ChangeRequest
from testbed.builds.dapr import VERSION, services
from testbed.daprd import Daprd, Sidecar
from testbed.kube.control_plane import ControlPlane
from testbed.recipes import provide
from testbed.sidecar_replay import METRICS, SidecarReplay, record
from testbed.waiting import until
from toolchain import cache

CRDS: Final = ("components", "configuration", "httpendpoints", "mcpservers", "resiliency", "workflowaccesspolicy")
DIRECT: Final = {"sidecar-access": "direct"}
_COUNTER: Final = re.compile(rb"(dapr_runtime_component_init_total\{[^}]*state\.in-memory[^}]*\}) (\d+)")
SECOND_S: Final = 1.1
"""Kubernetes stores times in whole seconds: a pod of the second of a write does not prove it."""
_COMPONENT: Final = f"/apis/dapr.io/v1alpha1/namespaces/{NAMESPACE}/components/store"


class Sample(msgspec.Struct, frozen=True):
    """One change: seconds until it is verified, CPU seconds of the agent, its requests to the API server.

    The requests include the Events, one for each workload, which the agent writes afterwards.
    """

    seconds: float
    cpu_seconds: float
    requests: float


class Replayed(msgspec.Struct, frozen=True):
    """The samples with a number of sidecars, and the agent's memory without and with them."""

    sidecars: int
    workloads: int
    samples: tuple[Sample, ...]
    idle_mib: float
    resident_mib: float


def component(note: str) -> dict[str, Any]:
    """Return a component that a sidecar initialises without anything else; another ``note`` changes it."""
    spec = {"type": "state.in-memory", "version": "v1", "metadata": [{"name": "note", "value": note}]}
    return {"apiVersion": "dapr.io/v1alpha1", "kind": "Component", "metadata": {"name": "store"}, "spec": spec}


async def recorded(binary: Path, directory: Path) -> dict[str, bytes]:
    """Return what a real daprd answers once it has loaded the component."""
    resources = directory / "resources"
    resources.mkdir(parents=True)
    (resources / "store.yaml").write_text(yaml.safe_dump(component("recorded")), encoding="utf-8")
    daprd = Daprd(binary, directory / "daprd", Sidecar(APP_ID, resources))
    await daprd.start()
    try:
        return await record(daprd)
    finally:
        await daprd.stop()


async def change(world: World, agent: Agent, plane: ControlPlane, replay: SidecarReplay, note: str) -> Sample:
    """Change the component and measure until the change is verified."""
    cpu_s, requests = cpu_seconds(agent.pid), await agent.settled_requests()
    accepted = await world.api.change(ChangeRequest((profile(component(note)),)))
    follower = asyncio.create_task(world.verified(accepted.revision or 0))

    async def written() -> bool:
        live = await plane.ask("GET", _COMPONENT)
        return bool(live["spec"]["metadata"][0]["value"] == note)

    await until(written)
    replay.responses[METRICS] = _COUNTER.sub(_risen, replay.responses[METRICS])
    progress = await follower
    if not progress.runtimes[0].done:
        raise RuntimeError(f"the change was not verified: {progress}")
    cpu_s = cpu_seconds(agent.pid) - cpu_s
    return Sample(progress.runtimes[0].seconds, cpu_s, await agent.settled_requests() - requests)


def _risen(match: re.Match[bytes]) -> bytes:
    """Return the counter one higher; its length must not change, because the response states it."""
    return match[1] + b" %d" % (int(match[2]) + 1)


async def measure(
    directory: Path, sidecars: int, per_workload: int, changes: int, log: Callable[[str], None]
) -> Replayed:
    """Start everything, create the pods and measure some changes."""
    async with (
        replayed_cluster(directory) as (plane, replay),
        World(directory / "world", {}) as world,
        joined(directory / "agent", world, plane.kubeconfig, NAMESPACE, DIRECT) as agent,
    ):
        first = await world.api.change(ChangeRequest((profile(component("first")),)))
        await world.verified(first.revision or 0)
        idle_mib = agent.resident_mib
        log(f"creating {sidecars} pods")
        await asyncio.sleep(SECOND_S)
        await Pods(plane, replay, per_workload).create(sidecars)
        samples = [await change(world, agent, plane, replay, f"note {number}") for number in range(changes)]
        return Replayed(sidecars, -(-sidecars // per_workload), tuple(samples), idle_mib, agent.resident_mib)


@asynccontextmanager
async def replayed_cluster(directory: Path) -> AsyncIterator[tuple[ControlPlane, SidecarReplay]]:
    """Start a control plane with Dapr's definitions and the namespaces, and what replays sidecars."""
    programs = provide(["etcd", "kube-apiserver", "kubectl", "daprd"])
    responses = await recorded(programs["daprd"], directory / "recording")
    async with SidecarReplay(responses) as replay, ControlPlane(programs, directory / "control-plane") as plane:
        crds = cache.provide(services(VERSION)).parent / "chart" / "crds"
        await plane.kubectl("apply", "--server-side", *(f"--filename={crds / f'{name}.yaml'}" for name in CRDS))
        for name in (NAMESPACE, STATE):
            await plane.kubectl("create", "namespace", name)
        yield plane, replay
