"""What an autoscaler scales."""

import msgspec
import pytest

from governor.kube.objects import ApiResource, Object, ObjectRef
from governor.reconciler.watch.autoscalers import Autoscaler, is_scalable

DEPLOYMENTS = ApiResource("apps", "v1", "Deployment", "deployments", namespaced=True)


@pytest.mark.parametrize(
    ("target", "expected"),
    [
        ({"apiVersion": "apps/v1", "kind": "StatefulSet", "name": "a"}, ("apps", "StatefulSet", "a")),
        ({"apiVersion": "example.com/v1", "kind": "Widget", "name": "a"}, ("example.com", "Widget", "a")),
        ({"apiVersion": "v1", "kind": "ReplicationController", "name": "a"}, ("", "ReplicationController", "a")),
        ({"name": "a"}, ("apps", "Deployment", "a")),
        ({}, ("apps", "Deployment", "")),
    ],
)
def test_an_autoscaler_names_its_target(target: Object, expected: tuple[str, str, str]) -> None:
    found = {"metadata": {"name": "scaler", "namespace": "x"}, "spec": {"scaleTargetRef": target, "minReplicas": 1}}
    group, kind, name = expected
    assert msgspec.convert(found, Autoscaler).target == ObjectRef(group, kind, "x", name)


def test_a_kind_is_scalable_by_its_subresource() -> None:
    assert not is_scalable(DEPLOYMENTS)
    assert is_scalable(msgspec.structs.replace(DEPLOYMENTS, subresources=frozenset({"scale", "status"})))
