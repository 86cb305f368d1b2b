"""What needs a restart: a sidecar without hot reload, and a server whose pod is deleted during a change."""

import asyncio
import time
from typing import Final

from demo.cluster import documents
from demo.cluster.scenario import Scenario, Step, show_orders
from demo.scenario import done
from demo.steps import NotObservedError, expect
from governor import yamltext
from testbed.builds.dapr import VERSION_1_16
from testbed.cluster.dapr import sidecar
from testbed.cluster.releases import POD, is_ready
from testbed.cluster.workloads import metadata_of
from toolchain.oci import LOCAL


async def use_old_sidecar(scenario: Scenario) -> list[str]:
    """Pin an old Dapr in runtime 1, as its owner may, and re-point it: the agent restarts the workload."""
    world, runtime = scenario.world, scenario.world.runtimes[0]
    await world.cluster.import_image(sidecar(VERSION_1_16))
    await runtime.annotate(**{"dapr.io/sidecar-image": f"{LOCAL}/daprd:{VERSION_1_16}"})
    version = (await metadata_of(await runtime.pod()))["runtimeVersion"]
    expect("the version of runtime-1's sidecar", version, VERSION_1_16)
    before = await runtime.instance()
    document = documents.state_store(runtime.name, world.stores[1])
    revision = await world.change(document, message="runtime 1 stores its orders in Redis 2")
    progress = await world.verified(revision)
    expect("runtimes affected by the change", done(progress), [runtime.name])
    after = await runtime.instance()
    if after == before:
        raise NotObservedError("the pod was expected to be replaced, but was not")
    return [
        f"runtime-1 runs Dapr {version}, which does not reload",
        f"revision {revision} verified after {progress.runtimes[0].seconds:.1f} s; pod {before} before, {after} now",
        *await show_orders(scenario, "", "bar", "foo"),
    ]


async def delete_server(scenario: Scenario) -> list[str]:
    """Delete the server's pod as soon as it has accepted a change."""
    world = scenario.world
    document = documents.state_store("runtime-2", world.stores[1])
    await asyncio.to_thread((world.directory / "change.yaml").write_text, yamltext.dump(document))
    before = (await world.server.ready_pod())["metadata"]["uid"]
    await world.server.governor("apply", "-f", "change.yaml", "--no-wait", "-m", "runtime 2 uses Redis 2 again")
    await world.server.kubectl("delete", "pod", POD, "--now", "--wait=false")
    deleted = time.monotonic()
    after = await world.server.pod(lambda pod: is_ready(pod) and pod["metadata"]["uid"] != before)
    await world.server.wait_reachable()
    (revision,) = await world.api.revisions(limit=1)
    expect("verified runtimes", done(await world.verified(revision.number)), ["runtime-2"])
    seconds = time.monotonic() - deleted
    return [
        f"pod {POD} was replaced: uid {before} before, {after['metadata']['uid']} now",
        f"revision {revision.number}, which the first one accepted, is verified {seconds:.0f} s after its deletion",
        *await show_orders(scenario, "", "bar", "bar"),
    ]


RESTART_PATH: Final = (
    Step("restart", f"Pin Dapr {VERSION_1_16} in runtime 1 and re-point it: it must restart", use_old_sidecar),
    Step("delete-server", "Delete the server's pod right after it has accepted a change", delete_server),
)
