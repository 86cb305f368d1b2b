"""Plans: files to write and remove, rejections, the action of each sidecar, and what must wait."""

from datetime import UTC, datetime, timedelta
from typing import Any

import msgspec
import pytest
from hypothesis import given
from hypothesis import strategies as st

from governor.agent.platforms.local.files import file_key, resource_file
from governor.agent.platforms.local.plan import (
    Observed,
    ObservedFile,
    ObservedSidecar,
    Plan,
    Rejection,
    SidecarAction,
    affected_sidecars,
    plan,
    restrained,
)
from governor.agent.platforms.local.storage import Intent, Journal
from governor.agent.verification.resources import loaded_digest
from governor.agent.verification.sidecar_api import Counters, LoadedComponent, Metadata, SidecarStatus
from governor.agent.verification.verdicts import Instance, Proof, Reading
from governor.domain.bundles import Delivery
from governor.domain.documents import ApplyPolicy, ResourceRef, Strategy, Unproven, WindowScope
from governor.domain.reports import Evidence
from governor.domain.windows import HELD, WAITING_FOR_WINDOW, Hold, Restraint, Window

Manifest = dict[str, Any]
NOW = datetime(2026, 1, 1, tzinfo=UTC)


def component(name: str, value: str = "a", kind: str = "state.redis", **more: Any) -> Manifest:
    return {
        "apiVersion": "dapr.io/v1alpha1",
        "kind": "Component",
        "metadata": {"name": name, "namespace": "default"},
        "spec": {"type": kind, "version": "v1", "metadata": [{"name": "host", "value": value}]},
        **more,
    }


def resiliency(name: str) -> Manifest:
    metadata = {"name": name, "namespace": "default"}
    return {"apiVersion": "dapr.io/v1alpha1", "kind": "Resiliency", "metadata": metadata, "spec": {}}


def delivery(*resources: Manifest, removals: tuple[ResourceRef, ...] = (), **policy: Any) -> Delivery:
    return Delivery("r1", 7, 1, 1, "sha256:0", resources, removals, ApplyPolicy(**policy))


def on_disk(*manifests: Manifest) -> dict[str, ObservedFile]:
    files = [resource_file(each, "default") for each in manifests]
    return {each.key: ObservedFile(each.digest, (each.manifest,)) for each in files}


def running(app_id: str, *manifests: Manifest, current: bool = False) -> ObservedSidecar:
    """Return a running sidecar with proofs of these resources."""
    loaded = tuple(LoadedComponent(each["metadata"]["name"], "state.redis", "v1") for each in manifests)
    status = SidecarStatus(healthy=True, metadata=Metadata(id=app_id, components=loaded), counters=Counters({}, {}))
    before = Reading(
        NOW,
        Instance("1", "process 100"),
        started_after_write=current,
        restarted_in_place=False,
        status=status,
        load_evidence="watches it",
        reload_obstacle="",
    )
    proof = {
        ResourceRef("Component", "default", each["metadata"]["name"]): Proof(
            loaded_digest(each), Evidence("sidecar", NOW, "seen")
        )
        for each in manifests
    }
    return ObservedSidecar(app_id, before, proof)


def observed(*own: Manifest, foreign: dict[str, ObservedFile] | None = None, sidecars: Any = ()) -> Observed:
    files = on_disk(*own)
    journal = Journal(frozenset(files))
    return Observed("default", {**files, **(foreign or {})}, journal, sidecars)


def planned(delivered: Delivery, before: Observed) -> Plan:
    made = plan(delivered, before)
    assert isinstance(made, Plan)
    return made


def action(delivered: Delivery, before: Observed) -> SidecarAction:
    return planned(delivered, before).sidecars[0].action


def test_secret_stores_are_written_first_and_other_kinds_last() -> None:
    delivered = delivery(resiliency("a"), component("b"), component("z", kind="secretstores.local.file"))
    assert [each.ref.name for each in planned(delivered, observed()).writes] == ["z", "b", "a"]


def test_an_unchanged_file_is_not_written_again() -> None:
    made = planned(delivery(component("one"), component("two", "new")), observed(component("one"), component("two")))
    assert [each.ref.name for each in made.writes] == ["two"]
    assert made.removals == ()


def test_only_files_of_this_agent_that_are_not_delivered_are_removed() -> None:
    foreign = {"resources/mine.yaml": ObservedFile("sha256:1", (component("mine"),))}
    removed = ResourceRef("Component", "default", "mine")
    made = planned(delivery(removals=(removed,)), observed(component("old"), foreign=foreign))
    assert made.removals == ("resources/component.old.yaml",)


def test_files_of_an_interrupted_change_belong_to_the_agent() -> None:
    journal = Journal(frozenset(), Intent(6, ("resources/component.one.yaml",), ()))
    half = {"resources/component.one.yaml": ObservedFile("sha256:2", ())}
    made = planned(delivery(), Observed("default", half, journal, ()))
    assert made.removals == ("resources/component.one.yaml",)


@pytest.mark.parametrize(
    ("manifest", "files", "reason"),
    [
        (component("one"), {"resources/mine.yaml": ObservedFile("", (component("one"),))}, "resources/mine.yaml"),
        (component("one"), {"resources/component.one.yaml": ObservedFile("", ())}, "not written by this agent"),
        (
            {**component("one"), "metadata": {"name": "one", "namespace": "two"}},
            {},
            "another namespace is not supported",
        ),
        ({**component("one"), "kind": "Installation"}, {}, "not a kind that a Dapr sidecar"),
        ({**component("one"), "apiVersion": "dapr.io/v9"}, {}, "not a kind that a Dapr sidecar"),
    ],
    ids=["foreign resource", "foreign file", "namespace", "kind", "version"],
)
def test_a_delivery_is_rejected_as_a_whole_with_the_resource_named(
    manifest: Manifest, files: dict[str, ObservedFile], reason: str
) -> None:
    made = plan(delivery(component("good"), manifest), observed(foreign=files))
    assert isinstance(made, Rejection)
    assert [ref.name for ref in made.reasons] == ["one"]
    assert reason in next(iter(made.reasons.values()))


def test_a_foreign_resource_in_another_namespace_is_no_conflict() -> None:
    elsewhere = {**component("one"), "metadata": {"name": "one", "namespace": "two"}}
    foreign = {"resources/mine.yaml": ObservedFile("", (elsewhere,))}
    assert len(planned(delivery(component("one")), observed(foreign=foreign)).writes) == 1


def test_one_configuration_is_written_outside_the_resources_directory_and_two_are_rejected() -> None:
    configurations = [{**resiliency(name), "kind": "Configuration"} for name in ("one", "two")]
    made = planned(delivery(configurations[0]), observed())
    assert made.config == "config/configuration.one.yaml"
    assert isinstance(plan(delivery(*configurations), observed()), Rejection)


def test_a_stopped_sidecar_is_started_after_the_write() -> None:
    assert action(delivery(component("one")), observed(sidecars=[ObservedSidecar("app")])) is SidecarAction.START


def test_a_running_sidecar_reloads_a_changed_component() -> None:
    seen = observed(component("one"), component("two"), sidecars=[running("app", component("one"), component("two"))])
    made = planned(delivery(component("one", "b"), component("two")), seen).sidecars[0]
    assert made.action is SidecarAction.RELOAD
    assert [ref.name for ref in made.kept] == ["two"]


def test_a_kind_without_live_proof_restarts_the_sidecar_unless_the_policy_is_report() -> None:
    seen = observed(component("one"), sidecars=[running("app", component("one"))])
    resources = (component("one"), resiliency("calm"))
    assert action(delivery(*resources), seen) is SidecarAction.START
    reporting = planned(delivery(*resources, unproven=Unproven.REPORT), seen).sidecars[0]
    assert reporting.action is SidecarAction.RELOAD
    assert [ref.name for ref in reporting.obstacles] == ["calm"]


def test_a_process_with_all_proofs_is_kept() -> None:
    seen = observed(component("one"), sidecars=[running("app", component("one"))])
    assert action(delivery(component("one")), seen) is SidecarAction.KEEP


def test_a_changed_label_is_written_and_keeps_the_proofs() -> None:
    seen = observed(component("one"), sidecars=[running("app", component("one"))])
    labelled = component("one")
    labelled["metadata"] = {**labelled["metadata"], "labels": {"team": "blue"}}
    made = planned(delivery(labelled), seen)
    assert (len(made.writes), made.sidecars[0].action) == (1, SidecarAction.KEEP)


def test_a_process_started_after_the_last_write_is_only_verified() -> None:
    seen = observed(component("one"), sidecars=[running("app", current=True)])
    assert action(delivery(component("one")), seen) is SidecarAction.AWAIT


def test_an_exited_sidecar_is_awaited_unless_something_changes() -> None:
    ended = ObservedSidecar("app", Reading(NOW), released=True)
    assert action(delivery(component("one")), observed(component("one"), sidecars=[ended])) is SidecarAction.AWAIT
    assert action(delivery(component("one", "b")), observed(component("one"), sidecars=[ended])) is SidecarAction.START


def test_a_rolling_strategy_restarts_only_affected_sidecars() -> None:
    seen = observed(component("one"), sidecars=[running("app", component("one")), running("other", component("one"))])
    scoped = component("two", scopes=["other"])
    made = planned(delivery(component("one"), scoped, strategy=Strategy.ROLLING), seen)
    assert [each.action for each in made.sidecars] == [SidecarAction.KEEP, SidecarAction.ROLL]


@pytest.mark.parametrize("policy", [{}, {"strategy": Strategy.ROLLING}], ids=["reload", "rolling"])
def test_an_external_sidecar_is_never_restarted_but_reported_as_restart_needed(policy: dict[str, Any]) -> None:
    external = msgspec.structs.replace(running("app", component("one")), external=True)
    made = planned(
        delivery(component("one"), resiliency("calm"), **policy), observed(component("one"), sidecars=[external])
    )
    assert made.sidecars[0].action is SidecarAction.RELOAD
    assert [reason.split(":")[0] for reason in made.sidecars[0].obstacles.values()] == ["restart needed"]
    absent = ObservedSidecar("app", Reading(NOW), external=True)
    assert action(delivery(component("one", "b")), observed(component("one"), sidecars=[absent])) is SidecarAction.AWAIT


def test_an_unchanged_unproven_resource_needs_a_fresh_process() -> None:
    seen = observed(component("one"), component("two"), sidecars=[running("app", component("two"))])
    assert action(delivery(component("one"), component("two", "b")), seen) is SidecarAction.START


def test_a_change_of_unproven_content_needs_a_fresh_process() -> None:
    # A late reload of "b" must not be counted as the one of "c".
    seen = observed(component("one", "b"), sidecars=[running("app", component("one", "a"))])
    assert action(delivery(component("one", "c")), seen) is SidecarAction.START
    assert action(delivery(), seen) is SidecarAction.START


def test_a_resource_that_leaves_a_sidecars_scope_must_be_absent_there() -> None:
    seen = observed(component("one"), sidecars=[running("app", component("one")), running("other", component("one"))])
    made = planned(delivery(component("one", scopes=["other"])), seen)
    assert [[each.new is None for each in sidecar.expected] for sidecar in made.sidecars] == [[True], [False]]


def test_a_write_affects_only_the_sidecars_that_load_something_else_after_it() -> None:
    scoped = component("two", scopes=["other"])
    seen = observed(component("one"), sidecars=[running("app", component("one")), running("other", component("one"))])
    made = planned(delivery(component("one"), scoped), seen)
    drifted = msgspec.structs.replace(seen.journal, drifted=frozenset({"resources/component.one.yaml"}))
    assert affected_sidecars(made, seen.journal) == ["other"]
    assert affected_sidecars(made, drifted) == ["app", "other"]


manifests = st.lists(
    st.builds(component, st.sampled_from("abcde"), st.sampled_from("xyz")),
    unique_by=lambda each: each["metadata"]["name"],
    max_size=5,
).map(tuple)


@given(manifests, manifests)
def test_a_plan_results_in_exactly_the_delivered_files(old: tuple[Manifest, ...], new: tuple[Manifest, ...]) -> None:
    seen = observed(*old)
    made = planned(delivery(*new), seen)
    left = {key: file.digest for key, file in seen.files.items() if key not in made.removals}
    left |= {each.key: each.digest for each in made.writes}
    assert left == {key: file.digest for key, file in on_disk(*new).items()}
    assert seen.journal.begin(made.intent).complete("", {}).owned == left.keys()
    assert all(seen.files[each.key].digest != each.digest for each in made.writes if each.key in seen.files)


def test_the_file_of_a_resource_is_named_after_its_kind_and_name() -> None:
    assert file_key(ResourceRef("HTTPEndpoint", "default", "Pay.v1")) == "resources/httpendpoint.Pay.v1.yaml"


# -- restraints ----------------------------------------------------------------------------------------------------

HOLD = Hold(NOW + timedelta(hours=1), "inventory")
CLOSED = (Window("12:00", 60),)
ALL: dict[str, Any] = {"windows": WindowScope.ALL}


def outcome(delivered: Delivery, before: Observed, **restraints: Any) -> str:
    """Return the reason of the restraint, or the action of the only sidecar."""
    made = restrained(
        planned(delivered, before), msgspec.structs.replace(delivered, **restraints), before, NOW + timedelta(minutes=1)
    )
    if isinstance(made, Restraint):
        return made.reason
    (sidecar,) = made.sidecars
    return sidecar.action


@pytest.mark.parametrize(
    ("delivered", "window", "hold"),
    [
        (delivery(component("one", "a")), "keep", "keep"),
        (delivery(component("one", "b")), "reload", HELD),
        (delivery(component("one", "b"), **ALL), WAITING_FOR_WINDOW, HELD),
        (delivery(component("one", "b"), strategy=Strategy.ROLLING), WAITING_FOR_WINDOW, HELD),
        (delivery(component("one", "a"), resiliency("r")), WAITING_FOR_WINDOW, HELD),
        (delivery(component("one", "a"), resiliency("r"), unproven=Unproven.REPORT), "reload", HELD),
        (delivery(), "reload", HELD),
    ],
)
def test_outside_of_a_window_restarts_wait_and_under_a_hold_every_change(
    delivered: Delivery, window: str, hold: str
) -> None:
    before = observed(component("one"), sidecars=(running("app", component("one")),))
    assert outcome(delivered, before, windows=CLOSED) == window
    assert outcome(delivered, before, hold=HOLD) == hold
    assert outcome(delivered, before, windows=(Window("00:00", 60),)) == outcome(delivered, before)


@pytest.mark.parametrize("restraints", [{"windows": CLOSED}, {"hold": HOLD}])
def test_what_is_written_is_only_verified_until_its_restart_is_allowed(restraints: dict[str, Any]) -> None:
    before = observed(component("one"), resiliency("r"), sidecars=(running("app", component("one")),))
    delivered = delivery(component("one"), resiliency("r"))
    assert action(delivered, before) is SidecarAction.START
    assert outcome(delivered, before, **restraints) == "reload"


@pytest.mark.parametrize("restraints", [{"windows": CLOSED}, {"hold": HOLD}])
def test_a_sidecar_that_does_not_run_is_started_with_what_is_written(restraints: dict[str, Any]) -> None:
    before = observed(component("one"), sidecars=(ObservedSidecar("app"),))
    assert outcome(delivery(component("one")), before, **restraints) == "start"
    assert outcome(delivery(component("one", "b")), before, **restraints) in (WAITING_FOR_WINDOW, HELD)


def test_a_first_delivery_waits_for_no_window() -> None:
    before = observed(sidecars=(ObservedSidecar("app"),))
    assert outcome(delivery(component("one")), before, windows=CLOSED) == "start"
    assert outcome(delivery(component("one")), before, hold=HOLD) == HELD


def test_a_repair_starts_a_sidecar_that_does_not_run() -> None:
    before = observed(component("one", "drifted"), sidecars=(ObservedSidecar("app"),))
    repaired = msgspec.structs.replace(before, journal=msgspec.structs.replace(before.journal, digest="sha256:0"))
    assert outcome(delivery(component("one")), repaired, windows=CLOSED) == "start"


@pytest.mark.parametrize("restraints", [{"windows": CLOSED}, {"hold": HOLD}])
def test_an_interrupted_write_is_completed(restraints: dict[str, Any]) -> None:
    before = observed(component("one"), sidecars=(running("app", component("one")),))
    delivered = delivery(component("one"), resiliency("r"))
    for digest, expected in ((delivered.digest, "start"), ("sha256:other", "")):
        intent = Intent(6, ("resources/component.one.yaml",), (), digest)
        interrupted = msgspec.structs.replace(before, journal=msgspec.structs.replace(before.journal, intent=intent))
        found = outcome(delivered, interrupted, **restraints)
        assert found == expected or (not expected and found in (WAITING_FOR_WINDOW, HELD))
