"""Drift of files: what is named, what is masked, and what a plan does about it."""

from typing import Any

import msgspec
import pytest

from governor.agent.platforms.local.drift import as_delivered, find_drift
from governor.agent.platforms.local.files import marked, resource_file
from governor.agent.platforms.local.plan import Observed, ObservedFile, Plan, SidecarAction, plan
from governor.agent.storage import Intent, Journal
from governor.domain.bundles import Delivery
from governor.domain.documents import Unproven
from governor.values.trees import Manifest
from tests.unit.agent.platforms.local.test_plan import component, delivery, on_disk, running


def store(host: str = "a:1", **metadata: str) -> Manifest:
    items = [{"name": key, "value": value} for key, value in {"redisHost": host, **metadata}.items()]
    return {**component("one"), "spec": {"type": "state.redis", "version": "v1", "metadata": items}}


def text(delivered: Manifest, *found: Manifest, digest: str = "sha256:other") -> str:
    """Return what is said about the file of a resource that has other resources now."""
    file = resource_file(delivered, "default")
    drift = find_drift(delivery(delivered), "default", {file.key: ObservedFile(digest, found)})
    return drift[file.key].text


def configuration(rate: str) -> Manifest:
    metadata = {"name": "calm", "namespace": "default"}
    spec = {"tracing": {"samplingRate": rate}}
    return {"apiVersion": "dapr.io/v1alpha1", "kind": "Configuration", "metadata": metadata, "spec": spec}


def test_files_as_delivered_have_no_drift() -> None:
    delivered = [store(), component("two"), configuration("1")]
    assert find_drift(delivery(*delivered), "default", on_disk(*delivered)) == {}


@pytest.mark.parametrize(
    ("found", "expected"),
    [
        ([store("b:2")], 'differs: spec.metadata[redisHost].value is "b:2" instead of "a:1"'),
        ([store("a:1", enableTLS="true")], "differs: spec.metadata[enableTLS] is added"),
        ([{**store(), "scopes": ["app"]}], "differs: scopes is added"),
        ([store("b" * 100)], "differs: spec.metadata[redisHost].value is changed"),
        ([store()], "differs in its text, but in no field"),
        ([store(), component("two")], "has 2 resources instead of 1"),
        ([], "is not readable as a resource"),
    ],
)
def test_the_text_names_the_fields(found: list[Manifest], expected: str) -> None:
    assert text(store(), *found) == expected


def test_a_missing_file_is_drift() -> None:
    [drift] = find_drift(delivery(store()), "default", {}).values()
    assert (drift.text, drift.changes_content) == ("is missing", True)


def test_many_fields_are_counted() -> None:
    found = store("a:1", **{f"field{n}": "x" for n in range(8)})
    assert text(store(), found).endswith("spec.metadata[field4] is added and 3 more fields")


@pytest.mark.parametrize(
    "found",
    [
        store("a:1", redisPassword="edited-pw"),
        store("user:edited-pw@b:2", redisPassword="delivered-pw"),
        {**store("a:1", redisPassword="edited-pw"), "kind": "Another"},
        {
            **store("a:1"),
            "spec": {"type": "state.other", "metadata": [{"name": "redisPassword", "value": "edited-pw"}]},
        },
    ],
)
def test_no_text_has_a_sensitive_value(found: Manifest) -> None:
    said = text(store("a:1", redisPassword="delivered-pw"), found)
    assert "differs: " in said
    assert "-pw" not in said


def test_a_changed_label_could_not_be_loaded_and_a_changed_field_could() -> None:
    labelled = {**store(), "metadata": {**store()["metadata"], "labels": {"team": "blue"}}}
    key = resource_file(store(), "default").key
    files = {"labelled": on_disk(labelled), "edited": on_disk(store("b:2"))}
    changes_content = {
        name: find_drift(delivery(store()), "default", found)[key].changes_content for name, found in files.items()
    }
    assert changes_content == {"labelled": False, "edited": True}


def test_an_edited_configuration_names_its_field_and_not_its_marker() -> None:
    edited = marked(configuration("1"))
    edited = {**edited, "spec": {**edited["spec"], "tracing": {"samplingRate": "0"}}}
    assert text(configuration("1"), edited) == 'differs: spec.tracing.samplingRate is "0" instead of "1"'


def test_drift_concerns_the_sidecars_in_the_old_and_in_the_new_scope() -> None:
    delivered, found = {**store(), "scopes": ["old"]}, {**store(), "scopes": ["new"]}
    [drift] = find_drift(delivery(delivered), "default", on_disk(found)).values()
    assert [drift.concerns(app_id) for app_id in ("old", "new", "other")] == [True, True, False]


def drifted(on_disk_now: Manifest | None, **changes: Any) -> Observed:
    """Return a runtime that proved ``component('one')``, whose file another program has changed since."""
    written = component("one")
    key = resource_file(written, "default").key
    files = on_disk(on_disk_now) if on_disk_now else {}
    journal = Journal(frozenset({key}), digest="sha256:0", drifted=frozenset({key}))
    # The proofs were dropped when the drift was found.
    sidecar = msgspec.structs.replace(running("app", written, current=True), proofs={})
    return Observed("default", files, journal, [msgspec.structs.replace(sidecar, **changes)])


def action(found: Observed, delivered: Delivery) -> SidecarAction:
    made = plan(delivered, found)
    assert isinstance(made, Plan)
    return made.sidecars[0].action


@pytest.mark.parametrize("now", [component("one"), component("one", "edited"), None])
def test_what_a_running_process_loaded_during_drift_is_unknown_so_it_is_restarted(now: Manifest | None) -> None:
    assert action(drifted(now), delivery(component("one"))) is SidecarAction.START


def test_an_external_sidecar_is_unproven_after_drift() -> None:
    made = plan(delivery(component("one")), drifted(component("one"), external=True))
    assert isinstance(made, Plan)
    [reason] = made.sidecars[0].obstacles.values()
    assert reason.startswith("restart needed: its file was changed by another program")


def test_after_drift_nothing_is_restarted_if_the_policy_forbids_it() -> None:
    found, delivered = drifted(None), delivery(component("one"), unproven=Unproven.REPORT)
    assert action(found, delivered) is SidecarAction.RELOAD


def test_files_are_taken_as_delivered_only_if_the_delivery_was_written() -> None:
    written = delivery(component("one"))
    edited = on_disk(component("one", "edited"))
    journals = {
        "written": Journal(frozenset(edited), digest=written.digest),
        "in progress": Journal(frozenset(edited), Intent(7, (), (), written.digest), digest=written.digest),
        "of an older agent": Journal(frozenset(edited)),
    }
    seen = {name: as_delivered(written, Observed("default", edited, each, ())) for name, each in journals.items()}
    assert {name: each.files == edited for name, each in seen.items()} == {
        "written": False,
        "in progress": True,
        "of an older agent": True,
    }
    assert seen["written"].files == on_disk(component("one"))
