"""Dapr in the cluster: installed or upgraded in place by its own chart, with images of what was built here.

Its addresses are its defaults: a sidecar's API listens on its pod's loopback only.
"""

import json
from pathlib import Path

import yaml

from testbed.cluster.cluster import PATIENCE_S, Cluster, run
from testbed.dapr_services import SERVICES, services
from testbed.daprd import recipe as daprd
from testbed.images import static
from testbed.waiting import until
from toolchain import cache
from toolchain.helm import HELM
from toolchain.oci import LOCAL

NAMESPACE = "dapr-system"
_RELEASE = "dapr"
_CONFIGURATION = "charts/dapr_config/templates/dapr_default_config.yaml"
_WORKLOADS = (
    "deployment/dapr-operator",
    "deployment/dapr-sentry",
    "deployment/dapr-sidecar-injector",
    "statefulset/dapr-placement-server",
)
_VALUES = {
    "global.registry": LOCAL,
    "global.imagePullPolicy": "IfNotPresent",
    "global.scheduler.enabled": "false",
    "dapr_placement.cluster.forceInMemoryLog": "true",
}


def sidecar(version: str) -> Path:
    """The archive of the sidecar's image, ``local.test/daprd:VERSION``; built now if it is not there."""
    return static(f"{LOCAL}/daprd:{version}", cache.provide(daprd(version))).file


def images(version: str) -> list[Path]:
    """The archives of Dapr's services and sidecar of that version; built now if they are not there."""
    built = cache.provide(services(version)).parent
    return [sidecar(version), *(static(f"{LOCAL}/{name}:{version}", built / name).file for name in SERVICES)]


class Dapr:
    """Dapr's control plane in a cluster, which may not be there yet."""

    def __init__(self, cluster: Cluster) -> None:
        self.cluster = cluster

    async def version(self) -> str:
        """Which one is installed; empty if none is."""
        injector = ("deployment/dapr-sidecar-injector", f"--namespace={NAMESPACE}", "--ignore-not-found")
        image = await self.cluster.kubectl("get", *injector, "--output=jsonpath={..containers[0].image}")
        return image.rpartition(":")[2]

    async def bring_to(self, version: str) -> None:
        """Install that version or upgrade to it; afterwards every pod that is created gets its sidecar."""
        installed = await self.version()
        if installed != version:
            await self._install(version, is_first=not installed)
        for workload in _WORKLOADS:
            await self._kubectl("rollout", "status", workload, f"--timeout={PATIENCE_S}s")
        await until(self._old_injectors_are_gone, within_s=PATIENCE_S)
        await until(lambda: self._injects(version), within_s=PATIENCE_S)

    async def _install(self, version: str, *, is_first: bool) -> None:
        for image in images(version):
            await self.cluster.import_image(image)
        directory = cache.provide(services(version)).parent / "chart"
        # The definitions of a chart are not upgraded by helm.
        files = (f"--filename={directory / 'crds'}", "--filename=-")
        await self.cluster.kubectl("apply", "--server-side", "--force-conflicts", *files, stdin=json.dumps(_PREPARED))
        settings = [f"--set={name}={value}" for name, value in {**_VALUES, "global.tag": version}.items()]
        chart = (_RELEASE, str(directory), f"--namespace={NAMESPACE}", *settings)
        if is_first:
            await self._configure(chart)
        await helm(self.cluster, "upgrade", "--install", "--skip-crds", *chart)

    async def _configure(self, chart: tuple[str, ...]) -> None:
        """Make the chart's own Configuration first, where helm would make it last.

        Dapr's services end if they do not find it, and are then kept waiting for having ended.
        """
        await self.cluster.kubectl("wait", "crd/configurations.dapr.io", "--for=condition=Established", "--timeout=60s")
        configuration = yaml.safe_load(await helm(self.cluster, "template", *chart, f"--show-only={_CONFIGURATION}"))
        owner = {"release-name": _RELEASE, "release-namespace": NAMESPACE}
        configuration["metadata"]["annotations"] = {f"meta.helm.sh/{key}": value for key, value in owner.items()}
        await self.cluster.kubectl("apply", "--server-side", "--filename=-", stdin=json.dumps(configuration))

    async def _old_injectors_are_gone(self) -> bool:
        """The chart's webhook fails open: while an old injector ends, a pod can come up without its sidecar."""
        deleted = "jsonpath={.items[*].metadata.deletionTimestamp}"
        return not await self._kubectl("get", "pods", "--selector=app=dapr-sidecar-injector", f"--output={deleted}")

    async def _injects(self, version: str) -> bool:
        """Whether the API server reaches the injector; as long as it does not, it lets pods pass without sidecars."""
        arguments = ("create", "--dry-run=server", "--filename=-", "--output=jsonpath={.spec.containers[*].image}")
        return f"{LOCAL}/daprd:{version}" in await self.cluster.kubectl(*arguments, stdin=json.dumps(_SAMPLE))

    async def _kubectl(self, *arguments: str) -> str:
        return await self.cluster.kubectl(f"--namespace={NAMESPACE}", *arguments)


async def helm(cluster: Cluster, *arguments: str) -> str:
    """What helm prints to the cluster's administrator; it keeps its files with the cluster's."""
    home = cluster.state / "helm"
    places = {f"HELM_{name}_HOME": str(home / name.lower()) for name in ("CACHE", "CONFIG", "DATA")}
    surroundings = {**places, "HOME": str(home), "KUBECONFIG": str(cluster.kubeconfig)}
    return await run([str(cache.provide(HELM)), *arguments], environment=surroundings)


_LABELS = {"app": "dapr-scheduler-server"}
# An injector of 1.16 does not start before it knows of how many schedulers there are, even if there shall be none.
_NO_SCHEDULER = {
    "apiVersion": "apps/v1",
    "kind": "StatefulSet",
    "metadata": {"name": "dapr-scheduler-server", "namespace": NAMESPACE},
    "spec": {
        "replicas": 0,
        "serviceName": "dapr-scheduler-server",
        "selector": {"matchLabels": _LABELS},
        "template": {"metadata": {"labels": _LABELS}, "spec": {"containers": [{"name": "none", "image": "none"}]}},
    },
}
_NAMESPACE = {"apiVersion": "v1", "kind": "Namespace", "metadata": {"name": NAMESPACE}}
_PREPARED = {"apiVersion": "v1", "kind": "List", "items": [_NAMESPACE, _NO_SCHEDULER]}
_SAMPLE = {
    "apiVersion": "v1",
    "kind": "Pod",
    "metadata": {"name": "sample", "annotations": {"dapr.io/enabled": "true", "dapr.io/app-id": "sample"}},
    "spec": {"containers": [{"name": "sample", "image": "sample"}]},
}
