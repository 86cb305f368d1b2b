"""Documents in files, read without a hub."""

import pytest

from governor.errors import GovernorError
from governor.kube.controller.views import readable
from governor.reconciler.resolution.documents import read_documents, unknown_fields

INSTALLATION = """
---
# the values are the last line
---
apiVersion: runtime-governor.dev/v1alpha1
kind: Installation
metadata: {name: orders}
spec: {module: orders, version: 1.0.0, cluster: local, values: {debug: yes, port: 0o17, size: 1_000, text: "yes"}}
"""


def test_values_are_those_that_kubectl_would_send() -> None:
    found = read_documents({"orders.yaml": INSTALLATION}).catalogue.installations.values()
    assert [each.spec.values for each in map(readable, found) if each] == [
        {"debug": True, "port": 15, "size": 1000, "text": "yes"}
    ]


def test_other_kinds_are_refused_with_file_and_line() -> None:
    with pytest.raises(GovernorError, match=r"orders\.yaml:5: only Module, Channel, Installation, Cluster of"):
        read_documents({"orders.yaml": INSTALLATION.replace("kind: Installation", "kind: Deployment")})


def test_unknown_fields_are_refused_as_by_kubectl() -> None:
    wrong = INSTALLATION.replace(
        "values: {", "vales: {a: 1}, clusterSelector: {matchLabel: {}}, values: {more: {b: 1}, "
    )
    with pytest.raises(GovernorError) as caught:
        read_documents({"orders.yaml": wrong})
    message = "orders.yaml:5: the Installation has unknown fields: spec.vales, spec.clusterSelector.matchLabel; correct"
    assert str(caught.value).startswith(message)


def test_fields_in_lists_and_maps_are_those_of_their_schema() -> None:
    item = {"properties": {"a": {}, "labels": {"additionalProperties": {"type": "string"}}}}
    schema = {"properties": {"items": {"items": item}, "free": {"x-kubernetes-preserve-unknown-fields": True}}}
    value = {"items": [{"a": 1}, {"b": 2, "labels": {"x": "y"}}], "free": {"c": {"d": 1}}, "e": None}
    assert list(unknown_fields(value, schema)) == ["items[1].b", "e"]
