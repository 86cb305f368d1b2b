"""`governor cluster bootstrap --with-server`: the whole platform in an empty cluster, every program a module."""

import json
import sys
from pathlib import Path

import pytest

from demo.node import running_cluster
from demo.reconciler.world import World
from governor.reconciler.bootstrap import JOIN_SECRET
from governor.reconciler.kinds.state import State
from governor.reconciler.settings import NAMESPACE
from governor.reconciler.setup.own_modules import AGENT, RECONCILER, SERVER
from testbed.cluster.cluster import run
from testbed.cluster.releases import PORT, ServerRelease
from testbed.cluster.snapshot import Snapshot
from testbed.cluster.workloads import apply, manifest
from tests.e2e.cluster.server_bed import forwarded

RUNTIME = "shop"


async def create_volume(world: World) -> None:
    """Create a volume for the claim of the server: a volume without a storage class, because there is none."""
    directory = world.cluster.state / "volume"
    directory.mkdir()
    node = {"matchExpressions": [{"key": "kubernetes.io/hostname", "operator": "Exists"}]}
    spec = {
        "capacity": {"storage": "1Gi"},
        "accessModes": ["ReadWriteOnce"],
        "local": {"path": str(directory)},
        "nodeAffinity": {"required": {"nodeSelectorTerms": [node]}},
    }
    await apply(world.cluster, "default", manifest("v1", "PersistentVolume", "server", spec=spec))


async def join_token(world: World) -> str:
    """Describe the runtime to the server, and return a join token for its agent, as the notes of the chart say."""
    release = ServerRelease(world.cluster, NAMESPACE, world.directory)
    for word, file in (("admin-token", "admin.token"), ("authority", "authority.crt")):
        (world.directory / file).write_text(await release.exec("governor", "server", word), encoding="ascii")
    spec = {"platform": "kubernetes", "namespaces": [RUNTIME]}
    (world.directory / "runtime.json").write_text(
        json.dumps(manifest("runtime-governor.dev/v1alpha1", "Runtime", RUNTIME, spec=spec)), encoding="ascii"
    )
    line = f"kubectl port-forward --namespace {NAMESPACE} service/{SERVER} {PORT}"
    async with forwarded(release, line) as port:
        environment = {
            "GOVERNOR_SERVER": f"https://localhost:{port}",
            "GOVERNOR_TOKEN_FILE": str(world.directory / "admin.token"),
            "GOVERNOR_CA_FILE": str(world.directory / "authority.crt"),
        }
        governor = [sys.executable, "-m", "governor.cli.main"]
        await run([*governor, "apply", f"--filename={world.directory}/runtime.json"], environment=environment)
        return await run([*governor, "token", "join", RUNTIME], environment=environment)


@pytest.mark.soak
async def test_server_and_agent_are_modules_of_the_cluster_that_reconciles_itself(
    before: Snapshot, short_directory: Path
) -> None:
    name = "the test of bootstrap"
    async with running_cluster(short_directory / "cluster", name) as cluster, World(cluster, short_directory) as world:
        await world.import_images()
        await create_volume(world)
        await world.cluster.kubectl("create", "namespace", RUNTIME)
        printed = await world.bootstrap("--with-server", f"--agent-namespace={RUNTIME}")
        assert f"{AGENT} starts when the Secret {JOIN_SECRET}" in printed[-2]

        server = f"moduleinstance/{SERVER}.local"
        await world.kubectl("wait", server, "--for=condition=Ready", "--timeout=120s")
        versions = {each.module: each.version for each in (await world.state()).modules}
        assert set(versions) == {RECONCILER, SERVER, AGENT}
        token = await join_token(world)
        await world.kubectl("create", "secret", "generic", JOIN_SECRET, f"--from-literal=token={token.strip()}")
        await world.kubectl("wait", f"moduleinstance/{AGENT}.local", "--for=condition=Ready", "--timeout=240s")
        (first, *_) = await world.reaches(State.READY)
        assert first == "State: Ready, 3/3 modules ready"

        await world.kubectl("delete", f"statefulset/{SERVER}")
        await world.kubectl("wait", f"statefulset/{SERVER}", "--for=create", "--timeout=60s")
        await world.kubectl("delete", f"installation/{AGENT}", f"installation/{SERVER}")
        await world.kubectl("wait", f"moduleinstance/{AGENT}.local", server, "--for=delete", "--timeout=120s")
        (first, *_) = await world.reaches(State.READY)
        assert first == "State: Ready, 1/1 modules ready"
