"""The documents of the scenario, as an operator would write them: modules, a channel, installations, a sink."""

import base64
from collections.abc import Mapping
from pathlib import Path
from typing import Any, Final, NamedTuple

from governor.domain.documents import API_VERSION
from governor.reconciler.charts.digests import digest_of
from governor.reconciler.kinds.channel import CHANNEL
from governor.reconciler.kinds.cluster import CLUSTER, LOCAL
from governor.reconciler.kinds.installation import INSTALLATION
from governor.reconciler.kinds.module import MODULE, module_object_name
from governor.reconciler.settings import NAMESPACE
from testbed.cluster.cluster import run
from testbed.webhook_receiver import TOKEN
from toolchain import cache
from toolchain.helm import HELM

Document = dict[str, Any]

CHARTS: Final = Path(__file__).parent / "charts"
SPACE: Final = "shop"
"""The namespace of all three modules."""
STORE, ORDERS, SHOP = "store", "orders", "shop"
DEPENDS_ON: Final = {STORE: (), ORDERS: (STORE,), SHOP: (ORDERS,)}
FIRST, SECOND, BROKEN, FIXED = "1.0.0", "1.1.0", "2.0.0", "2.0.1"
VERSIONS: Final = {STORE: (FIRST,), ORDERS: (FIRST, SECOND, BROKEN, FIXED), SHOP: (FIRST, SECOND)}
MISSING_IMAGE: Final = "local.test/busybox:2"
"""The image of the broken version, which was never pushed."""
_CHANNEL: Final = "stable"
_SINK: Final = "tickets"


class Package(NamedTuple):
    """One version of a module, and its packed chart."""

    module: str
    version: str
    file: Path


async def package(directory: Path) -> list[Package]:
    """Pack the charts of all versions with ``helm package``."""
    program = str(cache.provide(HELM))
    packages = []
    for module, versions in VERSIONS.items():
        for version in versions:
            given = (f"--version={version}", f"--app-version={version}", f"--destination={directory}")
            await run([program, "package", str(CHARTS / module), *given], environment={"HOME": str(directory)})
            packages.append(Package(module, version, directory / f"{module}-{version}.tgz"))
    return packages


def versions_of(packages: list[Package]) -> list[Document]:
    """Return a ConfigMap with the chart, and a Module, for each version."""
    return [document for each in packages for document in (_chart(each), _module(each))]


def _chart(packed: Package) -> Document:
    content = base64.b64encode(packed.file.read_bytes()).decode()
    return _core("ConfigMap", _chart_name(packed), immutable=True, binaryData={"chart.tgz": content})


def _chart_name(packed: Package) -> str:
    return f"chart-{packed.module}-{packed.version}"


def _module(packed: Package) -> Document:
    spec = {
        "module": packed.module,
        "version": packed.version,
        "chart": {"configMap": {"name": _chart_name(packed)}, "digest": digest_of(packed.file)},
        "namespace": SPACE,
        "dependsOn": list(DEPENDS_ON[packed.module]),
    }
    if packed.version == BROKEN:
        spec["values"] = {"image": MISSING_IMAGE}
    return _own(MODULE.kind, module_object_name(packed.module, packed.version), spec)


def channel(**versions: str) -> Document:
    """Return the channel: the first version of each module, except for these."""
    return _own(CHANNEL.kind, _CHANNEL, {"modules": dict.fromkeys(VERSIONS, FIRST) | versions})


def installations() -> list[Document]:
    """Return the installations of all modules; edits of ``orders`` by others are refused."""
    careful = {ORDERS: {"protection": "policy", "onFailure": "rollback"}}
    return [_installation(module, careful.get(module, {})) for module in VERSIONS]


def _installation(module: str, more: Mapping[str, str]) -> Document:
    return _own(INSTALLATION.kind, module, {"module": module, "channel": _CHANNEL, "cluster": LOCAL, **more})


def sink(url: str, authority: str) -> Document:
    """Return the Secret with the address of the system of tickets."""
    return _core("Secret", _SINK, stringData={"url": url, "token": TOKEN, "ca": authority})


def impatient(seconds: int) -> Document:
    """Return the Cluster, which reports what fails for longer to the system of tickets."""
    keys = {f"{field}Secret": {"name": _SINK, "key": field} for field in ("url", "token", "ca")}
    sinks = [{"name": _SINK, "webhook": keys}]
    return _own(CLUSTER.kind, LOCAL, {"access": {"inCluster": {}}, "pendingTimeout": seconds, "sinks": sinks})


def editor(user: str) -> Document:
    """Return the permission of a user to edit everything in the namespace of the modules."""
    role = {"apiGroup": "rbac.authorization.k8s.io", "kind": "ClusterRole", "name": "edit"}
    subject = {"apiGroup": "rbac.authorization.k8s.io", "kind": "User", "name": user}
    metadata = {"name": user, "namespace": SPACE}
    binding = {"apiVersion": "rbac.authorization.k8s.io/v1", "kind": "RoleBinding", "metadata": metadata}
    return binding | {"roleRef": role, "subjects": [subject]}


def _own(kind: str, name: str, spec: Document) -> Document:
    return {"apiVersion": API_VERSION, "kind": kind, "metadata": {"name": name, "namespace": NAMESPACE}, "spec": spec}


def _core(kind: str, name: str, **content: Any) -> Document:
    return {"apiVersion": "v1", "kind": kind, "metadata": {"name": name, "namespace": NAMESPACE}, **content}
