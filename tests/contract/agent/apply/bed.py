"""Deliveries, Dapr's CustomResourceDefinitions and agents' apply sets for tests on a real API server."""

from typing import Any

from governor.agent.platforms.kubernetes.resources.applied import AppliedResources
from governor.agent.platforms.kubernetes.resources.manifests import Manifests, manifests_of, naming_key
from governor.agent.redaction import Redactor
from governor.domain.bundles import Delivery
from governor.domain.documents import ApplyPolicy, ResourceRef
from governor.kube.client import Client
from governor.kube.objects import ApiResource, Object, ObjectRef, ref_of
from governor.values.trees import Manifest
from testbed.builds.dapr import VERSION, services
from testbed.kube.control_plane import ControlPlane
from testbed.waiting import until
from toolchain import cache
from toolchain.errors import TestbedError

KEY = naming_key(b"identity of the agent")
SECRET_VALUE = "s3cret-value"

COMPONENTS = ApiResource("dapr.io", "v1alpha1", "Component", "components", namespaced=True)
CONFIGURATIONS = ApiResource("dapr.io", "v1alpha1", "Configuration", "configurations", namespaced=True)
SECRETS = ApiResource("", "v1", "Secret", "secrets", namespaced=True)
CONFIG_MAPS = ApiResource("", "v1", "ConfigMap", "configmaps", namespaced=True)
NAMESPACES = ApiResource("", "v1", "Namespace", "namespaces", namespaced=False)
WEBHOOKS = ApiResource(
    "admissionregistration.k8s.io",
    "v1",
    "ValidatingWebhookConfiguration",
    "validatingwebhookconfigurations",
    namespaced=False,
)
FILES = (
    "components",
    "configuration",
    "httpendpoints",
    "mcpservers",
    "resiliency",
    "subscription",
    "workflowaccesspolicy",
)


async def install_dapr(plane: ControlPlane, *files: str) -> None:
    """Install Dapr's CustomResourceDefinitions, all or those of some files, and wait until they are served."""
    directory = cache.provide(services(VERSION)).parent / "chart" / "crds"
    paths = [f"--filename={directory / f'{name}.yaml'}" for name in files or FILES]
    await plane.kubectl("apply", "--server-side", "--force-conflicts", *paths)
    await plane.kubectl("wait", "--for=condition=Established", "--timeout=60s", *paths)

    async def served() -> bool:
        found = (await plane.ask("GET", "/apis/dapr.io/v1alpha1"))["resources"]
        kinds = [each["name"] for each in found if "/" not in each["name"]]
        try:
            # The storage of a kind is initialised by the first request for it.
            for each in kinds:
                await plane.ask("GET", f"/apis/dapr.io/v1alpha1/{each}?limit=1")
        except TestbedError:
            return False
        return len(kinds) >= len(files or FILES)

    await until(served)


def delivery(*resources: Manifest, removals: tuple[ResourceRef, ...] = ()) -> Delivery:
    return Delivery("r1", 1, 1, 1, "sha256:x", resources, removals, ApplyPolicy())


def component(name: str, *, host: str = "redis:6379", password: str = "", **more: Any) -> Manifest:
    items = [{"name": "redisHost", "value": host}]
    items += [{"name": "redisPassword", "value": password}] if password else []
    spec = {"type": "state.redis", "version": "v1", "metadata": items}
    return {"apiVersion": "dapr.io/v1alpha1", "kind": "Component", "metadata": {"name": name}, "spec": spec, **more}


def secret_store(name: str) -> Manifest:
    spec = {"type": "secretstores.local.env", "version": "v1", "metadata": []}
    return {"apiVersion": "dapr.io/v1alpha1", "kind": "Component", "metadata": {"name": name}, "spec": spec}


def resource(kind: str, name: str = "it", version: str = "v1alpha1", **fields: Any) -> Manifest:
    return {"apiVersion": f"dapr.io/{version}", "kind": kind, "metadata": {"name": name}, **fields}


EVERY_KIND = (
    component("store", password=SECRET_VALUE),
    resource("Configuration", "settings", spec={"tracing": {"samplingRate": "1"}}),
    resource(
        "HTTPEndpoint",
        "endpoint",
        spec={
            "baseUrl": "https://example.com",
            "headers": [{"name": "Authorization", "value": f"Bearer {SECRET_VALUE}"}],
            "clientTLS": {"privateKey": {"value": "-----BEGIN PRIVATE KEY-----"}},
        },
    ),
    resource("MCPServer", "tools", spec={"endpoint": {"streamableHTTP": {"url": "https://example.com"}}}),
    resource("Resiliency", "policies", spec={"policies": {}, "targets": {}}),
    resource("Subscription", "orders", "v2alpha1", spec={"pubsubname": "p", "topic": "t", "routes": {"default": "/o"}}),
    resource(
        "WorkflowAccessPolicy",
        "access",
        spec={"rules": [{"callers": [{"appID": "a"}], "activities": [{"name": "pay"}]}]},
    ),
)


class Bed:
    """The agent of one runtime that has one namespace, in which its inventory is too."""

    def __init__(self, client: Client, namespace: str, runtime: str = "", **settings: Any) -> None:
        self.client = client
        self.namespace = namespace
        self.runtime = runtime or namespace
        self.redactor = Redactor()
        self.agent = AppliedResources(client, self.runtime, namespace, [namespace], self.redactor, **settings)

    def manifests(self, *resources: Manifest, removals: tuple[str, ...] = ()) -> Manifests:
        """Return the objects of a delivery that removes the Components of some names."""
        made = delivery(*resources, removals=tuple(map(self.ref, removals)))
        self.redactor.add(made.resources)
        return manifests_of(made, [self.namespace], KEY)

    def ref(self, name: str, kind: str = "Component") -> ResourceRef:
        return ResourceRef(kind, self.namespace, name)

    async def secrets(self) -> set[str]:
        """Return the names of all Secrets."""
        return {each["metadata"]["name"] async for each in self.client.list(SECRETS, self.namespace)}

    async def components(self) -> dict[str, Object]:
        """Return all Components by name."""
        return {each["metadata"]["name"]: each async for each in self.client.list(COMPONENTS, self.namespace)}


def secret_refs(manifests: Manifests) -> list[ObjectRef]:
    """Return the references to the Secrets of a delivery."""
    return list(map(ref_of, manifests.secrets.values()))


def host_of(live: Object) -> str:
    return str(live["spec"]["metadata"][0]["value"])
