"""The governor's own programs as modules; their charts are stored in the hub namespace."""

from collections.abc import Mapping
from typing import Any, Final

import msgspec

from governor import yamltext
from governor.domain.documents import API_VERSION
from governor.errors import GovernorError, Kind
from governor.kube.applyset.live import get
from governor.kube.client import Client
from governor.kube.objects import Object, ref_of
from governor.process.bundled_charts import bundled_chart
from governor.reconciler.charts.digests import archive_digest
from governor.reconciler.charts.package import pack, read_directory
from governor.reconciler.core_kinds import CONFIG_MAPS
from governor.reconciler.kinds.cluster import LOCAL
from governor.reconciler.kinds.installation import INSTALLATION, DeletionPolicy, OnFailure
from governor.reconciler.kinds.module import MODULE, module_object_name

RECONCILER: Final = "governor-reconciler"
SERVER: Final = "governor-server"
AGENT: Final = "governor-agent"
MANAGER: Final = "governor-bootstrap"
READY_WITHIN_S: Final = 300
"""After this time a version that is not ready counts as broken."""


class OwnModule(msgspec.Struct, frozen=True):
    """One of the governor's programs, and how it is to be installed."""

    name: str
    version: str
    packed: bytes
    values: Mapping[str, Any]
    depends_on: tuple[str, ...] = ()

    @property
    def digest(self) -> str:
        """Digest of the packed chart."""
        return archive_digest(self.packed)


def own_module(name: str, values: Mapping[str, Any], depends_on: tuple[str, ...] = ()) -> OwnModule:
    """Return a program in the version of this package."""
    files = read_directory(bundled_chart(name))
    (chart,) = yamltext.load(files["Chart.yaml"], f"the chart {name}")
    assert isinstance(chart.value, dict)  # noqa: S101 - a file of this package
    return OwnModule(name, str(chart.value["version"]), pack(files, name), values, depends_on)


async def publish(client: Client, namespace: str, module: OwnModule) -> list[str]:
    """Store the chart and the Module unless they exist, and let the Installation name this version.

    CONFLICT if another client decides about the version or the values of the Installation.
    """
    chart, version = _chart_manifest(module, namespace), _module_manifest(module, namespace)
    lines = []
    for resource, manifest in ((CONFIG_MAPS, chart), (MODULE.resource, version)):
        live = await get(client, resource, ref_of(manifest))
        if live is None:
            await client.create(resource, manifest, manager=MANAGER)
        lines.append(f"{resource.kind} {manifest['metadata']['name']} {'exists' if live else 'created'}")
        if live and resource.kind == MODULE.kind:
            _require_digest(live, module)
    await client.apply(INSTALLATION.resource, _installation_manifest(module, namespace), manager=MANAGER)
    return [*lines, f"Installation {module.name} names version {module.version}"]


def _require_digest(live: Object, module: OwnModule) -> None:
    if live["spec"]["chart"]["digest"] == module.digest:
        return
    message = f"Module {live['metadata']['name']} exists with another chart: a version never changes, use another one"
    raise GovernorError(Kind.PRECONDITION, "module-differs", message)


def _chart_name(module: OwnModule) -> str:
    return f"chart-{module_object_name(module.name, module.version)}"


def _chart_manifest(module: OwnModule, namespace: str) -> Object:
    metadata = {"name": _chart_name(module), "namespace": namespace}
    data = {"chart.tgz": msgspec.to_builtins(module.packed)}
    return {"apiVersion": "v1", "kind": "ConfigMap", "metadata": metadata, "immutable": True, "binaryData": data}


def _module_manifest(module: OwnModule, namespace: str) -> Object:
    spec = {
        "module": module.name,
        "version": module.version,
        "chart": {"configMap": {"name": _chart_name(module)}, "digest": module.digest},
        "namespace": namespace,
        "dependsOn": list(module.depends_on),
        "readiness": {"timeoutSeconds": READY_WITHIN_S},
    }
    name = module_object_name(module.name, module.version)
    return _manifest(MODULE.kind, name, namespace, spec)


def _installation_manifest(module: OwnModule, namespace: str) -> Object:
    """Return the Installation. Deleting it leaves the program in place: a reconciler cannot remove itself."""
    spec = {
        "module": module.name,
        "version": module.version,
        "cluster": LOCAL,
        "values": dict(module.values),
        "deletionPolicy": DeletionPolicy.ORPHAN if module.name == RECONCILER else DeletionPolicy.DELETE,
        "onFailure": OnFailure.ROLLBACK,
    }
    return _manifest(INSTALLATION.kind, module.name, namespace, spec)


def _manifest(kind: str, name: str, namespace: str, spec: Object) -> Object:
    return {"apiVersion": API_VERSION, "kind": kind, "metadata": {"name": name, "namespace": namespace}, "spec": spec}
