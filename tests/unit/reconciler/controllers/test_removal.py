"""Which ModuleInstances may be removed, by what the API server says."""

from typing import Any

import pytest

from governor.domain.conditions import Actor
from governor.reconciler.controllers.removal import INSTALLATION_LOST, removal_problem
from governor.reconciler.kinds.module_instance import ModuleInstanceSpec
from tests.unit.reconciler.bed import CREATED, digest, installation, unreadable

SPEC = ModuleInstanceSpec("dapr", "local", "dapr", CREATED, "1.0.0", digest("1.0.0"), "dapr", "dapr")
OLDER, SAME, YOUNGER = (
    {"creationTimestamp": time} for time in ("2025-12-31T23:59:59Z", CREATED, "2026-01-01T00:00:01Z")
)
CACHED = installation("dapr")
LIVE = {"uid": CACHED.metadata.uid, "generation": 1}


@pytest.mark.parametrize(
    ("definition", "cached", "live", "reason"),
    [
        (OLDER, None, None, ""),
        (SAME, None, None, ""),
        (OLDER, CACHED, LIVE, ""),
        (YOUNGER, CACHED, LIVE, ""),
        (YOUNGER, None, None, INSTALLATION_LOST),
        (None, None, None, INSTALLATION_LOST),
        (None, CACHED, None, INSTALLATION_LOST),
        (OLDER | {"deletionTimestamp": "2026-01-02T00:00:00Z"}, None, None, INSTALLATION_LOST),
        (OLDER | {"deletionTimestamp": "2026-01-02T00:00:00Z"}, CACHED, LIVE, INSTALLATION_LOST),
        (OLDER, None, LIVE, "Outdated"),
        (OLDER, CACHED, None, "Outdated"),
        (OLDER, CACHED, LIVE | {"generation": 2}, "Outdated"),
        (OLDER, CACHED, LIVE | {"uid": "another"}, "Outdated"),
        (OLDER, unreadable("dapr"), {"uid": "uid-dapr", "generation": 1}, "Outdated"),
    ],
)
def test_only_what_the_api_server_confirms_is_removed(definition: Any, cached: Any, live: Any, reason: str) -> None:
    problem = removal_problem(SPEC, definition, cached, live)
    assert (problem.reason if problem else "") == reason
    assert problem is None or (problem.actor is Actor.NOBODY) == (reason == "Outdated")
