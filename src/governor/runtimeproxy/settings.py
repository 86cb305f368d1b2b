"""Settings of the runtime proxy. The names up to ``runtime_hook_server_val`` are koord-runtime-proxy's."""

import os
from pathlib import Path
from typing import Annotated, Final, Literal

import msgspec

from governor.errors import invalid
from governor.process.address import Address
from governor.process.telemetry.logging import Level
from governor.runtimeproxy.hooks.changes import ConflictPolicy

_CONTAINERD: Final = "/var/run/containerd/containerd.sock"
_DOCKER: Final = "/var/run/docker.sock"


class Settings(msgspec.Struct, frozen=True, kw_only=True):
    """The settings of ``governor runtime-proxy``."""

    koord_runtimeproxy_endpoint: Annotated[str, msgspec.Meta(description="Socket that kubelet connects to.")] = (
        "/var/run/koord-runtimeproxy/runtimeproxy.sock"
    )
    remote_runtime_service_endpoint: Annotated[
        str,
        msgspec.Meta(description=f"Socket of the container runtime; in Docker mode the default is {_DOCKER}."),
    ] = _CONTAINERD
    remote_image_service_endpoint: Annotated[
        str,
        msgspec.Meta(
            description="Socket of the image service; default: that of the container runtime. Without effect on Docker."
        ),
    ] = ""
    backend_runtime_mode: Annotated[
        Literal["Containerd", "Docker"],
        msgspec.Meta(description="Protocol of the runtime: CRI, or the Docker Engine API."),
    ] = "Containerd"
    runtime_hook_server_key: Annotated[
        str, msgspec.Meta(description="Label or annotation by which a pod opts out of all plugins.")
    ] = "runtimeproxy.koordinator.sh/skip-hookserver"
    runtime_hook_server_val: Annotated[str, msgspec.Meta(description="Value of that label or annotation.")] = "true"
    hook_server_dir: Annotated[Path, msgspec.Meta(description="Watched directory with one .json file per plugin.")] = (
        Path("/etc/runtime/hookserver.d")
    )
    policy_dir: Annotated[
        Path, msgspec.Meta(description="Watched directory with policies in .yaml files; without it there are none.")
    ] = Path("/etc/runtime/policies.d")
    plugin_timeout: Annotated[
        float, msgspec.Meta(description="Default timeout of a plugin call, in seconds.", gt=0, le=86_400)
    ] = 2.0
    conflict_policy: Annotated[
        Literal["last-wins", "first-wins", "refuse"],
        msgspec.Meta(
            description="Which change applies if two plugins set one field differently; refuse rejects the call."
        ),
    ] = "last-wins"
    control_endpoint: Annotated[
        str,
        msgspec.Meta(
            description="Socket for `explain` and `tap`; default: the name of kubelet's socket with -control added."
        ),
    ] = ""
    health_listen: Annotated[
        Address, msgspec.Meta(description="Address of /healthz, /readyz and /metrics; port 0 chooses a free port.")
    ] = Address("127.0.0.1", 0)
    log_level: Annotated[Level, msgspec.Meta(description="Minimum level of log events.")] = "info"

    def __post_init__(self) -> None:
        for name, path in {
            "koord-runtimeproxy-endpoint": self.listen_path,
            "remote-runtime-service-endpoint": self.runtime_path,
            "remote-image-service-endpoint": self.image_path or self.runtime_path,
            "control-endpoint": self.control_path,
        }.items():
            if not path.startswith("/"):
                raise invalid("settings", f"{name}: {path!r} is not the absolute path of a socket")
        for served in (self.listen_path, self.control_path):
            if any(_same(served, each) for each in (self.runtime_path, self.image_path)):
                raise invalid(
                    "settings",
                    f"the proxy cannot listen on {served}, which is the socket of its runtime or image service",
                )
        if _same(self.control_path, self.listen_path):
            raise invalid("settings", f"{self.listen_path} cannot be both kubelet's socket and the control socket")

    @property
    def is_docker(self) -> bool:
        """Return whether the runtime is dockerd."""
        return self.backend_runtime_mode == "Docker"

    @property
    def listen_path(self) -> str:
        """Return the path of the socket that kubelet connects to."""
        return _path(self.koord_runtimeproxy_endpoint)

    @property
    def runtime_path(self) -> str:
        """Return the path of the runtime's socket."""
        path = _path(self.remote_runtime_service_endpoint)
        return _DOCKER if self.is_docker and path == _CONTAINERD else path

    @property
    def image_path(self) -> str:
        """Return the path of the image service's socket, or ``""`` if it is the runtime's."""
        path = "" if self.is_docker else _path(self.remote_image_service_endpoint)
        return "" if _same(path, self.runtime_path) else path

    @property
    def control_path(self) -> str:
        """Return the path of the control socket."""
        return _path(self.control_endpoint) or f"{self.listen_path.removesuffix('.sock')}-control.sock"

    @property
    def conflicts(self) -> ConflictPolicy:
        """Return the conflict policy."""
        return ConflictPolicy(self.conflict_policy)


def _path(endpoint: str) -> str:
    return endpoint.removeprefix("unix://")


def _same(path: str, other: str) -> bool:
    """Return whether two paths name one socket; on most systems /var/run is a link to /run."""
    return bool(path and other) and os.path.realpath(path) == os.path.realpath(other)
