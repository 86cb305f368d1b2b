"""The reconciler as a program: health, metrics, its Lease, and an orderly stop."""

import asyncio
import os
import re
import sys

import aiohttp

from governor.kube.lease import LEASES
from testbed.kube.control_plane import ControlPlane
from testbed.recipes import provide
from tests.contract.reconciler.bed import HubBed, state


async def test_the_program_serves_health_and_metrics_and_stops_by_a_signal(
    hub: HubBed, control_plane: ControlPlane
) -> None:
    renderer = provide(["renderer"])["renderer"]
    settings = {"NAMESPACE": hub.namespace, "KUBECONFIG": str(control_plane.kubeconfig), "LOCAL_CLUSTER": "true"}
    environment = {f"GOVERNOR_RECONCILER_{name}": value for name, value in settings.items()}
    program = await asyncio.create_subprocess_exec(
        sys.executable,
        "-m",
        "governor.cli.main",
        "reconciler",
        env={**environment, "PATH": f"{renderer.parent}:{os.environ['PATH']}"},
        stderr=asyncio.subprocess.PIPE,
    )
    assert program.stderr is not None
    try:
        logged = await program.stderr.readuntil(b"health server listening")
        logged += await program.stderr.readline()
        address = re.search(rb"127\.0\.0\.1:\d+", logged)
        assert address is not None, logged
        await hub.shows("Cluster", "local", lambda each: state(each) == "Ready")
        async with aiohttp.ClientSession(f"http://{address[0].decode()}") as session:
            for path in ("/healthz", "/readyz"):
                async with session.get(path) as response:
                    assert response.status == 200, await response.text()
            async with session.get("/metrics") as response:
                metrics = await response.text()
        assert 'leader_election_master_status{name="governor-reconciler"} 1' in metrics
        for controller in ("clusters", "cluster-states", "installations", "channels", "module-instances"):
            assert f'controller_runtime_active_workers{{controller="{controller}"}}' in metrics
    finally:
        program.terminate()
        await program.communicate()
    assert program.returncode == 0
    lease = await hub.client.get(LEASES, "governor-reconciler", hub.namespace)
    assert not lease["spec"].get("holderIdentity")
