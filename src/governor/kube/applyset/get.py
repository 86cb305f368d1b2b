"""Reading live objects: a missing object is distinguished from a kind that is not served."""

from typing import Final

from governor.errors import GovernorError, Kind
from governor.kube.client import Client
from governor.kube.errors import NO_API, ApiError
from governor.kube.objects import ApiResource, Object, ObjectRef

NOT_SERVED: Final = "kube-not-served"


async def get(client: Client, resource: ApiResource, ref: ObjectRef) -> Object | None:
    """Return the live object, or None if the API server reports NotFound.

    A 404 without that reason comes from a proxy or an unknown path and proves nothing: UNAVAILABLE.
    """
    try:
        return await client.get(resource, ref.name, ref.namespace)
    except ApiError as error:
        if error.kind is not Kind.NOT_FOUND and error.code != NO_API:
            raise
        if error.reason == "NotFound":
            return None
        client.discovery.invalidate()  # the kind may be gone
        message = (
            f"{error.message}: cannot tell whether {ref} exists; "
            "check that the address is an API server's and that the kind is served"
        )
        raise GovernorError(Kind.UNAVAILABLE, NOT_SERVED, message) from error


async def get_if_served(client: Client, resource: ApiResource, ref: ObjectRef) -> Object | None:
    """Return the live object, or None also if its kind is not served because its definition is yet to be applied."""
    try:
        return await get(client, resource, ref)
    except GovernorError as error:
        if error.code != NOT_SERVED:
            raise
        return None


def is_terminating(live: Object) -> bool:
    """Return whether the object has a deletion timestamp."""
    return bool(live["metadata"].get("deletionTimestamp"))


def describe_termination(live: Object) -> str:
    """Return what a terminating object waits for: its finalizers and, for a namespace, its conditions."""
    finalizers = [*live["metadata"].get("finalizers", ()), *_namespace_finalizers(live)]
    conditions = (live.get("status") or {}).get("conditions") or () if live["kind"] == "Namespace" else ()
    messages = [str(each.get("message", "")) for each in conditions if each.get("status") == "True"]
    cause = f"finalizer {', '.join(finalizers)}" if finalizers else "no finalizer, possibly a grace period"
    return "; ".join([f"still terminating: {cause}", *messages])


def _namespace_finalizers(live: Object) -> list[str]:
    return list((live.get("spec") or {}).get("finalizers") or ()) if live["kind"] == "Namespace" else []
