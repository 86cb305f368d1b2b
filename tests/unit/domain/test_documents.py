"""Reading documents; an invalid one is rejected with its path and a reason."""

import copy
from collections.abc import Mapping
from datetime import UTC, datetime
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from governor.domain.documents import (
    API_VERSION,
    ApplyPolicy,
    Document,
    DocumentRef,
    Platform,
    Profile,
    ResourceRef,
    Runtime,
    Strategy,
    locate,
    read_document,
    ref_of,
    resource_ref,
)
from governor.domain.windows import Day, Hold, Window
from governor.errors import Detail, GovernorError, Kind
from governor.values.secret import Sealed
from governor.values.trees import Tree
from governor.yamltext import load
from tests.unit.values.strategies import trees

MANIFEST = {"kind": "Component", "metadata": {"name": "store"}}
RUNTIME = {"apiVersion": API_VERSION, "kind": "Runtime", "metadata": {"name": "r1"}, "spec": {"platform": "local"}}
PROFILE: dict[str, Any] = {
    "apiVersion": API_VERSION,
    "kind": "Profile",
    "metadata": {"name": "orders"},
    "spec": {"selector": {}, "resources": [MANIFEST]},
}


def profile(**spec: Any) -> dict[str, Any]:
    return {**PROFILE, "spec": {**PROFILE["spec"], **spec}}


def runtime(**spec: Any) -> dict[str, Any]:
    return {**RUNTIME, "spec": {"platform": "local", **spec}}


def named(name: Any, document: Mapping[str, Any] = PROFILE, **metadata: Any) -> dict[str, Any]:
    return {**document, "metadata": {"name": name, **metadata}}


def read_profile(tree: Tree) -> Profile:
    document = read_document(tree)
    assert isinstance(document, Profile)
    return document


def rejection(tree: Tree) -> Detail:
    with pytest.raises(GovernorError) as caught:
        read_document(tree)
    assert (caught.value.kind, caught.value.code) == (Kind.INVALID, "document-invalid")
    (detail,) = caught.value.details
    assert caught.value.message == f"{detail.document or 'a document'} is not valid"
    return detail


# -- valid documents -----------------------------------------------------------------------------------------------


def test_a_runtime_is_read() -> None:
    document = read_document(named("r1.eu-2", runtime(namespaces=["a", "b-2"]), labels={"region": "eu"}))
    assert isinstance(document, Runtime)
    assert ref_of(document) == DocumentRef("Runtime", "r1.eu-2")
    assert (document.spec.platform, document.spec.namespaces) == (Platform.LOCAL, ("a", "b-2"))
    assert document.metadata.labels == {"region": "eu"}


def test_the_windows_and_the_hold_of_a_runtime_are_read_from_yaml() -> None:
    (parsed,) = load(
        b"""
        apiVersion: runtime-governor.dev/v1alpha1
        kind: Runtime
        metadata: {name: r1}
        spec:
          platform: local
          windows:
            - {days: [Sat, Sun], start: 22:00, durationMinutes: 240, timeZone: Europe/Berlin}
            - {start: 12:00, durationMinutes: 30}
          hold: {until: 2026-01-31T22:00:00+01:00, reason: inventory}
        """,
        "r1.yaml",
    )
    document = read_document(parsed.value)
    assert isinstance(document, Runtime)
    assert document.spec.windows == (
        Window("22:00", 240, (Day.SAT, Day.SUN), "Europe/Berlin"),
        Window("12:00", 30, tuple(Day), "UTC"),
    )
    assert document.spec.hold == Hold(datetime(2026, 1, 31, 21, tzinfo=UTC), "inventory")


def test_a_runtime_has_the_namespace_default_unless_it_sets_others() -> None:
    document = read_document(RUNTIME)
    assert isinstance(document, Runtime)
    assert document.spec.namespaces == ("default",)


def test_a_profile_keeps_its_manifests_unchanged() -> None:
    manifest = {**MANIFEST, "spec": {"metadata": [{"name": "password", "value": Sealed("box", "mac")}], "x": None}}
    tree = profile(resources=[manifest], removals=[{"kind": "Component", "name": "old"}], priority=-5)
    before = copy.deepcopy(tree)
    document = read_profile(tree)
    assert ref_of(document) == DocumentRef("Profile", "orders")
    assert (document.spec.resources, document.spec.priority) == ((manifest,), -5)
    assert [(each.kind, each.namespace, each.name) for each in document.spec.removals] == [("Component", None, "old")]
    assert document.spec.apply == ApplyPolicy()
    assert tree == before


def test_null_in_an_apply_policy_leaves_the_field_unset() -> None:
    document = read_profile(profile(apply={"strategy": "rolling", "unproven": None}))
    assert document.spec.apply == ApplyPolicy(strategy=Strategy.ROLLING)


@pytest.mark.parametrize(
    ("selector", "specificity", "selected"),
    [
        ({}, 0, {"r1", "r2"}),
        ({"matchLabels": {}}, 0, {"r1", "r2"}),
        ({"matchLabels": {"region": "eu"}}, 1, {"r1"}),
        ({"matchExpressions": [{"key": "region", "operator": "Exists"}]}, 1, {"r1"}),
        ({"matchExpressions": [{"key": "region", "operator": "NotIn", "values": ["eu"]}]}, 1, {"r2"}),
        ({"runtime": "r2"}, 2, {"r2"}),
        ({"runtime": "r"}, 2, set()),
    ],
)
def test_a_selector_selects_all_a_group_or_one(selector: Any, specificity: int, selected: set[str]) -> None:
    read = read_profile(profile(selector=selector)).spec.selector
    assert read.specificity == specificity
    assert {name for name, labels in (("r1", {"region": "eu"}), ("r2", {})) if read.matches(name, labels)} == selected


@pytest.mark.parametrize(
    ("metadata", "namespace"), [({}, "mine"), ({"namespace": None}, "mine"), ({"namespace": "other"}, "other")]
)
def test_a_manifest_without_a_namespace_gets_the_default_one(metadata: Any, namespace: str) -> None:
    manifest = {"kind": "Component", "metadata": {"name": "store", **metadata}}
    assert resource_ref(manifest, "mine") == ResourceRef("Component", namespace, "store")


# -- invalid documents ---------------------------------------------------------------------------------------------

NAME = "must be at most 63 characters: lower-case letters and digits, separated by hyphens or single dots"
RESOURCE_NAME = "must be at most 253 characters: letters and digits, separated by hyphens, underscores or dots"
NAMESPACE = "must be at most 63 characters: lower-case letters and digits, separated by hyphens"
KNOWN = "known kinds: Profile, Runtime"


def without(document: Mapping[str, Any], key: str) -> dict[str, Any]:
    return {name: value for name, value in document.items() if name != key}


DAPR = "a Dapr resource belongs in spec.resources of a Profile"
MAP = "a document must be a map with apiVersion, kind, metadata and spec"


@pytest.mark.parametrize(
    ("tree", "document", "path", "reason"),
    [
        (None, "", "", MAP),
        ([PROFILE], "", "", MAP),
        ({}, "", "apiVersion", f"must be {API_VERSION}"),
        ({**PROFILE, "apiVersion": "v1"}, "Profile/orders", "apiVersion", f"must be {API_VERSION}"),
        ({**PROFILE, "apiVersion": []}, "Profile/orders", "apiVersion", f"must be {API_VERSION}"),
        ({**PROFILE, "kind": "Profil"}, "Profil/orders", "kind", "unknown kind 'Profil'; did you mean Profile?"),
        ({**PROFILE, "kind": "Pod"}, "Pod/orders", "kind", f"unknown kind 'Pod'; {KNOWN}"),
        (
            {**PROFILE, "apiVersion": "dapr.io/v1alpha1"},
            "Profile/orders",
            "apiVersion",
            f"must be {API_VERSION}; {DAPR}",
        ),
        ({**PROFILE, "kind": ["Profile"]}, "orders", "kind", f"is missing or not a string; {KNOWN}"),
        ({**PROFILE, "kind": {}}, "orders", "kind", f"is missing or not a string; {KNOWN}"),
        (without(PROFILE, "kind"), "orders", "kind", f"is missing or not a string; {KNOWN}"),
        (without(PROFILE, "metadata"), "Profile", "metadata", "is missing"),
        (without(PROFILE, "spec"), "Profile/orders", "spec", "is missing"),
        ({**PROFILE, "spec": None}, "Profile/orders", "spec", "must be a map, not null"),
        ({**PROFILE, "spec": {}}, "Profile/orders", "spec.selector", "is missing"),
        ({**PROFILE, "x": 1}, "Profile/orders", "x", "unknown field; known fields: kind, apiVersion, metadata, spec"),
        ({**RUNTIME, "spec": {}}, "Runtime/r1", "spec.platform", "is missing"),
    ],
)
def test_a_malformed_document_is_rejected_at_its_path(tree: Tree, document: str, path: str, reason: str) -> None:
    assert rejection(tree) == Detail(reason=reason, document=document, path=path)


@pytest.mark.parametrize(
    ("metadata", "document", "path", "reason"),
    [
        ([], "Profile", "metadata", "must be a map, not a list"),
        ({}, "Profile", "metadata.name", "is missing"),
        ({"name": 5}, "Profile", "metadata.name", "must be a string, not an integer"),
        (
            {"name": "a", "labels": {"x": "1", "v": 1.1}},
            "Profile/a",
            "metadata.labels.v",
            "must be a string, not a number",
        ),
        (
            {"name": "a", "labels": {"x.io/v": None}},
            "Profile/a",
            'metadata.labels["x.io/v"]',
            "must be a string, not null",
        ),
        ({"name": "a", "labels": ["x"]}, "Profile/a", "metadata.labels", "must be a map, not a list"),
        (
            {"name": "a", "uid": 1},
            "Profile/a",
            "metadata.uid",
            "unknown field; known fields: name, labels, annotations",
        ),
    ],
)
def test_invalid_metadata_is_rejected_at_its_path(metadata: Tree, document: str, path: str, reason: str) -> None:
    assert rejection({**PROFILE, "metadata": metadata}) == Detail(reason=reason, document=document, path=path)


@pytest.mark.parametrize(
    "name", ["Orders", "", "a\n", "\na", "a..b", "-a", "a-", ".", "a.-b", "a/../b", "a b", "ä", "a" * 64]
)
def test_an_invalid_name_is_rejected_with_the_rule(name: str) -> None:
    tree = {**PROFILE, "metadata": {"name": name}}
    assert rejection(tree) == Detail(reason=NAME, document=f"Profile/{name}", path="metadata.name")


@pytest.mark.parametrize("name", ["a", "0", "a-b", "a--b", "a.b.c", "1.2", "a" * 63])
def test_a_valid_name_is_accepted(name: str) -> None:
    assert read_profile({**PROFILE, "metadata": {"name": name}}).metadata.name == name


RUNTIME_AND_LABELS = {"runtime": "r1", "matchLabels": {"a": "b"}}
OPERATORS = "must be In, NotIn, Exists or DoesNotExist"


@pytest.mark.parametrize(
    ("selector", "path", "reason"),
    [
        (None, "", "must be a map, not null"),
        (RUNTIME_AND_LABELS, "", "must not combine runtime with matchLabels or matchExpressions"),
        ({"runtime": "R1"}, ".runtime", NAME),
        ({"matchlabels": {}}, ".matchlabels", "unknown field; did you mean matchLabels?"),
        ({"matchLabels": {"a": 1}}, ".matchLabels.a", "must be a string, not an integer"),
        ({"matchExpressions": {}}, ".matchExpressions", "must be a list, not a map"),
        ({"matchExpressions": [{"key": "a"}]}, ".matchExpressions[0].operator", "is missing"),
    ],
)
def test_an_invalid_selector_is_rejected_at_its_path(selector: Any, path: str, reason: str) -> None:
    detail = rejection(profile(selector=selector))
    assert (detail.path, detail.reason) == (f"spec.selector{path}", reason)


@pytest.mark.parametrize(
    ("expression", "path", "reason"),
    [
        ({"operator": "In"}, "", "operator In on label 'a' needs values"),
        ({"operator": "Exists", "values": ["x"]}, "", "operator Exists on label 'a' takes no values"),
        ({"operator": "in"}, ".operator", OPERATORS),
    ],
)
def test_an_invalid_expression_is_rejected_at_its_path(expression: Any, path: str, reason: str) -> None:
    valid = {"key": "b", "operator": "Exists"}
    detail = rejection(profile(selector={"matchExpressions": [valid, {"key": "a", **expression}]}))
    assert (detail.path, detail.reason) == (f"spec.selector.matchExpressions[1]{path}", reason)


NIGHT = {"start": "22:00", "durationMinutes": 240}
TIME_OF_DAY = "must be a time of day from 00:00 to 23:59"
DAYS = "must be Mon, Tue, Wed, Thu, Fri, Sat or Sun"
TIME = "must be a time with a time zone, such as 2026-01-31T22:00:00Z"
POLICY = (
    "unknown field; known fields: preflight, strategy, unproven, verifyWindowSeconds, retry, drift, windows, "
    "preflightLabels"
)
SPEC = "unknown field; known fields: selector, priority, apply, resources, removals"


@pytest.mark.parametrize(
    ("spec", "path", "reason"),
    [
        ({"resource": []}, "resource", "unknown field; did you mean resources?"),
        ({"colour": 1}, "colour", SPEC),
        ({"priority": "10"}, "priority", "must be an integer, not a string"),
        ({"priority": True}, "priority", "must be an integer, not a boolean"),
        ({"priority": 2_000_000}, "priority", "must be at most 1000000"),
        ({"apply": 5}, "apply", "must be a map, not an integer"),
        ({"apply": {"verify": 1}}, "apply.verify", POLICY),
        ({"apply": {"strategy": "x"}}, "apply.strategy", "must be reload or rolling"),
        ({"apply": {"verifyWindowSeconds": 0}}, "apply.verifyWindowSeconds", "must be at least 1"),
        ({"resources": {}}, "resources", "must be a list, not a map"),
        ({"resources": [MANIFEST, "x"]}, "resources[1]", "must be a map, not a string"),
        ({"removals": [{"kind": "C"}]}, "removals[0].name", "is missing"),
        ({"removals": [{"kind": "C", "name": "a b"}]}, "removals[0].name", RESOURCE_NAME),
        ({"removals": ["C/a"]}, "removals[0]", "must be a map, not a string"),
    ],
)
def test_an_invalid_profile_is_rejected_at_its_path(spec: Any, path: str, reason: str) -> None:
    assert rejection(profile(**spec)) == Detail(reason=reason, document="Profile/orders", path=f"spec.{path}")


@pytest.mark.parametrize(
    ("manifest", "path", "reason"),
    [
        ({}, "kind", "is missing"),
        ({"kind": 1, "metadata": {"name": "a"}}, "kind", "must be a string, not an integer"),
        ({"kind": "", "metadata": {"name": "a"}}, "kind", "must not be empty"),
        ({"kind": "C"}, "metadata", "is missing"),
        ({"kind": "C", "metadata": {}}, "metadata.name", "is missing"),
        ({"kind": "C", "metadata": {"name": "../x"}}, "metadata.name", RESOURCE_NAME),
        ({"kind": "C", "metadata": {"name": "x-${runtime.id}"}}, "metadata.name", RESOURCE_NAME),
        ({"kind": "C", "metadata": {"name": "x", "namespace": "A"}}, "metadata.namespace", NAMESPACE),
        (
            {"kind": "C", "metadata": {"name": "x", "namespace": 1}},
            "metadata.namespace",
            "must be a string, not an integer",
        ),
    ],
)
def test_a_manifest_with_an_invalid_kind_or_name_is_rejected(manifest: Any, path: str, reason: str) -> None:
    detail = rejection(profile(resources=[MANIFEST, manifest]))
    assert (detail.path, detail.reason) == (f"spec.resources[1].{path}", reason)


@pytest.mark.parametrize(
    ("spec", "path", "reason"),
    [
        (
            {"platform": "docker"},
            "platform",
            "must be local, kubernetes or cloudfoundry",
        ),
        ({"namespaces": []}, "namespaces", "must not be empty"),
        ({"namespaces": ["a", "B"]}, "namespaces[1]", NAMESPACE),
        ({"namespaces": ["a.b"]}, "namespaces[0]", NAMESPACE),
        ({"namespaces": "a"}, "namespaces", "must be a list, not a string"),
        ({"selector": {}}, "selector", "unknown field; known fields: platform, namespaces, windows, hold"),
        ({"windows": {}}, "windows", "must be a list, not a map"),
        ({"windows": [NIGHT] * 51}, "windows", "must have at most 50 items"),
        ({"windows": [{"start": "22:00"}]}, "windows[0].durationMinutes", "is missing"),
        ({"windows": [NIGHT, {**NIGHT, "start": "24:00"}]}, "windows[1].start", TIME_OF_DAY),
        ({"windows": [{**NIGHT, "start": "22:00\n"}]}, "windows[0].start", TIME_OF_DAY),
        ({"windows": [{**NIGHT, "start": 1320}]}, "windows[0].start", "must be a string, not an integer"),
        ({"windows": [{**NIGHT, "durationMinutes": 0}]}, "windows[0].durationMinutes", "must be at least 1"),
        ({"windows": [{**NIGHT, "durationMinutes": 10081}]}, "windows[0].durationMinutes", "must be at most 10080"),
        ({"windows": [{**NIGHT, "days": []}]}, "windows[0].days", "must not be empty"),
        ({"windows": [{**NIGHT, "days": ["sat"]}]}, "windows[0].days[0]", DAYS),
        ({"hold": {"until": "2026-01-31T22:00:00Z"}}, "hold.reason", "is missing"),
        ({"hold": {"until": "2026-01-31T22:00:00Z", "reason": ""}}, "hold.reason", "must not be empty"),
        ({"hold": {"until": "2026-01-31T22:00:00", "reason": "x"}}, "hold.until", TIME),
        ({"hold": {"until": "tomorrow", "reason": "x"}}, "hold.until", TIME),
        ({"hold": {"until": 1, "reason": "x"}}, "hold.until", f"{TIME}, not an integer"),
    ],
)
def test_an_invalid_runtime_is_rejected_at_its_path(spec: Any, path: str, reason: str) -> None:
    assert rejection(runtime(**spec)) == Detail(reason=reason, document="Runtime/r1", path=f"spec.{path}")


@pytest.mark.parametrize(
    ("first", "second", "rejected"),
    [(None, None, True), ("a", "a", True), (None, "a", True), ("a", None, True), ("a", "b", False)],
)
def test_a_resource_may_be_defined_twice_only_in_two_explicit_namespaces(
    first: str | None, second: str | None, rejected: bool
) -> None:
    tree = profile(
        resources=[{"kind": "C", "metadata": {"name": "x", "namespace": namespace}} for namespace in (first, second)]
    )
    if rejected:
        assert rejection(tree).path == "spec.resources[1]"
    else:
        assert len(read_profile(tree).spec.resources) == 2


places = st.sampled_from(
    [(), ("apiVersion",), ("kind",), ("metadata",), ("metadata", "name"), ("metadata", "labels"), ("spec",)]
    + [("spec", key) for key in ("selector", "priority", "apply", "resources", "removals", "platform", "namespaces")]
)


def replaced(tree: Tree, path: tuple[str, ...], value: Tree) -> Tree:
    if not path:
        return value
    return {**tree, path[0]: replaced(tree.get(path[0], {}), path[1:], value)}


@given(st.sampled_from([PROFILE, RUNTIME]), places, trees)
def test_any_tree_is_read_or_rejected_with_a_reason(base: Tree, place: Any, value: Tree) -> None:
    tree = replaced(base, place, value)
    try:
        document: Document = read_document(tree)
    except GovernorError as error:
        (detail,) = error.details
        assert detail.reason
        assert "regex" not in detail.reason
    else:
        for manifest in document.spec.resources if isinstance(document, Profile) else ():
            assert resource_ref(manifest, "default").name


# -- file and line -------------------------------------------------------------------------------------------------

TEXT = """\
# two documents
apiVersion: runtime-governor.dev/v1alpha1
kind: Runtime
metadata: {name: r1}
spec: {platform: local}
---
apiVersion: runtime-governor.dev/v1alpha1
kind: Profile
metadata:
  name: orders
  labels: {team/a.b: x}
spec:
  selector: {}
  resources:
  - kind: Component
    metadata: {name: store}
    spec:
      metadata:
      - name: redisHost
        value: a
      - name: redisPassword
        value: b
"""


@pytest.mark.parametrize(
    ("document", "path", "line"),
    [
        ("Profile/orders", "", 7),
        ("Profile/orders", "metadata.name", 10),
        ("Profile/orders", 'metadata.labels["team/a.b"]', 11),
        ("Profile/orders", "spec.resources[0].spec.metadata[redisPassword].value", 22),
        ("Profile/orders", "spec.resources[0].spec.metadata[1].value", 22),
        ("Profile/orders", "spec.resources[0].spec.metadata[redisHost]", 19),
        ("Profile/orders", "spec.resources[0].spec.metadata[absent].value", 18),
        ("Profile/orders", "spec.resources[7].spec", 14),
        ("Profile/orders", "spec.priority", 12),
        ("Runtime/r1", "spec.platform", 5),
    ],
)
def test_a_detail_gets_its_file_and_line(document: str, path: str, line: int) -> None:
    detail = Detail(reason="wrong", document=document, path=path)
    assert locate([detail], load(TEXT, "dir/orders.yaml")) == (
        Detail(reason="wrong", document=document, path=path, file="dir/orders.yaml", line=line),
    )


def test_a_detail_without_a_file_or_with_a_known_one_is_unchanged() -> None:
    details = (
        Detail(reason="stored before", document="Profile/other", path="spec"),
        Detail(reason="of no document"),
        Detail(reason="found already", document="Profile/orders", path="spec", file="other.yaml", line=3),
    )
    assert locate(details, load(TEXT, "orders.yaml")) == details


def test_an_invalid_document_without_a_name_is_located_too() -> None:
    parsed = load(TEXT.replace("  name: orders\n", ""), "orders.yaml")
    with pytest.raises(GovernorError) as caught:
        read_document(parsed[1].value)
    (detail,) = locate(caught.value.details, parsed)
    assert str(detail) == "orders.yaml:9: Profile metadata.name: is missing"
