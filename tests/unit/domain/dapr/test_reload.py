"""Reload rules by version of Dapr."""

import pytest

from governor.domain.dapr.kinds import kinds
from governor.domain.dapr.reload import (
    RELOAD,
    Reload,
    known_issue,
    lists_kind,
    parse,
    reload_obstacle,
    why_not_reloading,
)


@pytest.mark.parametrize(
    ("version", "live"),
    [
        ("1.12.5", set()),
        ("1.13.0", {"Component"}),
        ("1.14.4", {"Component", "Subscription"}),
        ("1.16.0", {"Component", "Subscription"}),
        ("1.18.3", {"Component", "Subscription", "MCPServer", "WorkflowAccessPolicy"}),
        ("edge", {"Component", "Subscription", "MCPServer", "WorkflowAccessPolicy"}),
    ],
)
def test_a_kind_is_reloaded_live_from_its_version_on(version: str, live: set[str]) -> None:
    assert {kind for kind in kinds() if not reload_obstacle(kind, version)} == live


def test_the_reload_table_describes_the_newest_version() -> None:
    assert {kind for kind in RELOAD if not reload_obstacle(kind, "1.18.3")} == {
        kind for kind, reload in RELOAD.items() if reload is Reload.LIVE
    }


@pytest.mark.parametrize(
    ("version", "reason"),
    [
        ("1.12.0", "Dapr 1.12.0 loads changes only at startup"),
        ("1.16.0", "Dapr 1.16.0 loads changes only at startup unless its Configuration enables HotReload"),
        ("1.18.3", ""),
        ("", ""),
    ],
)
def test_a_version_that_does_not_reload_by_default_is_named(version: str, reason: str) -> None:
    assert why_not_reloading(version) == reason


def test_versions_are_parsed_with_and_without_prefix_and_suffix() -> None:
    assert [parse(text) for text in ("1.16.0", "v1.18.0-rc.1", "1.18", "edge", "")] == [
        (1, 16, 0),
        (1, 18, 0),
        (1, 18, 0),
        None,
        None,
    ]


def test_older_versions_do_not_list_every_kind() -> None:
    assert [kind for kind in sorted(kinds()) if not lists_kind(kind, "1.16.0")] == [
        "MCPServer",
        "Resiliency",
        "WorkflowAccessPolicy",
    ]
    assert all(lists_kind(kind, version) for kind in kinds() for version in ("1.18.3", "edge"))


def test_versions_with_a_reload_bug_have_a_warning() -> None:
    assert [bool(known_issue(version)) for version in ("1.17.4", "1.18.0", "1.18.1", "1.18.2", "1.18.3", "edge")] == [
        False,
        True,
        True,
        False,
        False,
        False,
    ]
