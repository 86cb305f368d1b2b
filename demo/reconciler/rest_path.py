"""A compliant cluster at rest: workers at zero, woken by drift; then everything is removed."""

import asyncio
from typing import Final

from demo.reconciler.documents import FIRST, FIXED, SECOND, SHOP, SPACE, VERSIONS
from demo.reconciler.scenario import Scenario, Step
from demo.steps import expect
from governor.reconciler.kinds.state import State
from governor.reconciler.setup.own_modules import RECONCILER

_WORKER: Final = f"{RECONCILER}-worker"
_MEASURED_S: Final = 20.0


async def rest(scenario: Scenario) -> list[str]:
    """Let the reconciler split itself into watching and working, and observe it while nothing is to be done."""
    world = scenario.world
    patch = '--patch={"spec": {"values": {"scaleToZero": true}}}'
    await world.kubectl("patch", f"installation/{RECONCILER}", "--type=merge", patch)

    async def is_resting() -> bool:
        workers = await world.read(f"deployment/{_WORKER}")
        desired = workers.get("spec", {}).get("replicas")
        return desired == 0 and not await world.pods(_WORKER) and len(await world.pods(RECONCILER)) == 1

    await world.observed(is_resting, lambda: "workers are not at zero")
    lines = await world.reaches(State.READY, store=FIRST, orders=FIXED, shop=SECOND)
    (pod,) = await world.pods(RECONCILER)
    versions, before = await world.versions(), await world.usage(pod)
    await asyncio.sleep(_MEASURED_S)
    after = await world.usage(pod)
    expect("objects of the hub that were written at rest", _changed(versions, await world.versions()), [])
    share = (after.cpu_s - before.cpu_s) / (after.time_s - before.time_s)
    used = f"{after.resident_mib:.0f} MiB and {share:.2%} of a core in {after.time_s - before.time_s:.0f} s"
    return [*lines, f"workers: 0; the watching pod uses {used}, and writes nothing but its Lease"]


def _changed(before: dict[str, str], after: dict[str, str]) -> list[str]:
    return [each for each in {**before, **after} if before.get(each) != after.get(each)]


async def wake(scenario: Scenario) -> list[str]:
    """Edit an object while no worker runs: one is started, and repairs it."""
    world = scenario.world
    expect("workers before", len(await world.pods(_WORKER)), 0)
    greeting = (await world.read(f"configmap/{SHOP}", SPACE))["data"]["greeting"]
    await world.kubectl("patch", f"configmap/{SHOP}", '--patch={"data": {"greeting": "closed"}}', space=SPACE)

    async def is_repaired() -> bool:
        return bool((await world.read(f"configmap/{SHOP}", SPACE))["data"]["greeting"] == greeting)

    await world.observed(is_repaired, lambda: "the ConfigMap is not as before")
    (worker,) = await world.pods(_WORKER)
    lines = [f"pod {worker['metadata']['name']} was started and has repaired it: {greeting!r}"]
    return [*lines, *await world.reaches(State.READY, store=FIRST, orders=FIXED, shop=SECOND)]


async def remove(scenario: Scenario) -> list[str]:
    """Delete the installations in any order: modules are removed after those that depend on them."""
    world = scenario.world
    await world.kubectl("delete", "--wait=false", *(f"installation/{each}" for each in VERSIONS))
    lines = await world.reaches(State.READY)

    async def is_gone() -> bool:
        return not await world.read(f"namespace/{SPACE}")

    await world.observed(is_gone, lambda: f"the namespace {SPACE} still exists")
    instances = await world.kubectl("get", "moduleinstances", "--output=name")
    expect("modules that are left", instances.split(), [f"moduleinstance.runtime-governor.dev/{RECONCILER}.local"])
    policies = await world.kubectl("get", "validatingadmissionpolicies", "--output=name")
    expect("admission policies that are left", policies.split(), [])
    return [*lines, f"the namespace {SPACE}, all objects and the admission policy are gone"]


REST_PATH: Final = (
    Step("rest", "Let the reconciler scale its workers to zero", rest),
    Step("wake", "Edit a ConfigMap while no worker runs: one is started and repairs it", wake),
    Step("remove", "Remove the three modules", remove),
)
