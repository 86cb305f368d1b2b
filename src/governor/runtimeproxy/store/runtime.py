"""What we ask the runtime ourselves, on a connection of our own: which sandboxes and containers it has."""

from typing import Final, TypeVar

from google.protobuf.message import DecodeError, Message

from governor.errors import GovernorError, Kind
from governor.runtimeproxy.cri import cri_pb2
from governor.runtimeproxy.grpc.unary import UnaryClient
from governor.runtimeproxy.hooks.calls import SERVICES
from governor.runtimeproxy.store.records import Container, Sandbox
from governor.runtimeproxy.store.verbose import container_from, sandbox_of

M = TypeVar("M", bound=Message)

_TIMEOUT_S: Final = 10.0


class Runtime:
    """The runtime at a socket, in whichever version of the service it has."""

    def __init__(self, path: str) -> None:
        self._client = UnaryClient(path, "the runtime")
        self._service = SERVICES[0]

    def close(self) -> None:
        """Let go of the connection."""
        self._client.close()

    async def sandboxes(self) -> list[cri_pb2.PodSandbox]:
        """All sandboxes, as they are listed."""
        listed = await self._ask("ListPodSandbox", cri_pb2.ListPodSandboxRequest(), cri_pb2.ListPodSandboxResponse)
        return list(listed.items)

    async def containers(self, container_id: str = "") -> list[cri_pb2.Container]:
        """All containers, or those whose id begins so, as they are listed."""
        request = cri_pb2.ListContainersRequest()
        if container_id:
            request.filter.id = container_id
        listed = await self._ask("ListContainers", request, cri_pb2.ListContainersResponse)
        return list(listed.containers)

    async def sandbox(self, sandbox_id: str) -> Sandbox:
        """One sandbox; NOT_FOUND if there is none."""
        request = cri_pb2.PodSandboxStatusRequest(pod_sandbox_id=sandbox_id, verbose=True)
        return sandbox_of(await self._ask("PodSandboxStatus", request, cri_pb2.PodSandboxStatusResponse))

    async def container(self, listed: cri_pb2.Container, pod: Sandbox) -> Container:
        """One container; NOT_FOUND if there is none."""
        request = cri_pb2.ContainerStatusRequest(container_id=listed.id, verbose=True)
        status = await self._ask("ContainerStatus", request, cri_pb2.ContainerStatusResponse)
        return container_from(listed, status, pod)

    async def _ask(self, method: str, request: Message, kind: type[M]) -> M:
        """Ask in the version that was right last, then in the other; of two refusals the first is told."""
        try:
            return await self._call(self._service, method, request, kind)
        except GovernorError as error:
            if error.kind is not Kind.UNIMPLEMENTED:
                raise
            refusal = error
        other = next(each for each in SERVICES if each != self._service)
        try:
            answer = await self._call(other, method, request, kind)
        except GovernorError as error:
            if error.kind is Kind.UNIMPLEMENTED:
                raise refusal from error
            raise
        self._service = other
        return answer

    async def _call(self, service: str, method: str, request: Message, kind: type[M]) -> M:
        raw = await self._client.call(f"/{service}/{method}", request.SerializeToString(), timeout_s=_TIMEOUT_S)
        try:
            return kind.FromString(raw)
        except DecodeError as error:
            message = f"the runtime's answer to {method} is no {kind.DESCRIPTOR.name}"
            raise GovernorError(Kind.INTERNAL, "cri-message", message) from error
