"""Dapr in the cluster: installed or upgraded in place by its own chart, with images built on this machine.

Addresses are Dapr's defaults: a sidecar's API listens on its pod's loopback only.
"""

import asyncio
import json
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Any

import yaml

from testbed.builds.dapr import SERVICES, daprd, services
from testbed.cluster.cluster import ROLLOUT_TIMEOUT_S, Cluster, run
from testbed.images import static
from testbed.waiting import until
from toolchain import cache
from toolchain.helm import HELM
from toolchain.oci import LOCAL

NAMESPACE = "dapr-system"
_RELEASE = "dapr"
_CONFIGURATION = "charts/dapr_config/templates/dapr_default_config.yaml"
_INJECTOR = "deployment/dapr-sidecar-injector"
_WORKLOADS = (
    "deployment/dapr-operator",
    "deployment/dapr-sentry",
    _INJECTOR,
    "statefulset/dapr-placement-server",
)
_PROBED = ("dapr_operator", "dapr_sentry", "dapr_sidecar_injector", "dapr_placement")
_VALUES = {
    "global.registry": LOCAL,
    "global.imagePullPolicy": "IfNotPresent",
    "global.scheduler.enabled": "false",
    "dapr_placement.cluster.forceInMemoryLog": "true",
    **{f"{name}.readinessProbe.initialDelaySeconds": "0" for name in _PROBED},
    **{f"{name}.readinessProbe.periodSeconds": "1" for name in _PROBED},
}


def sidecar(version: str) -> Path:
    """Return the archive of the sidecar's image, ``local.test/daprd:VERSION``, built now if missing."""
    return static(f"{LOCAL}/daprd:{version}", cache.provide(daprd(version))).file


def images(version: str) -> list[Path]:
    """Return the image archives of a version's sidecar and services, built now if missing."""
    built = cache.provide(services(version)).parent
    return [sidecar(version), *(static(f"{LOCAL}/{name}:{version}", built / name).file for name in SERVICES)]


def chart_of(version: str) -> Path:
    """Return the directory of a version's own chart, built now if missing."""
    return cache.provide(services(version)).parent / "chart"


def values_of(version: str) -> dict[str, Any]:
    """Return the values of the chart for the images of this machine, as a tree."""
    tree: dict[str, Any] = {}
    for path, value in {**_VALUES, "global.tag": version}.items():
        *parents, name = path.split(".")
        inner = tree
        for parent in parents:
            inner = inner.setdefault(parent, {})
        inner[name] = yaml.safe_load(value) if value != version else value
    return tree


class Dapr:
    """Dapr's control plane in a cluster, installed or not."""

    def __init__(self, cluster: Cluster) -> None:
        self.cluster = cluster

    async def version(self) -> str:
        """Return the installed version, or ``""``."""
        injector = (_INJECTOR, f"--namespace={NAMESPACE}", "--ignore-not-found")
        image = await self.cluster.kubectl("get", *injector, "--output=jsonpath={..containers[0].image}")
        return image.rpartition(":")[2]

    async def bring_to(self, version: str) -> None:
        """Install a version or upgrade to it, and return when new pods get its sidecar."""
        if self.cluster.dapr == version:
            return
        installed = await self.version()
        if installed != version:
            await self._install(version, is_first=not installed)
        for workload in _WORKLOADS:
            await self._kubectl("rollout", "status", workload, f"--timeout={ROLLOUT_TIMEOUT_S}s")
        await until(self._old_injectors_have_ended, within_s=ROLLOUT_TIMEOUT_S)
        await until(lambda: self._injects(version), within_s=ROLLOUT_TIMEOUT_S)
        self.cluster.dapr = version

    @asynccontextmanager
    async def without_injector(self) -> AsyncIterator[None]:
        """Stop the injector meanwhile: its webhook fails open, so new pods get no sidecar."""
        await self._kubectl("scale", _INJECTOR, "--replicas=0")
        await until(self._no_injector_runs, within_s=ROLLOUT_TIMEOUT_S)
        yield
        await self._kubectl("scale", _INJECTOR, "--replicas=1")
        version = await self.version()
        await until(lambda: self._injects(version), within_s=ROLLOUT_TIMEOUT_S)

    async def _install(self, version: str, *, is_first: bool) -> None:
        await asyncio.gather(*map(self.cluster.import_image, images(version)))
        directory = chart_of(version)
        # helm does not upgrade a chart's CRDs.
        files = (f"--filename={directory / 'crds'}", "--filename=-")
        await self.cluster.kubectl(
            "apply", "--server-side", "--force-conflicts", *files, stdin=json.dumps(_PREREQUISITES)
        )
        settings = [f"--set={name}={value}" for name, value in {**_VALUES, "global.tag": version}.items()]
        chart = (_RELEASE, str(directory), f"--namespace={NAMESPACE}", *settings)
        if is_first:
            await self._configure(chart)
        await helm(self.cluster, "upgrade", "--install", "--skip-crds", *chart)

    async def _configure(self, chart: tuple[str, ...]) -> None:
        """Create the chart's Configuration first; helm creates it last.

        Dapr's services exit if it is missing, and kubelet then delays their restart.
        """
        await self.cluster.kubectl("wait", "crd/configurations.dapr.io", "--for=condition=Established", "--timeout=60s")
        configuration = yaml.safe_load(await helm(self.cluster, "template", *chart, f"--show-only={_CONFIGURATION}"))
        owner = {"release-name": _RELEASE, "release-namespace": NAMESPACE}
        configuration["metadata"]["annotations"] = {f"meta.helm.sh/{key}": value for key, value in owner.items()}
        await self.cluster.kubectl("apply", "--server-side", "--filename=-", stdin=json.dumps(configuration))

    async def _old_injectors_have_ended(self) -> bool:
        """Return whether no injector terminates: the webhook fails open, so a pod could start without its sidecar."""
        deleted = "jsonpath={.items[*].metadata.deletionTimestamp}"
        return not await self._kubectl("get", "pods", "--selector=app=dapr-sidecar-injector", f"--output={deleted}")

    async def _no_injector_runs(self) -> bool:
        return not await self._kubectl("get", "pods", "--selector=app=dapr-sidecar-injector", "--output=name")

    async def _injects(self, version: str) -> bool:
        """Return whether the API server reaches the injector; until then it admits pods without sidecars."""
        arguments = ("create", "--dry-run=server", "--filename=-", "--output=jsonpath={.spec.containers[*].image}")
        return f"{LOCAL}/daprd:{version}" in await self.cluster.kubectl(*arguments, stdin=json.dumps(_SAMPLE))

    async def _kubectl(self, *arguments: str) -> str:
        return await self.cluster.kubectl(f"--namespace={NAMESPACE}", *arguments)


async def helm(cluster: Cluster, *arguments: str) -> str:
    """Run helm as the administrator and return its output; its files are kept with the cluster's."""
    home = cluster.state / "helm"
    homes = {f"HELM_{name}_HOME": str(home / name.lower()) for name in ("CACHE", "CONFIG", "DATA")}
    environment = {**homes, "HOME": str(home), "KUBECONFIG": str(cluster.kubeconfig)}
    return await run([str(cache.provide(HELM)), *arguments], environment=environment)


_LABELS = {"app": "dapr-scheduler-server"}
# The injector of 1.16 starts only if this StatefulSet exists, even if the scheduler is disabled.
NO_SCHEDULER = {
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
_PREREQUISITES = {"apiVersion": "v1", "kind": "List", "items": [_NAMESPACE, NO_SCHEDULER]}
_SAMPLE = {
    "apiVersion": "v1",
    "kind": "Pod",
    "metadata": {"name": "sample", "annotations": {"dapr.io/enabled": "true", "dapr.io/app-id": "sample"}},
    "spec": {"containers": [{"name": "sample", "image": "sample"}]},
}
