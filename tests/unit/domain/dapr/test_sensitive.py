"""Sensitive inline values of Dapr manifests."""

from typing import Any

import pytest

from governor.domain.dapr.kinds import kinds, load_data, schema_of
from governor.domain.dapr.sensitive import sensitive_paths
from governor.values.secret import Sealed, Secret

V1 = "dapr.io/v1alpha1"


def manifest(kind: str, spec: dict[str, Any], api_version: str = V1) -> dict[str, Any]:
    return {"apiVersion": api_version, "kind": kind, "metadata": {"name": "x"}, "spec": spec}


def component(component_type: str | None, **fields: Any) -> dict[str, Any]:
    spec: dict[str, Any] = {"metadata": [{"name": name, "value": value} for name, value in fields.items()]}
    return manifest("Component", spec if component_type is None else {"type": component_type, **spec})


def is_sealed(name: str, value: Any = "x", component_type: str = "state.unknown") -> bool:
    paths = sensitive_paths(component(component_type, **{name: value}))
    assert paths in ([], [("spec", "metadata", 0, "value")])
    return bool(paths)


def test_only_the_sensitive_fields_of_a_component_are_sealed() -> None:
    redis = component("state.redis", redisHost="localhost:6379", redisPassword="hunter2", redisDB=1, enableTLS="true")
    assert sensitive_paths(redis) == [("spec", "metadata", 1, "value")]


def test_names_that_dapr_marks_are_sensitive_by_type() -> None:
    assert is_sealed("host", component_type="pubsub.pulsar")
    assert is_sealed("HOST", component_type="PubSub.Pulsar")
    assert not is_sealed("host", component_type="state.couchbase")
    assert is_sealed("clientSecret", component_type="middleware.http.oauth2")


def test_a_layer_without_a_type_may_be_of_any() -> None:
    assert sensitive_paths(component(None, host="x", redisHost="y")) == [("spec", "metadata", 0, "value")]


def test_every_field_that_dapr_marks_is_sealed_for_its_type() -> None:
    marked: dict[str, list[str]] = load_data("components", dict[str, Any])["sensitive"]
    assert len(marked) > 50
    for component_type, names in marked.items():
        for name in names:
            assert is_sealed(name, component_type=component_type), (component_type, name)


def test_telling_names_cover_nearly_all_that_dapr_marks() -> None:
    marked: dict[str, list[str]] = load_data("components", dict[str, Any])["sensitive"]
    missed = {name for names in marked.values() for name in names if not is_sealed(name)}
    assert missed == {"cfAccountID", "clientCert", "host", "url"}


@pytest.mark.parametrize(
    "name",
    [
        "password", "redisPassword", "saslPasswd", "dbPwd", "smtpPass", "passphrase", "secret", "clientSecret",
        "azureClientSecret", "azureCertificate", "azureCertificatePassword", "token", "sessionToken", "vaultToken",
        "api-key", "API_KEY", "x.api.key", "accessKey", "accessKeyID", "secretAccessKey", "privateKey",
        "private_key", "primaryEncryptionKey", "MTLSClientKey", "tls_client_key", "key", "masterKey",
        "sharedAccessKey", "connectionString", "credentials", "gcpCredential", "sas", "blobSas", "dsn",
        "oidcClientAssertion",
    ],
)  # fmt: skip
def test_telling_names_are_sealed_for_any_type(name: str) -> None:
    assert is_sealed(name)


@pytest.mark.parametrize(
    "name",
    [
        "redisHost", "keyPrefix", "keyspace", "publicKey", "hostPublicKey", "partitionKey", "orderingKey",
        "tokenAudience", "tokenAudiences", "tokenURL", "token_uri", "oidcTokenEndpoint", "tokenFile", "secretsFile",
        "secretName", "oauth2ClientSecretPath", "vaultTokenMountPath", "securityTokenHeader", "maxTokens",
        "saslMechanism", "saslUsername", "username", "clientID", "keyLength", "keyType", "actorStateStore",
        "passwordFile", "secretStore", "consumerID",
    ],
)  # fmt: skip
def test_harmless_names_are_not_sealed(name: str) -> None:
    assert not is_sealed(name)


@pytest.mark.parametrize(
    "value",
    [
        "redis://user:pw@host:6379/0", "amqp://guest:guest@localhost:5672", "rediss://:pw@host",
        "user:pw@tcp(localhost:3306)/db", "mongodb://a:b%40c@h1,h2/?x=y",
        "host=localhost user=me password=pw dbname=x", "Server=x;User Id=sa;Password=pw;",
        "Endpoint=sb://x/;SharedAccessKeyName=n;SharedAccessKey=k", "DefaultEndpointsProtocol=https;AccountKey=k",
        "https://x.blob.core.windows.net/c?sv=1&sig=abc", "https://oapi.dingtalk.com/robot/send?access_token=abc",
        "-----BEGIN RSA PRIVATE KEY-----\nabc\n", "Bearer abc", "Basic dXNlcjpwdw==", "--api-key=abc",
    ],
)  # fmt: skip
def test_a_value_with_a_credential_is_sealed_under_any_name(value: str) -> None:
    assert is_sealed("endpoint", value)


@pytest.mark.parametrize(
    "value",
    [
        "localhost:6379", "http://host:80/path", "redis://user@host", "@every 5m", "a@b.example", "basic", "bearer",
        "sig", "x == y", "-----BEGIN CERTIFICATE-----\nabc\n", "${runtime.labels.region}",
    ],
)  # fmt: skip
def test_an_ordinary_value_is_not_sealed(value: str) -> None:
    assert not is_sealed("endpoint", value)


@pytest.mark.parametrize("value", [None, True, False, "true", "False", "", [], {}, Sealed("box", "mac"), Secret("x")])
def test_only_strings_and_numbers_are_sealed(value: Any) -> None:
    assert not is_sealed("password", value)


@pytest.mark.parametrize("value", [0, 1234, 1.5, "0"])
def test_numbers_are_sealed_like_strings(value: Any) -> None:
    assert is_sealed("password", value)


def test_every_leaf_of_a_nested_value_is_checked() -> None:
    nested = component(
        "state.unknown", auth={"user": "u", "inner": [{"token": "t"}, "redis://a:b@c"]}, tls={"privateKey": "k", "x": 1}
    )
    assert sensitive_paths(nested) == [
        ("spec", "metadata", 0, "value", "user"),
        ("spec", "metadata", 0, "value", "inner", 0, "token"),
        ("spec", "metadata", 0, "value", "inner", 1),
        ("spec", "metadata", 1, "value", "privateKey"),
    ]


def test_references_are_not_sealed() -> None:
    items = [
        {"name": "redisPassword", "secretKeyRef": {"name": "redis", "key": "password"}},
        {"name": "token", "envRef": "TOKEN"},
    ]
    referring = manifest("Component", {"type": "state.redis", "metadata": items})
    referring["auth"] = {"secretStore": "vault"}
    assert sensitive_paths(referring) == []


def test_headers_and_keys_of_an_http_endpoint_are_sealed() -> None:
    headers = ["Authorization", "Cookie", "X-Api-Key", "X-Auth-Token", "X-Client-Secret", "Accept", "X-Request-Id"]
    endpoint = manifest(
        "HTTPEndpoint",
        {
            "baseUrl": "https://user:pw@example.com",
            "headers": [{"name": name, "value": "v"} for name in headers],
            "clientTLS": {"rootCA": {"value": "ca"}, "certificate": {"value": "c"}, "privateKey": {"value": "k"}},
        },
    )
    assert sensitive_paths(endpoint) == [
        ("spec", "baseUrl"),
        *(("spec", "headers", index, "value") for index in range(5)),
        ("spec", "clientTLS", "certificate", "value"),
        ("spec", "clientTLS", "privateKey", "value"),
    ]


def test_headers_environment_and_arguments_of_an_mcp_server_are_sealed() -> None:
    remote = {
        "url": "https://example.com",
        "headers": [{"name": "authorization", "value": "v"}, {"name": "a", "value": "v"}],
    }
    process = {"command": "tool", "args": ["-v", "--token=t"], "env": [{"name": "GITHUB_TOKEN", "value": "v"}]}
    server = manifest("MCPServer", {"endpoint": {"sse": remote, "streamableHTTP": remote, "stdio": process}})
    assert sensitive_paths(server) == [
        ("spec", "endpoint", "sse", "headers", 0, "value"),
        ("spec", "endpoint", "streamableHTTP", "headers", 0, "value"),
        ("spec", "endpoint", "stdio", "args", 1),
        ("spec", "endpoint", "stdio", "env", 0, "value"),
    ]


def test_headers_and_free_parts_of_a_configuration_are_sealed() -> None:
    configuration = manifest(
        "Configuration",
        {
            "secrets": {"scopes": [{"storeName": "vault", "allowedSecrets": ["password"]}]},
            "tracing": {"otel": {"headers": [{"name": "api-key", "value": "v"}], "endpointAddress": "host:4317"}},
            "nameResolution": {"component": "consul", "configuration": {"client": {"address": "a", "token": "t"}}},
        },
    )
    assert sensitive_paths(configuration) == [
        ("spec", "tracing", "otel", "headers", 0, "value"),
        ("spec", "nameResolution", "configuration", "client", "token"),
    ]


def test_ordinary_fields_of_other_kinds_are_not_sealed() -> None:
    routes = {"rules": [{"match": 'event.data.token == "a"', "path": "/token"}], "default": "/secret"}
    spec = {"pubsubname": "p", "topic": "secret", "routes": routes}
    assert sensitive_paths(manifest("Subscription", spec, "dapr.io/v2alpha1")) == []
    policies = {"timeouts": {"token": "5s"}, "retries": {"secret": {"policy": "constant"}}}
    assert sensitive_paths(manifest("Resiliency", {"policies": policies, "targets": {}})) == []


def test_a_field_outside_the_schema_is_judged_by_its_name() -> None:
    assert sensitive_paths(manifest("Component", {"password": "p", "other": "o"})) == [("spec", "password")]


@pytest.mark.parametrize(
    "tree",
    [
        {},
        {"kind": "Component"},
        {"kind": "Installation", "apiVersion": "runtime-governor.dev/v1alpha1", "spec": {"password": "x"}},
    ],
)
def test_a_manifest_that_is_not_daprs_has_no_sensitive_paths(tree: dict[str, Any]) -> None:
    assert sensitive_paths(tree) == []


@pytest.mark.parametrize(
    "spec", [None, [], "x", {"metadata": "x"}, {"metadata": {"a": 1}}, {"metadata": [1, None, [2]]}]
)
def test_a_malformed_manifest_is_tolerated(spec: Any) -> None:
    for kind in kinds().values():
        assert sensitive_paths({"apiVersion": kind.api_versions[0], "kind": kind.kind, "spec": spec}) == []


def test_every_place_that_accepts_a_secret_key_ref_is_checked() -> None:
    places = [
        (name, api_version, place)
        for name, kind in kinds().items()
        for api_version in kind.api_versions
        for place in secret_places(schema_of(name, api_version))
    ]
    assert len(places) >= 9
    for name, api_version, place in places:
        tree = {"apiVersion": api_version, "kind": name, **planted(place, {"name": "password", "value": "p"})}
        expected = tuple(0 if step == "[]" else step for step in place)
        if place[-1] != "rootCA":
            assert sensitive_paths(tree) == [(*expected, "value")], (name, place)


def secret_places(schema: dict[str, Any], place: tuple[str, ...] = ()) -> list[tuple[str, ...]]:
    """Yield the places where a schema accepts secretKeyRef instead of a value."""
    properties = schema.get("properties", {})
    found = [place] if {"value", "secretKeyRef"} <= properties.keys() else []
    for name, inner in properties.items():
        found += secret_places(inner, (*place, name))
    return found + secret_places(schema["items"], (*place, "[]")) if "items" in schema else found


def planted(place: tuple[str, ...], value: Any) -> Any:
    for step in reversed(place):
        value = [value] if step == "[]" else {step: value}
    return value
