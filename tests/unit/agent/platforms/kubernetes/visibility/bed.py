"""Deliveries and findings for tests of what kubectl shows."""

from collections.abc import Mapping
from datetime import UTC, datetime

from governor.agent.verification.findings import Findings, InstanceFindings, combine
from governor.domain.bundles import Delivery
from governor.domain.documents import ApplyPolicy, ResourceRef, resource_ref
from governor.domain.reports import Evidence, Finding, State, WorkloadRef
from governor.values.trees import Manifest

NOW = datetime(2026, 1, 1, tzinfo=UTC)
DIGEST = f"sha256:{'a1' * 32}"


def component(name: str = "store", host: str = "one", namespace: str = "default") -> Manifest:
    spec = {"type": "state.redis", "version": "v1", "metadata": [{"name": "redisHost", "value": host}]}
    metadata = {"name": name, "namespace": namespace}
    return {"apiVersion": "dapr.io/v1alpha1", "kind": "Component", "metadata": metadata, "spec": spec}


def delivery(*resources: Manifest, sequence: int = 1, attempt: int = 1, digest: str = DIGEST) -> Delivery:
    return Delivery("r1", sequence, attempt, 1, digest, resources, (), ApplyPolicy())


def ref(name: str = "store", namespace: str = "default") -> ResourceRef:
    return ResourceRef("Component", namespace, name)


def workload(name: str = "orders", namespace: str = "default") -> WorkloadRef:
    return WorkloadRef(namespace, "Deployment", name)


def finding(state: State, text: str = "") -> Finding:
    return Finding(state=state, evidence=(Evidence("pod", NOW, text or f"it is {state}"),))


def found(delivered: Delivery, states: Mapping[WorkloadRef, Mapping[ResourceRef, list[State]]]) -> Findings:
    """Return findings with a state per resource and instance of each workload."""
    refs = [resource_ref(each, "default") for each in delivered.resources]
    return combine(
        refs,
        {
            one: [
                InstanceFindings(f"pod {number}", {each: finding(several[number]) for each, several in loaded.items()})
                for number in range(len(next(iter(loaded.values()), [])))
            ]
            for one, loaded in states.items()
        },
        NOW,
    )


def of_orders(delivered: Delivery, *states: State) -> Findings:
    """Return findings of one workload whose instances all load the component."""
    return found(delivered, {workload(): {ref(): list(states)}})
