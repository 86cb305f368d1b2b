"""Resources of other owners: what the agent keeps of them, and which a sidecar may have loaded meanwhile."""

from datetime import UTC, datetime, timedelta
from typing import Any

import msgspec
import pytest

from governor.agent.platforms.kubernetes.resources.foreign import ForeignResource, foreign_resource, reloaded

WRITTEN = datetime(2026, 1, 1, 12, tzinfo=UTC)
LONG_AGO = WRITTEN - timedelta(days=1)
OTHER = ForeignResource("shop", "theirs", "u1/1", "state.redis", LONG_AGO)


def since(before: list[ForeignResource], now: list[ForeignResource]) -> set[str]:
    return {each.name for each in reloaded(before, now, WRITTEN)}


def test_only_what_decides_is_kept_of_a_component() -> None:
    manifest: dict[str, Any] = {
        "kind": "Component",
        "metadata": {
            "namespace": "shop",
            "name": "theirs",
            "uid": "u1",
            "generation": 3,
            "creationTimestamp": "2025-12-31T12:00:00Z",
        },
        "spec": {"type": "state.redis", "metadata": [{"name": "redisPassword", "value": "hidden"}]},
        "auth": {"secretStore": "vault"},
        "scopes": ["orders"],
    }
    found = foreign_resource(manifest)
    expected = ForeignResource(
        "shop", "theirs", "u1/3", "state.redis", LONG_AGO, frozenset({"orders"}), frozenset({"vault"})
    )
    assert found == expected
    assert found.is_loaded_by("shop", "orders")
    assert not found.is_loaded_by("shop", "other")
    assert not found.is_loaded_by("bank", "orders")
    assert OTHER.is_loaded_by("shop", "anything")


def test_a_configuration_is_loaded_by_the_pods_that_name_it() -> None:
    configuration = msgspec.structs.replace(OTHER, kind="Configuration", type="")
    assert configuration.is_loaded_by("shop", "orders", "theirs")
    assert not configuration.is_loaded_by("shop", "orders", "another")
    assert not configuration.is_loaded_by("bank", "orders", "theirs")


def test_an_unchanged_component_was_not_initialised() -> None:
    assert since([OTHER], [OTHER]) == set()


@pytest.mark.parametrize(
    ("before", "now"),
    [
        ([OTHER], [msgspec.structs.replace(OTHER, version="u1/2")]),
        ([OTHER], [msgspec.structs.replace(OTHER, version="u2/1")]),
        ([OTHER], []),
        ([], [OTHER]),
    ],
    ids=["changed", "re-created", "deleted", "created"],
)
def test_one_that_changed_meanwhile_may_have_been(before: list[ForeignResource], now: list[ForeignResource]) -> None:
    assert since(before, now) == {"theirs"}


@pytest.mark.parametrize(("age_s", "found"), [(-1, {"theirs"}), (0, {"theirs"}), (10, {"theirs"}), (11, set())])
def test_one_that_changed_shortly_before_may_still_be(age_s: int, found: set[str]) -> None:
    recent = msgspec.structs.replace(OTHER, changed=WRITTEN - timedelta(seconds=age_s))
    assert since([recent], [recent]) == found
