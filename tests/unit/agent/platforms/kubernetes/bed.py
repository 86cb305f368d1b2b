"""Workloads, pods and resources for tests of plans."""

from collections.abc import Iterable, Mapping
from datetime import UTC, datetime, timedelta
from typing import Any

from governor.agent.platforms.kubernetes.plans.hot_reload import SidecarFacts
from governor.agent.platforms.kubernetes.workloads.workload import Container, Pod, Update, Workload
from governor.agent.verification.resources import loaded_digest
from governor.agent.verification.verdicts import Expected, Proof
from governor.domain.documents import ResourceRef
from governor.domain.reports import Evidence, WorkloadRef

Manifest = dict[str, Any]
NOW = datetime(2026, 1, 1, tzinfo=UTC)
LATER = NOW + timedelta(seconds=1)
HOT = frozenset({"HotReload"})
FACTS = SidecarFacts("1.18.3", HOT)
COLD = SidecarFacts("1.16.0")


def resource(kind: str, name: str, spec: Manifest | None = None, namespace: str = "default", **more: Any) -> Manifest:
    return {
        "apiVersion": "dapr.io/v1alpha1",
        "kind": kind,
        "metadata": {"name": name, "namespace": namespace},
        "spec": spec or {},
        **more,
    }


def component(name: str, value: str = "a", type_: str = "state.redis", **more: Any) -> Manifest:
    return resource("Component", name, {"type": type_, "metadata": [{"name": "host", "value": value}]}, **more)


def change(new: Manifest | None, old: Manifest | None) -> Expected:
    shown = new or old
    assert shown is not None
    metadata = shown["metadata"]
    return Expected(ResourceRef(shown["kind"], metadata["namespace"], metadata["name"]), new, old)


def unchanged(manifest: Manifest) -> Expected:
    return change(manifest, manifest)


def pod(owner: WorkloadRef, name: str = "", app_id: str = "", **more: Any) -> Pod:
    name = name or f"{owner.name}-0"
    uid = f"{owner.namespace}.{name}"
    more.setdefault("sidecar", Container("daprd:1", id="c1", started=NOW))
    return Pod(owner.namespace, name, uid, more.pop("created", NOW), app_id or owner.name, owner, **more)


def workload(name: str = "orders", kind: str = "Deployment", namespace: str = "default", **more: Any) -> Workload:
    """Return a workload; by default its app id is its name and it has one pod."""
    ref = WorkloadRef(namespace, kind, name)
    pods = more.pop("pods", None)
    configuration = more.setdefault("configuration", "")
    fields: dict[str, Any] = {"api_version": "apps/v1", "update": Update.ROLLING, "app_id": name, **more}
    if pods is None:
        pods = (pod(ref, app_id=fields["app_id"], configuration=configuration),)
    return Workload(ref, fields.pop("api_version"), fields.pop("update"), tuple(pods), **fields)


def facts(workloads: Iterable[Workload], known: SidecarFacts = FACTS) -> dict[str, SidecarFacts]:
    return {each.uid: known for one in workloads for each in one.pods}


def proofs(pods: Iterable[Pod], *manifests: Manifest) -> Mapping[str, Mapping[ResourceRef, Proof]]:
    evidence = Evidence("sidecar", NOW, "seen")
    found = {unchanged(each).ref: Proof(loaded_digest(each), evidence) for each in manifests}
    return {each.instance: found for each in pods if each.instance}
