"""A valid content of each kind of Dapr that has scopes, which a sidecar loads without any server."""

from collections.abc import Iterator
from typing import Any

from testbed.cluster.workloads import Manifest


def specs() -> Iterator[tuple[str, str, dict[str, Any]]]:
    """Yield version, kind and content; the content of a Subscription lacks its topic."""
    yield "v1alpha1", "Component", {"type": "state.in-memory", "version": "v1", "metadata": []}
    yield "v1alpha1", "Component", {"type": "secretstores.local.env", "version": "v1", "metadata": []}
    yield "v1alpha1", "HTTPEndpoint", {"baseUrl": "http://127.0.0.1:1"}
    yield "v1alpha1", "MCPServer", {"endpoint": {"streamableHTTP": {"url": "http://127.0.0.1:1"}}, "ignoreErrors": True}
    yield "v1alpha1", "Resiliency", {"policies": {"timeouts": {"short": "3s"}}, "targets": {}}
    rule = {"callers": [{"appID": "a"}], "activities": [{"name": "pay"}]}
    yield "v1alpha1", "WorkflowAccessPolicy", {"rules": [rule]}
    yield "v2alpha1", "Subscription", {"pubsubname": "bus", "routes": {"default": "/orders"}}


def scoped_resources(namespace: str, scopes: tuple[str, ...], suffix: str = "") -> Iterator[Manifest]:
    """Yield a resource of each kind with these scopes; their names are unique in a kind."""
    for number, (version, kind, spec) in enumerate(specs()):
        name = f"{kind.lower()}-{number}-{'-'.join(scopes) or 'all'}{suffix}"
        # A sidecar lists a Subscription by its topic.
        content = {**spec, "topic": name} if kind == "Subscription" else spec
        yield {**resource(version, kind, name, namespace, content), "scopes": list(scopes)}


def bus(namespace: str) -> Manifest:
    """Return the message bus of the Subscriptions."""
    spec = {"type": "pubsub.in-memory", "version": "v1", "metadata": []}
    return resource("v1alpha1", "Component", "bus", namespace, spec)


def configuration(name: str, namespace: str, feature: str) -> Manifest:
    """Return a Configuration that enables a feature; a sidecar lists it even if it does not know it."""
    spec = {"features": [{"name": feature, "enabled": True}]}
    return resource("v1alpha1", "Configuration", name, namespace, spec)


def resource(version: str, kind: str, name: str, namespace: str, spec: dict[str, Any]) -> Manifest:
    """Return a resource of any kind."""
    metadata = {"name": name, "namespace": namespace}
    return {"apiVersion": f"dapr.io/{version}", "kind": kind, "metadata": metadata, "spec": spec}
