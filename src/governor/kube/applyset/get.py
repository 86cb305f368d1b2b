"""Looking at live objects: the object, or nothing if the server itself says that there is none."""

from typing import Final

from governor.errors import GovernorError, Kind
from governor.kube.client import Client
from governor.kube.errors import ApiError
from governor.kube.objects import ApiResource, Object, ObjectRef

NOT_SERVED: Final = "kube-not-served"


async def look(client: Client, resource: ApiResource, ref: ObjectRef) -> Object | None:
    """The object, or None. A 404 of a proxy or for an unknown path proves nothing: UNAVAILABLE."""
    try:
        return await client.get(resource, ref.name, ref.namespace)
    except ApiError as error:
        if error.kind is not Kind.NOT_FOUND:
            raise
        if error.reason == "NotFound":
            return None
        client.discovery.invalidate()  # perhaps the kind is gone
        message = (
            f"{error.message}: this says nothing about {ref}; is the address an API server's, and the kind served?"
        )
        raise GovernorError(Kind.UNAVAILABLE, NOT_SERVED, message) from error


async def look_if_served(client: Client, resource: ApiResource, ref: ObjectRef) -> Object | None:
    """The object, or None also if its kind is not served: for kinds whose definition is yet to be written."""
    try:
        return await look(client, resource, ref)
    except GovernorError as error:
        if error.code != NOT_SERVED:
            raise
        return None


def is_terminating(live: Object) -> bool:
    """Whether it is marked for removal."""
    return bool(live["metadata"].get("deletionTimestamp"))


def waits_for(live: Object) -> str:
    """What keeps an object that is marked for removal, for people."""
    finalizers = [*live["metadata"].get("finalizers", ()), *_namespace_finalizers(live)]
    conditions = (live.get("status") or {}).get("conditions") or () if live["kind"] == "Namespace" else ()
    texts = [str(each.get("message", "")) for each in conditions if each.get("status") == "True"]
    named = f"finalizer {', '.join(finalizers)}" if finalizers else "no finalizer, a grace period perhaps"
    return "; ".join([f"still terminating: {named}", *texts])


def _namespace_finalizers(live: Object) -> list[str]:
    return list((live.get("spec") or {}).get("finalizers") or ()) if live["kind"] == "Namespace" else []
