"""What charts ask of the cluster that they are installed in: its capabilities, and objects by ``lookup``."""

import msgspec

from governor.errors import GovernorError, Kind
from governor.kube.client import Client, Request
from governor.kube.objects import Object
from governor.reconciler.render.request import Capabilities, Lookup, LookupCall


class _Version(msgspec.Struct, frozen=True, rename="camel"):
    git_version: str = ""


async def capabilities_of(client: Client, version: str = "") -> Capabilities:
    """Return the version of a cluster, which is asked for unless it is known, and the kinds that it serves."""
    if not version:
        answer = await client.send(Request("GET", "/version"))
        version = msgspec.json.decode(answer, type=_Version).git_version
    served = await client.discovery.served_resources()
    kinds = {f"{each.api_version}/{each.kind}" for each in served}
    return Capabilities(version, tuple(sorted(kinds | {each.api_version for each in served})))


def lookup_in(client: Client) -> Lookup:
    """Return the function that answers lookups from a cluster."""

    async def look_up(call: LookupCall) -> Object | None:
        group, _, version = call.api_version.rpartition("/")
        resource = await client.discovery.find(group, call.kind, version)
        namespace = call.namespace if resource.namespaced else ""
        if not call.name:
            items = [each async for each in client.list(resource, namespace)]
            return {"apiVersion": call.api_version, "kind": f"{call.kind}List", "metadata": {}, "items": items}
        try:
            return await client.get(resource, call.name, namespace)
        except GovernorError as error:
            if error.kind is Kind.NOT_FOUND:
                return None
            raise

    return look_up
