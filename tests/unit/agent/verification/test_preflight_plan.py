"""What a throw-away sidecar loads, and the verdicts on its behaviour."""

from datetime import UTC, datetime
from typing import Any

import pytest

from governor.agent.verification import findings
from governor.agent.verification.preflight_plan import (
    PreflightPlan,
    PreflightReading,
    PreflightResult,
    conclusive,
    judge,
    passed,
    plan_preflight,
)
from governor.agent.verification.sidecar_api import LoadedComponent, Metadata, Named, SidecarStatus
from governor.domain.documents import ResourceRef
from governor.domain.reports import Evidence, Finding, State, WorkloadRef
from governor.values.trees import Manifest

APP = "app-preflight-1"
WORKLOAD = WorkloadRef("default", "Sidecar", "app")
WHEN = datetime(2026, 1, 1, tzinfo=UTC)


def ref(name: str, kind: str = "Component") -> ResourceRef:
    return ResourceRef(kind, "default", name)


def component(name: str, kind: str = "state.redis", *, store: str = "") -> dict[str, Any]:
    auth = {"auth": {"secretStore": store}} if store else {}
    spec = {"type": kind, "version": "v1", "metadata": []}
    return {"kind": "Component", "metadata": {"name": name, "namespace": "default"}, "spec": spec, **auth}


def resource(name: str, kind: str, spec: dict[str, Any]) -> dict[str, Any]:
    return {"kind": kind, "metadata": {"name": name, "namespace": "default"}, "spec": spec}


def index(*manifests: Manifest) -> dict[ResourceRef, Manifest]:
    return {ref(each["metadata"]["name"], each["kind"]): each for each in manifests}


def status(*components: str, healthy: bool = True, **lists: Any) -> SidecarStatus:
    loaded = tuple(LoadedComponent(name, "state.redis", "v1") for name in components)
    return SidecarStatus(healthy, Metadata(APP, components=loaded, **lists), None)


def tried(*manifests: Manifest) -> PreflightPlan:
    return plan_preflight(index(*manifests), index(*manifests), APP)


def test_only_what_changed_is_tried() -> None:
    plan = plan_preflight([ref("new")], index(component("new"), component("old")), APP)

    assert list(plan.tried) == [ref("new")]
    assert plan.dependencies == {}


def test_referenced_secret_stores_are_dependencies_transitively() -> None:
    manifests = index(
        component("new", store="first"),
        component("first", "secretstores.local.file", store="second"),
        component("second", "secretstores.local.env"),
        component("third", "secretstores.local.env"),
    )

    plan = plan_preflight([ref("new")], manifests, APP)

    assert set(plan.dependencies) == {ref("first"), ref("second")}
    assert all(copy["scopes"] == [APP] for copy in (*plan.tried.values(), *plan.dependencies.values()))


def test_a_sidecar_loads_the_copied_configuration_or_an_empty_one() -> None:
    def configurations(plan: PreflightPlan) -> list[str]:
        return [copy["metadata"]["name"] for copy in plan.copies if copy["kind"] == "Configuration"]

    assert configurations(tried(component("new"), resource("calm", "Configuration", {}))) == ["calm"]
    assert configurations(tried(component("new"))) == [APP]
    assert configurations(PreflightPlan(APP)) == [APP]


def test_a_secret_store_reference_is_found_anywhere_in_a_manifest() -> None:
    server = resource("tools", "MCPServer", {"endpoint": {"auth": [{"secretStore": "vault"}]}})

    plan = plan_preflight(
        [ref("tools", "MCPServer")], index(server, component("vault", "secretstores.hashicorp.vault")), APP
    )

    assert set(plan.dependencies) == {ref("vault")}


def test_readers_of_a_changed_secret_store_are_tried_too() -> None:
    manifests = index(component("vault", "secretstores.local.env"), component("reader", store="vault"), component("no"))

    assert set(plan_preflight([ref("vault")], manifests, APP).tried) == {ref("vault"), ref("reader")}


def test_the_configuration_and_its_middleware_are_dependencies() -> None:
    pipeline = {"httpPipeline": {"handlers": [{"name": "limit", "type": "middleware.http.ratelimit"}]}}
    manifests = index(
        component("new"),
        resource("calm", "Configuration", pipeline),
        component("limit", "middleware.http.ratelimit"),
        component("idle", "middleware.http.ratelimit"),
    )

    assert set(plan_preflight([ref("new")], manifests, APP).dependencies) == {
        ref("calm", "Configuration"),
        ref("limit"),
    }


def test_a_skipped_resource_has_a_reason_and_no_dependencies() -> None:
    manifests = index(component("tick", "bindings.cron"), resource("calm", "Configuration", {}))

    plan = plan_preflight([ref("tick")], manifests, APP)

    assert (plan.tried, plan.dependencies, list(plan.skipped)) == ({}, {}, [ref("tick")])
    verdict = judge(plan, PreflightReading(), "")[ref("tick")]
    assert (verdict.state, verdict.text) == (State.RECEIVED, "not tried: an input binding would consume messages")


def test_a_healthy_sidecar_that_lists_everything_has_passed() -> None:
    plan = tried(component("one"), component("two"))
    reading = PreflightReading(status("one", "two"))

    assert passed(plan, reading)
    assert {each.state for each in judge(plan, reading, "").values()} == {State.PREFLIGHTED}


@pytest.mark.parametrize(
    "reading",
    [
        PreflightReading(),
        PreflightReading(status("one")),
        PreflightReading(status("one", "two", healthy=False)),
        PreflightReading(status("one", "two"), "ended"),
    ],
)
def test_a_sidecar_that_is_unhealthy_incomplete_or_gone_has_not_passed(reading: PreflightReading) -> None:
    assert not passed(tried(component("one"), component("two")), reading)


def test_a_type_that_does_not_connect_at_init_is_marked() -> None:
    plan = tried(component("one", "bindings.http"))
    listed = Metadata(APP, components=(LoadedComponent("one", "bindings.http", "v1"),))

    assert (
        "does not connect at init"
        in judge(plan, PreflightReading(SidecarStatus(True, listed, None)), "")[ref("one")].text
    )


def test_an_exit_message_fails_the_resource_that_it_names() -> None:
    plan = tried(component("one"), component("two"))
    message = "daprd exited with code 1: process component two error: refused"

    verdicts = judge(plan, PreflightReading(exit_message=message), "")

    assert (verdicts[ref("one")].state, verdicts[ref("two")].state) == (State.RECEIVED, State.FAILED)
    assert verdicts[ref("two")].text == message


def test_an_exit_message_that_names_only_a_dependency_fails_everything_tried() -> None:
    manifests = index(component("one", store="vault"), component("vault", "secretstores.local.file"))
    plan = plan_preflight([ref("one")], manifests, APP)
    message = "process component vault error: no such file"

    assert conclusive(plan, PreflightReading(exit_message=message))
    assert judge(plan, PreflightReading(exit_message=message), "")[ref("one")].state is State.FAILED


def test_an_exit_message_that_names_nothing_is_inconclusive() -> None:
    plan = tried(component("one"))

    assert not conclusive(plan, PreflightReading(exit_message="daprd exited with code 1: no memory"))
    assert not conclusive(
        plan, PreflightReading(exit_message="daprd was terminated by SIGKILL: loaded one", external_cause=True)
    )
    assert conclusive(plan, PreflightReading())


def test_a_configuration_that_cannot_be_loaded_fails_although_daprd_does_not_name_it() -> None:
    plan = tried(resource("calm", "Configuration", {}), component("one"))
    message = "error loading configuration: yaml: line 3"

    assert conclusive(plan, PreflightReading(exit_message=message))
    states = {ref.name: each.state for ref, each in judge(plan, PreflightReading(exit_message=message), "").items()}
    assert states == {"calm": State.FAILED, "one": State.RECEIVED}


def test_a_component_that_a_healthy_sidecar_does_not_list_has_failed() -> None:
    warnings = ("Component one references a secret store that isn't loaded: vault",)

    verdict = judge(tried(component("one")), PreflightReading(status(), warnings=warnings), "")[ref("one")]

    assert verdict.state is State.FAILED
    assert "isn't loaded: vault" in verdict.text


def test_at_the_deadline_only_uninitialised_resources_have_failed() -> None:
    verdicts = judge(
        tried(component("one"), component("two")), PreflightReading(status("one", healthy=False)), "not within 10 s"
    )

    assert (verdicts[ref("one")].state, verdicts[ref("two")].state) == (State.PREFLIGHTED, State.FAILED)
    assert verdicts[ref("two")].text == "not within 10 s"


def test_a_logged_error_fails_a_resource_that_the_sidecar_lists() -> None:
    plan = tried(resource("limits", "Resiliency", {}))
    reading = PreflightReading(
        status(resiliencies=(Named("limits"),)), errors=("Could not read resiliency policy limits: no",)
    )

    assert judge(plan, reading, "")[ref("limits", "Resiliency")].state is State.FAILED


def test_a_resource_that_an_old_sidecar_does_not_list_passes_with_a_note() -> None:
    verdict = judge(tried(resource("limits", "Resiliency", {})), PreflightReading(status()), "")[
        ref("limits", "Resiliency")
    ]

    assert verdict.state is State.PREFLIGHTED
    assert "does not list it" in verdict.text


def finding(state: State, text: str) -> Finding:
    return Finding(state=state, evidence=(Evidence("preflight app", WHEN, text),))


def test_a_failed_preflight_reports_each_resource_and_leaves_workloads_received() -> None:
    received = Evidence("agent", WHEN, "received")
    result = PreflightResult(
        {ref("bad"): finding(State.FAILED, "refused"), ref("good"): finding(State.PREFLIGHTED, "up")}
    )

    found = result.report([ref("bad"), ref("good"), ref("same")], {WORKLOAD: 1}, received)

    assert not result.passed
    assert [each.state for each in found.resources] == [State.FAILED, State.PREFLIGHTED, State.RECEIVED]
    assert [each.text for each in found.resources[0].evidence] == ["received", "refused"]
    assert [each.state for each in found.workloads] == [State.RECEIVED]


def test_a_superseded_preflight_has_not_passed() -> None:
    assert not PreflightResult(superseded=True).passed
    assert PreflightResult().passed


def test_preflight_evidence_is_listed_between_receipt_and_use() -> None:
    history = (Evidence("agent", WHEN, "received"), Evidence("file", WHEN, "written"))
    later = findings.uniform(State.VERIFIED, [ref("good"), ref("same")], {WORKLOAD: 1}, *history)

    found = PreflightResult({ref("good"): finding(State.PREFLIGHTED, "up")}).prepend_to(later)

    assert [each.text for each in found.resources[0].evidence] == ["received", "up", "written"]
    assert found.resources[0].state is State.VERIFIED
    assert (found.resources[1], found.workloads) == (later.resources[1], later.workloads)
