"""The kit for hook plugins of the runtime proxy: typed requests, a server, and a test kit.

    from governor.sdk.hooks import ContainerChanges, ContainerRequest, Plugin, Resources

    class Batch(Plugin):
        def pre_create_container(self, request: ContainerRequest) -> ContainerChanges | None:
            if request.pod.labels.get("tier") != "batch":
                return None
            return ContainerChanges(resources=Resources(cpu_shares=2))

    if __name__ == "__main__":
        from governor.sdk.hooks.server import serve
        serve(Batch(), "/run/batch.sock", register_as="batch")

``server`` needs the extra ``runtime-governor[hooks]`` (grpcio); everything else needs nothing more.
"""

from governor.sdk.hooks.plugin import (
    ContainerChanges,
    ContainerRequest,
    Plugin,
    PodChanges,
    PodRequest,
    PodState,
    Rejection,
)
from governor.wire.hooks.points import Hook
from governor.wire.hooks.workload import Container, Pod, PodIdentity, Resources

__all__ = [
    "Container",
    "ContainerChanges",
    "ContainerRequest",
    "Hook",
    "Plugin",
    "Pod",
    "PodChanges",
    "PodIdentity",
    "PodRequest",
    "PodState",
    "Rejection",
    "Resources",
]
