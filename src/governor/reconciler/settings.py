"""Settings of the reconciler."""

from pathlib import Path
from typing import Annotated, Final, Literal, TypeAlias

import msgspec

from governor.process.address import Address
from governor.process.telemetry.logging import Level

PROGRAM: Final = "reconciler"
Role: TypeAlias = Literal["all", "watch", "work"]
NAMESPACE: Final = "runtime-governor"
"""Default of the hub namespace."""


class Settings(msgspec.Struct, frozen=True, kw_only=True):
    """The settings of ``governor reconciler``."""

    namespace: Annotated[
        str, msgspec.Meta(description="The hub namespace: that of all objects of the reconciler.", min_length=1)
    ] = NAMESPACE
    kubeconfig: Annotated[
        Path | None,
        msgspec.Meta(
            description="Kubeconfig of the hub's cluster; default: the service account of the pod, or KUBECONFIG."
        ),
    ] = None
    local_cluster: Annotated[
        bool,
        msgspec.Meta(description="Create the Cluster `local` for the hub's own cluster at the start if it is missing."),
    ] = False
    unknown_after: Annotated[
        float,
        msgspec.Meta(description="Seconds without an answer after which the state of a cluster is Unknown.", gt=0),
    ] = 300.0
    requests_per_second: Annotated[
        float, msgspec.Meta(description="Maximum rate of requests to the hub, and to each cluster.", gt=0)
    ] = 500.0
    resync_interval: Annotated[
        float, msgspec.Meta(description="Mean time between two reconciliations of every object, in seconds.", gt=0)
    ] = 3600.0
    role: Annotated[
        Role,
        msgspec.Meta(
            description="`all` does everything in one process; `watch` only observes, and scales the Deployment of "
            "processes with `work` to zero while nothing is to be done."
        ),
    ] = "all"
    worker_deployment: Annotated[
        str, msgspec.Meta(description="With role `watch`: name of the workers' Deployment in the hub.", min_length=1)
    ] = "governor-reconciler-worker"
    worker_idle: Annotated[
        float, msgspec.Meta(description="Seconds without work after which the workers are scaled to zero.", ge=0)
    ] = 60.0
    chart_cache: Annotated[
        Path | None,
        msgspec.Meta(description="Directory for charts; default: one below the system's temporary directory."),
    ] = None
    renderers: Annotated[
        int, msgspec.Meta(description="Number of charts that are rendered at the same time, each in a process.", ge=1)
    ] = 2
    shutdown_timeout: Annotated[
        float, msgspec.Meta(description="Time for running reconciliations to finish, in seconds.", ge=0)
    ] = 10.0
    health_listen: Annotated[
        Address, msgspec.Meta(description="Address of /healthz, /readyz and /metrics; port 0 chooses a free port.")
    ] = Address("127.0.0.1", 0)
    log_level: Annotated[Level, msgspec.Meta(description="Minimum level of log events.")] = "info"
