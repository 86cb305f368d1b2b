"""Drift of files: what is named, what is masked, and what a plan does about it."""

from collections.abc import Mapping
from datetime import UTC, datetime
from typing import Any

import msgspec
import pytest

from governor.agent.platforms.local.drift import (
    DriftedFile,
    as_delivered,
    find_drift,
    find_past_drift,
    was_disturbed,
)
from governor.agent.platforms.local.files import marked, resource_file
from governor.agent.platforms.local.plan import Observed, ObservedFile, Plan, SidecarAction, plan
from governor.agent.platforms.local.storage import Intent, Journal
from governor.agent.verification.verdicts import Proof
from governor.domain.bundles import Delivery
from governor.domain.documents import ResourceRef, Unproven
from governor.domain.reports import Evidence
from governor.values.trees import Manifest
from tests.unit.agent.platforms.local.test_plan import component, delivery, on_disk, running

WRITTEN = Journal(frozenset({"resources/component.one.yaml", "resources/component.two.yaml"}), digest="sha256:0")
TWO = "resources/component.two.yaml"


def store(host: str = "a:1", **metadata: str) -> Manifest:
    items = [{"name": key, "value": value} for key, value in {"redisHost": host, **metadata}.items()]
    return {**component("one"), "spec": {"type": "state.redis", "version": "v1", "metadata": items}}


def text(delivered: Manifest, *found: Manifest, digest: str = "sha256:other") -> str:
    """Return what is said about the file of a resource that has other resources now."""
    file = resource_file(delivered, "default")
    drift = found_drift(delivery(delivered), {file.key: ObservedFile(digest, found)})
    return drift[file.key].text


def found_drift(
    delivered: Delivery, files: Mapping[str, ObservedFile], journal: Journal = WRITTEN
) -> dict[str, DriftedFile]:
    return find_drift(delivered, "default", files, journal)


def configuration(rate: str) -> Manifest:
    metadata = {"name": "calm", "namespace": "default"}
    spec = {"tracing": {"samplingRate": rate}}
    return {"apiVersion": "dapr.io/v1alpha1", "kind": "Configuration", "metadata": metadata, "spec": spec}


def test_files_as_delivered_have_no_drift() -> None:
    delivered = [store(), component("two"), configuration("1")]
    assert found_drift(delivery(*delivered), on_disk(*delivered)) == {}


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
    [drift] = found_drift(delivery(store()), {}).values()
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
        name: found_drift(delivery(store()), found)[key].changes_content for name, found in files.items()
    }
    assert changes_content == {"labelled": False, "edited": True}


def test_an_edited_configuration_names_its_field_and_not_its_marker() -> None:
    edited = marked(configuration("1"))
    edited = {**edited, "spec": {**edited["spec"], "tracing": {"samplingRate": "0"}}}
    assert text(configuration("1"), edited) == 'differs: spec.tracing.samplingRate is "0" instead of "1"'


def test_drift_concerns_the_sidecars_in_the_old_and_in_the_new_scope() -> None:
    delivered, found = {**store(), "scopes": ["old"]}, {**store(), "scopes": ["new"]}
    [drift] = found_drift(delivery(delivered), on_disk(found)).values()
    assert [drift.concerns(app_id) for app_id in ("old", "new", "other")] == [True, True, False]


def test_a_file_that_others_wrote_and_that_is_as_delivered_again_is_past_drift() -> None:
    delivered, journal = delivery(component("one"), component("two")), WRITTEN
    one = resource_file(component("one"), "default").key
    files = {key: msgspec.structs.replace(each, stamp="1") for key, each in on_disk(*delivered.resources).items()}
    other = msgspec.structs.replace(journal, stamps={one: "0", TWO: "1"})
    known = [msgspec.structs.replace(journal, stamps=stamps) for stamps in ({one: "1", TWO: "1"}, {})]
    assert [find_past_drift(delivered, "default", files, each) for each in known] == [{}, {}]
    [(key, found)] = find_past_drift(delivered, "default", files, other).items()
    assert (key, found.ref.name, found.changes_content) == (one, "one", True)
    assert "is as delivered again" in found.text
    assert [was_disturbed(files, each) for each in (*known, other)] == [False, False, True]
    assert was_disturbed({}, known[0])


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


# -- a removed resource that is back -------------------------------------------------------------------------------

REF_TWO = ResourceRef("Component", "default", "two")
REMOVES_TWO = delivery(component("one"), removals=(REF_TWO,))


def removed_two(*, files: Mapping[str, ObservedFile]) -> Observed:
    """Return a runtime whose agent has removed ``component('two')``, with these files since."""
    one, two = on_disk(component("one")), on_disk(component("two"))
    journal = Journal(frozenset(one), digest="sha256:0", removed={key: file.digest for key, file in two.items()})
    sidecar = running("app", component("one"))
    absent = Proof("", Evidence("sidecar", datetime(2026, 1, 1, tzinfo=UTC), "no longer listed"))
    sidecar = msgspec.structs.replace(sidecar, proofs={**sidecar.proofs, REF_TWO: absent})
    return Observed("default", {**one, **files}, journal, [sidecar])


def other_file(*manifests: Manifest) -> dict[str, ObservedFile]:
    return {"resources/other.yaml": ObservedFile("sha256:other", manifests)}


@pytest.mark.parametrize(
    ("files", "key", "is_repairable"),
    [
        (on_disk(component("two")), TWO, True),
        (on_disk(component("two", "edited")), TWO, False),
        (other_file(component("three"), component("two")), "resources/other.yaml", False),
        ({**on_disk(component("two")), **other_file(component("two"))}, "resources/other.yaml", False),
    ],
    ids=["as it was removed", "with other content", "in another file", "in both"],
)
def test_a_removed_resource_that_a_file_defines_again_is_drift(
    files: dict[str, ObservedFile], key: str, is_repairable: bool
) -> None:
    seen = removed_two(files=files)
    found = find_drift(REMOVES_TWO, "default", seen.files, seen.journal)
    assert {name: (str(each.ref), each.is_repairable, each.changes_content) for name, each in found.items()} == {
        key: ("Component/default/two", is_repairable, True)
    }


def test_a_foreign_file_that_defines_a_delivered_resource_is_drift_that_only_its_owner_can_end() -> None:
    delivered = delivery(component("one"), component("two"))
    files = {**on_disk(*delivered.resources), **other_file(component("three"), component("two", "edited"))}
    [(key, found)] = found_drift(delivered, files).items()
    assert (key, found.ref, found.is_repairable, found.changes_content) == (
        "resources/other.yaml",
        REF_TWO,
        False,
        True,
    )


def test_foreign_files_that_define_no_removed_resource_are_not_drift() -> None:
    elsewhere = {**component("two"), "metadata": {"name": "two", "namespace": "elsewhere"}}
    seen = removed_two(files=other_file(component("three"), elsewhere))
    assert find_drift(REMOVES_TWO, "default", seen.files, seen.journal) == {}


def test_only_a_file_as_the_agent_removed_it_is_removed_again() -> None:
    for files, removals in ((on_disk(component("two")), (TWO,)), (on_disk(component("two", "edited")), ())):
        made = plan(REMOVES_TWO, removed_two(files=files))
        assert isinstance(made, Plan)
        assert made.removals == removals
        unchanged = plan(REMOVES_TWO, as_delivered(REMOVES_TWO, removed_two(files=files)))
        assert isinstance(unchanged, Plan)
        assert unchanged.removals == ()


def test_a_process_that_ran_while_a_removed_resource_was_back_is_restarted() -> None:
    seen = removed_two(files={})
    [sidecar] = seen.sidecars
    proofs = {ref: each for ref, each in sidecar.proofs.items() if ref != REF_TWO}
    after = msgspec.structs.replace(
        seen,
        journal=msgspec.structs.replace(seen.journal, drifted=frozenset({TWO})),
        sidecars=[msgspec.structs.replace(running("app", component("one"), current=True), proofs=proofs)],
    )
    assert (action(seen, REMOVES_TWO), action(after, REMOVES_TWO)) == (SidecarAction.KEEP, SidecarAction.START)
