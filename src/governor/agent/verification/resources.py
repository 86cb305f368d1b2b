"""A Dapr resource as a sidecar sees it: who loads it, which part of it counts, how it is listed once loaded. Pure."""

from collections.abc import Iterable, Iterator, Mapping
from typing import Any, Final

from governor.agent.verification.sidecar_api import LoadedSubscription, Metadata, Rule
from governor.domain.documents import ResourceRef
from governor.values.digest import digest
from governor.values.trees import Manifest

_MARKER: Final = "runtime-governor/"

LISTS: Final[Mapping[str, str]] = {
    "HTTPEndpoint": "http_endpoints",
    "MCPServer": "mcp_servers",
    "Resiliency": "resiliencies",
    "WorkflowAccessPolicy": "workflow_access_policies",
}
"""Kinds that a sidecar lists by name only, and where in its metadata."""


def subscription_of(manifest: Manifest) -> LoadedSubscription:
    """How a sidecar lists this Subscription; both served versions are listed alike."""
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
    """How the marker of any content of the Configuration of this name begins."""
    return f"{_MARKER}{name}/"


def marker(manifest: Manifest) -> str:
    """A feature name that no runtime knows, made from a Configuration's content.

    A sidecar lists the features that its configuration enables, known or not, and nothing else of it: with the marker
    in the file, this list shows which content was really read.
    """
    return _marker_prefix(manifest["metadata"]["name"]) + loaded_digest(manifest).removeprefix("sha256:")[:16]


def marked(manifest: Manifest) -> Manifest:
    """The Configuration with its marker, as it is written for a sidecar."""
    spec = manifest.get("spec") or {}
    features = [*(spec.get("features") or ()), {"name": marker(manifest), "enabled": True}]
    return {**manifest, "spec": {**spec, "features": features}}


def loaded_digest(manifest: Manifest) -> str:
    """The digest of what Dapr looks at: it ignores labels and annotations when it compares."""
    name = {key: manifest["metadata"].get(key) for key in ("name", "namespace")}
    return digest({**manifest, "metadata": name})


def in_scope(manifest: Manifest, app_id: str) -> bool:
    """Whether a sidecar loads a resource; without scopes all do."""
    scopes = manifest.get("scopes") or ()
    return not scopes or app_id in scopes


def listed(ref: ResourceRef, new: Manifest | None, old: Manifest | None, metadata: Metadata) -> str:
    """In which words a sidecar lists ``new``, or, when that is None, what must be gone; nothing when it does not."""
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


def _listed_subscription(shown: Manifest | None, metadata: Metadata) -> str:
    if shown is None:
        return ""
    wanted = subscription_of(shown)
    return f"{wanted.pubsub_name}/{wanted.topic}" if wanted in metadata.subscriptions else ""


def _listed_configuration(ref: ResourceRef, new: Manifest | None, metadata: Metadata) -> str:
    wanted = marker(new) if new is not None else _marker_prefix(ref.name)
    found = any(feature.startswith(wanted) for feature in metadata.enabled_features)
    # The marker itself stays here: it is made from the content, which may hold secrets.
    return "the marker of its content" if found else ""
