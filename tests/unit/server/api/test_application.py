"""Routing: every route of the table is found with its parameters, and nothing else is."""

import re
from typing import Any, cast

import pytest

from governor.server.api.application import Application, _Node
from governor.server.api.endpoints import Endpoint
from governor.server.api.routes import ENDPOINTS
from governor.wire.rest import PREFIX

APPLICATION = Application(cast("Any", None), ENDPOINTS)


@pytest.mark.parametrize("endpoint", ENDPOINTS, ids=lambda each: f"{each.method} {each.route}")
def test_a_route_is_found_with_its_parameters(endpoint: Endpoint) -> None:
    names = re.findall(r"\{(\w+)\}", endpoint.route)
    path = re.sub(r"\{(\w+)\}", r"the-\1", endpoint.route)
    resource, parameters = APPLICATION._route(path)
    assert resource._methods[endpoint.method] is endpoint
    assert parameters == {name: f"the-{name}" for name in names}


def test_an_encoded_slash_is_a_part_of_a_name() -> None:
    resource, parameters = APPLICATION._route(f"{PREFIX}/%72untimes/a%2Fwatch%C3%A9")
    assert (resource._route, parameters) == (f"{PREFIX}/runtimes/{{runtime}}", {"runtime": "a/watché"})


@pytest.mark.parametrize(
    "path",
    [
        "",
        "/",
        PREFIX,
        f"{PREFIX}/runtimes/",
        f"{PREFIX}/runtimes//watch",
        f"{PREFIX}/runtimes/r1/watch/",
        f"{PREFIX}/runtimes/r1/watch/more",
        f"{PREFIX}/runtimes/r1/other",
        f"/{PREFIX}/runtimes",
        f"{PREFIX}/documents/Profile",
        "runtimes",
        f"x{PREFIX}/runtimes",
        "*",
    ],
)
def test_another_path_has_no_resource(path: str) -> None:
    resource, parameters = APPLICATION._route(path)
    assert (resource._methods, parameters) == ({}, {})


def test_routes_that_name_one_parameter_differently_are_rejected() -> None:
    node, (resource, _) = _Node(), APPLICATION._route("/")
    node.add("/a/{one}", resource)
    with pytest.raises(ValueError, match="calls this parameter one"):
        node.add("/a/{other}/b", resource)


def test_only_endpoints_without_a_response_body_are_immediate() -> None:
    immediate = [each for each in ENDPOINTS if each.immediate]
    assert [each.route for each in immediate] == [f"{PREFIX}/runtimes/{{runtime}}/checks"]
    assert all(each.status == 204 and each.method == "POST" and not each.query for each in immediate)
