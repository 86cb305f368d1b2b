"""Prepares a cluster for the reconciler: definitions, namespace and the Cluster ``local``.

Namespace and Cluster are only ever created: what users have changed in them since stays.
"""

from governor.errors import GovernorError, Kind
from governor.kube.applyset.live import get
from governor.kube.client import Client
from governor.kube.objects import ApiResource, Object, ref_of
from governor.process.clock import Clock
from governor.reconciler.core_kinds import NAMESPACES
from governor.reconciler.kinds.cluster import CLUSTER, LOCAL
from governor.reconciler.setup.definitions import MANAGER, DefinitionInstaller


async def install(client: Client, namespace: str, clock: Clock, *, create_namespace: bool) -> list[str]:
    """Prepare a cluster and return what was done, one line for each object."""
    lines = [f"namespace {namespace} {await _ensure_namespace(client, namespace, create=create_namespace)}"]
    definitions = await DefinitionInstaller(client, clock).install(always=True)
    lines += [f"definition {each}" for each in definitions]
    return [*lines, f"cluster {LOCAL} {await ensure_local_cluster(client, namespace)}"]


async def ensure_local_cluster(client: Client, namespace: str) -> str:
    """Create the Cluster for the cluster that the reconciler runs in, unless it exists; return what was done."""
    manifest = {
        "apiVersion": CLUSTER.resource.api_version,
        "kind": CLUSTER.kind,
        "metadata": {"name": LOCAL, "namespace": namespace},
        "spec": {"access": {"inCluster": {}}},
    }
    return await _create(client, CLUSTER.resource, manifest)


async def _ensure_namespace(client: Client, name: str, *, create: bool) -> str:
    if create:
        manifest = {"apiVersion": "v1", "kind": "Namespace", "metadata": {"name": name}}
        return await _create(client, NAMESPACES, manifest)
    try:
        await client.get(NAMESPACES, name, metadata_only=True)
    except GovernorError as error:
        if error.kind is not Kind.NOT_FOUND:
            raise
        message = f"there is no namespace {name}: create it, or use --create-namespace"
        raise GovernorError(Kind.PRECONDITION, "namespace-missing", message) from error
    return "exists"


async def _create(client: Client, resource: ApiResource, manifest: Object) -> str:
    if await get(client, resource, ref_of(manifest)):
        return "exists"
    try:
        await client.create(resource, manifest, manager=MANAGER)
    except GovernorError as error:
        if error.kind is not Kind.EXISTS:
            raise
        return "exists"
    return "created"
