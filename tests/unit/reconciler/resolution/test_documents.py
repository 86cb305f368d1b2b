"""Documents in files, read without a hub."""

import pytest

from governor.errors import GovernorError
from governor.kube.controller.views import readable
from governor.reconciler.resolution.documents import read_documents

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
