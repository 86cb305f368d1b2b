"""How a live definition becomes the shipped one: newer releases are left, stored versions are never dropped."""

import copy
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from governor.kube.objects import Object
from governor.reconciler.setup.definition_plan import (
    DIGEST_ANNOTATION,
    VERSION_ANNOTATION,
    Action,
    migrated_fields,
    plan,
)


def definition(*versions: str, storage: str = "", stored: tuple[str, ...] = (), release: str = "") -> Object:
    listed = [{"name": each, "served": True, "storage": each == (storage or versions[-1])} for each in versions]
    spec = {"group": "example.dev", "versions": listed}
    found: dict[str, Any] = {"metadata": {"name": "sites.example.dev"}, "spec": spec}
    if stored:
        found["status"] = {"storedVersions": list(stored)}
    if release:
        found["metadata"]["annotations"] = {VERSION_ANNOTATION: release}
    return found


def names(found: Object | None) -> list[str]:
    return [each["name"] for each in found["spec"]["versions"]] if found else []


def test_a_missing_definition_is_created_with_its_release() -> None:
    planned = plan(None, definition("v1"), "1.2.0")
    assert planned.action is Action.CREATE
    assert planned.definition["metadata"]["annotations"][VERSION_ANNOTATION] == "1.2.0"
    assert planned.interim is None


def test_an_installed_definition_is_applied_again_only_on_request() -> None:
    live = plan(None, definition("v1"), "1.2.0").definition | {"status": {"storedVersions": ["v1"]}}
    assert plan(live, definition("v1"), "1.2.0").action is Action.NONE
    assert plan(live, definition("v1"), "1.2.0", always=True).action is Action.UPGRADE
    assert plan(live, definition("v1", "v2"), "1.2.0").action is Action.UPGRADE


@pytest.mark.parametrize(
    ("live", "ours", "is_left"),
    [
        ("0.2.0", "0.2.0", False),
        ("0.2.0", "0.3.0", False),
        ("0.3.0", "0.2.0", True),
        ("0.10.0", "0.9.9", True),
        ("0.2.0.dev3", "0.2.0", False),
        ("0.2.0", "0.2.0.dev3", True),
        ("0.2.0.dev10", "0.2.0.dev9", True),
        ("a release of the future", "0.2.0", True),
        ("", "0.2.0", False),
    ],
)
def test_a_definition_of_a_newer_release_is_left_as_it_is(live: str, ours: str, is_left: bool) -> None:
    for always in (False, True):
        planned = plan(definition("v1", stored=("v1",), release=live), definition("v1"), ours, always=always)
        assert (planned.action is Action.LEAVE) is is_left


def test_a_version_with_stored_objects_stays_until_they_are_stored_anew() -> None:
    live = definition("v1alpha1", stored=("v1alpha1",), release="0.2.0")
    planned = plan(live, definition("v1beta1", "v1"), "0.5.0")
    assert planned.action is Action.UPGRADE
    assert names(planned.interim) == ["v1beta1", "v1", "v1alpha1"]
    assert planned.interim is not None
    assert [each["storage"] for each in planned.interim["spec"]["versions"]] == [False, True, False]
    assert [each["served"] for each in planned.interim["spec"]["versions"]] == [True, True, False]
    assert names(planned.definition) == ["v1beta1", "v1"]
    assert planned.storage == "v1"


def test_managers_that_wrote_in_a_dropped_version_are_moved_to_the_new_one() -> None:
    planned = plan(definition("v1alpha1", stored=("v1alpha1",)), definition("v1beta1", "v1"), "0.5.0")
    old, kept = {"manager": "a", "apiVersion": "example.dev/v1alpha1"}, {"apiVersion": "example.dev/v1beta1"}
    moved = migrated_fields({"managedFields": [old, kept]}, planned)
    assert moved == [{"manager": "a", "apiVersion": "example.dev/v1"}, kept]
    assert migrated_fields({"managedFields": moved}, planned) is None
    assert migrated_fields({}, planned) is None


def test_a_version_that_nothing_is_stored_in_is_dropped_at_once() -> None:
    live = definition("v1alpha1", "v1beta1", stored=("v1beta1",), release="0.2.0")
    assert plan(live, definition("v1beta1"), "0.5.0").interim is None


def test_an_interrupted_migration_is_continued() -> None:
    interim = plan(definition("v1alpha1", stored=("v1alpha1",)), definition("v1"), "0.5.0").interim
    assert interim is not None
    live = interim | {"status": {"storedVersions": ["v1alpha1", "v1"]}}
    assert DIGEST_ANNOTATION in live["metadata"]["annotations"]
    again = plan(live, definition("v1"), "0.5.0")
    assert again.action is Action.UPGRADE
    assert names(again.interim) == ["v1", "v1alpha1"]


_VERSIONS = st.lists(st.sampled_from(["v1alpha1", "v1alpha2", "v1beta1", "v1"]), min_size=1, unique=True)


@given(_VERSIONS, _VERSIONS, st.data())
def test_no_stored_version_is_ever_missing_from_what_is_applied_first(
    old: list[str], new: list[str], data: st.DataObject
) -> None:
    stored = tuple(data.draw(st.lists(st.sampled_from(old), min_size=1, unique=True)))
    live, shipped = definition(*old, stored=stored, release="0.1.0"), definition(*new)
    before = copy.deepcopy((live, shipped))
    planned = plan(live, shipped, "0.2.0")
    first = planned.interim or planned.definition
    assert set(stored) <= set(names(first))
    assert [each["name"] for each in first["spec"]["versions"] if each["storage"]] == [planned.storage]
    assert (live, shipped) == before
