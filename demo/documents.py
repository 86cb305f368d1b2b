"""The documents of the scenario, as an admin would write them."""

from typing import TYPE_CHECKING, Any

from demo.order_app import HTTP_BINDING, REDIS_BINDING, STATE_STORE
from governor.domain.documents import API_VERSION

if TYPE_CHECKING:
    from demo.world import Store


def runtime(name: str) -> dict[str, Any]:
    """Return the document of a runtime."""
    return {
        "apiVersion": API_VERSION,
        "kind": "Runtime",
        "metadata": {"name": name, "labels": {"app": "orders"}},
        "spec": {"platform": "local"},
    }


def orders() -> dict[str, Any]:
    """Return the profile that all runtimes share: the components and their types."""
    return _profile(
        "orders",
        {"matchLabels": {"app": "orders"}},
        _component(STATE_STORE, "state.redis"),
        _component(REDIS_BINDING, "bindings.redis", direction="output"),
        _component(HTTP_BINDING, "bindings.http", direction="output"),
    )


def orders_of(name: str, store: "Store", **apply: str) -> dict[str, Any]:
    """Return the profile of one runtime: where its orders are stored, and its apply policy."""
    access = {"redisHost": store.redis.address, "redisPassword": store.redis.password}
    profile = _profile(
        f"orders-{name}",
        {"runtime": name},
        _component(STATE_STORE, None, **access),
        _component(REDIS_BINDING, None, **access),
        _component(HTTP_BINDING, None, url=store.desk.url),
    )
    if apply:
        profile["spec"]["apply"] = apply
    return profile


def _profile(name: str, selector: dict[str, Any], *resources: dict[str, Any]) -> dict[str, Any]:
    return {
        "apiVersion": API_VERSION,
        "kind": "Profile",
        "metadata": {"name": name},
        "spec": {"selector": selector, "resources": list(resources)},
    }


def _component(name: str, component_type: str | None, **metadata: str) -> dict[str, Any]:
    spec: dict[str, Any] = {} if component_type is None else {"type": component_type, "version": "v1"}
    if metadata:
        spec["metadata"] = [{"name": key, "value": value} for key, value in metadata.items()]
    return {"apiVersion": "dapr.io/v1alpha1", "kind": "Component", "metadata": {"name": name}, "spec": spec}
