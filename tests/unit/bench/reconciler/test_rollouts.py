"""The waits of `make bench-reconciler`."""

import os
import time
from collections.abc import Sequence

import pytest

from bench.reconciler import rollouts
from governor.kube.client import Client
from toolchain.errors import TestbedError


class Stalled:
    """A controller that never completes a release."""

    server_pids = ()
    writes_per_release = 0

    def __init__(self, pids: Sequence[int]) -> None:
        self.pids = pids

    @property
    def client(self) -> Client:
        raise NotImplementedError

    async def write(self, number: int, revision: str) -> None:
        raise NotImplementedError

    def progress(self, revision: str) -> tuple[int, str]:
        return 2, f"no object has {revision}"


async def test_a_rollout_without_progress_is_given_up(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(rollouts, "STALLED_S", 0.0)

    with pytest.raises(TestbedError, match=r"without progress .* 2 of 3 releases have revision second; no object has"):
        await rollouts._until_complete(Stalled([os.getpid()]), 3, "second", time.monotonic(), print)


async def test_a_rollout_ends_with_its_controller() -> None:
    with pytest.raises(TestbedError, match="the controller has exited: process 4194305"):
        await rollouts._until_complete(Stalled([4_194_305]), 3, "second", time.monotonic(), print)


async def test_a_complete_rollout_ends_at_once() -> None:
    await rollouts._until_complete(Stalled([os.getpid()]), 2, "second", time.monotonic(), print)
