"""Preflight rules: which resources a throw-away sidecar loads, and their copies."""

from typing import Any

import pytest

from governor.domain.dapr import preflight
from governor.domain.dapr.kinds import built_in_types
from governor.domain.dapr.preflight import PreflightRule, empty_configuration, preflight_copy, preflight_rule
from governor.values.trees import Manifest

APP = "app-preflight-1"
RELOAD_OFF = {"name": "HotReload", "enabled": False}


def component(kind: str, *items: dict[str, Any], **metadata: str) -> dict[str, Any]:
    listed = [{"name": name, "value": value} for name, value in metadata.items()]
    return {
        "apiVersion": "dapr.io/v1alpha1",
        "kind": "Component",
        "metadata": {"name": "one"},
        "spec": {"type": kind, "version": "v1", "metadata": [*listed, *items]},
    }


def values(manifest: Manifest) -> dict[str, Any]:
    return {item["name"]: item.get("value") for item in manifest["spec"]["metadata"]}


def test_every_type_in_the_tables_is_built_into_daprd() -> None:
    named = preflight._OUTPUT_ONLY | preflight._WITHOUT_CONNECTION | set(preflight._IDENTITIES)

    assert len(named) > 50
    assert named - built_in_types() == set()


def test_only_input_bindings_and_name_resolution_are_skipped() -> None:
    skipped = {kind for kind in built_in_types() if preflight_rule(component(kind)).skip}

    assert {kind.partition(".")[0] for kind in skipped} == {"bindings", "nameresolution"}
    assert {"bindings.cron", "bindings.kafka", "bindings.mqtt3", "bindings.aws.sqs"} <= skipped
    assert {"bindings.http", "bindings.redis"} & skipped == set()


@pytest.mark.parametrize(
    ("direction", "is_loaded"),
    [("output", True), (" Output ", True), ("input", False), ("input, output", False), ("", False)],
)
def test_a_binding_that_could_be_an_input_is_loaded_only_as_an_output(direction: str, is_loaded: bool) -> None:
    rule = preflight_rule(component("bindings.kafka", direction=direction))

    assert rule.skip == ("" if is_loaded else "an input binding would consume messages")


def test_a_direction_from_a_secret_does_not_count_as_output() -> None:
    hidden = {"name": "direction", "secretKeyRef": {"name": "a", "key": "b"}}

    assert preflight_rule(component("bindings.kafka", hidden)).skip


@pytest.mark.parametrize("kind", ["state.mine", "pubsub.mine", "lock.mine", "secretstores.mine", "State.Redis"])
def test_an_unknown_type_of_a_known_category_is_loaded(kind: str) -> None:
    assert preflight_rule(component(kind)).skip == ""


@pytest.mark.parametrize("kind", ["bindings.mine", "workflowbackend.mine", "nonsense"])
def test_an_unknown_type_that_might_do_harm_is_skipped(kind: str) -> None:
    assert preflight_rule(component(kind)).skip


@pytest.mark.parametrize(("kind", "connects"), [("state.redis", True), ("bindings.http", False), ("state.mine", True)])
def test_a_type_connects_unless_it_is_known_not_to(kind: str, connects: bool) -> None:
    assert preflight_rule(component(kind)).connects is connects


@pytest.mark.parametrize("kind", ["Configuration", "Resiliency", "HTTPEndpoint", "MCPServer", "WorkflowAccessPolicy"])
def test_other_kinds_are_loaded(kind: str) -> None:
    assert preflight_rule({"kind": kind, "spec": {}}) == PreflightRule()


def test_a_subscription_is_skipped() -> None:
    assert "schema" in preflight_rule({"kind": "Subscription", "spec": {}}).skip


def test_a_copy_is_scoped_to_the_throw_away_sidecar_and_the_original_is_unchanged() -> None:
    original = {**component("state.redis", redisHost="here:1"), "scopes": ["orders", "bills"]}
    before = repr(original)

    copy = preflight_copy(original, APP)

    assert copy["scopes"] == [APP]
    assert values(copy) == {"redisHost": "here:1"}
    assert repr(original) == before


@pytest.mark.parametrize(
    ("kind", "field"),
    [
        ("pubsub.mqtt3", "consumerID"),
        ("pubsub.mine", "consumerID"),
        ("pubsub.redis", "CONSUMERID"),
        ("pubsub.kafka", "consumerGroup"),
        ("pubsub.kafka", "clientId"),
        ("pubsub.jetstream", "durableName"),
        ("pubsub.rabbitmq", "clientName"),
        ("bindings.mqtt3", "consumerID"),
    ],
)
def test_the_client_name_at_a_broker_is_not_shared(kind: str, field: str) -> None:
    copy = preflight_copy(component(kind, **{field: "orders", "url": "there"}), APP)

    assert values(copy) == {field: f"orders-{APP}", "url": "there"}


def test_a_client_name_from_a_secret_is_replaced() -> None:
    hidden = {"name": "consumerID", "secretKeyRef": {"name": "a", "key": "b"}}

    assert preflight_copy(component("pubsub.mqtt3", hidden), APP)["spec"]["metadata"] == [
        {"name": "consumerID", "value": APP}
    ]


@pytest.mark.parametrize("kind", ["bindings.zeebe.command", "pubsub.gcp.pubsub", "bindings.commercetools"])
def test_a_client_id_that_is_a_credential_is_kept(kind: str) -> None:
    assert values(preflight_copy(component(kind, clientId="secret-id"), APP)) == {"clientId": "secret-id"}


def test_a_copy_does_not_ignore_errors() -> None:
    original = component("state.redis")
    original["spec"]["ignoreErrors"] = True

    assert "ignoreErrors" not in preflight_copy(original, APP)["spec"]


def test_a_copied_configuration_does_not_register_the_sidecar() -> None:
    spec = {"nameResolution": {"component": "hashicorp.consul"}, "features": [{"name": "A", "enabled": True}]}

    copy = preflight_copy({"kind": "Configuration", "metadata": {"name": "one"}, "spec": spec}, APP)

    assert copy["spec"] == {"features": [{"name": "A", "enabled": True}, RELOAD_OFF]}
    assert "scopes" not in copy


@pytest.mark.parametrize("spec", [None, {}, {"features": [{"name": "HotReload", "enabled": True}]}])
def test_a_throw_away_sidecar_never_reloads(spec: dict[str, object] | None) -> None:
    copy = preflight_copy({"kind": "Configuration", "metadata": {"name": "one"}, "spec": spec}, APP)

    assert copy["spec"] == {"features": [RELOAD_OFF]}
    assert empty_configuration(APP)["spec"] == copy["spec"]
