"""Older definitions of a kind on a real API server, with objects that are stored under them."""

import copy
import functools

import governor
from governor.errors import GovernorError, Kind
from governor.kube.client import Client
from governor.kube.objects import ApiResource, Object
from governor.process.clock import SystemClock
from governor.reconciler.kinds.channel import CHANNEL
from governor.reconciler.kinds.definition import GROUP
from governor.reconciler.setup.definition_plan import VERSION_ANNOTATION
from governor.reconciler.setup.definitions import DefinitionInstaller, shipped_definition
from testbed.waiting import until
from tests.contract.kube.applyset.bed import DEFINITIONS as CRDS

OLD = ApiResource(GROUP, "v1alpha0", CHANNEL.kind, CHANNEL.plural, namespaced=True)


def installer(client: Client, release: str = governor.__version__) -> DefinitionInstaller:
    return DefinitionInstaller(client, SystemClock(), release)


async def remove(client: Client, name: str) -> None:
    try:
        await client.delete(CRDS, name)
    except GovernorError as error:
        if error.kind is not Kind.NOT_FOUND:
            raise

    async def gone() -> bool:
        return not [each async for each in client.list(CRDS, fields=f"metadata.name={name}")]

    await until(gone)


def old_definition(release: str = "0.1.0") -> Object:
    """Return the definition of Channels of an older release, which has the same schema under another version."""
    definition = copy.deepcopy(shipped_definition(CHANNEL))
    (version,) = definition["spec"]["versions"]
    version["name"] = OLD.version
    definition["metadata"]["annotations"] = {VERSION_ANNOTATION: release}
    return definition


async def install_old(client: Client, namespace: str, count: int, release: str = "0.1.0") -> None:
    """Install the older definition, and store some Channels under it."""
    await client.apply(CRDS, old_definition(release), manager="old")

    async def served() -> bool:
        found = await client.get(CRDS, CHANNEL.name)
        conditions = (found.get("status") or {}).get("conditions") or []
        return any(each["type"] == "Established" and each["status"] == "True" for each in conditions)

    await until(served)
    for number in range(count):
        metadata = {"name": f"c{number}", "namespace": namespace}
        spec = {"modules": {"a": "1.0.0"}}
        channel = {"apiVersion": OLD.api_version, "kind": OLD.kind, "metadata": metadata, "spec": spec}
        await until(functools.partial(create, client, channel))


async def create(client: Client, manifest: Object) -> bool:
    """Create an object; a new kind is served a moment after its definition is established."""
    try:
        await client.create(OLD, manifest, manager="user")
    except GovernorError as error:
        if error.kind is not Kind.UNAVAILABLE:
            raise
        return False
    return True


async def stored_versions(client: Client) -> list[str]:
    found = await client.get(CRDS, CHANNEL.name)
    versions: list[str] = found["status"]["storedVersions"]
    assert [each["name"] for each in found["spec"]["versions"]] == [CHANNEL.resource.version]
    return versions
