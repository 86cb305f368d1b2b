"""What an operator tells the runtime proxy. The names up to ``runtime_hook_server_val`` are koord-runtime-proxy's."""

import os
from pathlib import Path
from typing import Annotated, Literal

import msgspec

from governor.errors import GovernorError, Kind, invalid
from governor.process.address import Address
from governor.process.telemetry.logging import Level
from governor.runtimeproxy.hooks.conflicts import ConflictPolicy


class Settings(msgspec.Struct, frozen=True, kw_only=True):
    """The settings of ``governor runtime-proxy``."""

    koord_runtimeproxy_endpoint: Annotated[str, msgspec.Meta(description="Socket on which kubelet is served.")] = (
        "/var/run/koord-runtimeproxy/runtimeproxy.sock"
    )
    remote_runtime_service_endpoint: Annotated[str, msgspec.Meta(description="Socket of the container runtime.")] = (
        "/var/run/containerd/containerd.sock"
    )
    remote_image_service_endpoint: Annotated[
        str, msgspec.Meta(description="Socket of the image service; default: the container runtime's.")
    ] = ""
    backend_runtime_mode: Annotated[
        Literal["Containerd", "Docker"],
        msgspec.Meta(description="What the runtime speaks. Docker is not there yet and is refused."),
    ] = "Containerd"
    runtime_hook_server_key: Annotated[
        str, msgspec.Meta(description="Label or annotation of pods that are to be left alone by all plugins.")
    ] = "runtimeproxy.koordinator.sh/skip-hookserver"
    runtime_hook_server_val: Annotated[str, msgspec.Meta(description="Its value in those pods.")] = "true"
    hook_server_dir: Annotated[
        Path, msgspec.Meta(description="Directory with a .json file for each plugin; watched.")
    ] = Path("/etc/runtime/hookserver.d")
    plugin_timeout: Annotated[
        float, msgspec.Meta(description="Seconds that a plugin may take whose file does not say it.", gt=0, le=86_400)
    ] = 2.0
    conflict_policy: Annotated[
        Literal["last-wins", "first-wins", "refuse"],
        msgspec.Meta(description="What happens when two plugins set one field differently."),
    ] = "last-wins"
    control_endpoint: Annotated[
        str,
        msgspec.Meta(
            description="Socket by which `explain` and `tap` ask; default: beside kubelet's, with -control in its name."
        ),
    ] = ""
    health_listen: Annotated[
        Address, msgspec.Meta(description="Address of /healthz, /readyz and /metrics; port 0 is chosen and logged.")
    ] = Address("127.0.0.1", 0)
    log_level: Annotated[Level, msgspec.Meta(description="The least important lines to log.")] = "info"

    def __post_init__(self) -> None:
        if self.backend_runtime_mode == "Docker":
            message = "backend-runtime-mode: Docker is not there yet; only Containerd is"
            raise GovernorError(Kind.UNIMPLEMENTED, "docker-mode", message)
        for name, path in {
            "koord-runtimeproxy-endpoint": self.listen_path,
            "remote-runtime-service-endpoint": self.runtime_path,
            "remote-image-service-endpoint": self.image_path or self.runtime_path,
            "control-endpoint": self.control_path,
        }.items():
            if not path.startswith("/"):
                raise invalid("settings", f"{name}: {path!r} is no absolute path of a socket")
        for served in (self.listen_path, self.control_path):
            if any(_same(served, each) for each in (self.runtime_path, self.image_path)):
                raise invalid("settings", f"the proxy cannot serve on {served}, which is where it is to connect")
        if _same(self.control_path, self.listen_path):
            raise invalid("settings", f"{self.listen_path} cannot be the socket for kubelet and for control")

    @property
    def listen_path(self) -> str:
        """The socket on which kubelet is served."""
        return _path(self.koord_runtimeproxy_endpoint)

    @property
    def runtime_path(self) -> str:
        """The runtime's socket."""
        return _path(self.remote_runtime_service_endpoint)

    @property
    def image_path(self) -> str:
        """The image service's socket, if it is another one than the runtime's."""
        path = _path(self.remote_image_service_endpoint)
        return "" if _same(path, self.runtime_path) else path

    @property
    def control_path(self) -> str:
        """The socket by which commands ask the running proxy."""
        return _path(self.control_endpoint) or f"{self.listen_path.removesuffix('.sock')}-control.sock"

    @property
    def conflicts(self) -> ConflictPolicy:
        """What happens when two plugins set one field differently."""
        return ConflictPolicy(self.conflict_policy)


def _path(endpoint: str) -> str:
    return endpoint.removeprefix("unix://")


def _same(path: str, other: str) -> bool:
    """Whether two paths are those of one socket: on most systems /var/run is /run."""
    return bool(path and other) and os.path.realpath(path) == os.path.realpath(other)
