"""What sidecars in a cluster load, and how they take a change, independent of the code under test.

Written from the facts about Dapr alone; it uses nothing of ``governor``. A resource is a manifest with a namespace.
"""

from collections.abc import Iterable, Mapping
from typing import Any

Resource = Mapping[str, Any]
Version = tuple[int, int, int]

WITH_SCOPES = {"Component", "Subscription", "Resiliency", "HTTPEndpoint", "MCPServer", "WorkflowAccessPolicy"}

LIVE, IN_PLACE, START = "live", "in place", "at its next start"


def loads(app_id: str, namespace: str, configuration: str, resource: Resource) -> bool:
    """Return whether a sidecar that starts now loads the resource.

    A Configuration is chosen by the pod's annotation `dapr.io/config`. Everything else is loaded in its own namespace,
    by all sidecars there if it has no scopes, otherwise by those whose app id is one of its scopes.
    """
    if resource["metadata"]["namespace"] != namespace:
        return False
    if resource["kind"] == "Configuration":
        return bool(resource["metadata"]["name"] == configuration)
    if resource["kind"] not in WITH_SCOPES:
        return False
    scopes = resource.get("scopes")
    return app_id in scopes if scopes else True


def concerns(app_id: str, namespace: str, configuration: str, versions: Iterable[Resource | None]) -> bool:
    """Return whether a sidecar loads any of the versions, old and new, of a resource."""
    return any(each is not None and loads(app_id, namespace, configuration, each) for each in versions)


def takes(version: Version, resource: Resource, *, hot_reload: bool) -> str:
    """Return when a running sidecar loads a changed resource; ``hot_reload`` if the feature is on in it."""
    if not hot_reload or version < (1, 13, 0):
        return START
    kind = resource["kind"]
    if kind == "Component":
        return START if is_actor_state_store(resource) and version < (1, 18, 3) else LIVE
    if kind == "Subscription":
        return LIVE if version >= (1, 14, 0) else START
    if version < (1, 18, 0):
        return START
    return IN_PLACE if kind in {"Configuration", "HTTPEndpoint", "Resiliency"} else LIVE


def is_actor_state_store(resource: Resource) -> bool:
    """Return whether a state store is marked as the one of actors."""
    is_state_store = resource["spec"]["type"].startswith("state.")
    return is_state_store and any(item["name"] == "actorStateStore" for item in resource["spec"].get("metadata", ()))


def names_store(resource: Resource, store: str) -> bool:
    """Return whether a resource reads its secrets from this secret store."""
    return bool(resource.get("auth", {}).get("secretStore") == store)


def rolls(api_version: str, kind: str, strategy: str) -> bool:
    """Return whether a change of its template, or an eviction, replaces the pods of a workload one after another."""
    if api_version != "apps/v1":
        return False
    if kind == "ReplicaSet":
        return True
    return kind in {"Deployment", "StatefulSet", "DaemonSet"} and strategy == "rolling"
