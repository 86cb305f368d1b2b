"""Records from the runtime's verbose status."""

import base64
import json
from typing import Any

import pytest

from governor.runtimeproxy.cri import cri_pb2
from governor.runtimeproxy.cri.status import container_from_status, sandbox_from_status
from governor.runtimeproxy.environment import decode_environment
from governor.runtimeproxy.store.records import ListedContainer
from governor.wire.hooks.workload import Resources

LISTED = ListedContainer("c", "s")


def sandbox_status(info: dict[str, Any] | str) -> cri_pb2.PodSandboxStatusResponse:
    text = info if isinstance(info, str) else json.dumps(info)
    status = cri_pb2.PodSandboxStatus(id="s", runtime_handler="runc", labels={"app": "web"})
    status.metadata.name = "web"
    return cri_pb2.PodSandboxStatusResponse(status=status, info={"info": text})


def environment(value: str, spec: list[str] | None) -> dict[str, str]:
    """Return the environment of a container whose status shows one variable with this value."""
    info: dict[str, Any] = {"config": {"envs": [{"key": "KEY", "value": value}]}}
    if spec is not None:
        info["runtimeSpec"] = {"process": {"env": spec}}
    response = cri_pb2.ContainerStatusResponse(info={"info": json.dumps(info)})
    pod = sandbox_from_status(sandbox_status({}))
    found = container_from_status(LISTED, response, pod, with_environment=True)
    return decode_environment(found.variables).texts()


def resources(response: cri_pb2.ContainerStatusResponse) -> Resources:
    """Return the resources of a container with this status."""
    found = container_from_status(LISTED, response, sandbox_from_status(sandbox_status({}))).container.resources
    assert found is not None
    return found


def test_a_sandbox_has_what_only_its_configuration_contains() -> None:
    linux = {"cgroup_parent": "/pods/x", "resources": {"cpu_shares": 7}, "sysctls": {"unknown": "1"}}
    found = sandbox_from_status(sandbox_status({"config": {"linux": linux, "hostname": "unknown"}}))

    assert found.pod.cgroup_parent == "/pods/x"
    assert found.pod.resources == Resources(cpu_shares=7)
    assert found.pod.identity.name == "web"
    assert dict(found.pod.labels) == {"app": "web"}


@pytest.mark.parametrize("info", ["", "{", "[]", '{"config": 5}', '{"config": {"linux": []}}'])
def test_without_readable_info_the_status_is_used(info: str) -> None:
    found = sandbox_from_status(sandbox_status(info))

    assert (found.id, dict(found.pod.labels)) == ("s", {"app": "web"})


def test_a_value_is_decoded_as_the_process_environment_has_it() -> None:
    plain, packed = "abcd", base64.b64encode(b"abcd").decode()

    assert environment(plain, ["KEY=abcd"]) == {"KEY": "abcd"}
    assert environment(packed, ["KEY=abcd"]) == {"KEY": "abcd"}
    assert environment(packed, None) == {"KEY": "abcd"}
    assert environment("no base64!", None) == {"KEY": "no base64!"}


def test_a_value_that_is_not_text_is_left_out() -> None:
    assert environment(base64.b64encode(b"\xff\xfe").decode(), ["KEY=\ufffd\ufffd"]) == {}


def test_updated_resources_override_the_configuration() -> None:
    info = {"config": {"linux": {"resources": {"cpu_shares": 1, "cpu_quota": 9}}}}
    response = cri_pb2.ContainerStatusResponse(info={"info": json.dumps(info)})
    response.status.resources.linux.cpu_shares = 2

    assert resources(response) == Resources(cpu_shares=2, cpu_quota=9)


def test_a_swap_limit_implied_by_containerd_is_ignored() -> None:
    def swap(config: int, status: int) -> int:
        info = {"config": {"linux": {"resources": {"memory_swap_limit_in_bytes": config}}}}
        response = cri_pb2.ContainerStatusResponse(info={"info": json.dumps(info)})
        response.status.resources.linux.memory_limit_in_bytes = 1000
        response.status.resources.linux.memory_swap_limit_in_bytes = status
        return resources(response).memory_swap_limit_in_bytes

    assert swap(0, 1000) == 0
    assert swap(1000, 1000) == 1000
    assert swap(0, 2000) == 2000
    assert swap(1500, 2000) == 2000
