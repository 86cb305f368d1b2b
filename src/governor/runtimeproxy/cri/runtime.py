"""Client of the container runtime for the proxy's own calls: listing sandboxes and containers, and their status."""

from typing import Final, TypeVar

from google.protobuf.message import DecodeError, Message

from governor.errors import GovernorError, Kind
from governor.runtimeproxy.cri import cri_pb2
from governor.runtimeproxy.cri.messages import SERVICES, identity_of
from governor.runtimeproxy.cri.status import container_from_status, reported_resources, sandbox_from_status
from governor.runtimeproxy.grpc.unary import UnaryClient
from governor.runtimeproxy.store.records import ContainerRecord, ListedContainer, ListedSandbox, Sandbox
from governor.wire.hooks.workload import Resources

M = TypeVar("M", bound=Message)

_TIMEOUT_S: Final = 10.0


class Runtime:
    """The runtime at a socket, with either version of the runtime service."""

    def __init__(self, path: str) -> None:
        self._client = UnaryClient(path, "the runtime")
        self._service = SERVICES[0]

    def close(self) -> None:
        """Close the connection."""
        self._client.close()

    async def sandboxes(self) -> list[ListedSandbox]:
        """List all sandboxes."""
        listed = await self._call("ListPodSandbox", cri_pb2.ListPodSandboxRequest(), cri_pb2.ListPodSandboxResponse)
        return [ListedSandbox(each.id, identity_of(each.metadata)) for each in listed.items]

    async def containers(self, container_id: str = "") -> list[ListedContainer]:
        """List all containers, or those whose id has this prefix."""
        request = cri_pb2.ListContainersRequest()
        if container_id:
            request.filter.id = container_id
        listed = await self._call("ListContainers", request, cri_pb2.ListContainersResponse)
        return [
            ListedContainer(
                each.id, each.pod_sandbox_id, each.metadata.name, each.metadata.attempt, dict(each.annotations)
            )
            for each in listed.containers
        ]

    async def sandbox(self, sandbox_id: str) -> Sandbox:
        """Return a sandbox; raise NOT_FOUND if the runtime does not have it."""
        request = cri_pb2.PodSandboxStatusRequest(pod_sandbox_id=sandbox_id, verbose=True)
        return sandbox_from_status(await self._call("PodSandboxStatus", request, cri_pb2.PodSandboxStatusResponse))

    async def container(
        self, listed: ListedContainer, pod: Sandbox, *, with_environment: bool = False
    ) -> ContainerRecord:
        """Return a container; raise NOT_FOUND if the runtime does not have it."""
        status = await self._status(listed.id, verbose=True)
        return container_from_status(listed, status, pod, with_environment=with_environment)

    async def resources(self, container_id: str) -> Resources | None:
        """Return a container's present resources, if reported; raise NOT_FOUND if the runtime does not have it."""
        return reported_resources(await self._status(container_id))

    async def _status(self, container_id: str, *, verbose: bool = False) -> cri_pb2.ContainerStatusResponse:
        request = cri_pb2.ContainerStatusRequest(container_id=container_id, verbose=verbose)
        return await self._call("ContainerStatus", request, cri_pb2.ContainerStatusResponse)

    async def stop_container(self, container_id: str) -> None:
        """Kill a container; it stays listed as exited."""
        request = cri_pb2.StopContainerRequest(container_id=container_id)
        await self._call("StopContainer", request, cri_pb2.StopContainerResponse)

    async def _call(self, method: str, request: Message, kind: type[M]) -> M:
        """Call the service version that worked last, then the other; if both are unimplemented, raise the first."""
        try:
            return await self._call_service(self._service, method, request, kind)
        except GovernorError as error:
            if error.kind is not Kind.UNIMPLEMENTED:
                raise
            unimplemented = error
        other = next(each for each in SERVICES if each != self._service)
        try:
            response = await self._call_service(other, method, request, kind)
        except GovernorError as error:
            if error.kind is Kind.UNIMPLEMENTED:
                raise unimplemented from error
            raise
        self._service = other
        return response

    async def _call_service(self, service: str, method: str, request: Message, kind: type[M]) -> M:
        raw = await self._client.call(f"/{service}/{method}", request.SerializeToString(), timeout_s=_TIMEOUT_S)
        try:
            return kind.FromString(raw)
        except DecodeError as error:
            message = f"the runtime's response to {method} is not a {kind.DESCRIPTOR.name}"
            raise GovernorError(Kind.INTERNAL, "cri-message", message) from error
