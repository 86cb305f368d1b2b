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
    message = (
        "orders.yaml:8: the Installation has unknown fields: spec.vales (did you mean values?), "
        "spec.clusterSelector.matchLabel (did you mean matchLabels?); correct or remove them"
    )
    assert str(caught.value) == message


MODULE = """
apiVersion: runtime-governor.dev/v1alpha1
kind: Module
metadata: {name: orders-1.0.0}
spec:
  module: orders
  version: 1.0.0
  chart: {directory: /charts/orders, digest: sha256:%s}
""" % ("0" * 64)


@pytest.mark.parametrize(
    ("old", "new", "message"),
    [
        (
            "version: 1.0.0",
            "version: 1",
            "orders.yaml:7: the Module is invalid: spec.version: must be a string, not an integer",
        ),
        (
            "sha256:",
            "sha512:",
            "orders.yaml:8: the Module is invalid: spec.chart.digest: must match ^sha256:[0-9a-f]{64}$",
        ),
        (
            "orders-1.0.0",
            "orders",
            "orders.yaml:4: the Module is invalid: metadata.name: must be orders-1.0.0, after the",
        ),
        (
            "dev/v1alpha1",
            "dev/v1",
            "orders.yaml:2: only Module, Channel, Installation, Cluster of runtime-governor.dev/v1alpha1",
        ),
    ],
    ids=["type", "format", "name", "version"],
)
def test_an_invalid_document_is_refused_with_its_line_and_path(old: str, new: str, message: str) -> None:
    assert read_documents({"orders.yaml": MODULE}).catalogue.module("orders", "1.0.0") is not None
    with pytest.raises(GovernorError) as caught:
        read_documents({"orders.yaml": MODULE.replace(old, new, 1)})
    assert str(caught.value).startswith(message)


def test_fields_in_lists_and_maps_are_those_of_their_schema() -> None:
    item = {"properties": {"a": {}, "labels": {"additionalProperties": {"type": "string"}}}}
    schema = {"properties": {"items": {"items": item}, "free": {"x-kubernetes-preserve-unknown-fields": True}}}
    value = {"items": [{"a": 1}, {"b": 2, "labels": {"x": "y"}}], "free": {"c": {"d": 1}}, "e": None}
    assert list(unknown_fields(value, schema)) == [
        (("items", 1, "b"), "known fields: a, labels"),
        (("e",), "known fields: items, free"),
    ]
