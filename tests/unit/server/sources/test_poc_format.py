"""Conversion of the proof of concept's file to documents."""

from typing import Any

import pytest

from governor import yamltext
from governor.errors import GovernorError
from governor.server.sources.poc_format import SELECTOR, Imported, read
from governor.values.trees import leaf_at

POC_FILE = """\
runtimes:
- id: "1"
  data:
    apiVersion: dapr.io/v1alpha1
    kind: Component
    metadata:
      name: statestore
      annotations: {kcp-res-version: "7", owner: shop}
    spec:
      type: state.redis
      metadata:
      - {name: redisHost, value: "redis-1:6379"}
      - {name: redisPassword, value: "pw"}
      - {name: selector, value: "app=node"}
- id: 2
  data:
    apiVersion: dapr.io/v1alpha1
    kind: Component
    metadata: {name: statestore, namespace: shop}
    spec: {type: state.redis, version: v1, metadata: [{name: redisHost, value: "redis-2:6379"}]}
"""


def imported(text: str) -> Imported:
    return read(yamltext.load(text, "poc.yaml"))


def resource(found: Imported, profile: str) -> dict[str, Any]:
    (only,) = found.profiles[profile]["spec"]["resources"]
    assert isinstance(only, dict)
    return only


def test_each_entry_becomes_a_runtime_and_a_profile_for_it() -> None:
    found = imported(POC_FILE)
    assert list(found.runtimes) == ["1", "2"]
    assert {name: tree["spec"]["selector"] for name, tree in found.profiles.items()} == {
        "poc-1": {"runtime": "1"},
        "poc-2": {"runtime": "2"},
    }
    assert found.runtimes["2"]["spec"] == {"platform": "local", "namespaces": ["shop"]}


def test_the_selector_becomes_an_annotation_and_the_version_annotation_is_dropped() -> None:
    component = resource(imported(POC_FILE), "poc-1")
    assert [each["name"] for each in component["spec"]["metadata"]] == ["redisHost", "redisPassword"]
    assert component["metadata"]["annotations"] == {"owner": "shop", SELECTOR: "app=node"}


def test_a_missing_version_defaults_to_v1_with_a_warning() -> None:
    found = imported(POC_FILE)
    assert [leaf_at(resource(found, name), ("spec", "version")) for name in ("poc-1", "poc-2")] == ["v1", "v1"]
    assert found.warnings == ("runtime '1': component 'statestore' has no spec.version; v1 is assumed",)


def test_an_existing_runtime_is_not_submitted() -> None:
    documents = imported(POC_FILE).documents(["1"])
    assert [(each["kind"], each["metadata"]["name"]) for each in documents] == [
        ("Runtime", "2"),
        ("Profile", "poc-1"),
        ("Profile", "poc-2"),
    ]


def test_a_list_of_objects_is_accepted() -> None:
    text = """\
runtimes:
- id: a
  data:
    kind: List
    items:
    - {kind: Component, metadata: {name: x}, spec: {version: v1}}
    - {kind: Subscription, metadata: {name: y}, spec: {}}
"""
    resources = imported(text).profiles["poc-a"]["spec"]["resources"]
    assert [each["metadata"]["name"] for each in resources] == ["x", "y"]
    assert "version" not in resources[1]["spec"]


@pytest.mark.parametrize(
    ("text", "line"),
    [
        ("- 1\n", 1),
        ("other: []\n", 1),
        ("runtimes: {}\n", 1),
        ("runtimes:\n- id: a\n", 2),
        ("runtimes:\n- data: {}\n", 2),
        ("runtimes:\n- 7\n", 2),
        ("runtimes:\n- id: true\n  data: {}\n", 2),
        ("runtimes:\n- id: a\n  data: {kind: Component}\n", 3),
        ("runtimes:\n- id: a\n  data: {kind: Component, metadata: {annotations: [1]}, spec: {}}\n", 3),
        ("runtimes:\n- id: a\n  data: {kind: Component, metadata: {namespace: {}}, spec: {}}\n", 3),
        ("runtimes:\n- id: a\n  data: {kind: List, items: 1}\n", 3),
        ("runtimes:\n" + 2 * "- id: a\n  data: {kind: X, metadata: {}, spec: {}}\n", 4),
    ],
)
def test_an_invalid_file_is_rejected_with_its_line(text: str, line: int) -> None:
    with pytest.raises(GovernorError) as caught:
        imported(text)
    assert [(detail.file, detail.line) for detail in caught.value.details] == [("poc.yaml", line)]
