"""Whose an object is: the label on it that lets its owner's set, and no other, remove it.

An object that was there before is somebody else's and does not get the label, unless a manager that is to be taken over
has fields of it: then it is applied as a shared one.
"""

from governor.kube.applyset.managers import managers_of
from governor.kube.applyset.settings import Owner, Settings
from governor.kube.objects import Object


def owner_of(live: Object, settings: Settings) -> str:
    """Whose it is; empty if no set's."""
    return str((live["metadata"].get("labels") or {}).get(settings.owner_label, ""))


def becomes_ours(live: Object | None, owner: Owner, settings: Settings) -> bool:
    """Whether an object will belong to the set once it is applied: it does already, is new, or is taken over."""
    if live is None or owner_of(live, settings) == owner.id:
        return True
    return not owner_of(live, settings) and bool(managers_of(live) & settings.take_over)


def marked(manifest: Object, owner: Owner, settings: Settings) -> Object:
    """The manifest with the label."""
    metadata = manifest["metadata"]
    labels = {**(metadata.get("labels") or {}), settings.owner_label: owner.id}
    return {**manifest, "metadata": {**metadata, "labels": labels}}
