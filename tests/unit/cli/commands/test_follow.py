"""Following a revision, against a server that replays a list of steps."""

from collections.abc import AsyncGenerator, Iterator
from typing import Any, cast

import pytest

from governor.cli.commands.follow import Follower
from governor.cli.output.progress import Phase, RevisionStatus
from governor.client import Client
from governor.errors import GovernorError, Kind
from governor.wire.rest import RevisionProgress
from tests.unit.cli.revisions import revision, runtime, without_agent

LOST = GovernorError(Kind.UNAVAILABLE, "stream-ended", "the stream ended")


class Server:
    """Serves ``progress``: each connection yields the next list of steps; an error closes it."""

    def __init__(self, *connections: list[RevisionProgress | GovernorError]) -> None:
        self._connections: Iterator[list[RevisionProgress | GovernorError]] = iter(connections)
        self.requested: list[str | None] = []

    async def progress(self, number: int, runtime: str | None) -> AsyncGenerator[RevisionProgress, None]:
        assert number == 7
        self.requested.append(runtime)
        for step in next(self._connections):
            if isinstance(step, GovernorError):
                raise step
            yield step


async def followed(server: Server, timeout_s: float = 10, only: str | None = None) -> list[RevisionStatus]:
    seen: list[RevisionStatus] = []
    await Follower(7, seen.append, only).follow(cast("Client", server), timeout_s)
    return seen


async def test_waiting_ends_when_every_runtime_is_verified() -> None:
    steps = [
        revision(runtime("r1", "Pending")),
        revision(runtime("r1", "Verified", done=True)),
        revision(runtime("r1", "Never")),
    ]
    assert [each.progress for each in await followed(Server([*steps]))] == steps[:2]


@pytest.mark.parametrize("state", ["Failed", "Unproven"])
async def test_waiting_ends_when_a_runtime_is_stalled(state: str) -> None:
    steps = [
        revision(runtime("r1", state), runtime("r2", "Verified", done=True)),
        revision(runtime("r1", "Never")),
    ]
    assert len(await followed(Server([*steps]))) == 1


async def test_waiting_continues_while_another_runtime_is_pending() -> None:
    steps = [
        revision(runtime("r1", "Failed"), runtime("r2", "Applied")),
        revision(runtime("r1", "Failed"), runtime("r2", "V", done=True)),
    ]
    assert len(await followed(Server([*steps]))) == 2


async def test_following_one_runtime_requests_only_that_one() -> None:
    server = Server([revision(runtime("r1", "Pending")), revision(runtime("r1", "V", done=True))])
    assert len(await followed(server, only="r1")) == 2
    assert server.requested == ["r1"]


async def test_a_runtime_without_an_agent_is_not_waited_for() -> None:
    seen = await followed(Server([revision(without_agent("r1"))]))
    assert [each.runtime for each in seen[-1].in_phase(Phase.WITHOUT_AGENT)] == ["r1"]


async def test_a_lost_connection_is_reconnected() -> None:
    seen = await followed(
        Server(
            [revision(runtime("r1", "Pending")), LOST],
            [revision(runtime("r1", "Verified", done=True))],
        )
    )
    assert [each.progress.complete for each in seen] == [False, True]


async def test_any_other_error_is_not_retried() -> None:
    revoked = GovernorError(Kind.UNAUTHENTICATED, "token-refused", "revoked")
    with pytest.raises(GovernorError) as raised:
        await followed(Server([revoked]))
    assert raised.value is revoked


async def test_waiting_ends_at_the_timeout_with_the_last_status() -> None:
    connections: list[list[Any]] = [
        [revision(runtime("r1", "Pending")), LOST],
        *([LOST] for _ in range(1000)),
    ]
    seen = await followed(Server(*connections), timeout_s=0.05)
    assert [each.progress.complete for each in seen] == [False]
