"""Held requests of the Docker Engine API: what they ask, and what changes leave as it was."""

import contextlib
import json
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from governor.errors import GovernorError, Kind
from governor.runtimeproxy.docker.configuration import REPEATED, readable
from governor.runtimeproxy.docker.messages import ContainerRequest, DockerCodec, DockerMessage
from governor.runtimeproxy.docker.responses import STATUS, kind_of
from governor.runtimeproxy.docker.routes import Operation
from governor.runtimeproxy.hooks.calls import Call
from governor.runtimeproxy.hooks.changes import Change, FieldPath, Value
from governor.values.secret import Secret
from governor.wire.hooks.workload import PodIdentity, Resources

NAME = "k8s_app_web_shop_u-1_1"
SANDBOX = "k8s_POD_web_shop_u-1_1"


def message(call: Call, body: Any, name: str = NAME) -> DockerMessage:
    """Return a request with this body."""
    raw = body if isinstance(body, bytes) else json.dumps(body).encode()
    return DockerCodec().read(call, ContainerRequest(name, raw, "s").encoded())


def edited(given: DockerMessage, *changes: tuple[FieldPath, Value]) -> Any:
    """Return the body of a request with these changes."""
    return json.loads(given.edited([Change("p", path, None, value) for path, value in changes]))


def test_a_container_is_read() -> None:
    found = message(
        Call.CREATE_CONTAINER,
        {
            "Labels": {"annotation.a": "1", "x": "y"},
            "Env": ["A=1", "B=", "C", "A=2"],
            "hostconfig": {
                "CpuShares": 5,
                "NanoCpus": 1_500_000_000,
                "CgroupParent": "/p",
                "Binds": ["/a:/b:ro,Z", "volume:/c"],
                "Mounts": [{"Type": "bind", "Source": "/d", "Target": "/e"}, {"Type": "tmpfs", "Target": "/f"}],
                "Devices": [{"PathOnHost": "/dev/x", "PathInContainer": "/dev/y", "CgroupPermissions": "rw"}],
            },
        },
    ).request

    assert found.sandbox_id == "s"
    assert found.container is not None
    assert found.container.name == "app"
    assert found.container.annotations == {"a": "1"}
    assert found.container.resources == Resources(cpu_period=100_000, cpu_quota=150_000, cpu_shares=5)
    assert found.container.pod_cgroup_parent == "/p"
    assert found.container.mounts == {"/b": "/a:ro", "/c": "volume", "/e": "/d"}
    assert found.container.devices == {"/dev/y": "/dev/x:rw"}
    assert found.environment.texts() == {"A": "2", "B": ""}


def test_a_pod_is_read() -> None:
    labels = {"app": "x", "annotation.a": "1", "io.kubernetes.docker.type": "podsandbox"}
    found = message(Call.RUN_POD_SANDBOX, {"Labels": labels, "HostConfig": {"Runtime": "kata"}}, SANDBOX).request

    assert found.pod is not None
    assert found.pod.identity == PodIdentity("web", "u-1", "shop", 1)
    assert (found.pod.labels, found.pod.annotations) == ({"app": "x"}, {"a": "1"})
    assert found.pod.runtime_handler == "kata"


RESOURCES = "container_resources"


@pytest.mark.parametrize(
    ("given", "path", "value", "expected"),
    [
        ({}, (RESOURCES, "cpu_shares"), 5, {"HostConfig": {"CpuShares": 5}}),
        (
            {"hostConfig": {"cpushares": 1, "x": 1.50}},
            (RESOURCES, "cpu_shares"),
            5,
            {"hostConfig": {"cpushares": 5, "x": 1.5}},
        ),
        ({"HostConfig": None}, (RESOURCES, "memory_limit_in_bytes"), -1, {"HostConfig": {"Memory": 0}}),
        ({"HostConfig": {"CpusetCpus": "0"}}, (RESOURCES, "cpuset_cpus"), "", {"HostConfig": {"CpusetCpus": ""}}),
        (
            {"HostConfig": {"NanoCpus": 10**9}},
            (RESOURCES, "cpu_quota"),
            5000,
            {"HostConfig": {"NanoCpus": 0, "CpuPeriod": 100_000, "CpuQuota": 5000}},
        ),
        ({}, ("pod_cgroup_parent",), "/p", {"HostConfig": {"CgroupParent": "/p"}}),
        ({"Labels": {"a": "b"}}, ("container_annotations", "x"), "1", {"Labels": {"a": "b", "annotation.x": "1"}}),
        ({"Labels": {"annotation.x": "b"}}, ("container_annotations", "x"), None, {"Labels": {}}),
        ({"Env": ["A=1", "B", "A=2"]}, ("container_envs", "A"), Secret("3"), {"Env": ["A=1", "B", "A=3"]}),
        ({"Env": ["A=1", "B", "A=2"]}, ("container_envs", "A"), None, {"Env": ["B"]}),
        ({"Env": None}, ("container_envs", "A"), Secret("3"), {"Env": ["A=3"]}),
        (
            {"HostConfig": {"Binds": ["/a:/b:rw,Z", "/c:/d"]}},
            ("container_mounts", "/b"),
            "/x:ro",
            {"HostConfig": {"Binds": ["/c:/d", "/x:/b:ro,Z"]}},
        ),
        (
            {"HostConfig": {"Mounts": [{"Type": "bind", "Target": "/b"}, {"Target": "/c", "New": 1}]}},
            ("container_mounts", "/b"),
            None,
            {"HostConfig": {"Mounts": [{"Target": "/c", "New": 1}], "Binds": []}},
        ),
        (
            {},
            ("container_devices", "/dev/a"),
            "/dev/b:rwm",
            {
                "HostConfig": {
                    "Devices": [{"PathOnHost": "/dev/b", "PathInContainer": "/dev/a", "CgroupPermissions": "rwm"}]
                }
            },
        ),
        (
            {"HostConfig": {"Devices": [{"PathInContainer": "/dev/a"}, {"PathInContainer": "/dev/c", "N": 1}]}},
            ("container_devices", "/dev/a"),
            None,
            {"HostConfig": {"Devices": [{"PathInContainer": "/dev/c", "N": 1}]}},
        ),
    ],
)
def test_a_change_of_a_container(given: Any, path: FieldPath, value: Value, expected: Any) -> None:
    changed = edited(message(Call.CREATE_CONTAINER, given), (path, value))

    assert changed == {"HostConfig": {}, **expected} if "hostConfig" not in given else changed == expected


JSON = st.recursive(
    st.none()
    | st.booleans()
    | st.integers(-(2**70), 2**70)
    | st.floats(allow_nan=False, allow_infinity=False)
    | st.text(),
    lambda inner: st.lists(inner, max_size=3) | st.dictionaries(st.text(max_size=4), inner, max_size=3),
    max_leaves=8,
)


@given(top=st.dictionaries(st.text("xyz", min_size=1), JSON), host=st.dictionaries(st.text("xyz", min_size=1), JSON))
def test_unknown_fields_keep_their_bytes(top: dict[str, Any], host: dict[str, Any]) -> None:
    body = {**top, "HostConfig": {**host, "CpuShares": 1}}

    raw = message(Call.CREATE_CONTAINER, body).edited([Change("p", (RESOURCES, "cpu_shares"), 1, 2)])

    expected = json.dumps({**top, "HostConfig": {**host, "CpuShares": 2}}, separators=(",", ":"))
    assert json.loads(raw) == json.loads(expected)
    for name, value in top.items():
        assert f"{json.dumps(value)}".encode() in raw, name


def test_an_update_has_its_resources_at_the_top() -> None:
    update = message(Call.UPDATE_CONTAINER_RESOURCES, {"CpuShares": 1, "RestartPolicy": {"Name": "no"}}, "id")

    assert update.request.resources == Resources(cpu_shares=1)
    changed = edited(update, ((RESOURCES, "cpu_shares"), 2), ((RESOURCES, "memory_limit_in_bytes"), -1))
    assert changed == {"CpuShares": 2, "RestartPolicy": {"Name": "no"}, "Memory": -1}


@pytest.mark.parametrize(
    ("call", "path", "expected"),
    [
        (Call.CREATE_CONTAINER, (RESOURCES, "cpu_shares"), True),
        (Call.CREATE_CONTAINER, (RESOURCES, "oom_score_adj"), True),
        (Call.CREATE_CONTAINER, (RESOURCES, "unified", "memory.high"), False),
        (Call.CREATE_CONTAINER, (RESOURCES, "hugepage_limits", "2MB"), False),
        (Call.CREATE_CONTAINER, ("container_annotations", "a"), True),
        (Call.CREATE_CONTAINER, ("labels", "a"), False),
        (Call.UPDATE_CONTAINER_RESOURCES, (RESOURCES, "cpu_shares"), True),
        (Call.UPDATE_CONTAINER_RESOURCES, (RESOURCES, "oom_score_adj"), False),
        (Call.UPDATE_CONTAINER_RESOURCES, ("container_annotations", "a"), False),
        (Call.RUN_POD_SANDBOX, ("labels", "a"), True),
        (Call.RUN_POD_SANDBOX, ("labels", "io.kubernetes.docker.type"), False),
        (Call.RUN_POD_SANDBOX, ("labels", "annotation.a"), False),
        (Call.RUN_POD_SANDBOX, ("resources", "cpu_shares"), True),
    ],
)
def test_what_a_request_can_carry(call: Call, path: FieldPath, expected: bool) -> None:
    name = SANDBOX if call is Call.RUN_POD_SANDBOX else NAME

    assert message(call, {}, name).carries(path) is expected


@pytest.mark.parametrize("body", [b"{", b"[]", b'"x"', b'{"Labels": {"a": 1}}', b'{"Env": "x"}', b'{"HostConfig": 1}'])
def test_what_is_no_configuration_is_invalid(body: bytes) -> None:
    with pytest.raises(GovernorError) as raised:
        message(Call.CREATE_CONTAINER, body)

    assert (raised.value.kind, raised.value.code) == (Kind.INVALID, "docker-message")


def test_a_response_has_an_id() -> None:
    assert DockerCodec().created_id(Call.CREATE_CONTAINER, b'{"Id": "x", "Warnings": []}') == "x"
    with pytest.raises(GovernorError, match="has no id"):
        DockerCodec().created_id(Call.CREATE_CONTAINER, b"{}")


@pytest.mark.parametrize("kind", Kind)
def test_every_kind_of_error_has_a_status(kind: Kind) -> None:
    assert 400 <= STATUS[kind] < 600


@pytest.mark.parametrize(
    ("operation", "status", "expected"),
    [
        (Operation.START, 204, None),
        (Operation.START, 304, Kind.CONFLICT),
        (Operation.STOP, 304, None),
        (Operation.CREATE, 201, None),
        (Operation.CREATE, 404, Kind.NOT_FOUND),
        (Operation.REMOVE, 409, Kind.CONFLICT),
        (Operation.UPDATE, 500, Kind.INTERNAL),
        (Operation.UPDATE, 418, Kind.INTERNAL),
    ],
)
def test_the_kind_of_a_status(operation: Operation, status: int, expected: Kind | None) -> None:
    assert kind_of(operation, status) is expected


@pytest.mark.parametrize(
    ("body", "expected"),
    [
        (b'{"Labels": {"a": "b"}, "x": 1.50}', b'{"Labels": {"a": "b"}, "x": 1.50}'),
        (b' {"a": 1} trailing', b'{"a": 1}'),
        (b'{"a": 1}{"b": 2}', b'{"a": 1}'),
        (b'{"Env": ["A=\xff"]}', b'{"Env": ["A=\xef\xbf\xbd"]}'),
        (b'{"Env": ["A=\\ud800"]}', b'{"Env": ["A=\xef\xbf\xbd"]}'),
        (b'{"Labels": {"a": "b", "A": "c", "a": "d"}}', b'{"Labels": {"a": "b", "A": "c", "a": "d"}}'),
        (
            b'{"Healthcheck": {"a": 1, "a": 2}, "HostConfig": null}',
            b'{"Healthcheck": {"a": 1, "a": 2}, "HostConfig": null}',
        ),
    ],
)
def test_a_body_is_read_as_dockerd_reads_it(body: bytes, expected: bytes) -> None:
    assert readable(body) == expected


@pytest.mark.parametrize(
    "body",
    [
        '{"HostConfig": {"Memory": 1}, "HostConfig": {"CpuShares": 2}}',
        '{"HostConfig": {"Memory": 1}, "hostconfig": {"CpuShares": 2}}',
        '{"HostConfig": {"Memory": 1}, "Host\\u0043onfig": {"CpuShares": 2}}',
        '{"Ho\u017ftConfig": {"Memory": 1}, "HostConfig": {"CpuShares": 2}}',
        '{"HostConfig": {"Memory": 1, "memory": 2}}',
        '{"HostConfig": {"LogConfig": {"Type": "none"}, "LogConfig": {"Config": {}}}}',
        '{"HostConfig": {"Memory": 1}, "HostConfig": null}',
        '{"Labels": {"a": "b"}, "labels": {"c": "d"}}',
        '{"Healthcheck": {"Test": []}, "Healthcheck": {"Retries": 1}}',
        '{"CpuShares": 1, "cpuShares": 2}',
        '{"HostConfig": {}, "HostConfig": {}} trailing',
        '{"HostConfig": {}, "hostconfig": {}} trailing',
    ],
)
def test_a_body_that_repeats_a_member_is_refused(body: str) -> None:
    with pytest.raises(GovernorError, match="more than once") as raised:
        readable(body.encode())

    assert raised.value.code == REPEATED


def test_a_large_body_that_repeats_a_member_is_refused() -> None:
    body = {"Env": ["x" * 2**21], "HostConfig": {"Memory": 1}, "hostConfig": {"Memory": 2}}
    with pytest.raises(GovernorError, match="more than once"):
        readable(json.dumps(body).encode())


def test_a_name_that_dockerd_does_not_fold_is_another_name() -> None:
    config = {"Ho\N{LATIN SMALL LIGATURE ST}Config": {"Memory": 1}, "Label\N{LATIN SMALL LETTER LONG S}": {"a": "b"}}
    found = message(Call.CREATE_CONTAINER, config)

    changed = edited(found, ((RESOURCES, "cpu_shares"), 5), (("labels", "by"), "p"))

    assert changed == {
        "Ho\N{LATIN SMALL LIGATURE ST}Config": {"Memory": 1},
        "HostConfig": {"CpuShares": 5},
        "Label\N{LATIN SMALL LETTER LONG S}": {"a": "b", "by": "p"},
    }


@given(body=st.binary(max_size=60))
def test_any_body_is_read_or_invalid(body: bytes) -> None:
    with contextlib.suppress(GovernorError):
        readable(body)
