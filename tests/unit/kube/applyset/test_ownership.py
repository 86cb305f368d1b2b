"""Who manages which fields, and how fields move."""

from typing import Any

import pytest

from governor.kube.applyset.ownership import applies, fields_of, holders, managers_of, moved
from governor.kube.objects import Object
from governor.values.paths import parse


def entry(manager: str, operation: str, fields: dict[str, Any], time: str = "1", subresource: str = "") -> Object:
    made = {"manager": manager, "operation": operation, "apiVersion": "v1", "time": time, "fieldsV1": fields}
    return made | ({"subresource": subresource} if subresource else {})


def live(*entries: Object) -> Object:
    return {"metadata": {"managedFields": list(entries)}}


KUBECTL = entry("kubectl", "Update", {"f:data": {".": {}, "f:a": {}}})
HELM = entry("helm", "Update", {"f:data": {"f:b": {}}})
OURS = entry("ours", "Apply", {"f:data": {"f:c": {}}})
OTHER = entry("other", "Update", {"f:data": {"f:d": {}}})
STATUS = entry("helm", "Update", {"f:status": {}}, subresource="status")


def test_named_managers_fields_become_ours_and_nobody_else_loses_any() -> None:
    fields = moved(live(KUBECTL, HELM, OURS, OTHER, STATUS), {"kubectl", "helm"}, "ours")
    united: dict[str, Any] = {"f:data": {".": {}, "f:a": {}, "f:b": {}, "f:c": {}}}
    assert fields == [OURS | {"fieldsV1": united}, OTHER, STATUS]


def test_without_fields_of_our_own_theirs_become_the_first() -> None:
    fields = moved(live(KUBECTL, OTHER), {"kubectl"}, "ours")
    assert fields == [KUBECTL | {"manager": "ours", "operation": "Apply"}, OTHER]


def test_an_update_entry_of_our_own_is_not_mistaken_for_an_applied_one() -> None:
    own = entry("ours", "Update", {"f:data": {"f:x": {}}})
    fields = moved(live(own, KUBECTL), {"kubectl", "ours"}, "ours")
    assert fields == [KUBECTL | {"manager": "ours", "operation": "Apply"}, own]
    assert not applies(live(own), "ours")


@pytest.mark.parametrize("there", [live(), live(OURS, OTHER), live(STATUS), {"metadata": {}}])
def test_nothing_moves_where_nobody_named_has_fields(there: Object) -> None:
    assert moved(there, {"kubectl", "helm"}, "ours") is None


def test_managers_of_a_subresource_do_not_count_as_managers_of_the_object() -> None:
    assert managers_of(live(KUBECTL, STATUS, OURS)) == {"kubectl", "ours"}
    assert applies(live(OURS), "ours")
    assert not applies(live(KUBECTL), "kubectl")
    assert fields_of(live(KUBECTL, OURS), "ours") == OURS["fieldsV1"]
    assert fields_of(live(KUBECTL), "ours") == {}


SPEC = {
    "f:spec": {
        "f:replicas": {},
        "f:args": {},
        "f:containers": {'k:{"name":"main"}': {".": {}, "f:name": {}, "f:image": {}}},
        "f:ports": {'k:{"port":80,"protocol":"TCP"}': {".": {}, "f:port": {}}},
    },
    "f:metadata": {"f:annotations": {"f:example.com/a": {}}},
}


@pytest.mark.parametrize(
    ("path", "held"),
    [
        ("spec.replicas", True),
        ("spec.containers[main].image", True),
        ("spec.containers[main]", True),
        ("spec.containers", True),
        ("spec.args[0]", True),
        ('metadata.annotations["example.com/a"]', True),
        ("spec.containers[side].image", False),
        ("spec.containers[main].args", False),
        ("spec.minReadySeconds", False),
        ("metadata.labels", False),
        ("spec.ports[0]", False),
    ],
)
def test_holders_are_those_with_the_field_something_in_it_or_all_around_it(path: str, held: bool) -> None:
    found = holders(live(entry("them", "Update", SPEC)), parse(path), "ours")
    assert found == (("them",) if held else ())


def test_the_latest_holder_comes_first_and_we_are_none() -> None:
    fields: dict[str, Any] = {"f:data": {"f:a": {}}}
    entries = [
        entry("old", "Update", fields, "2026-01-01T00:00:00Z"),
        entry("ours", "Apply", fields, "2026-01-03T00:00:00Z"),
        entry("scaler", "Update", fields, "2026-01-02T00:00:00Z", subresource="scale"),
        entry("old", "Apply", fields, "2026-01-01T00:00:00Z"),
    ]
    assert holders(live(*entries), parse("data.a"), "ours") == ("scaler", "old")
