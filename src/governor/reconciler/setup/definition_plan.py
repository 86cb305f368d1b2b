"""How the live definition of a kind becomes the shipped one. Pure.

Nothing that is stored is lost: a version that etcd still has objects of stays in the definition until they are stored
in the new one, even if releases were skipped. A definition of a newer release is left as it is.
"""

import enum
import re
from typing import Any, Final

import msgspec

from governor.kube.objects import Object
from governor.reconciler.kinds.definition import GROUP
from governor.values.digest import digest

VERSION_ANNOTATION: Final = f"{GROUP}/version"
"""The release whose definition this is."""
DIGEST_ANNOTATION: Final = f"{GROUP}/digest"

_VERSION: Final = re.compile(r"(\d+)\.(\d+)\.(\d+)(?:\.dev(\d+))?")
_RELEASED: Final = 10**9
"""Stands for the number of a development version in a release, which is newer than all of them."""


class Action(enum.StrEnum):
    """What is done with a definition."""

    CREATE = "created"
    UPGRADE = "upgraded"
    NONE = "unchanged"
    LEAVE = "left as it is: a newer release has installed it"


class Plan(msgspec.Struct, frozen=True):
    """What turns the live definition into the shipped one."""

    action: Action
    definition: Object
    """The shipped definition, with its annotations."""
    interim: Object | None = None
    """The definition under which objects of old versions are stored anew; None if there are none."""
    storage: str = ""
    """The version in which objects are stored."""


def plan(live: Object | None, shipped: Object, release: str, *, always: bool = False) -> Plan:
    """Return what to do; with ``always`` also a definition that seems unchanged is applied, which repairs edits."""
    definition = _annotated(shipped, release)
    versions = definition["spec"]["versions"]
    storage = next(each["name"] for each in versions if each["storage"])
    if live is None:
        return Plan(Action.CREATE, definition, storage=storage)
    annotations = live["metadata"].get("annotations") or {}
    if _is_newer(annotations.get(VERSION_ANNOTATION, ""), release):
        return Plan(Action.LEAVE, definition, storage=storage)
    stale = _stale_versions(live, versions)
    same = annotations.get(DIGEST_ANNOTATION) == definition["metadata"]["annotations"][DIGEST_ANNOTATION]
    if same and not stale and not always:
        return Plan(Action.NONE, definition, storage=storage)
    interim = _with_versions(definition, [*versions, *stale]) if stale else None
    return Plan(Action.UPGRADE, definition, interim, storage)


def _annotated(shipped: Object, release: str) -> Object:
    annotations = {VERSION_ANNOTATION: release, DIGEST_ANNOTATION: digest(shipped["spec"])}
    return {**shipped, "metadata": {**shipped["metadata"], "annotations": annotations}}


def _stale_versions(live: Object, shipped: list[Any]) -> list[Object]:
    """Return the live versions that the shipped definition lacks and that stored objects may have."""
    names = {each["name"] for each in shipped}
    stored = (live.get("status") or {}).get("storedVersions") or ()
    found = [each for each in live["spec"]["versions"] if each["name"] in stored and each["name"] not in names]
    # Not served: what another client would write in it now would be missed.
    return [{**each, "storage": False, "served": False} for each in found]


def migrated_fields(metadata: Object, planned: Plan) -> list[Object] | None:
    """Return the managedFields of an object without dropped versions, or None if there is nothing to change.

    The API server rejects server-side apply to an object that a manager has written in a version that is gone.
    """
    group = planned.definition["spec"]["group"]
    known = {f"{group}/{each['name']}" for each in planned.definition["spec"]["versions"]}
    fields = metadata.get("managedFields") or []
    if all(each.get("apiVersion") in known for each in fields):
        return None
    newest = f"{group}/{planned.storage}"
    return [each if each.get("apiVersion") in known else {**each, "apiVersion": newest} for each in fields]


def _with_versions(definition: Object, versions: list[Any]) -> Object:
    return {**definition, "spec": {**definition["spec"], "versions": versions}}


def _is_newer(found: str, release: str) -> bool:
    """Return whether a release is newer than ours; one that cannot be read is."""
    if not found:
        return False
    theirs, ours = _parse(found), _parse(release)
    return theirs is None or ours is None or theirs > ours


def _parse(release: str) -> tuple[int, ...] | None:
    match = _VERSION.fullmatch(release)
    if match is None:
        return None
    major, minor, patch, development = match.groups()
    return int(major), int(minor), int(patch), _RELEASED if development is None else int(development)
