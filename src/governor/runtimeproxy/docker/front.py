"""Composition of kubelet's side for the Docker Engine API."""

from typing import Final

from governor.runtimeproxy.docker.daemon import Daemon
from governor.runtimeproxy.docker.held import DockerHooks
from governor.runtimeproxy.docker.messages import DockerCodec
from governor.runtimeproxy.docker.responses import NO_CONTENT
from governor.runtimeproxy.docker.server import DockerServer
from governor.runtimeproxy.endpoint import Endpoint
from governor.runtimeproxy.front import Front, Parts, Serving
from governor.runtimeproxy.ops.watchdog import probe

_PROBE: Final = b"GET /_ping HTTP/1.1\r\nHost: docker\r\n\r\n"


def docker_front(daemon_path: str) -> Front:
    """Return kubelet's side for a dockerd at a socket."""
    daemon = Daemon(daemon_path)

    def serve(parts: Parts) -> Serving:
        hooks = DockerHooks(parts, daemon)
        server = DockerServer(parts.endpoint, parts.upstreams, hooks)
        return Serving(server, hooks.audit, lambda: None)

    return Front(daemon, DockerCodec(), serve, _probe)


async def _probe(endpoint: Endpoint) -> str:
    return await probe(endpoint, _PROBE, NO_CONTENT)
