"""Parsing of a sidecar's metadata and metrics, and how resources are listed."""

from governor.agent.verification.resources import loaded_digest, marker, subscription_of, with_marker
from governor.agent.verification.sidecar_api import Counters, LoadedSubscription, Rule, read_counters, read_metadata
from governor.domain.dapr.kinds import in_scope

METRICS = """
# TYPE dapr_runtime_component_init_total counter
dapr_runtime_component_init_total{app_id="app",component="state.redis"} 2
dapr_runtime_component_init_total{app_id="app",component="bindings.http"} 1
dapr_runtime_component_init_fail_total{app_id="app",component="state.redis",componentName="one",reason="init"} 2
dapr_runtime_component_init_fail_total{app_id="app",component="state.redis",componentName="one",reason="creation"} 1
dapr_runtime_component_loaded{app_id="app"} 3
"""

CONFIGURATION = {"kind": "Configuration", "metadata": {"name": "calm"}, "spec": {"tracing": {"samplingRate": "1"}}}


def test_initialisations_are_counted_by_type_and_failures_by_name() -> None:
    assert read_counters(METRICS) == Counters({"state.redis": 2, "bindings.http": 1}, {"one": 3})
    assert read_counters("") == Counters({}, {})


def test_metadata_may_omit_empty_fields_and_contain_unknown_ones() -> None:
    metadata = read_metadata(b'{"id":"app","extended":{"a":"b"},"subscriptions":[{"pubsubname":"p","topic":"t"}]}')
    assert (metadata.id, metadata.components) == ("app", ())
    assert metadata.subscriptions == (LoadedSubscription("p", "t"),)


def test_both_api_versions_of_a_subscription_are_listed_identically() -> None:
    old = {"spec": {"pubsubname": "p", "topic": "t", "route": "/x"}}
    new = {"spec": {"pubsubname": "p", "topic": "t", "routes": {"default": "/x"}}}
    assert subscription_of(old) == subscription_of(new) == LoadedSubscription("p", "t", (Rule("/x"),))


def test_routes_keep_their_order_with_the_default_last() -> None:
    routes = {"default": "/rest", "rules": [{"match": "a", "path": "/a"}, {"match": "b", "path": "/b"}]}
    shown = subscription_of({"spec": {"pubsubname": "p", "topic": "t", "routes": routes, "deadLetterTopic": "d"}})
    assert shown.rules == (Rule("/a", "a"), Rule("/b", "b"), Rule("/rest"))
    assert shown.dead_letter_topic == "d"


def test_a_marker_depends_on_the_content_and_is_added_to_a_copy() -> None:
    other = {**CONFIGURATION, "spec": {"tracing": {"samplingRate": "2"}}}
    assert marker(CONFIGURATION) != marker(other)
    assert with_marker(CONFIGURATION)["spec"]["features"] == [{"name": marker(CONFIGURATION), "enabled": True}]
    assert "features" not in CONFIGURATION["spec"]


def test_a_marker_does_not_let_anyone_guess_a_sensitive_value() -> None:
    def named(password: str, host: str = "consul") -> str:
        resolution = {"component": "consul", "configuration": {"host": host, "password": password}}
        spec = {"nameResolution": resolution}
        return marker({**CONFIGURATION, "apiVersion": "dapr.io/v1alpha1", "spec": spec})

    assert named("hunter2") == named("swordfish")
    assert named("hunter2") != named("hunter2", "elsewhere")


def test_labels_and_annotations_do_not_change_the_loaded_digest() -> None:
    labelled = {**CONFIGURATION, "metadata": {"name": "calm", "labels": {"a": "b"}, "annotations": {"c": "d"}}}
    assert loaded_digest(labelled) == loaded_digest(CONFIGURATION)


def test_scopes_limit_which_sidecars_load_a_resource() -> None:
    assert in_scope({}, "app")
    assert in_scope({"scopes": []}, "app")
    assert in_scope({"scopes": ["app"]}, "app")
    assert not in_scope({"scopes": ["other"]}, "app")
