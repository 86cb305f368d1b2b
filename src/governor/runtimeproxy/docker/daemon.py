"""Client of dockerd for the proxy's own requests: listing and inspecting containers, and stopping one.

Paths have no API version, so that dockerd answers in its own.
"""

import asyncio
from typing import Any, Final
from urllib.parse import quote

import h11
import msgspec

from governor.errors import GovernorError, Kind
from governor.runtimeproxy.docker import configuration, responses
from governor.runtimeproxy.docker.configuration import Object
from governor.runtimeproxy.docker.names import KubernetesName, annotations, kubernetes_name
from governor.runtimeproxy.docker.routes import Operation
from governor.runtimeproxy.store.records import ContainerRecord, ListedContainer, ListedSandbox, Sandbox, new_container
from governor.wire.hooks.workload import PodIdentity, Resources

_TIMEOUT_S: Final = 10.0
_READ_BYTES: Final = 64 * 1024
_MAX_RESPONSE_BYTES: Final = 64 * 1024 * 1024


class _Listed(msgspec.Struct):
    """A container in dockerd's list."""

    Id: str
    Names: list[str] | None = None
    Labels: dict[str, str] | None = None

    @property
    def name(self) -> KubernetesName | None:
        """Return which of Kubernetes' containers it is, if it is one."""
        # Links of other containers are names too; they have two slashes.
        own = [each for each in self.Names or () if "/" not in each[1:]]
        return kubernetes_name(own[0] if own else "", self.Labels or {})


_LIST: Final = msgspec.json.Decoder(list[_Listed])


class Daemon:
    """dockerd at a socket."""

    def __init__(self, path: str) -> None:
        self._path = path

    def close(self) -> None:
        """Do nothing: no connection is kept."""

    async def identify(self, container: str) -> tuple[str, KubernetesName | None]:
        """Return the id of a container, and which of Kubernetes' it is; raise NOT_FOUND if there is none."""
        found = await self._inspect(container)
        return found.get("Id", str, ""), _name_of(found)

    async def sandboxes(self) -> list[ListedSandbox]:
        """List all sandboxes of pods."""
        return [ListedSandbox(each.Id, name.pod) for each, name in await self._listed() if name.is_sandbox]

    async def containers(self, container_id: str = "") -> list[ListedContainer]:
        """List all containers of pods, or those whose id has this prefix."""
        listed = await self._listed()
        sandboxes = {_key(name.pod): each.Id for each, name in reversed(listed) if name.is_sandbox}
        return [
            ListedContainer(
                each.Id,
                name.sandbox_id or sandboxes.get(_key(name.pod), ""),
                name.container,
                name.attempt,
                annotations(each.Labels or {}),
            )
            for each, name in listed
            if not name.is_sandbox and each.Id.startswith(container_id)
        ]

    async def _listed(self) -> list[tuple[_Listed, KubernetesName]]:
        """Return Kubernetes' containers, the newest first."""
        try:
            listed = _LIST.decode(await self._request("GET", "/containers/json?all=1"))
        except msgspec.DecodeError as error:
            raise GovernorError(
                Kind.INTERNAL, "docker-message", f"dockerd's list cannot be decoded: {error}"
            ) from error
        return [(each, name) for each in listed if (name := each.name) is not None]

    async def sandbox(self, sandbox_id: str) -> Sandbox:
        """Return a sandbox; raise NOT_FOUND if dockerd does not have it."""
        found = await self._inspect(sandbox_id)
        name = _name_of(found)
        if name is None or not name.is_sandbox:
            raise GovernorError(Kind.NOT_FOUND, "unknown-sandbox", f"container {sandbox_id!r} is not a pod's sandbox")
        config, host = found.inner("Config"), found.inner("HostConfig")
        return Sandbox(found.get("Id", str, ""), configuration.pod_of(name, config, host))

    async def container(
        self, listed: ListedContainer, pod: Sandbox, *, with_environment: bool = False
    ) -> ContainerRecord:
        """Return a container; raise NOT_FOUND if dockerd does not have it."""
        found = await self._inspect(listed.id)
        config, host, name = found.inner("Config"), found.inner("HostConfig"), _name_of(found)
        if name is None:
            raise GovernorError(Kind.NOT_FOUND, "unknown-container", f"container {listed.id!r} is not a pod's")
        described = msgspec.structs.replace(
            configuration.container_of(name, config, host, listed.id), resources=configuration.reported_resources(host)
        )
        environment = configuration.environment_of(config)
        return new_container(pod.id, described, environment, with_environment=with_environment)

    async def resources(self, container_id: str) -> Resources | None:
        """Return a container's present resources; raise NOT_FOUND if dockerd does not have it."""
        return configuration.reported_resources((await self._inspect(container_id)).inner("HostConfig"))

    async def stop_container(self, container_id: str) -> None:
        """Kill a container; it stays listed as exited, and dockerd does not restart it."""
        await self._request("POST", f"/containers/{quote(container_id, safe='')}/stop?t=0", Operation.STOP)

    async def _inspect(self, container: str) -> Object:
        return Object(await self._request("GET", f"/containers/{quote(container, safe='')}/json"))

    async def _request(self, method: str, target: str, operation: Operation = Operation.OTHER) -> bytes:
        """Return the body of a response; raise the kind of its error, or UNAVAILABLE if dockerd cannot be reached."""
        try:
            async with asyncio.timeout(_TIMEOUT_S):
                status, body = await self._exchange(method, target)
        except TimeoutError as error:
            raise self._unavailable(f"did not answer within {_TIMEOUT_S:.0f} s") from error
        except (OSError, EOFError, h11.RemoteProtocolError) as error:
            raise self._unavailable(f"cannot be reached: {error}") from error
        kind = responses.kind_of(operation, status)
        if kind is not None:
            raise GovernorError(kind, "dockerd", f"dockerd answered {status}: {_message(body)}")
        return body

    def _unavailable(self, reason: str) -> GovernorError:
        return GovernorError(Kind.UNAVAILABLE, "dockerd", f"the Docker daemon at {self._path} {reason}")

    async def _exchange(self, method: str, target: str) -> tuple[int, bytes]:
        reader, writer = await asyncio.open_unix_connection(self._path)
        try:
            connection = h11.Connection(h11.CLIENT, max_incomplete_event_size=_READ_BYTES)
            headers = [("Host", "docker"), ("Connection", "close"), ("Content-Length", "0")]
            for event in (h11.Request(method=method, target=target, headers=headers), h11.EndOfMessage()):
                writer.write(connection.send(event) or b"")
            return await _response(connection, reader)
        finally:
            writer.close()


async def _response(connection: h11.Connection, reader: asyncio.StreamReader) -> tuple[int, bytes]:
    status, body = 0, bytearray()
    while True:
        event: Any = connection.next_event()
        match event:
            case h11.NEED_DATA:
                connection.receive_data(await reader.read(_READ_BYTES))
            case h11.Response():
                status = event.status_code
            case h11.Data():
                body += event.data
                if len(body) > _MAX_RESPONSE_BYTES:
                    raise EOFError("its response is too long")
            case h11.EndOfMessage():
                return status, bytes(body)
            case h11.ConnectionClosed():
                raise EOFError("it closed the connection")
            case _:
                continue


def _message(body: bytes) -> str:
    try:
        return Object(body).get("message", str, "")
    except GovernorError:
        return body[:200].decode(errors="replace")


def _name_of(found: Object) -> KubernetesName | None:
    return kubernetes_name(found.get("Name", str, ""), configuration.labels_of(found.inner("Config")))


def _key(pod: PodIdentity) -> tuple[str, str, str]:
    return pod.namespace, pod.name, pod.uid
