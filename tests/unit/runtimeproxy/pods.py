"""One pod with one container, and its records."""

from governor.runtimeproxy.cri import cri_pb2
from governor.runtimeproxy.cri.messages import pod_of
from governor.runtimeproxy.environment import NO_VARIABLES
from governor.runtimeproxy.ops.control import Subject
from governor.runtimeproxy.store.records import ContainerRecord, Sandbox, new_container
from governor.wire.hooks.workload import Container

META = cri_pb2.PodSandboxMetadata(name="web", namespace="shop", uid="u-1")
CONFIG = cri_pb2.PodSandboxConfig(metadata=META)
CREATE = cri_pb2.CreateContainerRequest(
    pod_sandbox_id="s1", config=cri_pb2.ContainerConfig(metadata=cri_pb2.ContainerMetadata(name="main"))
)


class PodRecords:
    """Records of one pod with one container."""

    def sandbox(self, sandbox_id: str) -> Sandbox | None:
        return Sandbox("s1", pod_of(CONFIG)) if sandbox_id == "s1" else None

    def container(self, container_id: str) -> ContainerRecord | None:
        return new_container("s1", Container("c1", "main"), NO_VARIABLES) if container_id == "c1" else None


MAIN = Subject("shop", "web", "u-1", "s1", "main", "c1")
