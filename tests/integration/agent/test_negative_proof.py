"""A sidecar that does not load the resources directory is never acknowledged, for any kind and any change.

This blind sidecar is the hardest case: it answers, is healthy, watches a directory and lists resources of the same
names, because it loads an old copy. As a control, a normal sidecar receives the same changes. Each delivery changes one
resource of every kind; each of them must be unproven.
"""

import asyncio
import shlex
from collections.abc import Sequence
from pathlib import Path
from typing import Any

from governor.agent.platforms.local.files import resource_file
from governor.domain.dapr.kinds import kinds
from governor.domain.documents import Unproven
from governor.domain.reports import Report, State, acknowledged
from testbed.waiting import until
from tests.integration.agent.bed import AgentBed, component, resource, running_agent

Manifest = dict[str, Any]
Steps = Sequence[Sequence[Manifest]]


def _component(value: str) -> Manifest:
    return component("subject", "state.in-memory", note=value)


def _middleware(value: str) -> Manifest:
    return component("limiter", "middleware.http.ratelimit", maxRequestsPerSecond=value)


def _configuration(value: str) -> Manifest:
    return resource("Configuration", "subject", {"tracing": {"samplingRate": value}})


def _endpoint(value: str) -> Manifest:
    return resource("HTTPEndpoint", "subject", {"baseUrl": f"http://127.0.0.1:{value}"})


def _mcp_server(value: str) -> Manifest:
    # Nothing listens there; the connection fails after two seconds, but the resource is loaded.
    endpoint = {"streamableHTTP": {"url": f"http://127.0.0.1:{value}/mcp"}}
    return resource("MCPServer", "subject", {"endpoint": endpoint, "ignoreErrors": True})


def _resiliency(value: str) -> Manifest:
    return resource("Resiliency", "subject", {"policies": {"timeouts": {"short": f"{value}s"}}, "targets": {}})


def _subscription(value: str) -> Manifest:
    spec = {"pubsubname": "pubsub", "topic": "orders", "routes": {"default": f"/{value}"}}
    return resource("Subscription", "subject", spec, "dapr.io/v2alpha1")


def _workflow_access_policy(value: str) -> Manifest:
    rule = {"callers": [{"appID": f"caller-{value}"}], "workflows": [{"name": "*", "operations": ["schedule"]}]}
    return resource("WorkflowAccessPolicy", "subject", {"rules": [rule]})


CASES = (
    _component,
    _middleware,
    _configuration,
    _endpoint,
    _mcp_server,
    _resiliency,
    _subscription,
    _workflow_access_policy,
)
_WINDOW_S = 3600
"""Longer than the test: a blind sidecar's window is ended by the clock, once the sidecar has answered."""


def resources(value: str) -> list[Manifest]:
    """Return a resource of every kind, with this value somewhere in its content."""
    return [case(value) for case in CASES]


def blind_daprd(directory: Path, program: Path, stale: Sequence[Manifest]) -> Path:
    """Return a daprd that loads old copies of the resources, whatever its command line says."""
    copy = directory / "copy"
    copy.mkdir(parents=True)
    config = ""
    for manifest in stale:
        file = resource_file(manifest, "default")
        path = directory / "stale.yaml" if file.ref.kind == "Configuration" else copy / Path(file.key).name
        path.write_bytes(file.content)
        config = f"--config={path}" if file.ref.kind == "Configuration" else config
    script = directory / "daprd"
    script.write_text(
        "#!/bin/sh\n"
        "for word do\n"
        '  [ -n "$seen" ] || set --; seen=yes\n'
        '  case "$word" in\n'
        f'    --resources-path=*) set -- "$@" {shlex.quote(f"--resources-path={copy}")} ;;\n'
        "    --config=*) ;;\n"
        '    *) set -- "$@" "$word" ;;\n'
        "  esac\n"
        "done\n"
        f'exec {shlex.quote(str(program))} "$@" {shlex.quote(config)}\n'
    )
    script.chmod(0o700)
    return script


async def is_healthy(bed: AgentBed) -> bool:
    status = (await bed.sidecar.read()).status
    return status is not None and status.healthy


async def changes(bed: AgentBed, steps: Steps) -> list[Report]:
    return [await bed.deliver(*step) for step in steps]


async def unseen_changes(bed: AgentBed, steps: Steps, unproven: Unproven) -> list[Report]:
    """Deliver each step; end its window when the sidecar that was started for it, if any, is healthy."""
    reports = []
    for step in steps:
        starts = bed.sidecar.starts
        delivery = asyncio.create_task(bed.deliver(*step, window_s=_WINDOW_S, unproven=unproven))
        while not delivery.done():
            if bed.sidecar.starts > starts and await is_healthy(bed):
                bed.clock.advance(_WINDOW_S)
            await asyncio.wait({delivery}, timeout=0.05)
        reports.append(await delivery)
    return reports


async def test_a_change_is_acknowledged_only_if_the_sidecar_loads_the_directory(
    tmp_path: Path, daprd_binary: Path
) -> None:
    steps = [resources("1"), resources("2"), []]
    blind = blind_daprd(tmp_path / "blind", daprd_binary, resources("1"))
    async with (
        running_agent(tmp_path / "watching", daprd_binary) as watching,
        running_agent(tmp_path / "restarting", blind) as restarting,
        running_agent(tmp_path / "reporting", blind) as reporting,
    ):
        seen, *unseen = await asyncio.gather(
            changes(watching, steps),
            unseen_changes(restarting, steps, Unproven.RESTART),
            unseen_changes(reporting, steps, Unproven.REPORT),
        )
        reports = [*unseen[0], *unseen[1]]
        assert [acknowledged(report) for report in seen] == [True, True, True]
        assert [acknowledged(report) for report in reports] == [False] * 6
        # The blind sidecars were unproven although they answered, not because they were down.
        assert await until(lambda: is_healthy(restarting))
        assert await until(lambda: is_healthy(reporting))
        for report in reports:
            assert {part.resource.kind for part in report.resources} == set(kinds())
            assert {part.state for part in report.findings} == {State.UNPROVEN}


def test_every_kind_has_a_case() -> None:
    assert {each["kind"] for each in resources("1")} == set(kinds())
