"""Records of sandboxes and containers: most calls carry only an id, plugins need the rest.

A record holds what the runtime received, including plugins' changes. Pure: ``cache`` keeps the records.
"""

from collections.abc import Mapping
from typing import Final, Protocol

import msgspec

from governor.runtimeproxy.environment import Environment
from governor.runtimeproxy.hooks.requests import Request
from governor.wire.hooks.workload import NO_IDENTITY, Container, Pod, PodIdentity, Resources, overlaid

_MAX_NAMES: Final = 64
_MAX_NAMES_BYTES: Final = 2048
_ENCODER: Final = msgspec.msgpack.Encoder()
_DECODER: Final = msgspec.msgpack.Decoder(Container)


class Sandbox(msgspec.Struct, frozen=True):
    """A sandbox and its pod."""

    id: str
    pod: Pod


class ContainerRecord(msgspec.Struct, frozen=True):
    """What later hooks need of a container."""

    id: str
    sandbox_id: str
    name: str
    packed: bytes
    """The container, encoded: decoded ones take several times the memory."""
    variables: bytes = b""
    """Its encoded variables, if a plugin asks to remember them."""
    first_names: bytes = b""
    """The first names of its variables as lines, for ``explain``."""

    @property
    def variable_names(self) -> list[str]:
        """Return the first names of its variables, sorted."""
        return sorted(set(self.first_names.decode(errors="replace").splitlines()))

    @property
    def container(self) -> Container:
        """Return the container with its id."""
        return msgspec.structs.replace(_DECODER.decode(self.packed), id=self.id)


class ListedSandbox(msgspec.Struct, frozen=True):
    """A sandbox in the runtime's list."""

    id: str
    identity: PodIdentity = NO_IDENTITY


class ListedContainer(msgspec.Struct, frozen=True):
    """A container in the runtime's list."""

    id: str
    sandbox_id: str
    name: str = ""
    attempt: int = 0
    annotations: Mapping[str, str] = {}


class Records(Protocol):
    """Lookup of records by id."""

    def sandbox(self, sandbox_id: str) -> Sandbox | None:
        """Return the sandbox with this id, or None."""

    def container(self, container_id: str) -> ContainerRecord | None:
        """Return the container with this id, or None."""


def new_container(
    sandbox_id: str, container: Container, environment: Environment, *, with_environment: bool = False
) -> ContainerRecord:
    """Return the record of a container that is created; it may not have its id yet."""
    return ContainerRecord(
        id=container.id,
        sandbox_id=sandbox_id,
        name=container.name,
        packed=_ENCODER.encode(_kept(container)),
        variables=environment.encoded() if with_environment else b"",
        first_names=environment.first_names(_MAX_NAMES, _MAX_NAMES_BYTES),
    )


def _kept(container: Container) -> Container:
    """Return a container without what no later hook can change."""
    if not (container.mounts or container.devices):
        return container
    return msgspec.structs.replace(container, mounts={}, devices={})


def with_id(record: ContainerRecord, container_id: str) -> ContainerRecord:
    """Return the record of a container that the runtime has created."""
    return msgspec.structs.replace(record, id=container_id)


def updated_container(record: ContainerRecord, update: Request) -> ContainerRecord:
    """Return the record after an update, which changes only what it specifies."""
    container = record.container
    annotations = {**container.annotations, **update.annotations}
    resources = overlaid(container.resources, update.resources)
    return _packed(record, msgspec.structs.replace(container, annotations=annotations, resources=resources))


def with_resources(record: ContainerRecord, resources: Resources) -> ContainerRecord:
    """Return the record with the resources that the runtime reports."""
    container = record.container
    return _packed(record, msgspec.structs.replace(container, resources=overlaid(container.resources, resources)))


def _packed(record: ContainerRecord, container: Container) -> ContainerRecord:
    return msgspec.structs.replace(record, packed=_ENCODER.encode(container))


def updated_sandbox(sandbox: Sandbox, update: Request) -> Sandbox:
    """Return the record after an update, which changes only what it specifies."""
    pod = sandbox.pod
    resources, overhead = overlaid(pod.resources, update.resources), overlaid(pod.overhead, update.overhead)
    return Sandbox(sandbox.id, msgspec.structs.replace(pod, resources=resources, overhead=overhead))
