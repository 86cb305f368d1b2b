"""The choice of the cluster's network on a host that has routes already."""

import ipaddress

import pytest
from hypothesis import assume, given
from hypothesis import strategies as st

from testbed.cluster.network import CANDIDATES, SERVICES, Network, first_free
from toolchain.errors import TestbedError

ROUTES = st.lists(
    st.builds(
        lambda number, length: str(ipaddress.ip_network((number, length), strict=False)),
        st.integers(min_value=0, max_value=2**32 - 1),
        st.integers(min_value=8, max_value=32),
    ),
    max_size=8,
)


def overlaps(one: str, other: str) -> bool:
    return ipaddress.ip_network(one).overlaps(ipaddress.ip_network(other))


@given(ROUTES)
def test_the_pods_network_overlaps_no_route_of_the_host(routes: list[str]) -> None:
    assume(not any(overlaps(SERVICES, route) for route in routes))
    try:
        network = first_free(routes)
    except TestbedError:
        assert all(any(overlaps(candidate, route) for route in routes) for candidate in CANDIDATES)
        return
    assert not any(overlaps(network.pods, route) for route in routes)


@pytest.mark.parametrize(
    ("routes", "pods"),
    [
        ([], "10.77.0.0/16"),
        (["default", "192.0.2.0/24"], "10.77.0.0/16"),
        (["0.0.0.0/1", "128.0.0.0/1"], "10.77.0.0/16"),
        (["10.77.3.0/24"], "10.177.0.0/16"),
        (["10.77.0.0/16", "10.177.0.1"], "172.28.0.0/16"),
    ],
)
def test_the_first_free_candidate_is_chosen(routes: list[str], pods: str) -> None:
    assert first_free(routes) == Network(pods)


@pytest.mark.parametrize(
    ("routes", "message"),
    [
        (["10.0.0.0/8"], "Services need 10.96.0.0/16, but this machine has a route to 10.0.0.0/8"),
        (["10.96.200.0/24"], "has a route to 10.96.200.0/24"),
        (["10.77.0.0/16", "10.177.0.0/16", "172.16.0.0/12", "192.168.0.0/16"], "this machine has routes to all"),
    ],
)
def test_an_error_names_the_conflicting_route(routes: list[str], message: str) -> None:
    with pytest.raises(TestbedError, match=message):
        first_free(routes)
