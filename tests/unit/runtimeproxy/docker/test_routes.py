"""Routes of the Docker Engine API, read as dockerd reads them."""

import pytest
from hypothesis import given
from hypothesis import strategies as st

from governor.runtimeproxy.docker.routes import Operation, route_of


@pytest.mark.parametrize(
    ("method", "target", "operation", "container"),
    [
        ("POST", "/containers/create", Operation.CREATE, ""),
        ("POST", "/v1.41/containers/create?name=k8s_a&name=b", Operation.CREATE, "k8s_a"),
        ("POST", "http://docker/v1.41/containers/create?name=x%2fy", Operation.CREATE, "x/y"),
        ("POST", "/v99.9.9/containers/a-b.c_d/start", Operation.START, "a-b.c_d"),
        ("POST", "/containers/%61bc/%73tart?detachKeys=", Operation.START, "abc"),
        ("POST", "/containers/a/b/start", Operation.START, "a/b"),
        ("POST", "/containers/start/start", Operation.START, "start"),
        ("POST", "/v1/containers/v1.2/stop?t=3", Operation.STOP, "v1.2"),
        ("POST", "/containers/v1.2/update", Operation.UPDATE, "v1.2"),
        ("POST", "/v1/v1/containers/x/update", Operation.OTHER, ""),
        ("POST", "/containers/x/kill", Operation.KILL, "x"),
        ("POST", "/containers/x/kill?signal=SIGKILL", Operation.KILL, "x"),
        ("POST", "/containers/x/kill?signal=9", Operation.KILL, "x"),
        ("POST", "/containers/x/kill?signal=kill", Operation.KILL, "x"),
        ("POST", "/containers/x/kill?signal=HUP", Operation.OTHER, "x"),
        ("POST", "/containers/x/restart", Operation.RESTART, "x"),
        ("POST", "/containers/x/update", Operation.UPDATE, "x"),
        ("DELETE", "/v1.24/containers/x?force=1&v=1", Operation.REMOVE, "x"),
        ("POST", "/containers/x/wait", Operation.OTHER, "x"),
        ("GET", "/containers/x/json", Operation.OTHER, "x"),
        ("GET", "/containers/x/start", Operation.OTHER, "x"),
        ("post", "/containers/x/start", Operation.OTHER, "x"),
        ("POST", "/Containers/x/start", Operation.OTHER, ""),
        ("POST", "/version/containers/x/start", Operation.OTHER, ""),
        ("POST", "/containers/prune", Operation.OTHER, ""),
        ("POST", "/networks/create", Operation.OTHER, ""),
        ("OPTIONS", "*", Operation.OTHER, ""),
    ],
)
def test_a_route(method: str, target: str, operation: Operation, container: str) -> None:
    route = route_of(method, target.encode())

    assert (route.operation, route.container) == (operation, container)


@pytest.mark.parametrize(
    ("method", "target", "expected"),
    [
        ("POST", "/v1.41/containers/a.b/attach?stream=1", True),
        ("POST", "/exec/abc/start", True),
        ("POST", "/exec/abc/resize", False),
        ("GET", "/containers/a/attach/ws", False),
        ("POST", "/containers/a/start", False),
        ("POST", "/build", False),
    ],
)
def test_a_route_whose_connection_is_hijacked(method: str, target: str, expected: bool) -> None:
    assert route_of(method, target.encode()).is_hijacked is expected


def test_only_events_are_a_watch() -> None:
    assert route_of("GET", b"/v1.41/events?since=1").is_watch
    assert not route_of("GET", b"/containers/x/logs?follow=1").is_watch


def test_a_prune_names_no_container() -> None:
    assert route_of("POST", b"/v1.41/containers/prune?filters={}").is_prune
    assert not route_of("POST", b"/v1.41/images/prune").is_prune
    assert not route_of("DELETE", b"/containers/prune").is_prune


def test_the_summary_has_no_query() -> None:
    assert route_of("POST", b"/v1.41/build?buildargs=secret").summary == "POST /build"


NAMES = st.text(st.characters(codec="utf-8", exclude_characters="/"), min_size=1)


@given(name=NAMES, version=st.sampled_from(["", "/v1", "/v1.41", "/v0.0.0"]))
def test_any_name_is_found_in_any_version(name: str, version: str) -> None:
    encoded = "".join(f"%{byte:02X}" for byte in name.encode())

    route = route_of("POST", f"{version}/containers/{encoded}/stop?t=1".encode())

    assert (route.operation, route.container) == (Operation.STOP, name)


@given(target=st.binary(max_size=60))
def test_any_target_has_a_route(target: bytes) -> None:
    assert route_of("POST", target).method == "POST"
