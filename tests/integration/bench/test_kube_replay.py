"""The replay server sends the recorded responses, with one authority per cluster."""

from collections.abc import AsyncIterator
from contextlib import aclosing
from pathlib import Path

import msgspec
import pytest

from bench.kube.replay import Recording, Replay
from bench.kube.with_governor import CONFIG_MAP, DEPLOYMENT
from governor.errors import GovernorError, Kind
from governor.kube.client import Client, Request, Transport
from governor.kube.config.kubeconfig import load

RECORDING = Recording(
    b'{"kind":"ConfigMap","metadata":{}}', b'{"kind":"DeploymentList"}', (b'{"type":"ADDED"}', b'{"type":"MODIFIED"}')
)


@pytest.fixture
async def replay(tmp_path: Path) -> AsyncIterator[Replay]:
    async with Replay(RECORDING, tmp_path, clusters=2) as replay:
        yield replay


@pytest.fixture
async def transport() -> AsyncIterator[Transport]:
    async with Transport() as transport:
        yield transport


async def test_it_sends_the_recorded_responses(replay: Replay, transport: Transport) -> None:
    client = Client(transport, load(replay.kubeconfigs[0]))

    assert await client.get(CONFIG_MAP, "any", "any") == {"kind": "ConfigMap", "metadata": {}}
    assert await client.send(Request("GET", DEPLOYMENT.path("any"))) == RECORDING.deployments


async def test_it_repeats_the_recorded_events(replay: Replay, transport: Transport) -> None:
    client = Client(transport, load(replay.kubeconfigs[0]))

    async with aclosing(client.stream_lines(Request("GET", DEPLOYMENT.path("any"), {"watch": "true"}))) as lines:
        assert tuple([await anext(lines) for _ in range(5)]) == (
            *RECORDING.events,
            *RECORDING.events,
            RECORDING.events[0],
        )


async def test_a_cluster_is_not_trusted_by_the_authority_of_another(replay: Replay, transport: Transport) -> None:
    first, second = map(load, replay.kubeconfigs)
    mixed = Client(transport, msgspec.structs.replace(first, server=second.server))

    with pytest.raises(GovernorError) as caught:
        await mixed.get(CONFIG_MAP, "any", "any")
    assert caught.value.kind is Kind.UNAUTHENTICATED
