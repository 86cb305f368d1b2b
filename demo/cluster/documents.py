"""The documents of the scenario, as an admin would write them."""

from typing import Any

from demo.order_app import REDIS_BINDING, STATE_STORE
from governor.domain.documents import API_VERSION
from testbed.cluster.workloads import RedisInCluster

Document = dict[str, Any]


def runtime(name: str) -> Document:
    """Return the document of a runtime, which is the namespace with its name."""
    metadata = {"name": name, "labels": {"app": "orders"}}
    spec = {"platform": "kubernetes", "namespaces": [name]}
    return {"apiVersion": API_VERSION, "kind": "Runtime", "metadata": metadata, "spec": spec}


def state_store(name: str, redis: RedisInCluster, **apply: str) -> Document:
    """Return the profile of one runtime's state store."""
    return _profile("state-store", name, _component(STATE_STORE, "state.redis", redis), apply)


def binding(name: str, redis: RedisInCluster) -> Document:
    """Return the profile of one runtime's output binding."""
    return _profile("binding", name, _component(REDIS_BINDING, "bindings.redis", redis, direction="output"), {})


def with_host(document: Document, host: str) -> Document:
    """Return the profile with another address of Redis."""
    (component,) = document["spec"]["resources"]
    metadata = [
        {**item, "value": host} if item["name"] == "redisHost" else item for item in component["spec"]["metadata"]
    ]
    changed = {**component, "spec": {**component["spec"], "metadata": metadata}}
    return {**document, "spec": {**document["spec"], "resources": [changed]}}


def _profile(noun: str, name: str, component: Document, apply: dict[str, str]) -> Document:
    spec: Document = {"selector": {"runtime": name}, "resources": [component]}
    if apply:
        spec["apply"] = apply
    return {"apiVersion": API_VERSION, "kind": "Profile", "metadata": {"name": f"{noun}-{name}"}, "spec": spec}


def _component(name: str, component_type: str, redis: RedisInCluster, **more: str) -> Document:
    values = {"redisHost": redis.address, "redisPassword": redis.password, **more}
    metadata = [{"name": key, "value": value} for key, value in values.items()]
    spec = {"type": component_type, "version": "v1", "metadata": metadata}
    return {"apiVersion": "dapr.io/v1alpha1", "kind": "Component", "metadata": {"name": name}, "spec": spec}
