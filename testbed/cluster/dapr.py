"""Dapr in the cluster: installed or upgraded in place by its own chart, with images of what was built here."""

from pathlib import Path

from testbed import cache
from testbed.cluster.cluster import Cluster, run
from testbed.dapr import SERVICES, services
from testbed.daprd import recipe as daprd
from testbed.helm import HELM
from testbed.images import static
from testbed.oci import LOCAL
from testbed.waiting import until

NAMESPACE = "dapr-system"
_SETTLED_WITHIN_S = 120.0
_WORKLOADS = (
    "deployment/dapr-operator",
    "deployment/dapr-sentry",
    "deployment/dapr-sidecar-injector",
    "statefulset/dapr-placement-server",
)


def images(version: str) -> list[Path]:
    """The archives of Dapr's services and sidecar of that version; built now if they are not there."""
    built = cache.provide(services(version)).parent
    programs = {**{name: built / name for name in SERVICES}, "daprd": cache.provide(daprd(version))}
    return [static(f"{LOCAL}/{name}:{version}", program).file for name, program in programs.items()]


async def install(cluster: Cluster, version: str) -> None:
    """Bring the cluster's Dapr to that version; when this returns, every pod that is created gets its sidecar."""
    for image in images(version):
        await cluster.import_image(image)
    chart = cache.provide(services(version)).parent / "chart"
    values = {
        "global.registry": LOCAL,
        "global.tag": version,
        "global.imagePullPolicy": "IfNotPresent",
        "global.scheduler.enabled": "false",
        "dapr_placement.cluster.forceInMemoryLog": "true",
    }
    settings = [f"--set={name}={value}" for name, value in values.items()]
    place = [f"--namespace={NAMESPACE}", "--create-namespace", f"--kubeconfig={cluster.kubeconfig}"]
    await helm(cluster, "upgrade", "--install", "dapr", str(chart), *place, *settings)
    for workload in _WORKLOADS:
        await cluster.kubectl("rollout", "status", workload, f"--namespace={NAMESPACE}", "--timeout=120s")
    await until(lambda: _old_injectors_are_gone(cluster), within_s=_SETTLED_WITHIN_S)


async def helm(cluster: Cluster, *arguments: str) -> str:
    """What helm prints; it keeps its files with the cluster's."""
    home = cluster.directory / "helm"
    places = {f"HELM_{name}_HOME": str(home / name.lower()) for name in ("CACHE", "CONFIG", "DATA")}
    return await run([str(cache.provide(HELM)), *arguments], environment={**places, "HOME": str(home)})


async def _old_injectors_are_gone(cluster: Cluster) -> bool:
    """The chart's webhook fails open: while an old injector ends, a pod can come up without its sidecar."""
    selection = ("pods", f"--namespace={NAMESPACE}", "--selector=app=dapr-sidecar-injector")
    printed = await cluster.kubectl("get", *selection, "--output=jsonpath={.items[*].metadata.deletionTimestamp}")
    return not printed.strip()
