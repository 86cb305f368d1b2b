"""From a delivery to the objects that are applied: references in place of sensitive values, and rejections."""

import base64
import json
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from governor.agent.platforms.kubernetes.resources.manifests import (
    Manifests,
    manifests_of,
    naming_key,
    referenced_secrets,
)
from governor.domain.bundles import Delivery
from governor.domain.dapr.sensitive import sensitive_paths
from governor.domain.documents import ApplyPolicy, ResourceRef
from governor.values.trees import Manifest

KEY = naming_key(b"identity of one agent")
STORE = ResourceRef("Component", "team", "store")


def delivery(*resources: Manifest, removals: tuple[ResourceRef, ...] = ()) -> Delivery:
    return Delivery("r1", 1, 1, 1, "sha256:x", resources, removals, ApplyPolicy())


def convert(*resources: Manifest, key: bytes = KEY) -> Manifests:
    return manifests_of(delivery(*resources), ("team", "other"), key)


def component(name: str = "store", *items: dict[str, Any], **more: Any) -> Manifest:
    spec = {"type": "state.redis", "version": "v1", "metadata": list(items)}
    return {"apiVersion": "dapr.io/v1alpha1", "kind": "Component", "metadata": {"name": name}, "spec": spec, **more}


def resource(kind: str, name: str = "it", **fields: Any) -> Manifest:
    return {"apiVersion": "dapr.io/v1alpha1", "kind": kind, "metadata": {"name": name}, **fields}


HOST = {"name": "redisHost", "value": "redis:6379"}


def password(value: Any = "s3cret") -> dict[str, Any]:
    return {"name": "redisPassword", "value": value}


def texts(secret: Manifest) -> dict[str, str]:
    return {key: base64.b64decode(value).decode() for key, value in secret["data"].items()}


def as_loaded(text: str) -> str:
    """Return what daprd makes of a text from a Secret: a quoted one loses its quotes, as a JSON string does."""
    if len(text) < 2 or text[0] != text[-1] or text[0] not in "\"'`":
        return text
    return str(json.loads(text))


def test_a_sensitive_value_becomes_a_key_of_an_immutable_secret() -> None:
    found = convert(component("store", HOST, password()))
    secret = found.secrets[STORE]
    assert texts(secret) == {"redisPassword": "s3cret"}
    assert (secret["immutable"], secret["metadata"]["namespace"]) == (True, "team")
    name = secret["metadata"]["name"]
    assert name.startswith("component-store-")
    reference = {"name": "redisPassword", "secretKeyRef": {"name": name, "key": "redisPassword"}}
    assert found.resources[STORE]["spec"]["metadata"] == [HOST, reference]
    assert not sensitive_paths(found.resources[STORE])
    assert referenced_secrets(found.resources[STORE]) == {name}
    assert "s3cret" not in repr(found)


def test_a_resource_without_sensitive_values_needs_no_secret() -> None:
    found = convert(component("store", HOST))
    assert not found.secrets
    assert found.resources[STORE]["metadata"] == {"name": "store", "namespace": "team"}


def test_the_name_of_a_secret_depends_on_its_content_and_its_key_only() -> None:
    def name(*items: dict[str, Any], key: bytes = KEY, component_name: str = "store", **metadata: Any) -> str:
        manifest = component(component_name, *items)
        manifest["metadata"] |= metadata
        found = convert(manifest, key=key)
        return str(next(iter(found.secrets.values()))["metadata"]["name"])

    same = name(password())
    assert name({"name": "redisHost", "value": "elsewhere"}, password(), labels={"a": "b"}) == same
    others = [
        name(password("other")),
        name(password(), key=naming_key(b"identity of another agent")),
        name(password(), component_name="store2"),
        name(password(), namespace="other"),
    ]
    assert len({same, *others}) == 5


def test_a_long_name_is_shortened_to_a_valid_one() -> None:
    found = convert(component("a" * 222 + "." + "b" * 30, password()))
    name = next(iter(found.secrets.values()))["metadata"]["name"]
    assert len(name) <= 253
    assert ".-" not in name


def test_keys_of_a_secret_are_valid_and_unique() -> None:
    items = [{"name": name, "value": "v"} for name in ("api key", "api/key", "..password")]
    found = convert(component("store", *items))
    assert list(texts(found.secrets[STORE])) == ["api_key", "api_key.2", "password"]
    keys = [item["secretKeyRef"]["key"] for item in found.resources[STORE]["spec"]["metadata"]]
    assert keys == ["api_key", "api_key.2", "password"]


@pytest.mark.parametrize(
    ("value", "text"),
    [
        ("plain", "plain"),
        (12345, "12345"),
        ({"user": "u", "password": "p"}, '{"password":"p","user":"u"}'),
        ('"quoted"', '"\\"quoted\\""'),
        ("'quoted'", "\"'quoted'\""),
        ('"', '"'),
        ("line\nbreak", "line\nbreak"),
    ],
)
def test_the_text_of_a_secret_is_loaded_as_the_inline_value(value: Any, text: str) -> None:
    found = convert(component("store", password(value)))
    assert texts(found.secrets[STORE]) == {"redisPassword": text}


@given(st.text(min_size=1).filter(lambda text: text.lower() not in {"true", "false"}))
def test_any_text_survives_the_way_through_a_secret(text: str) -> None:
    found = convert(component("store", password(text)))
    assert as_loaded(texts(found.secrets[STORE])["redisPassword"]) == text


def test_a_quoted_header_of_a_configuration_is_not_quoted_again() -> None:
    headers = [{"name": "authorization", "value": '"x"'}]
    tracing = {"otel": {"endpointAddress": "collector:4317", "headers": headers}}
    found = convert(resource("Configuration", spec={"tracing": tracing}))
    assert texts(found.secrets[ResourceRef("Configuration", "team", "it")]) == {"authorization": '"x"'}


def test_all_kinds_with_references_get_secrets() -> None:
    header = {"name": "Authorization", "value": "Bearer abc"}
    tls = {"rootCA": {"value": "public"}, "privateKey": {"value": "-----BEGIN PRIVATE KEY-----"}}
    found = convert(
        resource("HTTPEndpoint", spec={"baseUrl": "https://h", "headers": [header], "clientTLS": tls}),
        resource("MCPServer", spec={"endpoint": {"streamableHTTP": {"url": "https://m", "headers": [header]}}}),
    )
    endpoint, server = (ResourceRef(kind, "team", "it") for kind in ("HTTPEndpoint", "MCPServer"))
    assert texts(found.secrets[endpoint]) == {"Authorization": "Bearer abc", "privateKey": tls["privateKey"]["value"]}
    client_tls = found.resources[endpoint]["spec"]["clientTLS"]
    assert client_tls["rootCA"] == {"value": "public"}
    assert client_tls["privateKey"].keys() == {"secretKeyRef"}
    assert texts(found.secrets[server]) == {"Authorization": "Bearer abc"}


def test_a_sensitive_value_stays_where_dapr_reads_no_secret_and_is_named() -> None:
    resolution = {"component": "consul", "configuration": {"token": "abc"}}
    found = convert(resource("Configuration", spec={"nameResolution": resolution}))
    ref = ResourceRef("Configuration", "team", "it")
    assert not found.secrets
    assert found.resources[ref]["spec"]["nameResolution"] == resolution
    assert found.inline == {ref: ("spec.nameResolution.configuration.token",)}


def test_a_configuration_is_applied_with_the_marker_of_its_content() -> None:
    found = convert(resource("Configuration", spec={"features": [{"name": "HotReload", "enabled": True}]}))
    ref = ResourceRef("Configuration", "team", "it")
    assert [each["name"] for each in found.resources[ref]["spec"]["features"]] == ["HotReload"]
    marker = found.objects[ref]["spec"]["features"][-1]["name"]
    assert marker.startswith("runtime-governor/it/")


@pytest.mark.parametrize("auth", [{"secretStore": ""}, {"secretStore": "kubernetes"}])
def test_the_built_in_store_is_kept(auth: dict[str, str]) -> None:
    other = {"name": "redisUsername", "secretKeyRef": {"name": "theirs", "key": "user"}}
    found = convert(component("store", other, password(), auth=auth))
    assert not found.rejections
    assert found.resources[STORE]["auth"] == auth
    assert referenced_secrets(found.resources[STORE]) == {"theirs", found.secrets[STORE]["metadata"]["name"]}


def test_a_named_store_that_nothing_reads_is_replaced() -> None:
    found = convert(component("store", password(), auth={"secretStore": "vault"}))
    assert found.resources[STORE]["auth"] == {"secretStore": "kubernetes"}


def test_a_store_is_kept_for_references_without_inline_values() -> None:
    other = {"name": "redisPassword", "secretKeyRef": {"name": "theirs", "key": "password"}}
    found = convert(component("store", other, auth={"secretStore": "vault"}))
    assert found.resources[STORE]["auth"] == {"secretStore": "vault"}
    assert referenced_secrets(found.resources[STORE]) == frozenset()


def test_inline_values_beside_references_of_another_store_are_rejected() -> None:
    other = {"name": "redisUsername", "secretKeyRef": {"name": "theirs", "key": "user"}}
    found = convert(component("store", other, password(), auth={"secretStore": "vault"}))
    assert "the store 'vault'" in found.rejections[STORE]
    assert "spec.metadata[redisPassword]" in found.rejections[STORE]
    assert "s3cret" not in found.rejections[STORE]


def test_the_client_secret_of_an_mcp_server_counts_as_a_reference_of_its_store() -> None:
    oauth2 = {"issuer": "https://i", "secretKeyRef": {"name": "theirs", "key": "k"}}
    http = {
        "url": "https://m",
        "auth": {"secretStore": "vault", "oauth2": oauth2},
        "headers": [{"name": "X-Api-Key", "value": "abc"}],
    }
    found = convert(resource("MCPServer", spec={"endpoint": {"streamableHTTP": http}}))
    assert "'vault'" in found.rejections[ResourceRef("MCPServer", "team", "it")]


def test_a_value_beside_its_own_reference_is_rejected() -> None:
    both = {**password(), "secretKeyRef": {"name": "theirs", "key": "k"}}
    assert "has a sensitive value and a secretKeyRef" in convert(component("store", both)).rejections[STORE]


def test_a_resource_outside_the_namespaces_is_rejected_with_their_names() -> None:
    outside = component("store", HOST)
    outside["metadata"]["namespace"] = "kube-system"
    inside = component("store", HOST)
    inside["metadata"]["namespace"] = "other"
    found = convert(outside, inside)
    reason = found.rejections[ResourceRef("Component", "kube-system", "store")]
    assert "the runtime's namespaces team, other" in reason
    assert set(found.resources) == {ResourceRef("Component", "other", "store")}


@pytest.mark.parametrize("name", ["My-Store", "my_store", "a..b"])
def test_a_name_that_kubernetes_does_not_accept_is_rejected(name: str) -> None:
    assert (
        "is not a valid Kubernetes name"
        in convert(component(name, HOST)).rejections[ResourceRef("Component", "team", name)]
    )


def test_another_kind_is_rejected() -> None:
    found = convert({"apiVersion": "v1", "kind": "Secret", "metadata": {"name": "x"}})
    assert "is not a Dapr kind" in found.rejections[ResourceRef("Secret", "team", "x")]


def test_secret_stores_are_known() -> None:
    vault = component("vault", {"name": "vaultToken", "value": "abc"})
    vault["spec"]["type"] = "secretstores.hashicorp.vault"
    found = convert(component("store", HOST), vault)
    assert found.secret_stores == {ResourceRef("Component", "team", "vault")}


def test_removals_are_refs_of_the_delivery() -> None:
    gone = ResourceRef("Component", "team", "gone")
    found = manifests_of(delivery(component("store", HOST), removals=(gone,)), ("team",), KEY)
    assert found.refs == (STORE, gone)
