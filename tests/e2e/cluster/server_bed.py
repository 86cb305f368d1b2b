"""A release of the server in use: its notes followed, an agent's client that has joined, its processes."""

import asyncio
import re
import sys
from collections.abc import AsyncIterator
from contextlib import aclosing, asynccontextmanager
from dataclasses import dataclass
from datetime import UTC, datetime
from functools import partial
from pathlib import Path

from cryptography.hazmat.primitives.asymmetric.ed25519 import Ed25519PrivateKey

from governor.client import Client
from governor.domain.bundles import Delivery
from governor.values.secret import Secret
from governor.wire.credentials import (
    JoinToken,
    encode_public_key,
    mint,
    read_join_token,
    read_public_key,
)
from governor.wire.deliveries import open_delivery
from governor.wire.rest import Enrolment, EnrolRequest
from testbed.cluster.cluster import run
from testbed.cluster.releases import PORT, WITHIN_S, ServerRelease
from testbed.cluster.workloads import Manifest
from testbed.server import free_ports


@dataclass
class JoinedAgent:
    """An agent's client that has joined with a token printed by `governor token join`."""

    join: JoinToken
    key: Ed25519PrivateKey
    enrolment: Enrolment

    @classmethod
    async def joining(cls, token: str) -> "JoinedAgent":
        """Join with a token, trusting only the authority named in it."""
        join, key = read_join_token(Secret(token.strip())), Ed25519PrivateKey.generate()
        async with Client(join.server, None, ca_fingerprint=join.ca) as client:
            request = EnrolRequest(join.runtime, join.secret, encode_public_key(key.public_key()))
            return cls(join, key, await client.enrol(request))

    async def newest(self) -> Delivery:
        """Return the newest delivery, verified with the key that was pinned at the enrolment."""
        credential = partial(mint, self.join.runtime, self.key)
        async with (
            Client(self.join.server, lambda: credential(datetime.now(UTC)), ca_fingerprint=self.join.ca) as client,
            aclosing(client.watch(self.join.runtime)) as deliveries,
        ):
            async with asyncio.timeout(WITHIN_S):
                return open_delivery(await anext(deliveries), read_public_key(self.enrolment.delivery_key))


def processes_of(pod: Manifest) -> list[int]:
    """Return the host's process ids of a pod's governor processes."""
    found = []
    for process in Path("/proc").glob("[0-9]*"):
        try:
            is_inside = pod["metadata"]["uid"] in (process / "cgroup").read_text()
            command = (process / "cmdline").read_bytes()
        except OSError:
            continue
        if is_inside and b"governor" in command:
            found.append(int(process.name))
    return found


@asynccontextmanager
async def forwarded(release: ServerRelease, line: str) -> AsyncIterator[int]:
    """Run the port-forward command of the notes on a free local port."""
    (port,) = free_ports(1)
    words = re.sub(rf" {PORT}$", f" {port}:{PORT}", line).split()[1:]
    kubectl = [release.cluster.facts["kubectl"], f"--kubeconfig={release.cluster.kubeconfig}"]
    process = await asyncio.create_subprocess_exec(*kubectl, *words, stdout=asyncio.subprocess.PIPE)
    assert process.stdout is not None
    try:
        async with asyncio.timeout(WITHIN_S):
            assert b"Forwarding from" in await process.stdout.readline()
        yield port
    finally:
        process.kill()
        await process.communicate()


async def follow(release: ServerRelease, notes: str) -> str:
    """Run the commands of the notes, with another local port only, and return their output."""
    lines = [line.strip() for line in notes.splitlines() if line.startswith("  ")]
    (forward,) = (line for line in lines if "port-forward" in line)
    programs = release.home / "bin"
    programs.mkdir()
    (programs / "kubectl").symlink_to(release.cluster.facts["kubectl"])
    (programs / "governor").symlink_to(Path(sys.executable).with_name("governor"))
    environment = {"PATH": f"{programs}:/usr/bin:/bin", "KUBECONFIG": str(release.cluster.kubeconfig)}
    async with forwarded(release, forward) as port:
        script = "\n".join(line for line in lines if line != forward).replace(f"localhost:{PORT}", f"localhost:{port}")
        return await run(
            ["env", f"--chdir={release.home}", "sh", "-euc", f"exec 2>&1\n{script}"], environment=environment
        )
