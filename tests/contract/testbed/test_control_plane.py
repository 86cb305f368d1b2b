"""The control plane of the test bed has the pinned version, and a failing kubectl is an error."""

import json

import pytest

from testbed.builds.kubernetes import VERSION
from testbed.kube.control_plane import ControlPlane
from toolchain.errors import TestbedError


async def test_server_and_kubectl_have_the_pinned_version(control_plane: ControlPlane) -> None:
    versions = json.loads(await control_plane.kubectl("version", "--output=json"))
    assert versions["serverVersion"]["gitVersion"] == versions["clientVersion"]["gitVersion"] == f"v{VERSION}"


async def test_a_failing_kubectl_is_an_error_with_its_message(control_plane: ControlPlane) -> None:
    with pytest.raises(TestbedError, match="nothing-of-this-name"):
        await control_plane.kubectl("get", "configmap", "nothing-of-this-name")
