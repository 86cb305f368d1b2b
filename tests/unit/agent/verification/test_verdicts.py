"""Verdicts as tables: what proves a resource of each kind, and what never does."""

from datetime import UTC, datetime
from typing import Any

import pytest
from msgspec.structs import replace

from governor.agent.verification.obstacles import reload_obstacles
from governor.agent.verification.resources import marker, with_marker
from governor.agent.verification.sidecar_api import (
    Counters,
    LoadedComponent,
    LoadedSubscription,
    Metadata,
    Named,
    Rule,
    SidecarStatus,
)
from governor.agent.verification.verdicts import (
    Expected,
    Instance,
    Reading,
    SidecarExit,
    judge_fresh,
    judge_live,
    judge_running,
    judge_unchanged,
    settled,
)
from governor.domain.documents import ResourceRef
from governor.domain.reports import State

NOW = datetime(2026, 1, 1, tzinfo=UTC)
OLD, NEW = Instance("1", "process 100"), Instance("2", "process 200")
UNCOUNTED = Counters({}, {})


def ref(kind: str, name: str = "subject") -> ResourceRef:
    return ResourceRef(kind, "default", name)


def manifest(kind: str, spec: dict[str, Any], name: str = "subject") -> dict[str, Any]:
    return {"apiVersion": "x", "kind": kind, "metadata": {"name": name, "namespace": "default"}, "spec": spec}


def component(value: str, component_type: str = "state.redis", name: str = "subject") -> dict[str, Any]:
    spec = {"type": component_type, "version": "v1", "metadata": [{"name": "host", "value": value}]}
    return manifest("Component", spec, name)


def changed(new: dict[str, Any] | None, old: dict[str, Any] | None) -> Expected:
    shown = new or old
    assert shown is not None
    return Expected(ref(shown["kind"], shown["metadata"]["name"]), new, old)


def status(*components: tuple[str, str], counters: Counters | None = UNCOUNTED, **lists: Any) -> SidecarStatus:
    loaded = tuple(LoadedComponent(name, kind, "v1") for name, kind in components)
    return SidecarStatus(healthy=True, metadata=Metadata(id="app", components=loaded, **lists), counters=counters)


def reading(status: SidecarStatus | None, instance: Instance | None = OLD, **other: Any) -> Reading:
    facts: dict[str, Any] = {
        "started_after_write": instance == NEW,
        "restarted_in_place": False,
        "reload_obstacle": "",
        "load_evidence": "watches the resources directory",
        **other,
    }
    return Reading(NOW, instance, status=status, **facts)


def counted(initialised: int, failed: int = 0) -> Counters:
    return Counters({"state.redis": initialised}, {"subject": failed})


BEFORE = reading(status(("subject", "state.redis"), counters=counted(1)))
AFTER = status(("subject", "state.redis"), counters=counted(2))
CHANGE = changed(component("b"), component("a"))


def test_a_counted_initialisation_in_the_same_process_proves_a_changed_component() -> None:
    verdict = judge_live([CHANGE], BEFORE, reading(AFTER))[CHANGE.ref]
    assert verdict.state is State.VERIFIED
    assert "state.redis initialised 1 -> 2 times" in verdict.text


@pytest.mark.parametrize(
    ("now", "reason"),
    [
        (reading(BEFORE.status), "initialised 0 times"),
        (reading(AFTER, NEW), "not the one from before"),
        (reading(AFTER, restarted_in_place=True), "restarted within"),
        (reading(AFTER, reload_obstacle="it does not watch"), "does not watch"),
        (reading(AFTER, restarted_in_place=None), "nothing shows whether"),
        (reading(AFTER, load_evidence=""), "nothing shows that the sidecar loads"),
        (reading(None), "does not respond"),
        (reading(AFTER, None), "does not respond"),
        (reading(replace(AFTER, healthy=False)), "not healthy"),
        (reading(replace(AFTER, counters=None)), "metrics are off"),
        (reading(status(counters=counted(2))), "does not list it"),
        (reading(status(("subject", "state.other"), counters=counted(2))), "does not list it"),
    ],
    ids=lambda value: value if isinstance(value, str) else "",
)
def test_without_full_live_evidence_a_changed_component_is_unproven(now: Reading, reason: str) -> None:
    verdict = judge_live([CHANGE], BEFORE, now)[CHANGE.ref]
    assert verdict.state is State.UNPROVEN
    assert reason in verdict.text


def test_each_changed_component_of_a_type_must_be_counted() -> None:
    both = [changed(component("b", name=name), component("a", name=name)) for name in ("one", "two")]
    listed = [("one", "state.redis"), ("two", "state.redis")]
    before = reading(status(*listed, counters=counted(2)))
    once, twice = (judge_live(both, before, reading(status(*listed, counters=counted(n)))) for n in (3, 4))
    assert {verdict.state for verdict in once.values()} == {State.UNPROVEN}
    assert {verdict.state for verdict in twice.values()} == {State.VERIFIED}


def test_a_counted_failure_is_reported_with_the_logged_error() -> None:
    now = reading(status(counters=counted(1, 2)), errors=("other has failed", "subject has no host", "bye"))
    verdict = judge_live([CHANGE], BEFORE, now)[CHANGE.ref]
    assert (verdict.state, verdict.text) == (State.FAILED, "subject has no host")


def test_a_removal_is_proven_by_a_watching_sidecar_that_no_longer_lists_the_component() -> None:
    removed = changed(None, component("a"))
    assert judge_live([removed], BEFORE, reading(status(counters=counted(1))))[removed.ref].state is State.VERIFIED
    assert judge_live([removed], BEFORE, BEFORE)[removed.ref].state is State.UNPROVEN
    assert (
        judge_live([removed], BEFORE, reading(status(), reload_obstacle="it does not"))[removed.ref].state
        is State.UNPROVEN
    )


def test_an_exit_fails_the_resources_that_its_message_names() -> None:
    other = changed(component("b", name="subject-2"), component("a", name="subject-2"))
    now = reading(None, None, last_exit=SidecarExit("1", "cannot load component subject: refused"))
    verdicts = judge_live([CHANGE, other], BEFORE, now)
    assert verdicts[CHANGE.ref].state is State.FAILED
    assert verdicts[other.ref].state is State.UNPROVEN


def test_an_exit_message_that_names_nothing_fails_every_changed_resource() -> None:
    kept = Expected(ref("Component", "kept"), component("a", name="kept"), component("a", name="kept"))
    dead = reading(None, None, last_exit=SidecarExit("2", "out of memory", started_after_write=True))
    verdicts = judge_fresh([CHANGE, kept], dead)
    assert (verdicts[CHANGE.ref].state, verdicts[kept.ref].state) == (State.FAILED, State.UNPROVEN)


SUBSCRIPTION = manifest("Subscription", {"pubsubname": "p", "topic": "t", "routes": {"default": "/new"}})
FRESH_CASES: dict[str, tuple[dict[str, Any], dict[str, Any]]] = {
    "Component": (component("b"), {"components": (LoadedComponent("subject", "state.redis", "v1"),)}),
    "Middleware": (
        component("b", "middleware.http.x"),
        {"components": (LoadedComponent("subject", "middleware.http.x", "v1"),)},
    ),
    "Configuration": (
        manifest("Configuration", {"a": 1}),
        {"enabled_features": (marker(manifest("Configuration", {"a": 1})),)},
    ),
    "HTTPEndpoint": (manifest("HTTPEndpoint", {}), {"http_endpoints": (Named("subject"),)}),
    "MCPServer": (manifest("MCPServer", {}), {"mcp_servers": (Named("subject"),)}),
    "Resiliency": (manifest("Resiliency", {}), {"resiliencies": (Named("subject"),)}),
    "Subscription": (SUBSCRIPTION, {"subscriptions": (LoadedSubscription("p", "t", (Rule("/new"),)),)}),
    "WorkflowAccessPolicy": (
        manifest("WorkflowAccessPolicy", {}),
        {"workflow_access_policies": (Named("subject"),)},
    ),
}


@pytest.mark.parametrize("case", FRESH_CASES)
def test_a_fresh_process_proves_what_it_lists_and_the_removal_of_what_it_does_not(case: str) -> None:
    new, listed = FRESH_CASES[case]
    showing = reading(SidecarStatus(healthy=True, metadata=Metadata(id="app", **listed), counters=None), NEW)
    empty = reading(status(), NEW)
    used, removed = changed(new, None), changed(None, new)
    assert judge_fresh([used], showing)[used.ref].state is State.VERIFIED
    assert judge_fresh([used], empty)[used.ref].state is State.UNPROVEN
    assert judge_fresh([removed], empty)[removed.ref].state is State.VERIFIED
    assert judge_fresh([removed], showing)[removed.ref].state is State.UNPROVEN


@pytest.mark.parametrize("case", FRESH_CASES)
@pytest.mark.parametrize("defect", ["old process", "loads nothing", "unhealthy", "silent"])
def test_no_kind_is_proven_without_a_fresh_healthy_process_that_loads_the_directory(case: str, defect: str) -> None:
    new, listed = FRESH_CASES[case]
    shown = SidecarStatus(healthy=defect != "unhealthy", metadata=Metadata(id="app", **listed), counters=None)
    now = reading(
        None if defect == "silent" else shown,
        OLD if defect == "old process" else NEW,
        load_evidence="" if defect == "loads nothing" else "watches it",
    )
    for each in (changed(new, None), changed(None, new)):
        assert judge_fresh([each], now)[each.ref].state is State.UNPROVEN


def test_a_configuration_is_proven_by_the_marker_of_its_content() -> None:
    one, two = manifest("Configuration", {"a": 1}), manifest("Configuration", {"a": 2})
    features = with_marker(one)["spec"]["features"]
    now = reading(status(enabled_features=tuple(each["name"] for each in features)), NEW)
    assert judge_fresh([changed(one, None)], now)[ref("Configuration")].state is State.VERIFIED
    assert judge_fresh([changed(two, None)], now)[ref("Configuration")].state is State.UNPROVEN


@pytest.mark.parametrize("case", ["Configuration", "HTTPEndpoint", "MCPServer", "Resiliency", "WorkflowAccessPolicy"])
def test_only_components_and_subscriptions_can_be_proven_live(case: str) -> None:
    new, _ = FRESH_CASES[case]
    assert list(reload_obstacles([changed(new, None)], (), BEFORE)) == [ref(case)]
    assert list(reload_obstacles([changed(None, new)], (), BEFORE)) == [ref(case)]


def obstacle(each: Expected, *others: Expected, before: Reading | None = BEFORE) -> str:
    return reload_obstacles([each], [each, *others], before).get(each.ref, "")


def test_a_changed_component_has_an_obstacle_only_if_its_counter_proves_nothing() -> None:
    assert obstacle(CHANGE) == ""
    assert "could not be probed" in obstacle(CHANGE, before=None)
    assert "does not watch" in obstacle(CHANGE, before=replace(BEFORE, reload_obstacle="it does not watch"))
    assert "has restarted within" in obstacle(CHANGE, before=replace(BEFORE, restarted_in_place=True))
    assert "whether the sidecar has restarted" in obstacle(CHANGE, before=replace(BEFORE, restarted_in_place=None))
    assert "metrics are off" in obstacle(CHANGE, before=reading(status(counters=None)))
    assert "nothing shows" in obstacle(changed(component("a"), component("a")))
    middleware = changed(component("b", "middleware.http.x"), component("a", "middleware.http.x"))
    assert "middleware" in obstacle(middleware)
    one, two = (changed(component("b", "bindings.http", name), None) for name in ("one", "two"))
    assert obstacle(one) == ""
    assert "cannot distinguish 2 changed bindings.http" in obstacle(one, two)


def test_a_secret_store_with_readers_cannot_be_proven_live() -> None:
    vault = changed(component("b", "secretstores.local.file"), component("a", "secretstores.local.file"))
    reader = {**component("a", name="reader"), "auth": {"secretStore": "subject"}}
    nested = manifest("MCPServer", {"endpoint": {"sse": {"auth": {"secretStore": "subject"}}}}, "tools")
    assert obstacle(vault) == ""
    for each in (reader, nested):
        assert "keep the old ones" in obstacle(vault, changed(each, each))


def test_a_subscription_can_be_proven_live_only_if_its_listing_changes() -> None:
    old = manifest("Subscription", {"pubsubname": "p", "topic": "t", "routes": {"default": "/old"}})
    bulk = manifest("Subscription", {**SUBSCRIPTION["spec"], "bulkSubscribe": {"enabled": True}})
    before = reading(status(subscriptions=(LoadedSubscription("p", "t", (Rule("/new"),)),)))
    assert "listed identically" in obstacle(changed(bulk, SUBSCRIPTION), before=before)
    assert obstacle(changed(old, SUBSCRIPTION), before=before) == ""
    assert obstacle(changed(None, SUBSCRIPTION), before=before) == ""
    assert "not listed before" in obstacle(changed(None, old), before=before)


def test_a_platform_that_cannot_tell_of_a_restart_in_place_leaves_only_the_proofs_without_counters() -> None:
    unknown = replace(BEFORE, restarted_in_place=None)
    removed = changed(None, component("a"))
    assert obstacle(removed, before=unknown) == ""
    now = reading(status(counters=counted(1)), restarted_in_place=None)
    assert judge_live([removed], unknown, now)[removed.ref].state is State.VERIFIED


def test_an_exit_of_an_instance_from_before_the_write_is_no_failure_of_a_fresh_one() -> None:
    earlier = SidecarExit("1", "out of memory")
    listed = reading(AFTER, NEW, last_exit=earlier)
    assert judge_fresh([CHANGE], listed)[CHANGE.ref].state is State.VERIFIED
    later = reading(AFTER, NEW, last_exit=replace(earlier, started_after_write=True))
    assert judge_fresh([CHANGE], later)[CHANGE.ref].state is State.FAILED


def test_texts_name_the_instance_and_what_shows_that_it_loads_what_was_written() -> None:
    pod = Instance("uid/containerd://1", "pod orders-x2x")
    streams = "receives the resources of its namespace from the operator"
    before, now = (
        reading(each, pod, load_evidence=streams, started_after_write=True) for each in (BEFORE.status, AFTER)
    )
    live, fresh = judge_live([CHANGE], before, now), judge_fresh([CHANGE], now)
    assert live[CHANGE.ref].text.endswith(f"same pod orders-x2x before and after, it {streams}")
    assert fresh[CHANGE.ref].text.endswith(f"pod orders-x2x started after the write, is healthy and {streams}")


def test_a_removal_of_a_resource_that_never_existed_is_proven_live() -> None:
    never = Expected(ref("Component"), None, None)
    assert obstacle(never) == ""
    assert judge_live([never], BEFORE, reading(status()))[never.ref].state is State.VERIFIED


def test_a_proof_holds_while_the_same_process_lists_the_resource() -> None:
    kept = changed(component("a"), component("a"))
    assert (
        judge_unchanged([kept], BEFORE, reading(BEFORE.status, restarted_in_place=True))[kept.ref].state
        is State.VERIFIED
    )
    assert judge_unchanged([kept], BEFORE, reading(status()))[kept.ref].state is State.UNPROVEN
    assert judge_unchanged([kept], BEFORE, reading(BEFORE.status, NEW))[kept.ref].state is State.UNPROVEN


def test_a_proof_holds_in_a_process_that_cannot_reload() -> None:
    kept = changed(component("a"), component("a"))
    started = reading(
        BEFORE.status, reload_obstacle="it does not", load_evidence="was started with the resources directory"
    )
    assert judge_unchanged([kept], started, started)[kept.ref].state is State.VERIFIED
    elsewhere = reading(BEFORE.status, reload_obstacle="it does not", load_evidence="")
    assert judge_unchanged([kept], started, elsewhere)[kept.ref].state is State.UNPROVEN


def test_verdicts_are_settled_when_all_are_verified_or_one_has_failed() -> None:
    proven, unproven = judge_live([CHANGE], BEFORE, reading(AFTER)), judge_live([CHANGE], BEFORE, BEFORE)
    broken = judge_live([CHANGE], BEFORE, reading(None, None, last_exit=SidecarExit("1", "subject")))
    assert (settled(proven), settled(unproven), settled(broken), settled({})) == (True, False, True, True)


def of_version(given: SidecarStatus, version: str) -> SidecarStatus:
    return replace(given, metadata=replace(given.metadata, runtime_version=version))


def test_a_version_that_cannot_reload_a_kind_is_named_as_the_obstacle() -> None:
    subscription = changed(SUBSCRIPTION, None)
    old = reading(of_version(status(), "1.13.2"))
    assert obstacle(subscription, before=old) == "Dapr 1.13.2 loads a changed Subscription only at startup"
    assert obstacle(subscription, before=reading(of_version(status(), "1.14.0"))) == ""


def test_a_kind_that_a_version_never_lists_is_settled_as_unproven() -> None:
    calm = changed(manifest("Resiliency", {}), None)
    now = judge_fresh([calm], reading(of_version(status(), "1.16.0"), NEW))
    assert now[calm.ref].state is State.UNPROVEN
    assert settled(now)
    assert not settled(judge_fresh([calm], reading(of_version(status(), "1.18.3"), NEW)))


def test_a_proof_by_a_version_with_a_known_issue_mentions_it() -> None:
    removed = Expected(ref("Component"), None, None)
    verdict = judge_fresh([removed], reading(of_version(status(), "1.18.1"), NEW))[removed.ref]
    assert verdict.state is State.VERIFIED
    assert "use 1.18.2 or newer" in verdict.text


def test_an_exit_that_names_a_changed_resource_does_not_fail_unchanged_ones() -> None:
    kept = changed(component("a", name="kept"), component("a", name="kept"))
    dead = reading(None, None, last_exit=SidecarExit("1", "process component subject error"))
    verdicts = judge_running([CHANGE], [kept], BEFORE, dead)
    assert (verdicts[CHANGE.ref].state, verdicts[kept.ref].state) == (State.FAILED, State.UNPROVEN)
    assert judge_running([CHANGE], [], BEFORE, reading(AFTER)) == judge_live([CHANGE], BEFORE, reading(AFTER))
