"""Samples of `make bench-reconciler` for its tests."""

from bench.reconciler.hub import Restart
from bench.reconciler.processes import CpuTime
from bench.reconciler.report import PUBLISHED, Figures
from bench.reconciler.rollouts import Idle, Rollout


def rollout(seconds: float) -> Rollout:
    """Return a rollout of our reconciler."""
    return Rollout(seconds, CpuTime(20.0, 3.0), 150.0, server_cpu_s=40.0, requests=12_000)


OURS = Figures(
    PUBLISHED,
    rollout(45.0),
    rollout(61.0),
    Idle(30.0, CpuTime(0.03, 0.0), 90.0, writes={}),
    Restart(2.5, CpuTime(2.0, 0.0), writes={"POST clusters (409)": 1}, lists={"secrets": 3, "configmaps": 5}),
)
PEER = Figures(
    PUBLISHED,
    Rollout(300.0, None, None, None, requests=30_000),
    Rollout(400.0, None, None, None, requests=40_000),
    Idle(30.0, None, None, writes={"PATCH helmreleases": 7}),
)
