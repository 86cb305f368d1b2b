"""What `make bench-reconciler PEER=…` writes for another controller."""

import pytest

from bench.reconciler.peer import TEMPLATE, manifests
from toolchain.errors import TestbedError


def test_the_default_template_requests_a_release_with_its_own_values() -> None:
    [release] = manifests(TEMPLATE.read_text(encoding="utf-8"), "charts", 3, "second")

    assert release["kind"] == "HelmRelease"
    assert release["metadata"] == {"name": "module-0003", "namespace": "charts"}
    assert release["spec"]["releaseName"] == "module-0003"
    assert release["spec"]["values"] == {"number": 3, "revision": "second"}


def test_a_template_may_have_several_documents() -> None:
    found = manifests("kind: A\n---\n---\nkind: B\nname: $name\n", "charts", 1, "first")

    assert found == [{"kind": "A"}, {"kind": "B", "name": "module-0001"}]


def test_an_unknown_variable_is_an_error() -> None:
    with pytest.raises(TestbedError, match=r"\$version .* \$name, \$namespace, \$number, \$revision"):
        manifests("kind: $version", "charts", 1, "first")
