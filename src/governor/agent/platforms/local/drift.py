"""Drift of the agent's files: how they differ from the delivery that was written. Pure.

A value of a sensitive field is never part of a text.
"""

from collections.abc import Iterator, Mapping
from typing import Final

import msgspec

from governor.agent.platforms.local.files import ResourceFile, file_key, marked, resource_file
from governor.agent.platforms.local.plan import Observed, ObservedFile, foreign_definitions, is_returned
from governor.agent.platforms.local.storage import Journal
from governor.agent.verification.resources import loaded_digest
from governor.domain.bundles import Delivery
from governor.domain.dapr.kinds import in_scope, kind_of
from governor.domain.dapr.sensitive import sensitive_paths
from governor.domain.documents import ResourceRef
from governor.values.secret import Secret
from governor.values.treediff import Difference, Operation, diff
from governor.values.trees import Manifest, leaf_at, map_leaves

_MAX_FIELDS: Final = 5
_MAX_VALUE_CHARS: Final = 80
_TYPE: Final = ("spec", "type")
_DUPLICATE: Final = "defines it too, and this agent did not write that: remove it there, or from the profile"
_WAS_CHANGED: Final = "was changed by another program since the agent wrote it, and is as delivered again"


class DriftedFile(msgspec.Struct, frozen=True):
    """A file that differs from the delivery. ``changes_content`` if a sidecar would load other content.

    ``is_repairable`` if the agent may write or remove the file.
    """

    ref: ResourceRef
    text: str
    changes_content: bool
    manifests: tuple[Manifest, ...]
    """The delivered resource, and what the file has now."""
    is_repairable: bool = True

    def concerns(self, app_id: str) -> bool:
        """Return whether a sidecar loads it, as delivered or as it is now."""
        return any(in_scope(each, app_id) for each in self.manifests)


def find_drift(
    delivery: Delivery, namespace: str, files: Mapping[str, ObservedFile], journal: Journal
) -> dict[str, DriftedFile]:
    """Return, by key, the files of a delivery that are missing or have other content, those of others that define what
    it sets, and those that define what it removes."""
    delivered = [resource_file(each, namespace) for each in delivery.resources]
    changed = {
        each.key: _drifted(each, files.get(each.key))
        for each in delivered
        if each.key not in files or files[each.key].digest != each.digest
    }
    owned = journal.files
    foreign = {key: each for key, each in files.items() if key not in owned}
    for each in delivered if foreign else ():
        for name in foreign_definitions(each.ref, namespace, foreign, journal):
            found = (each.manifest, *files[name].manifests)
            changed[name] = DriftedFile(
                each.ref, _DUPLICATE, changes_content=True, manifests=found, is_repairable=False
            )
    for ref in (each for each in delivery.removals if each.namespace == namespace):
        keys = list(foreign_definitions(ref, namespace, files, journal))
        # A file that the agent may not remove is named first: an operator must act.
        key = min(keys, key=lambda each: is_returned(each, files, journal), default=None)
        if key is not None:
            changed[key] = _returned(ref, files[key], is_repairable=is_returned(key, files, journal))
    return changed


def find_past_drift(
    delivery: Delivery, namespace: str, files: Mapping[str, ObservedFile], journal: Journal
) -> dict[str, DriftedFile]:
    """Return, by key, the files of a delivery that others have written since, and that are as delivered again."""
    delivered = (resource_file(each, namespace) for each in delivery.resources)
    return {
        each.key: DriftedFile(each.ref, _WAS_CHANGED, changes_content=True, manifests=(each.manifest,))
        for each in delivered
        if each.key in files and files[each.key].stamp != journal.stamps.get(each.key, files[each.key].stamp)
    }


def was_disturbed(files: Mapping[str, ObservedFile], journal: Journal) -> bool:
    """Return whether another program has written or deleted a file since the agent wrote it."""
    return any(key not in files or files[key].stamp != stamp for key, stamp in journal.stamps.items())


def _returned(ref: ResourceRef, found: ObservedFile, *, is_repairable: bool) -> DriftedFile:
    text = "is back, although the delivery removes it"
    if not is_repairable:
        text = "defines it again, and this agent did not write that: remove it there, or add it to the profile"
    return DriftedFile(ref, text, changes_content=True, manifests=found.manifests, is_repairable=is_repairable)


def as_delivered(delivery: Delivery, observed: Observed) -> Observed:
    """Return the observed state with the agent's files as they were written, for a policy that does not repair them."""
    if not observed.journal.holds(delivery.digest):
        return observed
    delivered = (resource_file(each, observed.namespace) for each in delivery.resources)
    written = {each.key: ObservedFile(each.digest, (each.manifest,)) for each in delivered}
    returned = {key for key in map(file_key, delivery.removals) if is_returned(key, observed.files, observed.journal)}
    present = {key: file for key, file in observed.files.items() if key not in returned}
    return msgspec.structs.replace(observed, files={**present, **written})


def _drifted(delivered: ResourceFile, found: ObservedFile | None) -> DriftedFile:
    manifests = found.manifests if found else ()
    written = marked(delivered.manifest)
    is_same = len(manifests) == 1 and loaded_digest(manifests[0]) == loaded_digest(written)
    return DriftedFile(
        delivered.ref,
        _describe(written, found),
        changes_content=not is_same,
        manifests=(delivered.manifest, *manifests),
    )


def _describe(written: Manifest, found: ObservedFile | None) -> str:
    if found is None:
        return "is missing"
    if not found.manifests:
        return "is not readable as a resource"
    if len(found.manifests) > 1:
        return f"has {len(found.manifests)} resources instead of 1"
    fields = tuple(_fields(written, found.manifests[0]))
    if not fields:
        return "differs in its text, but in no field"
    more = f" and {len(fields) - _MAX_FIELDS} more fields" if len(fields) > _MAX_FIELDS else ""
    return f"differs: {', '.join(fields[:_MAX_FIELDS])}{more}"


def _fields(written: Manifest, found: Manifest) -> Iterator[str]:
    if not _has_same_rules(written, found):
        # Other fields may be sensitive in the other type, so no value is shown.
        yield from (f"{each.path} is {each.operation}" for each in diff(written, found))
        return
    for each in diff(_masked(written), _masked(found)):
        yield _changed_value(each) if each.operation is Operation.CHANGED else f"{each.path} is {each.operation}"


def _has_same_rules(one: Manifest, other: Manifest) -> bool:
    return kind_of(one) is kind_of(other) is not None and leaf_at(one, _TYPE) == leaf_at(other, _TYPE)


def _masked(manifest: Manifest) -> Manifest:
    sensitive = set(sensitive_paths(manifest))
    masked: Manifest = map_leaves(manifest, lambda path, leaf: Secret(str(leaf)) if path in sensitive else leaf)
    return masked


def _changed_value(each: Difference) -> str:
    values = [msgspec.json.encode(value).decode() for value in (each.new, each.old)]
    if isinstance(each.new, (dict, list)) or any(len(value) > _MAX_VALUE_CHARS for value in values):
        return f"{each.path} is changed"
    return f"{each.path} is {values[0]} instead of {values[1]}"
