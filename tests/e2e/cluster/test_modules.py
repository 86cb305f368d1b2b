"""Dapr's own chart as a module: installed, upgraded and removed by the reconciler on a real node."""

import asyncio
import contextlib
import json
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from pathlib import Path

import pytest

from governor.reconciler.charts.digests import digest_of
from governor.reconciler.kinds.definition import GROUP
from governor.reconciler.kinds.definition import VERSION as KINDS
from testbed.builds.dapr import VERSION, VERSION_1_16
from testbed.cluster.cluster import Cluster
from testbed.cluster.dapr import NAMESPACE, NO_SCHEDULER, chart_of, helm, images, values_of
from testbed.cluster.workloads import Manifest
from testbed.recipes import provide
from testbed.reconciler import Reconciler
from testbed.waiting import until
from toolchain.errors import TestbedError
from toolchain.oci import LOCAL
from toolchain.repository import REPOSITORY

WITHIN_S = 240
OBJECTS = REPOSITORY / "tests" / "data" / "charts" / "objects"
SUBSCRIPTION: Manifest = {
    "apiVersion": "dapr.io/v1alpha1",
    "kind": "Subscription",
    "metadata": {"name": "orders"},
    "spec": {"pubsubname": "pubsub", "topic": "orders", "route": "/orders"},
}
V1ALPHA1 = "subscriptions.v1alpha1.dapr.io/orders"
CLIENT_CONFIG = "{.spec.conversion.webhook.clientConfig}"


class ModuleUser:
    """A user of one hub, who has nothing but kubectl."""

    def __init__(self, cluster: Cluster, namespace: str) -> None:
        self._cluster = cluster
        self.namespace = namespace

    async def kubectl(self, *arguments: str, stdin: str = "") -> str:
        return await self._cluster.kubectl(f"--namespace={self.namespace}", *arguments, stdin=stdin)

    async def apply(self, kind: str, name: str, **spec: object) -> None:
        manifest = {"apiVersion": f"{GROUP}/{KINDS}", "kind": kind, "metadata": {"name": name}, "spec": spec}
        await self.kubectl("apply", "--server-side", "--filename=-", stdin=json.dumps(manifest))

    async def add(self, module: str, version: str, chart: Path, values: Manifest, **more: object) -> None:
        source = {"directory": str(chart), "digest": digest_of(chart)}
        spec: dict[str, object] = {"module": module, "version": version, "chart": source, "values": values}
        await self.apply("Module", f"{module}-{version}", **(spec | {"namespace": NAMESPACE} | more))

    async def install(self, module: str, version: str) -> None:
        """Install a version and wait until it is applied and ready."""
        await self.apply("Installation", module, module=module, version=version, cluster="local")
        instance, limit = f"moduleinstance/{module}.local", f"--timeout={WITHIN_S}s"
        await self.kubectl("wait", instance, "--for=create", limit)
        await self.kubectl("wait", instance, f"--for=jsonpath={{.status.lastApplied.version}}={version}", limit)
        await self.kubectl("wait", instance, "--for=condition=Ready", limit)

    async def reason(self, module: str) -> str:
        return await self.kubectl("get", f"moduleinstance/{module}.local", "--output=jsonpath={.status.reason}")


@pytest.fixture
async def user(bare_cluster: Cluster, cluster_namespace: str, tmp_path: Path) -> AsyncIterator[ModuleUser]:
    """A user of a hub in the cluster; the reconciler runs on this machine."""
    renderer = provide(["renderer"])["renderer"]
    async with Reconciler(tmp_path / "reconciler", bare_cluster.kubeconfig, renderer, cluster_namespace):
        yield ModuleUser(bare_cluster, cluster_namespace)


@asynccontextmanager
async def watched(cluster: Cluster, *arguments: str) -> AsyncIterator[list[str]]:
    """Collect the lines that a watch of kubectl prints for the duration of a block."""
    lines: list[str] = []
    argv = [cluster.facts["kubectl"], f"--kubeconfig={cluster.kubeconfig}", *arguments, "--watch"]
    process = await asyncio.create_subprocess_exec(*argv, stdout=asyncio.subprocess.PIPE)
    assert process.stdout is not None

    async def collect(reader: asyncio.StreamReader) -> None:
        while line := await reader.readline():
            lines.append(line.decode())

    task = asyncio.create_task(collect(process.stdout))
    try:
        yield lines
    finally:
        process.terminate()
        await process.wait()
        await task


def idle_web(memory: str) -> Manifest:
    """Return the values of a chart with one Deployment, whose pod requests so much memory and does nothing."""
    container = {"name": "web", "image": f"{LOCAL}/pause:1", "resources": {"requests": {"memory": memory}}}
    labels = {"app": "web"}
    template = {"metadata": {"labels": labels}, "spec": {"containers": [container]}}
    spec = {"selector": {"matchLabels": labels}, "template": template}
    web = {"apiVersion": "apps/v1", "kind": "Deployment", "metadata": {"name": "web"}, "spec": spec}
    return {"objects": [web]}


async def test_not_enough_memory_is_escalated_to_the_user_and_the_fix_is_noticed_at_once(user: ModuleUser) -> None:
    await user.apply("Cluster", "local", access={"inCluster": {}}, pendingTimeout=5)
    await user.add("web", "1.0.0", OBJECTS, idle_web("4Ti"), namespace=user.namespace)
    await user.add("web", "1.0.1", OBJECTS, idle_web("1Mi"), namespace=user.namespace)
    await user.apply("Installation", "web", module="web", version="1.0.0", cluster="local")
    await user.kubectl("wait", "moduleinstance/web.local", "--for=create", f"--timeout={WITHIN_S}s")
    for expected in ("condition=Escalated", "jsonpath={.status.failure.type}=NotSchedulable"):
        await user.kubectl("wait", "moduleinstance/web.local", f"--for={expected}", f"--timeout={WITHIN_S}s")
    found = await user.kubectl(
        "get", "moduleinstance/web.local", "--output=jsonpath={.status.state}: {.status.message}"
    )
    assert found.startswith("Warning: ")
    assert "Insufficient memory" in found
    await user.install("web", "1.0.1")
    await user.kubectl("delete", "installation/web")
    await user.kubectl("wait", "moduleinstances", "--all", "--for=delete", f"--timeout={WITHIN_S}s")


@pytest.mark.soak
async def test_the_pods_of_a_release_of_helm_keep_running_when_it_is_adopted(
    user: ModuleUser, bare_cluster: Cluster, tmp_path: Path
) -> None:
    (tmp_path / "values.json").write_text(json.dumps(idle_web("1Mi")))
    release = ("web", f"--namespace={user.namespace}")
    await helm(bare_cluster, "install", *release, str(OBJECTS), f"--values={tmp_path}/values.json", "--wait")
    pods = "{range .items[*]}{.metadata.uid} {.status.containerStatuses[*].restartCount}{end}"
    before = await user.kubectl("get", "pods", f"--output=jsonpath={pods}")
    assert before.endswith(" 0")

    await user.apply("Cluster", "local", access={"inCluster": {}})
    await user.add("web", "1.0.0", OBJECTS, idle_web("1Mi"), namespace=user.namespace)
    adopted = {"module": "web", "version": "1.0.0", "cluster": "local", "adopt": {"helmRelease": {}}}
    await user.apply("Installation", "web", **adopted)
    await user.kubectl("wait", "moduleinstance/web.local", "--for=create", f"--timeout={WITHIN_S}s")
    await user.kubectl("wait", "moduleinstance/web.local", "--for=condition=Ready", f"--timeout={WITHIN_S}s")
    source = await user.kubectl("get", "moduleinstance/web.local", "--output=jsonpath={.status.adopted.source}")
    assert "web" in source
    managers = await user.kubectl("get", "deployment/web", "--output=jsonpath={.metadata.managedFields[*].manager}")
    assert "helm" not in managers.split()
    assert await user.kubectl("get", "pods", f"--output=jsonpath={pods}") == before
    await user.kubectl("delete", "installation/web")
    await user.kubectl("wait", "moduleinstances", "--all", "--for=delete", f"--timeout={WITHIN_S}s")


async def is_readable(user: ModuleUser, name: str) -> bool:
    """Return whether an object is converted: connections to the replaced pod of Dapr's operator hang for a while."""
    with contextlib.suppress(TestbedError):
        await user.kubectl("get", name, "--output=name")
        return True
    return False


@pytest.mark.soak  # a minute
async def test_dapr_is_installed_upgraded_with_subscriptions_in_use_and_removed(
    user: ModuleUser, bare_cluster: Cluster
) -> None:
    archives = [archive for version in (VERSION_1_16, VERSION) for archive in images(version)]
    await asyncio.gather(*map(bare_cluster.import_image, archives))
    await user.add("scheduler", "1.0.0", OBJECTS, {"objects": [NO_SCHEDULER]})
    for version in (VERSION_1_16, VERSION):
        await user.add("dapr", version, chart_of(version), values_of(version), dependsOn=["scheduler"])
    await user.apply("Installation", "scheduler", module="scheduler", version="1.0.0", cluster="local")
    await user.install("dapr", VERSION_1_16)

    async def is_applied() -> bool:  # the Service of the conversion follows the ready pod of Dapr's operator
        with contextlib.suppress(TestbedError):
            await user.kubectl("apply", "--filename=-", stdin=json.dumps(SUBSCRIPTION))
            return True
        return False

    await until(is_applied, within_s=WITHIN_S)

    definition = ("get", "crd/subscriptions.dapr.io", f"--output=jsonpath={CLIENT_CONFIG}{{'\\n'}}")
    before = json.loads(await bare_cluster.kubectl(*definition))
    assert before["caBundle"]
    async with watched(bare_cluster, *definition) as lines:
        await user.install("dapr", VERSION)
    await until(lambda: is_readable(user, V1ALPHA1), within_s=WITHIN_S)
    found = json.loads(await user.kubectl("get", V1ALPHA1, "--output=json"))
    assert found["spec"].items() >= SUBSCRIPTION["spec"].items()
    assert lines
    assert all(json.loads(line)["service"]["namespace"] == NAMESPACE for line in lines), "the placeholder was applied"
    assert await bare_cluster.kubectl(
        "get", "mutatingwebhookconfiguration/dapr-sidecar-injector", "--output=jsonpath={..caBundle}"
    )

    await user.kubectl("delete", "installation/dapr", "installation/scheduler", "--wait=false")
    await until(lambda: has_reason(user, "CustomResourcesExist"), within_s=WITHIN_S)
    await user.kubectl("delete", V1ALPHA1)
    await user.kubectl("wait", "moduleinstances", "--all", "--for=delete", f"--timeout={WITHIN_S}s")
    with pytest.raises(TestbedError, match="NotFound"):
        await bare_cluster.kubectl("get", "crd/subscriptions.dapr.io")
    # What Dapr itself has created there, such as its Leases, holds the namespace.
    await bare_cluster.kubectl("delete", "namespace", NAMESPACE, "--ignore-not-found", f"--timeout={WITHIN_S}s")


async def has_reason(user: ModuleUser, expected: str) -> bool:
    return await user.reason("dapr") == expected
