"""Settings of the agent."""

from pathlib import Path
from typing import Annotated, Literal

import msgspec

from governor.errors import invalid
from governor.process.address import Address
from governor.process.telemetry.logging import Level
from governor.values.secret import Secret

Port = Annotated[int, msgspec.Meta(ge=0, le=65535)]
AppId = Annotated[
    str,
    msgspec.Meta(
        pattern=r"^[a-zA-Z0-9]([-_.a-zA-Z0-9]*[a-zA-Z0-9])?$",
        description="letters and digits, separated by hyphens, underscores or dots",
    ),
]


class SidecarSettings(msgspec.Struct, frozen=True, forbid_unknown_fields=True, rename="kebab"):
    """One daprd that the agent runs or, if ``external``, only observes. Port 0 means: choose a free port and keep it.

    An external sidecar needs its public or HTTP port; without its metrics port few changes can be verified.
    """

    app_id: AppId
    app_port: Port = 0
    http_port: Port = 0
    grpc_port: Port = 0
    metrics_port: Port = 0
    public_port: Port = 0
    argv: tuple[str, ...] = ()
    external: bool = False

    def __post_init__(self) -> None:
        if self.external and not (self.public_port or self.http_port):
            raise ValueError(f"the external sidecar {self.app_id!r} needs its public-port or its http-port")
        if self.external and self.argv:
            raise ValueError(f"the external sidecar {self.app_id!r} is not started by the agent: it takes no argv")


class Settings(msgspec.Struct, frozen=True, kw_only=True):
    """The settings of ``governor agent``."""

    platform: Annotated[
        Literal["local", "kubernetes"], msgspec.Meta(description="Platform that runs the applications.")
    ] = "local"
    join_token: Annotated[
        Secret | None,
        msgspec.Meta(description="File with a one-time join token; needed at the first start, and to join again."),
    ] = None
    state_dir: Annotated[
        Path | None, msgspec.Meta(description="Directory for the agent's key, bundles, journal and logs; local only.")
    ] = None
    resources_dir: Annotated[
        Path | None,
        msgspec.Meta(description="Directory that the sidecars load resources from; default: STATE-DIR/resources."),
    ] = None
    namespace: Annotated[str, msgspec.Meta(description="Namespace of the sidecars and their resources.")] = "default"
    daprd: Annotated[
        Path | None, msgspec.Meta(description="Path of daprd; default: on the PATH, then in ~/.dapr/bin.")
    ] = None
    sidecars: tuple[SidecarSettings, ...] = ()
    stop_sidecars_on_exit: Annotated[
        bool, msgspec.Meta(description="Stop the sidecars when the agent stops; by default they keep running.")
    ] = False
    kubeconfig: Annotated[
        Path | None,
        msgspec.Meta(description="Kubeconfig of the cluster; default: the service account of the agent's pod."),
    ] = None
    state_namespace: Annotated[
        str, msgspec.Meta(description="Namespace in the cluster for the agent's own state and inventory.")
    ] = "runtime-governor"
    agent_name: Annotated[
        str,
        msgspec.Meta(description="Name of the agent's state in that namespace; each agent needs its own."),
    ] = "governor-agent"
    namespaces: Annotated[
        tuple[str, ...], msgspec.Meta(description="The only namespaces that the agent manages in the cluster.")
    ] = ()
    sidecar_access: Annotated[
        Literal["auto", "direct", "proxy"],
        msgspec.Meta(description="How sidecars are reached: by pod IP, through the API server, or whichever works."),
    ] = "auto"
    adopted_managers: Annotated[
        tuple[str, ...], msgspec.Meta(description="Field managers whose Dapr resources the agent takes over.")
    ] = ()
    leader_election: Annotated[
        bool,
        msgspec.Meta(description="Run only while holding a Lease, so that other replicas take over; kubernetes only."),
    ] = False
    observe: Annotated[
        bool,
        msgspec.Meta(
            description="Only print whether sidecars use what others applied; needs no server and writes nothing."
        ),
    ] = False
    output: Annotated[
        Literal["table", "json"], msgspec.Meta(description="Format of what an observing agent prints.")
    ] = "table"
    resync_interval: Annotated[
        float, msgspec.Meta(description="Mean time between two checks of everything, in seconds.", gt=0, le=86_400)
    ] = 300.0
    health_listen: Annotated[
        Address,
        msgspec.Meta(description="Address of /healthz, /readyz and /metrics; port 0 chooses a free port."),
    ] = Address("127.0.0.1", 0)
    log_level: Annotated[Level, msgspec.Meta(description="Minimum level of log events.")] = "info"

    def __post_init__(self) -> None:
        if self.platform == "local" and self.state_dir is None:
            raise invalid("settings", "state-dir: required by the platform local")
        if self.platform == "kubernetes" and not self.namespaces:
            raise invalid("settings", "namespaces: the platform kubernetes needs at least one")
        if self.platform == "local" and self.leader_election:
            raise invalid("settings", "leader-election: only with the platform kubernetes")
        if self.platform == "local" and self.observe:
            raise invalid("settings", "observe: only with the platform kubernetes")
        if self.observe and self.leader_election:
            raise invalid("settings", "leader-election: not with observe, which writes no Lease")
        ids = [each.app_id for each in self.sidecars]
        twice = sorted({each for each in ids if ids.count(each) > 1})
        if twice:
            raise invalid(
                "settings", f"sidecars: the app id {twice[0]!r} occurs twice; each sidecar needs a unique one"
            )

    @property
    def state(self) -> Path:
        """The state directory of an agent on a machine."""
        assert self.state_dir is not None  # noqa: S101 - checked above
        return self.state_dir

    @property
    def resources(self) -> Path:
        """The directory that the sidecars of a machine load resources from."""
        return self.resources_dir or self.state / "resources"
