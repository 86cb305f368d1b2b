"""A sidecar that does not load the resources directory is never acknowledged, for any kind and any change.

This blind sidecar is the hardest case: it answers, is healthy, watches a directory and lists resources of the same
names, because it loads an old copy. As a control, a normal sidecar receives the same changes in the same test.
"""

import asyncio
import shlex
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import pytest

from governor.agent.platforms.local.files import resource_file
from governor.domain.dapr.kinds import kinds
from governor.domain.documents import Unproven
from governor.domain.reports import Report, State, acknowledged
from testbed.waiting import until
from tests.integration.agent.bed import AgentBed, component, resource, running_agent

Manifest = dict[str, Any]


def _component(value: str) -> Manifest:
    return component("subject", "state.in-memory", note=value)


def _middleware(value: str) -> Manifest:
    return component("subject", "middleware.http.ratelimit", maxRequestsPerSecond=value)


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


CASES = {
    "Component": [_component, _middleware],
    "Configuration": [_configuration],
    "HTTPEndpoint": [_endpoint],
    "MCPServer": [_mcp_server],
    "Resiliency": [_resiliency],
    "Subscription": [_subscription],
    "WorkflowAccessPolicy": [_workflow_access_policy],
}


def blind_daprd(directory: Path, program: Path, stale: Manifest) -> Path:
    """Return a daprd that loads an old copy of the resource, whatever its command line says."""
    copy = directory / "copy"
    copy.mkdir(parents=True)
    file = resource_file(stale, "default")
    (copy / "stale.yaml").write_bytes(file.content)
    config = f"--config={copy / 'stale.yaml'}" if file.ref.kind == "Configuration" else "--log-level=info"
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


async def changes(
    bed: AgentBed, steps: Sequence[Sequence[Manifest]], window_s: int, unproven: Unproven
) -> list[Report]:
    return [await bed.deliver(*step, window_s=window_s, unproven=unproven) for step in steps]


@pytest.mark.parametrize("kind", sorted(kinds()))
async def test_a_change_of_this_kind_is_acknowledged_only_if_the_sidecar_loads_the_directory(
    kind: str, tmp_path: Path, daprd_binary: Path
) -> None:
    for number, case in enumerate(CASES[kind]):
        created, changed = case("1"), case("2")
        steps = [[created], [changed], []]
        window_s = 4 if kind == "MCPServer" else 1
        blind = blind_daprd(tmp_path / f"blind-{number}", daprd_binary, created)
        async with (
            running_agent(tmp_path / f"watching-{number}", daprd_binary) as watching,
            running_agent(tmp_path / f"restarting-{number}", blind) as restarting,
            running_agent(tmp_path / f"reporting-{number}", blind) as reporting,
        ):
            seen, *unseen = await asyncio.gather(
                changes(watching, steps, 60, Unproven.RESTART),
                changes(restarting, steps, window_s, Unproven.RESTART),
                changes(reporting, steps, window_s, Unproven.REPORT),
            )
            assert [acknowledged(report) for report in seen] == [True, True, True]
            assert [acknowledged(report) for report in [*unseen[0], *unseen[1]]] == [False] * 6
            # The blind sidecars were unproven although they answered, not because they were down.
            assert await until(lambda: is_healthy(restarting))
            assert await until(lambda: is_healthy(reporting))
            assert {part.state for report in [*unseen[0], *unseen[1]] for part in report.findings} == {State.UNPROVEN}


def test_every_kind_has_a_case() -> None:
    assert set(CASES) == set(kinds())
