"""What of two states of an object counts, and what of it may be shown."""

from typing import Any

from hypothesis import given
from hypothesis import strategies as st

from governor.kube.applyset.diff import comparable, differences
from governor.kube.objects import Object
from tests.unit.values.strategies import brief

CANARY = "c4n4ry"


def secret(value: str, copied: str = "") -> Object:
    annotations = {"kubectl.kubernetes.io/last-applied-configuration": copied} if copied else {}
    metadata: dict[str, Any] = {"name": "s", "annotations": annotations}
    values = {"data": {"a": value}, "stringData": {"b": value}}
    return {"apiVersion": "v1", "kind": "Secret", "metadata": metadata, **values}


def test_what_the_server_keeps_does_not_count() -> None:
    before: Object = {"kind": "X", "metadata": {"name": "a", "resourceVersion": "1", "uid": "1"}, "status": {"a": 1}}
    after: Object = {"kind": "X", "metadata": {"name": "a", "generation": 2, "managedFields": []}, "status": {"a": 2}}
    assert differences(before, after) == ()
    assert [each.path for each in differences(before, after | {"spec": 1})] == ["spec"]


@brief
@given(st.text(), st.text())
def test_a_secret_that_changed_is_seen_to_and_its_values_are_not(old: str, new: str) -> None:
    found = differences(secret(CANARY + old, CANARY), secret(CANARY + new, CANARY + "2"))
    assert CANARY not in repr(found)
    assert {each.path for each in found} == ({"data.a", "stringData.b"} if old != new else set()) | {
        'metadata.annotations["kubectl.kubernetes.io/last-applied-configuration"]'
    }


def test_a_secret_in_the_making_shows_no_values_either() -> None:
    found = differences({**secret(CANARY), "data": None, "stringData": None}, secret(CANARY))
    assert CANARY not in repr(found)
    assert found
    assert CANARY not in repr(comparable(secret(CANARY, CANARY)))
