"""Validation of manifests against the schemas of Dapr's kinds."""

import copy
from collections.abc import Iterator
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from governor.domain.dapr.kinds import built_in_types, kinds
from governor.domain.dapr.validation import PLUGGABLE, validate
from governor.values.secret import Sealed

V1 = "dapr.io/v1alpha1"


def manifest(kind: str, spec: dict[str, Any], api_version: str = V1, **more: Any) -> dict[str, Any]:
    return {"apiVersion": api_version, "kind": kind, "metadata": {"name": "x"}, "spec": spec, **more}


WHOLE = {
    "Component": manifest(
        "Component",
        {
            "type": "state.redis",
            "version": "v1",
            "ignoreErrors": True,
            "metadata": [
                {"name": "redisHost", "value": "127.0.0.1:6379"},
                {"name": "redisDB", "value": 1},
                {"name": "list", "value": ["a", {"b": 1}]},
                {"name": "redisPassword", "secretKeyRef": {"name": "redis", "key": "password"}},
                {"name": "redisUsername", "envRef": "USER"},
            ],
        },
        auth={"secretStore": "local"},
        scopes=["app"],
    ),
    "Configuration": manifest(
        "Configuration",
        {
            "tracing": {"samplingRate": "1", "zipkin": {"endpointAddress": "http://localhost:9411"}},
            "nameResolution": {"component": "sqlite", "version": "v1", "configuration": {"anything": {"at": "all"}}},
            "metrics": {"enabled": True, "latencyDistributionBuckets": [1, 2]},
        },
    ),
    "HTTPEndpoint": manifest(
        "HTTPEndpoint", {"baseUrl": "https://example.com", "clientTLS": {"rootCA": {"value": "x"}}}
    ),
    "MCPServer": manifest("MCPServer", {"endpoint": {"stdio": {"command": "tool", "args": ["-v"]}}}),
    "Resiliency": manifest(
        "Resiliency",
        {"policies": {"retries": {"often": {"maxRetries": -1}}}, "targets": {"apps": {"app": {"retry": "often"}}}},
    ),
    "Subscription": manifest(
        "Subscription",
        {"pubsubname": "p", "topic": "t", "routes": {"rules": [{"match": "true", "path": "/a"}], "default": "/b"}},
        "dapr.io/v2alpha1",
    ),
    "WorkflowAccessPolicy": manifest(
        "WorkflowAccessPolicy",
        {"rules": [{"callers": [{"appID": "a"}], "workflows": [{"name": "*", "operations": ["get", "pause"]}]}]},
    ),
}


def found(tree: Any, *, partial: bool = False) -> dict[str, str]:
    return {detail.path: detail.reason for detail in validate(tree, partial=partial)}


def component(**spec: Any) -> dict[str, Any]:
    return manifest("Component", {"type": "state.redis", "version": "v1", "metadata": [], **spec})


def test_there_is_an_example_of_every_kind() -> None:
    assert WHOLE.keys() == kinds().keys()


@pytest.mark.parametrize("kind", WHOLE)
def test_a_whole_manifest_passes_also_as_a_layer(kind: str) -> None:
    assert validate(WHOLE[kind], partial=False) == []
    assert validate(WHOLE[kind], partial=True) == []


def test_the_older_version_of_a_subscription_has_its_own_schema() -> None:
    old = manifest("Subscription", {"pubsubname": "p", "topic": "t", "route": "/a"})
    assert found(old) == {}
    assert found({**old, "apiVersion": "dapr.io/v2alpha1"}) == {
        "spec.routes": "is missing",
        "spec.route": "unknown field; did you mean routes?",
    }


@pytest.mark.parametrize(
    ("tree", "expected"),
    [
        (component(version=1), {"spec.version": "must be a string, not an integer"}),
        (component(ignoreErrors="yes"), {"spec.ignoreErrors": "must be a boolean, not a string"}),
        (component(metadata={}), {"spec.metadata": "must be a list, not a map"}),
        (component(metadata=[None]), {"spec.metadata[0]": "must be a map, not null"}),
        (component(metadata=[{"value": "v"}]), {"spec.metadata[0].name": "is missing"}),
        (component(initTimout="5s"), {"spec.initTimout": "unknown field; did you mean initTimeout?"}),
        (component(Metadata=[]), {"spec.Metadata": "unknown field; did you mean metadata?"}),
        (
            component(xyz=1),
            {"spec.xyz": "unknown field; known fields: ignoreErrors, initTimeout, metadata, type, version"},
        ),
        (
            component(metadata=[{"name": "a", "secretKeyRef": {"key": "k", "store": "s"}}]),
            {
                "spec.metadata[0].secretKeyRef.name": "is missing",
                "spec.metadata[0].secretKeyRef.store": "unknown field; known fields: key, name",
            },
        ),
        (
            {**component(), "status": {}},
            {"status": "unknown field; known fields: apiVersion, auth, kind, metadata, scopes, spec"},
        ),
        ({**component(), "metadata": {"name": ""}}, {"metadata.name": "must not be empty"}),
        ({"apiVersion": V1, "kind": "Component"}, {"metadata": "is missing", "spec": "is missing"}),
        (
            manifest(
                "Subscription",
                {
                    "pubsubname": "p",
                    "topic": "t",
                    "route": "/",
                    "bulkSubscribe": {"enabled": True, "maxMessagesCount": 2**31},
                },
            ),
            {"spec.bulkSubscribe.maxMessagesCount": "must be at most 2147483647"},
        ),
        (
            manifest("HTTPEndpoint", {"baseUrl": "x", "clientTLS": {"renegotiation": "Always"}}),
            {"spec.clientTLS.renegotiation": "must be Never, OnceAsClient or FreelyAsClient"},
        ),
        (
            manifest("MCPServer", {"endpoint": {}}),
            {"spec.endpoint": "set exactly one of streamableHTTP, sse and stdio"},
        ),
        (
            manifest("MCPServer", {"endpoint": {"sse": {"url": "http://a"}, "stdio": {"command": "a"}}}),
            {"spec.endpoint": "set exactly one of streamableHTTP, sse and stdio"},
        ),
        (
            manifest("WorkflowAccessPolicy", {"rules": [{"callers": [], "workflows": []}]}),
            {
                "spec.rules[0]": "give at least one rule in workflows or activities",
                "spec.rules[0].callers": "must have at least 1 item",
            },
        ),
        (
            manifest(
                "WorkflowAccessPolicy",
                {"rules": [{"callers": [{"appID": "a"}], "workflows": [{"name": "w", "operations": ["get", "get"]}]}]},
            ),
            {"spec.rules[0].workflows[0].operations": "must not contain the same item twice"},
        ),
    ],
)
def test_each_problem_has_its_path_and_reason(tree: dict[str, Any], expected: dict[str, str]) -> None:
    assert found(tree) == expected


@pytest.mark.parametrize(
    ("tree", "path", "reason"),
    [
        ([], "", "must be a map with apiVersion, kind, metadata and spec"),
        ({}, "kind", "is missing or not a string; kinds of dapr.io: Component, Configuration, HTTPEndpoint"),
        ({"kind": 1}, "kind", "is missing or not a string"),
        ({"kind": "component", "apiVersion": V1}, "kind", "unknown kind 'component'; did you mean Component?"),
        ({"kind": "Gateway", "apiVersion": V1}, "kind", "unknown kind 'Gateway'; kinds of dapr.io: Component"),
        ({"kind": "Component", "apiVersion": "v1"}, "apiVersion", "must be dapr.io/v1alpha1 for a Component"),
        ({"kind": "Subscription"}, "apiVersion", "must be dapr.io/v1alpha1 or dapr.io/v2alpha1 for a Subscription"),
    ],
)
def test_an_unknown_kind_or_version_is_rejected_with_the_known_ones(tree: Any, path: str, reason: str) -> None:
    for partial in (True, False):
        (detail,) = validate(tree, partial=partial)
        assert detail.path == path
        assert detail.reason.startswith(reason)


def test_a_layer_may_omit_and_remove_fields() -> None:
    spec = {"type": None, "metadata": [{"name": "a", "$remove": True}, {"name": "b", "value": None}]}
    layer = {**manifest("Component", spec), "scopes": None, "auth": {}}
    assert found(layer, partial=True) == {}
    assert set(found(layer)) == {
        "auth.secretStore",
        "scopes",
        "spec.metadata[0].$remove",
        "spec.type",
        "spec.version",
    }
    del layer["spec"]
    assert found(layer, partial=True) == {}


@pytest.mark.parametrize(
    ("tree", "expected"),
    [
        ({"apiVersion": V1, "kind": "Component"}, {"metadata": "is missing"}),
        ({"apiVersion": V1, "kind": "Component", "metadata": None}, {"metadata": "must be a map, not null"}),
        ({"apiVersion": V1, "kind": "Component", "metadata": {}}, {"metadata.name": "is missing"}),
        (
            {"apiVersion": V1, "kind": "Component", "metadata": {"name": None}},
            {"metadata.name": "must be a string, not null"},
        ),
        (component(metadata=[{"name": "a", "$remove": False}]), {"spec.metadata[0].$remove": "must be true"}),
        (component(metadata=[None]), {"spec.metadata[0]": "must be a map, not null"}),
        (component(version=1), {"spec.version": "must be a string, not an integer"}),
        (component(versoin="v1"), {"spec.versoin": "unknown field; did you mean version?"}),
        (
            manifest("HTTPEndpoint", {"clientTLS": {"renegotiation": "Always"}}),
            {"spec.clientTLS.renegotiation": "must be Never, OnceAsClient or FreelyAsClient"},
        ),
    ],
)
def test_a_layer_is_validated_in_all_other_respects(tree: dict[str, Any], expected: dict[str, str]) -> None:
    assert found(tree, partial=True) == expected


def test_a_sealed_value_counts_as_a_string() -> None:
    sealed = manifest(
        "HTTPEndpoint", {"baseUrl": Sealed("box", "mac"), "headers": [{"name": "a", "value": Sealed("b", "m")}]}
    )
    assert found(sealed) == {}


def test_a_reason_never_repeats_a_value() -> None:
    secret = "hunter2"
    tree = component(
        version=[secret], type={secret: secret}, ignoreErrors=secret, metadata=[secret, {"name": [secret]}]
    )
    assert found(tree)
    assert all(secret not in reason for reason in found(tree).values())


plain = st.recursive(
    st.none() | st.booleans() | st.integers() | st.floats(allow_nan=False, allow_infinity=False) | st.text(max_size=5),
    lambda inner: (
        st.lists(inner, max_size=3)
        | st.dictionaries(st.sampled_from(["name", "value", "metadata", "x"]), inner, max_size=3)
    ),
    max_leaves=8,
)


@given(st.sampled_from(sorted(WHOLE)), st.data(), plain, st.booleans())
def test_any_malformed_manifest_is_explained(kind: str, data: st.DataObject, damage: Any, partial: bool) -> None:
    tree = copy.deepcopy(WHOLE[kind])
    container, key = data.draw(st.sampled_from(list(slots(tree))))
    container[key] = damage
    assert all(detail.reason for detail in validate(tree, partial=partial))


def slots(tree: Any) -> Iterator[tuple[Any, Any]]:
    """Yield every place below a tree as its container and its key there."""
    keys: Any = tree if isinstance(tree, dict) else range(len(tree)) if isinstance(tree, list) else ()
    for key in keys:
        yield tree, key
        yield from slots(tree[key])


def typed(name: str, **annotations: str) -> dict[str, Any]:
    return {
        "apiVersion": "dapr.io/v1alpha1",
        "kind": "Component",
        "metadata": {"name": "store", "annotations": annotations},
        "spec": {"type": name, "version": "v1", "metadata": []},
    }


@pytest.mark.parametrize("name", ["state.redis", "State.Redis", "bindings.postgresql", "middleware.http.oauth2"])
def test_a_built_in_type_is_accepted(name: str) -> None:
    assert validate(typed(name), partial=False) == []


def test_an_unknown_component_type_suggests_the_closest_one() -> None:
    (problem,) = validate(typed("state.reddis"), partial=False)

    assert problem.path == "spec.type"
    assert "unknown component type 'state.reddis'; did you mean 'state.redis'?" in problem.reason


def test_a_pluggable_component_may_have_any_type() -> None:
    assert validate(typed("state.our-own", **{PLUGGABLE: "true"}), partial=False) == []


def test_the_built_in_types_are_complete() -> None:
    assert len(built_in_types()) > 100
    assert {"state.redis", "bindings.http", "state.yugabytedb", "secretstores.local.file"} <= built_in_types()
