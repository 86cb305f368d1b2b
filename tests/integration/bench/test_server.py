"""`make bench-server` on real processes, with five hundred agents: everything is measured once."""

from pathlib import Path

from bench.server import rounds
from bench.server.subject import profile, subject
from bench.server.swarm import swarm

AGENTS = 500


async def test_every_agent_gets_and_acknowledges_each_change(tmp_path: Path) -> None:
    async with subject(tmp_path, AGENTS) as server, swarm(server.setup) as agents:
        await server.apply(profile("shared", {}, "first"))
        await rounds.connect(server, agents, idle_s=0.1, beat_s=30.0)
        shared = await rounds.share(server, agents, "a")
        followed = await rounds.share(server, agents, "b", acknowledge=True, follow=True)
        one = await rounds.one_of_all(server, agents, 2)
        await rounds.history(server, 10)
        await rounds.reconnect(server, agents)
        distinct = await rounds.distinct(server, agents, "c")
        big = await rounds.big(server, agents, "d")
        lists = await rounds.lists(server)
    assert {each.received.count for each in (shared, followed, distinct, big)} == {AGENTS}
    assert (followed.rejected, len(one)) == (0, 2)
    assert followed.acknowledged is not None
    assert "list" in lists
