"""Dapr resources from a sidecar's view: scope, content digest, and how it is listed once loaded. Pure."""

from collections.abc import Iterable, Iterator, Mapping
from typing import Any, Final

from governor.agent.verification.sidecar_api import LoadedSubscription, Metadata, Rule
from governor.domain.dapr.sensitive import sensitive_paths
from governor.domain.documents import ResourceRef
from governor.values.digest import digest
from governor.values.secret import MASK
from governor.values.trees import Manifest, Tree, map_leaves

_MARKER: Final = "runtime-governor/"

LISTS: Final[Mapping[str, str]] = {
    "HTTPEndpoint": "http_endpoints",
    "MCPServer": "mcp_servers",
    "Resiliency": "resiliencies",
    "WorkflowAccessPolicy": "workflow_access_policies",
}
"""Kinds that a sidecar lists by name only, with the metadata field."""


def subscription_of(manifest: Manifest) -> LoadedSubscription:
    """Return how a sidecar lists a Subscription; the same for both API versions."""
    spec: dict[str, Any] = manifest["spec"]
    routes = spec.get("routes") or {"default": spec.get("route", "")}
    return LoadedSubscription(
        spec["pubsubname"],
        spec["topic"],
        tuple(_rules(routes.get("rules") or (), routes.get("default") or "")),
        spec.get("deadLetterTopic") or "",
        dict(spec.get("metadata") or {}),
    )


def _rules(rules: Iterable[Mapping[str, str]], default: str) -> Iterator[Rule]:
    yield from (Rule(rule.get("path", ""), rule.get("match", "")) for rule in rules)
    if default:
        yield Rule(default)


def _marker_prefix(name: str) -> str:
    """Return the common prefix of the markers of a Configuration, whatever its content."""
    return f"{_MARKER}{name}/"


def marker(manifest: Manifest) -> str:
    """Return a feature name that encodes a Configuration's content and that no runtime knows.

    A sidecar lists the enabled features of its Configuration, known or not, and nothing else of it. A marker in that
    list proves which content the sidecar has read. It leaves out sensitive values: clients that can read the list could
    test guesses of a weak password against a digest that covers it.
    """
    sensitive = frozenset(sensitive_paths(manifest))
    content = map_leaves(manifest, lambda path, leaf: MASK if path in sensitive else leaf) if sensitive else manifest
    return _marker_prefix(manifest["metadata"]["name"]) + loaded_digest(content).removeprefix("sha256:")[:16]


def with_marker(manifest: Manifest) -> Manifest:
    """Return the Configuration with its marker added, as it is written."""
    spec = manifest.get("spec") or {}
    features = [*(spec.get("features") or ()), {"name": marker(manifest), "enabled": True}]
    return {**manifest, "spec": {**spec, "features": features}}


def loaded_digest(manifest: Manifest) -> str:
    """Return the digest of what Dapr compares: it ignores labels and annotations."""
    name = {key: manifest["metadata"].get(key) for key in ("name", "namespace")}
    return digest({**manifest, "metadata": name})


def named_stores(tree: Tree) -> frozenset[str]:
    """Return the secret stores that a manifest names anywhere; the place differs by kind."""
    if isinstance(tree, dict):
        named = tree.get("secretStore")
        own = {named} if isinstance(named, str) and named else set[str]()
        return frozenset(own).union(*map(named_stores, tree.values()))
    return frozenset().union(*map(named_stores, tree)) if isinstance(tree, (list, tuple)) else frozenset()


def listed(ref: ResourceRef, new: Manifest | None, old: Manifest | None, metadata: Metadata) -> str:
    """Return how a sidecar lists ``new`` or, if None, the resource that must be absent; ``""`` if it does not."""
    match ref.kind:
        case "Component":
            return _listed_component(ref, new, metadata)
        case "Subscription":
            return _listed_subscription(new or old, metadata)
        case "Configuration":
            return _listed_configuration(ref, new, metadata)
        case kind if kind in LISTS:
            return ref.name if any(one.name == ref.name for one in getattr(metadata, LISTS[kind])) else ""
        case _:
            return ""


def _listed_component(ref: ResourceRef, new: Manifest | None, metadata: Metadata) -> str:
    found = next((one for one in metadata.components if one.name == ref.name), None)
    if found is None or (new is not None and (found.type, found.version) != _type_and_version(new)):
        return ""
    return f"{found.type}/{found.version}"


def _type_and_version(manifest: Manifest) -> tuple[str, str]:
    return manifest["spec"]["type"], manifest["spec"].get("version") or ""


def _listed_subscription(manifest: Manifest | None, metadata: Metadata) -> str:
    if manifest is None:
        return ""
    subscription = subscription_of(manifest)
    return f"{subscription.pubsub_name}/{subscription.topic}" if subscription in metadata.subscriptions else ""


def _listed_configuration(ref: ResourceRef, new: Manifest | None, metadata: Metadata) -> str:
    prefix = marker(new) if new is not None else _marker_prefix(ref.name)
    found = any(feature.startswith(prefix) for feature in metadata.enabled_features)
    return "the marker of its content" if found else ""
